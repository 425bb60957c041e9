"""Runs a program on an emulated device. An emulated `libcuda.so.1` replaces the driver.

    python -m gpuheap emulate --device rtx4090 --checks -- python script.py

A program may use only the driver's interface: cuda.core, Numba's memory, PyCUDA's memory, this
package. Libraries that use NVIDIA's runtime (CuPy, RMM, PyTorch) do not run, and neither do kernels
of other libraries. PyTorch runs with `gpuheap run --emulate` and `gpuheap dry-run`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuheap._errors import DriverError


def folder() -> Path:
    """Returns the folder of the emulated libraries that `gpuheap emulate` and `gpuheap dry-run`
    use."""
    return Path(__file__).parent / "emulated"


def library() -> Path:
    """Returns the path of the emulated `libcuda.so.1`. Its folder has to be first in
    `LD_LIBRARY_PATH`.

    Raises `gpuheap.DriverError` if this build of the package lacks the library.
    """
    path = folder() / "libcuda.so.1"
    if not path.exists():
        raise DriverError(
            f"the emulated driver is missing at {path}; install the wheel, which has it, or build it with "
            "`maturin build` in crates/gpuheap-python"
        )
    return path


def environment(
    device: str | None = None,
    schedule: str | None = None,
    checks: bool = False,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns an environment in which a program loads the emulated driver.

    `device` is a profile or a size (`"rtx4090"`, `"16GiB"`), or several, separated by commas.
    `schedule` chooses when queued work is done: `"immediate"`, `"on-demand"`, `"seeded:7"`,
    `"lag:1000"`. With `checks`, each misuse of memory prints a line to stderr.
    """
    made = dict(os.environ if base is None else base)
    paths = [str(library().parent)]
    if made.get("LD_LIBRARY_PATH"):
        paths.append(made["LD_LIBRARY_PATH"])
    made["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    if device is not None:
        made["GPUHEAP_EMULATED_DEVICE"] = device
    if schedule is not None:
        made["GPUHEAP_EMULATED_SCHEDULE"] = schedule
    if checks:
        made["GPUHEAP_EMULATED_CHECKS"] = "1"
    return made
