"""Calls the function of `gpuheap.dry_run`, in the child process of the dry run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
import typing
from types import ModuleType


def load(name: str, file: str | None) -> ModuleType:
    """Imports a module by its name, or else from its file."""
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if file is None or not name.startswith(error.name or ""):
                raise
    # A name other than `__main__` keeps the file from running as a program.
    spec = importlib.util.spec_from_file_location(
        "__mp_main__" if name == "__main__" else name, file
    )
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    with open(os.environ.pop("GPUHEAP_DRY_RUN_CALL"), "rb") as call:
        path, (module, file, name), values = pickle.load(call)
    sys.path[:] = path
    function: typing.Any = load(module, file)
    for part in name.split("."):
        function = getattr(function, part)
    arguments, keywords = pickle.loads(values)
    function(*arguments, **keywords)


if __name__ == "__main__":
    main()
