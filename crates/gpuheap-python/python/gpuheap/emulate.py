"""Runs a program on the emulated device: an emulated `libcuda.so.1` takes the driver's place.

    python -m gpuheap emulate --device rtx4090 --checks -- python script.py

What uses the driver's own interface runs: cuda.core, Numba's memory, PyCUDA's memory, this package. What
brings NVIDIA's runtime with it does not: PyTorch (which `gpuheap dry-run` runs), CuPy, RMM. Kernels of others
do not run either.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuheap._errors import DriverError


def folder() -> Path:
    """The folder of the emulated libraries, for `gpuheap emulate` and `gpuheap dry-run`."""
    return Path(__file__).parent / "emulated"


def library() -> Path:
    """The emulated `libcuda.so.1`. Its folder goes in front of `LD_LIBRARY_PATH`.

    Raises `gpuheap.DriverError` if this build of the package lacks it.
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
    """The environment in which a program finds the emulated driver.

    `device` is a profile or bytes (`"rtx4090"`, `"16GiB"`), several with commas between them. `schedule`
    says when queued work is done: `"immediate"`, `"on-demand"`, `"seeded:7"`, `"lag:1000"`. With `checks`
    each misuse of memory is a line on stderr.
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


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the program. Returns 2 for wrong use, 3 if the program cannot be run."""
    parser = argparse.ArgumentParser(
        prog="gpuheap emulate", description="Run a program on an emulated GPU, without a GPU."
    )
    parser.add_argument("--device", help="rtx4090, t4, h200, 16GiB, or several: t4,t4", metavar="NAME")
    parser.add_argument("--schedule", help="immediate, on-demand, seeded:N or lag:N", metavar="WHEN")
    parser.add_argument("--checks", action="store_true", help="write each misuse of memory to stderr")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program, after --", metavar="-- PROGRAM ...")
    given = parser.parse_args(arguments)
    program = given.program[1:] if given.program[:1] == ["--"] else given.program
    if not program:
        print("error: no program was given; end with it: gpuheap emulate -- python script.py", file=sys.stderr)
        return 2
    try:
        os.execvpe(program[0], program, environment(given.device, given.schedule, given.checks))
    except DriverError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {program[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return 3
