"""Compiles the native memory resource of RMM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from gpuheap import _gpuheap
from gpuheap._errors import BadInput

_SOURCE = Path(__file__).parent / "_rmm_native.pyx"


def build() -> Path:
    """Compiles the native resource against the installed RMM, and returns the compiled file.
    `resource` and `install` then use the compiled resource. If the file exists, does not compile.

    Needs a C++20 compiler (`CXX`, or `c++`), Cython, and the CUDA runtime's headers, from
    `CUDA_HOME` or the packages nvidia-cuda-runtime and nvidia-cuda-crt. Takes half a minute. The
    file is below `~/.cache/gpuheap`, or below `XDG_CACHE_HOME`. The folder's name has the versions
    of RMM and gpuheap.
    """
    made = _library()
    if made.exists():
        return made
    compile_against_rmm(_SOURCE, made)
    _loaded.cache_clear()
    return made


def compile_against_rmm(source: Path, made: Path) -> None:
    """Compiles a Cython module against the installed RMM."""
    from importlib.util import find_spec

    if find_spec("Cython") is None:
        raise BadInput("gpuheap.rmm.build() needs Cython; run pip install cython")
    with tempfile.TemporaryDirectory() as folder:
        translated, object = Path(folder, "native.cpp"), Path(folder, made.name)
        site = Path(_folder_of("rmm")).parent
        _run(
            [
                sys.executable,
                "-m",
                "cython",
                "--cplus",
                "-3",
                "--module-name",
                made.name.partition(".")[0],
                "-I",
                site,
                "-o",
                translated,
                source,
            ],
            "Cython",
        )
        library = Path(_folder_of("librmm"))
        includes = [
            library / "include",
            library / "include/rapids",
            Path(_folder_of("rapids_logger")) / "include",
            _cuda_headers(site),
            sysconfig.get_path("include"),
        ]
        compiler = os.environ.get("CXX", "c++")
        # RMM's classes are heap types, as CPython calls classes made at run time. A class that is
        # derived from one has to be a heap type too, and this macro makes Cython define it so.
        # Otherwise each destroyed object drops one reference too many to its class.
        types = "-DCYTHON_USE_TYPE_SPECS=1"
        flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w", f"-L{library / 'lib64'}", "-lrmm"]
        found = [f"-I{folder}" for folder in includes]
        _run([compiler, types, translated, "-o", object, *found, *flags], compiler)
        made.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Another process may build the same file. The rename makes the whole file appear at once.
        partial = made.with_suffix(f".{os.getpid()}")
        shutil.copyfile(object, partial)
        partial.replace(made)


def _run(command: list[Any], tool: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BadInput(
            f"the native resource of RMM needs a C++ compiler, and {tool} cannot be run ({error.strerror}); "
            "install one such as g++, or name it in CXX"
        ) from None
    if done.returncode != 0:
        raise BadInput(
            f"{tool} cannot compile the native resource for this RMM; RMM uses the resource that calls Python "
            f"instead. It printed:\n{(done.stdout + done.stderr)[-2000:]}"
        )


def _cuda_headers(site: Path) -> Path:
    """Returns the folder with the CUDA runtime's headers."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(home, "include") for home in homes if home]
    for folder in [*sorted(site.glob("nvidia/cu*/include"), reverse=True), *folders]:
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    raise BadInput(
        "the CUDA runtime's headers are missing; run pip install nvidia-cuda-runtime nvidia-cuda-crt, or set CUDA_HOME"
    )


def _folder_of(package: str) -> str:
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(f"{package} is missing, which has RMM's headers; install RMM by pip")
    return next(iter(spec.submodule_search_locations))


def _library() -> Path:
    """Returns the path of the native resource. The path names the versions of RMM, gpuheap and
    Python, and a hash of the source."""
    import rmm

    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    of_rmm = rmm.__version__  # pyright: ignore[reportAttributeAccessIssue]
    source = zlib.crc32(_SOURCE.read_bytes())
    versions = f"rmm-{of_rmm}-gpuheap-{_gpuheap.__version__}-{source:08x}"
    # The suffix names the release of Python, its variant and the machine.
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return Path(cache, "gpuheap", versions, f"gpuheap_rmm_native{suffix}")


def native() -> Any:
    """Loads RMM's native memory resource. Returns `None` if it was not built or does not work."""
    return _loaded(_library())


@cache
def _loaded(path: Path) -> Any:
    if not path.exists():
        return None
    for one in (path, path.parent):
        found = one.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            warnings.warn(
                f"the native resource of RMM is not used: others can write {one}; set XDG_CACHE_HOME to a folder of "
                "your own, and call gpuheap.rmm.build()",
                stacklevel=2,
            )
            return None
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    # Loads librmm, which the file needs.
    import rmm.mr  # noqa: F401

    name = "gpuheap_rmm_native"
    spec = spec_from_loader(name, ExtensionFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        warnings.warn(f"the native resource of RMM is not used: {error}", stacklevel=2)
        return None
    return module
