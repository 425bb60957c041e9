"""Compares the memory of programs under `gpuheap dry-run` with figures of a GPU.

    check.py GPUHEAP PYTHON [NAME...]

Prints a row for each program, and fails if a figure is further off than its mark. A NAME chooses
rows.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# Largest difference to the GPU, as a part of its figure: without and with a reason in the column
# `apart`.
MARKS = {
    "requested": (0.0, 0.03),
    "allocations": (0.0, 0.05),
    "allocated": (0.005, 0.03),
    "reserved": (0.005, 0.03),
    "in_use": (0.03, 0.03),
}
# Modules beside PyTorch, of a program or of its first argument.
NEEDS = {
    "lora.py": ("peft", "transformers"),
    "resnet": ("torchvision",),
    "unet.py": ("diffusers",),
    "vit.py": ("torchvision",),
}
# Difference of memory in use that is always allowed, bytes.
IN_USE = 100 << 20


def main():
    command, interpreter, *names = sys.argv[1:]
    rows = [
        row
        for row in recorded()
        if not names or set(names) & {row["program"], *row["arguments"].split()}
    ]
    if not rows:
        sys.exit(f"no program of figures.csv has one of the names {', '.join(names)}")
    print(f"{'program':42} {'seconds':>7}  " + " ".join(f"{key:>16}" for key in MARKS))
    failed = sum(not check(row, command, interpreter) for row in rows)
    if failed:
        sys.exit(f"{failed} of {len(rows)} programs are further off than the marks of check.py")
    check_reads(command, interpreter)


def check_reads(command, interpreter):
    """Ends with a message if a result is stale, or if the verdict lacks a read of a size."""
    verdict, output = run(
        {"program": "reads.py", "arguments": "", "settings": ""}, command, interpreter
    )
    operators = {read["operator"] for read in verdict["unknown"]["sizes"]}
    lines = [
        read["line"].partition(" in ")[0].rpartition("/")[2] for read in verdict["unknown"]["sizes"]
    ]
    as_expected = output.startswith("0.0 0\n3 [5, 7]\n[3] [0] [4]\n\ngpuheap dry-run: ")
    marked = verdict["outcome"] == "fits_as_far_as_known" and verdict["is_lower_bound"]
    on_thread = "a thread of PyTorch" in lines
    if not (as_expected and marked and on_thread and operators == {"nonzero"}):
        sys.exit(f"reads.py failed, with {verdict['unknown']}:\n{output}")
    print("reads.py: as expected")


def recorded():
    with open(HERE / "figures.csv", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def check(row, command, interpreter):
    """Runs one program, and prints its row. True if every figure is within its mark."""
    name = " ".join(filter(None, [row["program"], row["arguments"], row["settings"]]))
    for module in NEEDS.get(row["program"], NEEDS.get(row["arguments"].partition(" ")[0], ())):
        if not has_module(interpreter, module):
            print(f"{name:42} skipped: no {module}")
            return True
    verdict, output = run(row, command, interpreter)
    processes = verdict["cards"][0]["processes"]
    if verdict["cards"][0]["outcome"] != "fits" or not processes or not processes[0]["devices"]:
        print(f"{name:42} failed:\n{output}")
        return False
    figures = processes[0]["devices"][0]
    cells, good = [], True
    for key, marks in MARKS.items():
        if not row[key]:
            cells.append(f"{'-':>16}")
            continue
        expected, found = int(row[key]), figures[key] or 0
        most = expected * marks[bool(row["apart"])]
        if key == "in_use":
            most = max(most, IN_USE)
        within = abs(found - expected) <= most
        good &= within
        words = "equal" if found == expected else f"{found - expected:+}"
        cells.append(f"{words + ('' if within else ' !'):>16}")
    print(f"{name:42} {verdict['cards'][0]['seconds']:7.1f}  " + " ".join(cells), flush=True)
    return good


def run(row, command, interpreter):
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if row["settings"]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = row["settings"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        done = subprocess.run(
            [
                *(command, "dry-run", "--card", "H200 141GB", "--json", path, "--", interpreter),
                *(HERE / "programs" / row["program"], *row["arguments"].split()),
            ],
            capture_output=True,
            text=True,
            env=environment,
        )
        output = done.stdout + done.stderr
        if not path.exists() or not path.read_text():
            sys.exit(f"gpuheap dry-run wrote no verdict:\n{output}")
        return json.loads(path.read_text()), output


def has_module(interpreter, name):
    return (
        subprocess.run([interpreter, "-c", f"import {name}"], capture_output=True).returncode == 0
    )


if __name__ == "__main__":
    main()
