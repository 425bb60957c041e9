"""Tests that the command reports the allocations of recorded heaps."""

import gc
import json
import os
import subprocess
import sys

import pytest

import gpuheap
from gpuheap import _record


@pytest.fixture
def default(heap):
    """A heap that is the default heap."""
    before = gpuheap.set_default_heap(heap)
    yield heap
    gpuheap.set_default_heap(before)


def report(path):
    command = [sys.executable, "-m", "gpuheap", "report", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]


def allocate(heap):
    return heap.alloc(1000)


def test_record_covers_block(default, tmp_path):
    outside = default.alloc(77)
    with gpuheap.record(tmp_path / "run.gph") as recording:
        kept = allocate(default)
        default.alloc(5000).free()
    after = default.alloc(88)
    assert recording.path == str(tmp_path / "run.gph")
    found = report(recording.path)
    assert (found["allocations"], found["frees"]) == (2, 1)
    assert (found["peak_live_bytes"], found["left_live_bytes"]) == (6000, 1000)
    line = allocate.__code__.co_firstlineno + 1
    (site,) = found["left_by_site"]
    assert site["name"] == f"test_record.py:{line} in allocate"
    for buffer in (outside, kept, after):
        buffer.free()


def test_record_keeps_existing_file(default, tmp_path):
    for name in ("run.gph", "run.2.gph"):
        with default.record(tmp_path / "run.gph") as recording:
            default.alloc(1000).free()
        assert os.path.basename(recording.path) == name


def test_record_ends_after_error(default, tmp_path):
    with pytest.raises(KeyError), gpuheap.record(tmp_path / "run.gph") as recording:
        default.alloc(1000).free()
        raise KeyError
    assert report(recording.path)["peak_live_bytes"] == 1000


def test_second_recording_is_refused(default, tmp_path):
    with gpuheap.record(tmp_path / "run.gph"):
        with pytest.raises(gpuheap.BadInput, match="recorded already"):
            gpuheap.record(tmp_path / "other.gph")
        default.alloc(1000).free()


def test_recording_goes_on_without_reference(default, tmp_path):
    path = tmp_path / "run.gph"
    gpuheap.record(path)
    gc.collect()
    default.alloc(1000).free()
    with pytest.raises(gpuheap.BadInput, match="recorded already"):
        default.record(path)
    for recording in list(_record._running):
        recording.stop()
    assert not _record._running
    assert report(path)["peak_live_bytes"] == 1000


def test_stop_warns_of_early_end(default, tmp_path):
    recording = gpuheap.record(tmp_path / "run.gph")
    # Recording then fails, because the recorder opens the file again each time that the file grows.
    os.remove(recording.path)
    for _ in range(50_000):
        default.alloc(1000).free()
    with pytest.warns(RuntimeWarning, match="stopped early: No such file"):
        recording.stop()
    recording.stop()


def test_unusable_file_is_refused(default, tmp_path):
    with pytest.raises(gpuheap.Error, match="cannot record to"):
        gpuheap.record(tmp_path / "missing" / "run.gph")


PROGRAM = """
import gpuheap

heap = gpuheap.Heap("emulated:1GiB")

def step():
    return heap.alloc(3000)

kept = step()
heap.alloc(500).free()
print(heap.status())
"""


def test_variable_records_program(tmp_path):
    path = str(tmp_path / "run.gph")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "GPUHEAP_RECORD": path}
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert f"Recording: {path}" in done.stdout
    found = report(path)
    assert found["peak_live_bytes"] == 3500
    assert found["moment"]["by_site"][0]["bytes"] == 3000
    assert found["moment"]["by_site"][0]["name"] == "program.py:7 in step"
