"""Runs one training step of each model of sweep.csv by `gpuheap dry-run`: no crash, and no hang.

    sweep.py GPUHEAP PYTHON WORK [--save FILE] [NAME...]

A model passes if it gets a verdict with figures of a device. Prints a row for each, and fails if
one does not pass. With `--save`, writes the rows as a Markdown table. A NAME chooses models by a
part of their name or by their library.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rows

# Seconds for a model. The slowest takes 40 on a machine with two cores.
LIMIT = 180


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command")
    parser.add_argument("interpreter")
    parser.add_argument("work")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    models = [
        row
        for row in rows.read("sweep.csv")
        if not options.names
        or any(name in row["model"] or name == row["library"] for name in options.names)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        lines = list(pool.map(lambda row: run(row, options), models))
    if options.save:
        head = [
            "| model | outcome | requested, MiB | reserved, MiB | seconds |",
            "|---|---|---|---|---|",
        ]
        options.save.write_text(
            "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"
        )
    failed = [line[0] for line in lines if not line[1].startswith("fits")]
    print(f"{len(lines) - len(failed)} of {len(lines)} models passed")
    if failed:
        sys.exit(f"no verdict: {', '.join(failed)}")


def run(row, options):
    """Runs one model, and returns the cells of its row."""
    name = f"{row['library']} {row['model']}"
    program = rows.HERE / "programs" / "step.py"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verdict.json"
        done = subprocess.run(
            [
                *(options.command, "dry-run", "--card", "H200 141GB", "--json", path),
                *("--time-limit", f"{LIMIT}s", "--", options.interpreter, program),
                *(row["library"], *row["model"].split()),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
        )
        cells = (name, *outcome(path, done))
    print(" ".join(cells), flush=True)
    return cells


def outcome(path, done):
    """Returns the outcome of a run, its peaks and its time, as text."""
    if not path.exists() or not path.read_text():
        return f"crashed: exit code {done.returncode}: {done.stderr[-300:]}", "", "", ""
    card = json.loads(path.read_text())["cards"][0]
    if card["ended"] == "time_limit":
        return f"hung: no end within {LIMIT} s", "", "", ""
    devices = [figures for each in card["processes"] for figures in each["devices"]]
    if not devices:
        return f"no figures: {done.stderr[-300:]}", "", "", ""
    peak = max(devices, key=lambda figures: figures["requested"] or 0)
    sizes = (f"{(peak[key] or 0) / 2**20:.1f}" for key in ("requested", "reserved"))
    reason = (
        "" if card["outcome"].startswith("fits") else ": " + " ".join(done.stderr.split())[:300]
    )
    return card["outcome"] + reason, *sizes, f"{card['seconds']:.1f}"


if __name__ == "__main__":
    main()
