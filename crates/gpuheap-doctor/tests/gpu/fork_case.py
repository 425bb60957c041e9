"""The fork case on a real GPU: a parent takes 1 GiB, forks a child that only sleeps, and dies.

Run as root with the command's path: python3 fork_case.py target/release/gpuheap
Prints what status, doctor and free say, and fails unless the memory comes back.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time


def take_and_fork(pipe):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        cuda.cuInit(0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)),
    ):
        assert code == 0, f"CUDA error {code}"
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    os.write(pipe, str(child).encode())
    os._exit(0)


def gpuheap(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True)
    print(f"$ gpuheap {' '.join(arguments)}   (exit {done.returncode})")
    print(done.stdout + done.stderr, flush=True)
    return done


reader, writer = os.pipe()
parent = os.fork()
if parent == 0:
    take_and_fork(writer)
os.waitpid(parent, 0)
child = int(os.read(reader, 32))
print(f"parent {parent} has ended, child {child} sleeps")
with open(f"/proc/{child}/maps") as maps:
    print("device mappings of the child:", sum("/dev/nvidia" in line for line in maps))
print("namespace:", os.readlink("/proc/self/ns/pid"))
try:
    gpuheap("status")
    found = gpuheap("doctor", "-v")
    gpuheap("free")
    ended = gpuheap("free", "--yes")
    gpuheap("status")
    assert "P01" in found.stdout and str(child) in found.stdout, "P01 did not name the child"
    assert f"ended pid {child}" in ended.stdout and "came back" in ended.stdout, "nothing came back"
    print("the fork case is found, and its memory is back")
finally:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
