"""Examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import gpuheap

# Modules that need a library which need not be there, or end the program.
LEFT_OUT = ("__main__",)
MODULES = ["gpuheap"] + [
    f"gpuheap.{found.name}" for found in pkgutil.iter_modules(gpuheap.__path__) if found.name not in LEFT_OUT
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    try:
        module = importlib.import_module(name)
    except ImportError as missing:
        pytest.skip(str(missing))
    failed, _ = doctest.testmod(module)
    assert failed == 0
