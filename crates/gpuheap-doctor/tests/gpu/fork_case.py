"""The fork case on a real GPU: a parent takes 1 GiB, forks a child that only sleeps, and dies.

Run as root with the command's path: python3 fork_case.py target/release/gpuheap
Prints the evidence that rule P01 reads, then the output of status, doctor and free. Fails unless
`free --yes` frees the memory. Records the machine in fork_case.machine in the current folder.
"""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time

KCMP = {"x86_64": 312, "aarch64": 272}


def threads(pid):
    """Returns the names of a process's threads. A context starts threads named cuda..."""
    names = []
    for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        with open(f"/proc/{pid}/task/{thread}/comm") as name:
            names.append(name.read().strip())
    return names


def devices(pid):
    """Returns the descriptors of a process that are open device files of a GPU."""
    found = {}
    for number in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found[int(number)] = target
    return found


def take_and_fork(pipe):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        cuda.cuInit(0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)),
    ):
        assert code == 0, f"CUDA error {code}"
    print("threads of the parent:", threads(os.getpid()), flush=True)
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    same = [
        number
        for number in devices(child)
        if ctypes.CDLL(None).syscall(
            KCMP.get(platform.machine(), -1), os.getpid(), child, 0, number, number
        )
        == 0
    ]
    print("descriptors that kcmp calls one open file with the child's:", same, flush=True)
    os.write(pipe, str(child).encode())
    os._exit(0)


def show(name, path):
    """Prints a file, or the reason why it cannot be read."""
    try:
        with open(path) as file:
            print(f"{name}: {file.read().strip()}")
    except OSError as error:
        print(f"{name}: {error}")


def evidence(parent, child):
    """Prints the facts about the machine, the ended parent and the child that rule P01 reads."""
    print(f"parent {parent} has ended, child {child} sleeps; this is {os.getpid()}")
    print(
        "namespace:",
        os.readlink("/proc/self/ns/pid"),
        "container file:",
        os.path.exists("/.dockerenv"),
    )
    show("kernel", "/proc/version")
    show("driver", "/proc/driver/nvidia/version")
    show("loadavg, last field the last pid", "/proc/loadavg")
    show("mounts of /proc", "/proc/self/mountinfo")
    print("the parent is in /proc:", os.path.exists(f"/proc/{parent}"))
    show("stat of the child: pid name state parent group session", f"/proc/{child}/stat")
    with open(f"/proc/{child}/status") as status:
        wanted = ("PPid", "NSpid", "NSpgid", "NSsid", "Threads", "Uid")
        print("status of the child:", [line.strip() for line in status if line.startswith(wanted)])
    print("threads of the child:", threads(child))
    print("device files of the child:", devices(child))
    with open(f"/proc/{child}/maps") as maps:
        mapped = [line.split()[-1] for line in maps if "/dev/nvidia" in line or "libcuda" in line]
    print("mappings of the child:", {name: mapped.count(name) for name in sorted(set(mapped))})
    unreadable = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            held = devices(pid)
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(pid)
            continue
        if held:
            print(f"holder {pid}: {sorted(set(held.values()))}")
    print("processes whose descriptors cannot be read:", unreadable, flush=True)
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]
    try:
        print(subprocess.run(query, capture_output=True, text=True).stdout, flush=True)
    except OSError as error:
        print("nvidia-smi:", error, flush=True)


def gpuheap(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True)
    print(f"$ gpuheap {' '.join(arguments)}   (exit {done.returncode})")
    print(done.stdout + done.stderr, flush=True)
    return done


def main():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        take_and_fork(writer)
    os.close(writer)
    os.waitpid(parent, 0)
    answer = os.read(reader, 32)
    if not answer:
        sys.exit("the parent ended without a child: is there a GPU?")
    child = int(answer)
    try:
        evidence(parent, child)
        gpuheap("status")
        gpuheap("doctor", "--record", "fork_case.machine")
        found = gpuheap("doctor", "-v")
        gpuheap("free")
        ended = gpuheap("free", "--yes")
        gpuheap("status")
        assert "P01" in found.stdout and str(child) in found.stdout, "P01 did not name the child"
        assert f"ended pid {child}" in ended.stdout, "the child was not ended"
        assert "came back" in ended.stdout and "nothing came" not in ended.stdout, (
            "nothing came back"
        )
        print("the fork case is found, and its memory is back")
    finally:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


main()
