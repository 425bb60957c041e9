"""The magics, run in IPython's own shell."""

import sys

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import gpuheap


@pytest.fixture
def shell(heap):
    """A shell in which `heap` is the heap, and also the default heap."""
    before, modules = gpuheap.set_default_heap(heap), sys.modules.get("__main__")
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.run_line_magic("load_ext", "gpuheap")
    shell.user_ns["heap"] = heap
    yield shell
    gpuheap.flush(tracebacks=True)
    shell.reset()
    InteractiveShell.clear_instance()
    gpuheap.set_default_heap(before)
    sys.modules["__main__"] = modules


def run(shell, cell):
    with capture_output() as captured:
        shell.run_cell(cell, store_history=True)
    return captured.stdout


FAILS = """
def step():
    weights = heap.alloc(1000)
    raise KeyError("weights")
step()
"""


def test_gpumem_prints_peak_and_lines(shell, heap):
    shown = run(shell, "%%gpumem\nkept = heap.alloc(1000)\nheap.alloc(5000).free()\n")
    assert "GPU memory: peak 5.86 KiB, kept 1000 bytes" in shown
    assert "1000 bytes in 1 allocation" in shown
    run(shell, "del kept")


def test_gpurecord_prints_command(shell, tmp_path):
    path = tmp_path / "a cell.gph"
    shown = run(shell, f"%%gpurecord '{path}'\nkept = heap.alloc(1000)\n")
    assert f"GPU memory: gpuheap report '{path}'" in shown
    assert path.stat().st_size > 0
    run(shell, "del kept")


def test_gpumem_prints_after_error(shell):
    shown = run(shell, "%%gpumem\n" + FAILS)
    assert "KeyError" in shown and "kept 1000 bytes" in shown


def test_error_keeps_memory_until_flush(shell, heap):
    run(shell, FAILS)
    assert heap.stats()["live"] == 1000
    (held,) = heap.held()
    assert any("local weights of step()" in holder.name for holder in held.holders)
    shown = run(shell, "%gpuflush")
    assert heap.stats()["live"] == 0
    assert (
        "released 1000 bytes: sys.last_" in shown
        or "released 1000 bytes: IPython's traceback" in shown
    )


def test_option_releases_outputs(shell, heap):
    run(shell, "heap.alloc(1000)")
    names = [holder.name for holder in heap.held()[0].holders if holder.kind == "output"]
    assert "Out[1]" in names
    run(shell, "%gpuflush")
    assert heap.stats()["live"] == 1000
    shown = run(shell, "%gpuflush -o")
    assert heap.stats()["live"] == 0
    assert "released 1000 bytes: IPython's outputs" in shown


def test_option_releases_last_output(shell, heap):
    run(shell, "heap.alloc(1000)")
    shown = run(shell, "%gpuflush -o")
    assert "released 1000 bytes: IPython's outputs" in shown
    assert heap.stats()["live"] == 0


def test_flush_keeps_variables(shell, heap):
    run(shell, "weights = heap.alloc(1000)")
    run(shell, "%gpuflush -o")
    assert heap.stats()["live"] == 1000
    assert shell.user_ns["weights"].nbytes == 1000
