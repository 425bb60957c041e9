"""Compares the memory of programs under `gpuheap dry-run` with figures of a GPU.

    check.py GPUHEAP PYTHON WORK [--save FILE] [NAME...]

WORK has the third-party programs with their data (rows.py). Prints a row for each program. Fails if
a figure differs too much from the GPU's figure (MARKS), or if a program got no verdict. Runs only
rows that match a NAME. A row without figures of a GPU needs only a verdict. `--save` writes the
figures of the dry run to FILE.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import rows

# Maximum relative errors of a dry run's figures against the GPU's figures in figures.csv. The first
# is for most rows, and the second is for rows with a reason in the column `apart`. The second limit
# is highest for allocations: cuDNN's fastest plans need a workspace of a few hundred bytes or none,
# and each workspace is an allocation. timm's resnet50 made 5,369 to 5,432 allocations in ten runs
# on the H200, and 5,047 in a dry run.
MARKS = {
    "requested": (0.0, 0.03),
    "allocations": (0.0, 0.25),
    "allocated": (0.005, 0.03),
    "reserved": (0.005, 0.03),
    "in_use": (0.03, 0.03),
}
# Maximum relative errors for programs with sizes that depend on computed results. A figure may
# exceed the GPU's figure by MOST_OF_RESULTS. It may be lower by its entry in BELOW_OF_RESULTS, or
# else by BELOW: requested memory may be a few bytes too low, and the order of addresses may lower
# reserved memory.
MOST_OF_RESULTS = 0.10
BELOW_OF_RESULTS = {"requested": 0.0001}
BELOW = 0.015
# Modules that a program needs besides PyTorch. A key is the program's source, name or first
# argument.
NEEDS = {
    "detect.py": ("torchvision",),
    "experts.py": ("transformers",),
    "generate.py": ("transformers",),
    "llama_lora.py": ("peft", "transformers"),
    "lora.py": ("peft", "transformers"),
    "resnet": ("torchvision",),
    "segment.py": ("torchvision",),
    "unet.py": ("diffusers",),
    "vit.py": ("torchvision",),
    "Lightning-AI/pytorch-lightning": ("lightning", "torchmetrics", "torchvision"),
    "huggingface/diffusers": ("datasets", "diffusers", "tensorboard"),
    "huggingface/pytorch-image-models": ("torchvision",),
    "pyg-team/pytorch_geometric": ("scipy", "torch_geometric"),
    "pytorch/examples": ("six", "torchvision"),
    "vwxyzjn/cleanrl": ("gymnasium", "tensorboard", "tyro"),
}
# Error of `in_use` that always passes, bytes.
IN_USE = 100 << 20
# Time limit of a program, seconds. The longest program takes 40 s on a machine with two cores.
LIMIT = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command")
    parser.add_argument("interpreter")
    parser.add_argument("work", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    chosen = rows.choose(options.names)
    if not chosen:
        sys.exit(f"no program of figures.csv has one of the names {', '.join(options.names)}")
    print(f"{'program':42} {'seconds':>7}  " + " ".join(f"{key:>16}" for key in MARKS))
    failed = sum(not check(row, options) for row in chosen)
    if failed:
        sys.exit(f"{failed} of {len(chosen)} programs are further off than the marks of check.py")
    check_reads(options)
    check_remedies(options)


def check_reads(options):
    """Runs reads.py. Exits with a message if the program reads a stale result, or if the verdict
    does not list a size that the program read."""
    row = dict.fromkeys(rows.COLUMNS, "") | {"program": "reads.py"}
    verdict, output = run(row, options)
    if verdict is None:
        sys.exit(f"reads.py: {output}")
    operators = {read["operator"] for read in verdict["unknown"]["sizes"]}
    lines = [
        read["line"].partition(" in ")[0].rpartition("/")[2] for read in verdict["unknown"]["sizes"]
    ]
    as_expected = output.startswith("1.0 8\n3 [5, 7]\n[3] [0] [4]\n\ngpuheap dry-run: ")
    marked = verdict["outcome"] == "fits_as_far_as_known" and not verdict["is_lower_bound"]
    on_thread = "a thread of PyTorch" in lines
    if not (as_expected and marked and on_thread and operators == {"nonzero"}):
        sys.exit(f"reads.py failed, with {verdict['unknown']}:\n{output}")
    print("reads.py: as expected")


def check_remedies(options):
    """Runs shards.py. Exits with a message if a run with a remedy (a change that saves memory)
    fails. Also exits if the FSDP remedy reports other amounts of memory than real ranks take."""
    row = dict.fromkeys(rows.COLUMNS, "") | {"program": "shards.py"}
    group = {
        "program": "-m torch.distributed.run",
        "arguments": "--nproc-per-node 2 --master-port 29513 shards.py fsdp",
        "devices": "2",
    }
    verdict, output = run(row, options, "--remedies")
    of_group, output_of_group = run(row | group, options)
    if verdict is None or of_group is None:
        sys.exit(f"shards.py: {output}{output_of_group}")
    trials = {trial["remedy"]: trial for trial in verdict["trials"]}
    failed = [name for name, trial in trials.items() if trial["error"] or trial["is_estimate"]]
    used = [process["devices"] for process in of_group["cards"][0]["processes"]]
    ranks = {(each[0]["allocated"], each[0]["reserved"]) for each in used if each}
    found = tuple(trials.get("fsdp_2", {}).get(key) for key in ("allocated", "reserved"))
    if failed or "offload_activations" not in trials or ranks != {found}:
        sys.exit(
            f"shards.py: failed remedies {failed}; FSDP takes {found}, and ranks {ranks}\n{output}"
        )
    print("shards.py: as expected")


def check(row, options):
    """Runs one program and prints its row. Returns whether all figures are within their limits."""
    name = rows.name_of(row)
    lacking = lacks(row, options)
    if lacking:
        print(f"{name:42} skipped: no {lacking}")
        return True
    verdict, output = run(row, options)
    card = verdict["cards"][0] if verdict else {"outcome": "none", "processes": [], "ended": None}
    found = [process["devices"] for process in card["processes"] if process["devices"]]
    is_ended = card["ended"] == "time_limit"
    if card["outcome"] not in ("fits", "fits_as_far_as_known") or not found or is_ended:
        reason = f"no end within {LIMIT} s" if is_ended else card["outcome"]
        print(f"{name:42} failed: {reason}\n{output}", flush=True)
        return False
    devices = {figures["device"] for each in found for figures in each}
    if len(devices) != int(row["devices"] or 1):
        print(f"{name:42} failed: figures of the devices {sorted(devices)} alone\n{output}")
        return False
    firsts = [each[0] for each in found]
    figures = max(firsts, key=lambda first: first["requested"] or 0)
    if row["devices"]:
        # figures.csv has the memory in use of the most used device.
        figures = figures | {"in_use": max(first["in_use"] or 0 for first in firsts)}
    cells, good = [], True
    for key in MARKS:
        if not row[key]:
            cells.append(f"{figures[key] if figures[key] is not None else '-':>16}")
            continue
        expected, value = int(row[key]), figures[key] or 0
        within = is_within(row, key, expected, value)
        good &= within
        words = "equal" if value == expected else f"{value - expected:+}"
        cells.append(f"{words + ('' if within else ' !'):>16}")
    print(f"{name:42} {card['seconds']:7.1f}  " + " ".join(cells), flush=True)
    if options.save:
        save(row, figures, card, options.save)
    return good


def is_within(row, key, expected, found):
    """Returns whether the figure `key` of a dry run is within the limits (see MARKS)."""
    if row["apart"] == "results" and key != "allocations":
        below = BELOW_OF_RESULTS.get(key, BELOW)
        return expected * (1 - below) <= found <= expected * (1 + MOST_OF_RESULTS)
    most = expected * MARKS[key][bool(row["apart"])]
    if key == "in_use":
        most = max(most, IN_USE)
    return abs(found - expected) <= most


def save(row, figures, card, path):
    """Replaces a program's row in the file `path`, or appends the row."""
    columns = (*rows.KEY, *MARKS, "seconds")
    known = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    new = {key: row[key] for key in rows.KEY} | {key: figures[key] for key in MARKS}
    new["seconds"] = f"{card['seconds']:.1f}"
    kept = [each for each in known if any(each[key] != row[key] for key in rows.KEY)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, new])


def lacks(row, options):
    """Returns the first missing module or source of a program; None if nothing is missing."""
    if row["source"] and not rows.folder_of(row, options.work).exists():
        return f"{row['source']} in the folder that GPUHEAP_DRY_RUN_SOURCES names"
    key = next(
        key
        for key in (row["source"], row["program"], row["arguments"].partition(" ")[0], None)
        if key in NEEDS or key is None
    )
    return next(
        (module for module in NEEDS.get(key, ()) if not has_module(options.interpreter, module)),
        None,
    )


def run(row, options, *more):
    """Runs a program. Returns its verdict (None if there is no verdict) and its output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        limits = [(f"--{name}", row[name]) for name in ("steps", "devices") if row[name]]
        done = subprocess.run(
            [
                *(options.command, "dry-run", "--card", "H200 141GB", "--json", path),
                *itertools.chain(*limits),
                *more,
                *("--time-limit", f"{LIMIT}s"),
                *("--", *rows.command(row, options.work, options.interpreter)),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            env=rows.environment(row, options.work),
            cwd=rows.directory(row, options.work) or folder,
        )
        if not path.exists() or not path.read_text():
            return None, f"no verdict\n{done.stdout}{done.stderr}"
        return json.loads(path.read_text()), done.stdout + done.stderr


def has_module(interpreter, name):
    return (
        subprocess.run([interpreter, "-c", f"import {name}"], capture_output=True).returncode == 0
    )


if __name__ == "__main__":
    main()
