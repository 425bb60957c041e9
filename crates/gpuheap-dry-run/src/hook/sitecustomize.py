"""Starts the hook of `gpuheap dry-run`, then the `sitecustomize` of the program."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_path for _path in sys.path if os.path.abspath(_path or ".") != _here]

# A function of CUDA that no stand-in has is an error when it is called, and not when PyTorch is
# loaded: the interpreter binds all functions at once.
sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)


def _start():
    import importlib.util

    path = os.path.join(_here, "gpuheap_dry_run_hook.py")
    spec = importlib.util.spec_from_file_location("gpuheap_dry_run_hook", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


try:
    if os.environ.get("GPUHEAP_EMULATED_REPORT"):
        _start()
except Exception:
    pass

# The program's module takes the place of this one, if there is such a module.
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
