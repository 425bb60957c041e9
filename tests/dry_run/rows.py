"""Reads figures.csv. Has functions for the command, folder and environment of a row's program.

    rows.py SOURCES FOLDER PYTHON

As a script, copies the files that sources.csv lists from clones in SOURCES to FOLDER, and makes
the programs' data.
"""

import csv
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

HERE = Path(__file__).resolve().parent
# KEY has the columns that identify a row. COLUMNS has all columns.
KEY = ("source", "program", "arguments", "settings", "devices")
COLUMNS = (*KEY, "steps", "requested", "allocated", "reserved", "in_use", "allocations", "apart")


def read(name):
    with open(HERE / name, encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def name_of(row):
    return " ".join(row[key] for key in KEY if row[key])


def choose(names):
    """Returns the rows whose source, program or arguments match one of `names`. If `names` is
    empty, returns all rows."""
    return [
        row
        for row in read("figures.csv")
        if not names
        or set(names) & {row["source"], row["program"], Path(row["program"]).name}
        or set(names) & set(row["arguments"].split())
    ]


def folder_of(row, work):
    return work / row["source"] if row["source"] else HERE / "programs"


def command(row, work, interpreter):
    """Returns the command line of a program, with an absolute path of its script.

    The script is the first word that ends with `.py`.
    """
    words = [*row["program"].split(), *row["arguments"].split()]
    script = next(place for place, word in enumerate(words) if word.endswith(".py"))
    words[script] = str(folder_of(row, work) / words[script])
    return [str(interpreter), *words]


def directory(row, work):
    """Returns the folder in which to run a program; None if any folder will do."""
    if not row["source"] or row["program"].startswith("-m "):
        return None
    return (work / row["source"] / row["program"]).parent


def environment(row, work):
    variables = dict(os.environ)
    variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if row["settings"]:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = row["settings"]
    if row["source"]:
        paths = [str(work / row["source"]), variables.get("PYTHONPATH")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # Without these variables, programs look for models and data on a hub.
        variables |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return variables


def prepare(sources, work, interpreter):
    """Copies the files that sources.csv lists from clones in `sources` to `work`, and makes the
    programs' data. Returns the names of clones that are missing or lack the commit."""
    missing = []
    for source in read("sources.csv"):
        clone = sources / source["source"]
        archive = subprocess.run(
            ["git", "-C", clone, "archive", source["commit"], "--", *source["paths"].split()],
            capture_output=True,
        )
        if archive.returncode:
            missing.append(f"{source['source']} at {source['commit']}")
            continue
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(work / source["source"], filter="data")
    subprocess.run([interpreter, HERE / "data.py", work], check=True)
    return missing


if __name__ == "__main__":
    for lacking in prepare(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]):
        print(f"rows.py: {sys.argv[1]} lacks a clone with {lacking}; its programs are skipped")
