"""Runs a training step of each model of sweep.csv under `gpuheap dry-run`.

    sweep.py GPUHEAP PYTHON WORK [--save FILE] [--jobs N] [NAME...]

A process runs several models, and prints the peaks of each model. A model fails if its peaks are
not printed. The script fails if a model fails. `--save` writes a Markdown table with a row for each
model. Each NAME selects models by a part of the model's name or by its library.
"""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rows

# Maximum number of models that one process runs. With more models in each process, libraries are
# imported less often. With fewer models, a crash loses fewer results.
MODELS = 13
# Time limit of a process, seconds. The slowest process takes 100 s on a machine with two cores.
LIMIT = 540


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command")
    parser.add_argument("interpreter")
    parser.add_argument("work")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    chosen = {}
    for row in rows.read("sweep.csv"):
        named = (name in row["model"] or name == row["library"] for name in options.names)
        if not options.names or any(named):
            chosen.setdefault(row["library"], []).append(row["model"])
    groups = [
        (library, models[first : first + MODELS])
        for library, models in chosen.items()
        for first in range(0, len(models), MODELS)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = list(pool.map(lambda group: run(*group, options), groups))
    lines = [line for part in parts for line in part]
    if options.save:
        table = ["| model | requested, MiB | reserved, MiB |", "|---|---:|---:|"]
        table += [f"| {' | '.join(line)} |" for line in lines]
        options.save.write_text("\n".join(table) + "\n")
    failed = [line for line in lines if not line[2]]
    print(f"{len(lines) - len(failed)} of {len(lines)} models passed")
    if failed:
        sys.exit("\n".join(" ".join(line) for line in failed))


def run(library, models, options):
    """Runs models of a library in one process, and returns a row for each model."""
    program = rows.HERE / "programs" / "step.py"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(options.command, "dry-run", "--card", "H200 141GB"),
                *("--time-limit", f"{LIMIT}s", "--", options.interpreter, program),
                *(library, *models),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
        )
    printed = dict(
        line.removeprefix("step: ").split(" ", 1)
        for line in done.stdout.splitlines()
        if line.startswith("step: ")
    )
    lines = []
    for model in models:
        words = printed.get(model, f"failed crash or hang, exit code {done.returncode}").split()
        if words[0] == "failed":
            lines.append((f"{library} {model}", " ".join(words[1:]), ""))
        else:
            lines.append((f"{library} {model}", *(f"{int(word) / 2**20:.1f}" for word in words)))
        print(" ".join(lines[-1]), flush=True)
    return lines


if __name__ == "__main__":
    main()
