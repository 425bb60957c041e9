#!/usr/bin/env python3
"""Measures the processor time of gpuheap top with 8 devices and 200 processes.

    benches/top/run.py GPUHEAP LIBNVML [SECONDS]

GPUHEAP is the command, LIBNVML the emulated NVML (libnvml_emulated.so). The 200 real processes
sleep. The screen runs in tmux, with 80 columns and 24 rows. Prints top's share of a core. The first
examination of the machine, with the rules of gpuheap doctor, is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEVICES, PROCESSES = 8, 200


def main(gpuheap: str, nvml: str, seconds: float = 60) -> None:
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(PROCESSES)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(gpuheap).resolve(), Path(nvml).resolve(), Path(folder), sleepers, seconds)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def measure(gpuheap: Path, nvml: Path, folder: Path, sleepers: list, seconds: float) -> None:
    (folder / "libnvidia-ml.so.1").symlink_to(nvml)
    devices = [
        {
            "profile": "h200",
            "processes": [
                {"pid": sleeper.pid, "bytes": 1 << 30} for sleeper in sleepers[index::DEVICES]
            ],
        }
        for index in range(DEVICES)
    ]
    (folder / "nvml.json").write_text(json.dumps({"devices": devices}))
    tmux = ["tmux", "-u", "-S", folder / "tmux", "-f", "/dev/null"]
    settings = f"LD_LIBRARY_PATH={folder} GPUHEAP_EMULATED_NVML={folder}/nvml.json XDG_RUNTIME_DIR={folder}"
    command = f"exec env {settings} {gpuheap} top"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", command], check=True)
    try:
        pane = [*tmux, "display-message", "-p", "#{pane_pid}"]
        pid = int(subprocess.run(pane, check=True, capture_output=True).stdout)
        wait_for(tmux, "found")
        before, begin = busy(pid), time.monotonic()
        time.sleep(seconds)
        taken, passed = busy(pid) - before, time.monotonic() - begin
        print(subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True).stdout)
        print(
            f"{DEVICES} devices, {PROCESSES} processes: {taken:.2f} s of processor in "
            f"{passed:.0f} s, {100 * taken / passed:.1f} % of a core"
        )
    finally:
        subprocess.run([*tmux, "kill-server"])


def wait_for(tmux: list, text: str) -> None:
    while True:
        shown = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True)
        if text in shown.stdout or "finding" in shown.stdout.splitlines()[0]:
            return
        time.sleep(0.5)


def busy(pid: int) -> float:
    """Returns the processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
