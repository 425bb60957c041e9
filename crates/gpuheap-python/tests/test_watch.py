"""Draws the chart of `gpuheap.watch` in a notebook with a kernel, in a terminal and in a script."""

import os
import pty
import subprocess
import sys
import threading
import types
from xml.etree import ElementTree

import pytest

import gpuheap
from gpuheap import _watch

SETUP = """
import threading, time
import gpuheap
from gpuheap import _watch
_watch.PERIOD = 0.01
heap = gpuheap.Heap("emulated:1GiB")
gpuheap.set_default_heap(heap)
def drawn(chart, times):
    while len(chart._history.curves["gpuheap on emulated:1GiB"]) < times:
        time.sleep(0.01)
def names():
    return [thread.name for thread in threading.enumerate()]
"""


@pytest.fixture
def default(heap):
    before = gpuheap.set_default_heap(heap)
    yield heap
    gpuheap.set_default_heap(before)


@pytest.fixture
def run():
    """Returns a function that runs a notebook's cells, and returns the outputs of the last cell."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")

    def run(*cells):
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python"}},
        )
        nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
        nbformat.validate(made)
        return [cell.outputs for cell in made.cells]

    return run


def texts(image):
    return [one.text for one in ElementTree.fromstring(image).iter() if one.tag.endswith("text")]


def test_notebook_keeps_last_chart(run):
    cell = "chart = gpuheap.watch()\ndrawn(chart, 3)\nkept = heap.alloc(3 << 20)\nchart"
    _, outputs, after = run(cell, "print(names().count('gpuheap-watch'))")
    # The chart is redrawn in place, and the notebook adds no second output for the object.
    [output] = outputs
    assert output.output_type == "display_data"
    assert "gpuheap on emulated:1GiB: 3 MiB live" in output.data["text/plain"]
    assert any("3 MiB live" in text for text in texts(output.data["image/svg+xml"]))
    # The chart ended with its cell.
    assert after[0].text == "0\n"


def test_magic_ends_after_error(run):
    cell = "%%gpuwatch\nkept = heap.alloc(1000)\n1 / 0"
    try:
        run("%load_ext gpuheap", cell, "print(1)")
    except Exception as error:
        assert "ZeroDivisionError" in str(error)
    _, _, outputs, after = run(
        "%load_ext gpuheap", "%%gpuwatch\nkept = heap.alloc(1000)", "print(names())"
    )
    assert "1000 bytes live" in outputs[0].data["text/plain"]
    assert "gpuheap-watch" not in after[0].text


def test_script_prints_one_line():
    program = SETUP + "chart = gpuheap.watch()\ndrawn(chart, 3)\nkept = heap.alloc(1000)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("GPU memory after 0 s; gpuheap on emulated:1GiB: 1000 bytes live")
    assert done.stderr.count("\n") == 1


def test_terminal_has_one_line():
    program = SETUP + "with gpuheap.watch() as chart:\n    drawn(chart, 3)\n"
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60"}
    done = subprocess.run([sys.executable, "-c", program], stderr=follower, env=environment)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 0
    lines = shown.removesuffix("\r\n").removeprefix("\r").split("\r")
    assert len(lines) >= 3 and "\n" not in "".join(lines), shown
    assert all(len(line.removesuffix("\x1b[K")) < 60 for line in lines), shown


def cupy_of(devices):
    """A CuPy whose pool has n + 1 MiB on device n. A thread's first device is 0."""
    current = threading.local()

    def use(device):
        return types.SimpleNamespace(use=lambda: setattr(current, "device", device))

    return types.SimpleNamespace(
        get_default_memory_pool=lambda: types.SimpleNamespace(
            used_bytes=lambda: (getattr(current, "device", 0) + 1) << 20,
            free_bytes=lambda: 3 << 20,
        ),
        cuda=types.SimpleNamespace(
            runtime=types.SimpleNamespace(getDeviceCount=lambda: devices), Device=use
        ),
    )


def test_libraries_have_rows(default, monkeypatch):
    cuda = types.SimpleNamespace(
        memory_allocated=lambda device: 5 << 20, memory_reserved=lambda device: 7 << 20
    )
    monkeypatch.setattr(_watch, "torch_devices", lambda: [(1, cuda)])
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(3))
    monkeypatch.setattr(_watch, "_has_context", lambda device: device != 1)
    kept = default._allocate_address(2 << 20, library="Numba")
    with gpuheap.watch() as chart:
        pass
    default._free_address(kept)
    assert str(chart).splitlines()[1:] == [
        "  gpuheap on emulated:1GiB: 2 MiB live, 0 cached",
        "  Numba in the heap of emulated:1GiB: 2 MiB live, 0 cached",
        "  PyTorch on cuda:1: 5 MiB live, 2 MiB cached",
        "  CuPy on cuda:0: 1 MiB live, 3 MiB cached",
        "  CuPy on cuda:2: 3 MiB live, 3 MiB cached",
    ]


def test_failure_is_shown(default, monkeypatch):
    def lost():
        raise RuntimeError("the device <is> lost")

    kept = default.alloc(1000)
    with gpuheap.watch() as chart:
        monkeypatch.setattr(_watch, "torch_devices", lost)
    title, row = str(chart).splitlines()
    assert title.endswith("the figures of PyTorch cannot be read: the device <is> lost")
    assert row.startswith("  gpuheap on emulated:1GiB: 1000 bytes live")
    assert "cannot be read: the device <is> lost" in texts(chart._svg())[-3]
    kept.free()


def test_failed_library_gets_no_point():
    history = _watch._History()
    rows = [_watch.Row("gpuheap on cuda:0", 1, 0), _watch.Row("CuPy on cuda:0", 1, 0)]
    history.add(0, rows)
    history.add(1, rows[:1], ("CuPy",))
    assert {name: len(points) for name, points in history.curves.items()} == {
        "gpuheap on cuda:0": 2,
        "CuPy on cuda:0": 1,
    }


def test_context_of_device_is_found(driver_heap):
    assert _watch._has_context(driver_heap.device.ordinal)
    assert not _watch._has_context(99)


def test_long_history_stays_small():
    history = _watch._History()
    for second in range(100_000):
        rows = [_watch.Row("a", second, 0)]
        if second > 50_000:
            rows.append(_watch.Row("b", 1, 1))
        history.add(second, rows)
    points = history.curves["a"]
    assert _watch.POINTS / 3 < len(points) <= _watch.POINTS
    assert points[0] == (0, 0, 0) and points[-1] == (99_999, 99_999, 0)
    assert points == sorted(points)
