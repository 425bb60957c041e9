"""Tests that published heaps can be read by the command `gpuheap` and over the process's socket."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gpuheap

PROGRAM = """
import sys

import gpuheap

class Model: pass

heap = gpuheap.Heap("emulated:1GiB", track="lines", publish=PUBLISH)

def step():
    return heap.alloc(3 << 20)

Model.cache = step()
heap.alloc(5 << 20).free()
with heap.scope("load", limit="6 MiB", on_leak="ignore"):
    kept = heap.alloc(1 << 20)
    kept.free()
    print("ready", flush=True)
    sys.stdin.read()
"""

LIBRARIES = """
import sys
import types

import gpuheap
from gpuheap import _gpuheap

sys.modules["torch"] = torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 2,
    memory_allocated=lambda device: device * (5 << 20),
    memory_reserved=lambda device: device * (7 << 20),
)
# A build without its C++ functions.
_gpuheap._torch_functions = dict
heap = gpuheap.install(libraries="torch", device="emulated:1GiB", publish=PUBLISH).heap
freed = heap._allocate_address(1 << 20, library="cuda.core")
heap._allocate_address(3 << 20, library="Numba")
heap._free_address(freed)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path):
    """Starts the program with a value of `publish`."""
    started = []

    def start(publish, text=PROGRAM, **variables):
        path = tmp_path / "program.py"
        path.write_text(text.replace("PUBLISH", repr(publish)))
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), **variables}
        one = subprocess.Popen(
            [sys.executable, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        started.append(one)
        assert one.stdout.readline() == "ready\n"
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


def command(folder, *arguments):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-m", "gpuheap", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def ask(folder, question):
    [path] = Path(folder, "gpuheap").iterdir()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(json.dumps({"version": 1, "question": question}).encode() + b"\n")
        return json.loads(client.makefile().readline())


def test_status_shows_lines_of_python(tmp_path, program):
    started = program(True)
    shown = json.loads(command(tmp_path, "status", "--json").stdout)
    [found] = [one for one in shown["programs"] if one["pid"] == started.pid]
    [heap] = found["status"]["heaps"]
    assert (heap["live"], heap["device"]) == (3 << 20, "emulated:1GiB")
    assert found["status"]["program"].endswith("program.py")
    [site] = found["leaks"]["sites"]
    assert site["line"] == f"{tmp_path / 'program.py'}:11"
    assert (site["function"], site["bytes"], site["allocations"]) == ("step", 3 << 20, 1)
    text = command(tmp_path, "status").stdout
    assert "Programs that publish" in text and "program.py:11 in step" in text


def test_held_has_names(tmp_path, program):
    program(True)
    [held] = ask(tmp_path, "held")["held"]
    assert held["bytes"] == 3 << 20
    assert held["holders"] == ["__main__.Model.cache"]


def test_open_scopes_have_names(tmp_path, program):
    started = program(True)
    [scope] = ask(tmp_path, "scopes")["scopes"]
    assert (scope["name"], scope["live"], scope["limit"]) == ("load", 0, 6 << 20)
    shown = command(tmp_path, "status", "--pid", str(started.pid))
    assert "0  load, limit 6 MiB" in shown.stdout, shown
    assert "3 MiB  __main__.Model.cache, from program.py:11" in shown.stdout, shown


def test_libraries_have_bytes(tmp_path, program):
    started = program(True, LIBRARIES)
    found = ask(tmp_path, "libraries")["libraries"]
    reason = "this build of gpuheap lacks the entrance for PyTorch; install the wheel, which has it"
    assert [tuple(one.values()) for one in found] == [
        ("PyTorch", "cuda:1", 5 << 20, 2 << 20, True, None),
        ("Numba", "emulated:1GiB", 3 << 20, 0, False, None),
        ("PyTorch", "", 0, 0, False, reason),
    ]
    shown = " ".join(command(tmp_path, "status", "--pid", str(started.pid)).stdout.split())
    assert f"PyTorch takes no memory from the heap: {reason}" in shown
    assert "5 MiB PyTorch on cuda:1, in its own pool, with 2 MiB cached" in shown
    assert "3 MiB Numba on emulated:1GiB, in the heap" in shown


def test_recording_stays_in_working_folder(tmp_path, program):
    started = program("control")
    [recorded] = ask(tmp_path, "start_recording")["recordings"]
    assert recorded["path"] == str(tmp_path / f"gpuheap-{started.pid}.gph")
    assert ask(tmp_path, "stop_recording")["recordings"] == [recorded]


def test_flush_needs_control(tmp_path, program):
    started = program(True)
    assert ask(tmp_path, "flush")["refused"]["kind"] == "not_allowed"
    started.communicate()
    program("control")
    assert ask(tmp_path, "flush")["given_back"] > 0


def test_argument_overrides_variable(tmp_path, program):
    program(False, GPUHEAP_PUBLISH="1")
    assert not (tmp_path / "gpuheap").exists()


def test_unknown_value_is_refused():
    with pytest.raises(ValueError, match="pass True, False or"):
        gpuheap.Heap("emulated:1GiB", publish="all")
