"""Starts the hooks of `gpuheap dry-run` and `gpuheap run`, then the program's `sitecustomize`."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_path for _path in sys.path if os.path.abspath(_path or ".") != _here]


def _start(name):
    import importlib.util

    # If `gpuheap dry-run` starts `gpuheap run`, each command puts a copy of this file on the path.
    # The second copy must not start the hook again.
    if name in sys.modules:
        return
    folder = os.path.join(_here, name)
    is_package = os.path.isdir(folder)
    spec = importlib.util.spec_from_file_location(
        name,
        os.path.join(folder, "__init__.py") if is_package else folder + ".py",
        submodule_search_locations=[folder] if is_package else None,
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _start_hook(name):
    try:
        _start("gpuheap_import_waiter")
        _start(name)
    except Exception:
        pass


if os.environ.get("GPUHEAP_RUN_FRAMEWORKS"):
    _start_hook("gpuheap_frameworks_hook")
if os.environ.get("GPUHEAP_EMULATED_RUNTIME"):
    _start_hook("gpuheap_stand_ins")
if os.environ.get("GPUHEAP_EMULATED_REPORT"):
    _start_hook("gpuheap_dry_run_hook")

# If the program has its own `sitecustomize`, loads the program's module in place of this module.
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
