"""Starts the hook of `gpuheap dry-run`, then the `sitecustomize` of the program."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_path for _path in sys.path if os.path.abspath(_path or ".") != _here]

# Makes the loader bind functions at their first call; by default, the interpreter binds all at
# load. So a CUDA function that no stand-in has fails when it is called, and not when PyTorch is
# loaded.
sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)


def _start():
    import importlib.util

    folder = os.path.join(_here, "gpuheap_dry_run_hook")
    spec = importlib.util.spec_from_file_location(
        "gpuheap_dry_run_hook",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


try:
    if os.environ.get("GPUHEAP_EMULATED_REPORT"):
        _start()
except Exception:
    pass

# Loads the program's own `sitecustomize` in place of this module, if it exists.
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
