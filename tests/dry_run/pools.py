"""Records a PyTorch program with `gpuheap run --frameworks` on an emulated GPU.

Fails unless the report equals PyTorch's counters. Usage: `pools.py GPUHEAP PYTHON`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Allocates in two threads and in the backward pass.
PROGRAM = """
import json, os, threading, torch
kept = []
def keep(size):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
keep(3 << 20)
keep(1000)
thread = threading.Thread(target=keep, args=(30 << 20,))
thread.start()
thread.join()
layer = torch.nn.Linear(512, 512).cuda()
layer(torch.zeros(64, 512, device="cuda")).sum().backward()
stats = torch.cuda.memory_stats()
print(json.dumps({
    "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
    "peak": torch.cuda.max_memory_allocated(), "blocks": stats["allocation.all.current"],
    "segments": stats["segment.all.current"]}), flush=True)
os._exit(0)
"""


def main(gpuheap, python):
    with tempfile.TemporaryDirectory() as folder:
        for settings in ("", "expandable_segments:True"):
            check(gpuheap, python, Path(folder), settings)


def check(gpuheap, python, folder, settings):
    for old in folder.glob("*.gph"):
        old.unlink()
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [gpuheap, "run", "--frameworks", "--emulate", "h200", "--output", "run.gph"]
    command += ["--on-exit", "none", "--", "env", f"PYTORCH_CUDA_ALLOC_CONF={settings}"]
    command += [python, program]
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    counted = json.loads(ran.stdout)
    (capture,) = folder.glob("run.*.gph")
    command = [gpuheap, "report", "--at", "end", "--json", capture]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)[0]
    pools = report["pools"]
    (pytorch,) = pools["by_framework"]
    assert (pytorch["name"], pytorch["bytes"]) == ("PyTorch", counted["allocated"]), (
        pools,
        counted,
    )
    assert pytorch["blocks"] == counted["blocks"], (pytorch, counted)
    assert pools["used_bytes"] == counted["allocated"], (pools, counted)
    assert pools["segment_bytes"] == counted["reserved"], (pools, counted)
    if not settings:
        assert pools["segments"] == counted["segments"], (pools, counted)
        # Workspaces of libraries belong to no framework.
        peak = report["peak_live_bytes"] - pools["no_framework_bytes"]
        assert peak == counted["peak"], (report, counted)
    sites = {row["name"]: row["bytes"] for row in report["moment"]["by_site"]}
    assert sites["program.py:5 in keep"] == (33 << 20) + 1024, sites
    print(f"recorded {pytorch['bytes']} bytes in {pytorch['blocks']} tensors", settings)


main(sys.argv[1], sys.argv[2])
