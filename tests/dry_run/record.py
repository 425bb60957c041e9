"""Records the GPU memory of the programs of figures.csv.

    record.py FOLDER OUTPUT [--jobs N] [--limit SECONDS] [--missing] [NAME...]

FOLDER has the third-party programs with their data (rows.py). Appends a row to OUTPUT as each
program ends. A new OUTPUT gets a header first. `in_use` is the memory in use on the whole device,
so it is right only with one job on an idle device. The other columns are figures of the process
that requested the most memory.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rows

KEYS = ("requested", "allocated", "reserved", "in_use", "allocations", "of_process")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--missing", action="store_true", help="rows without figures alone")
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    with open(options.output, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(("source", "program", "arguments", "settings", *KEYS, "seconds", "end"))
        with ThreadPoolExecutor(options.jobs) as pool:
            futures = [
                pool.submit(record, row, options.folder.resolve(), options.limit)
                for row in rows.choose(options.names)
                if not row["devices"] and not (options.missing and row["requested"])
            ]
            for future in futures:
                future.add_done_callback(lambda done: write(writer, file, done.result()))


def write(writer, file, fields):
    writer.writerow(fields)
    file.flush()
    print(*fields, flush=True)


def record(row, folder, limit):
    """Runs one program, and returns its fields."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as reports:
        environment = rows.environment(row, folder)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(rows.HERE / "recorder"), environment.get("PYTHONPATH")])
        )
        environment |= {"GPUHEAP_RECORD": reports, "GPUHEAP_RECORD_STEPS": row["steps"]}
        process = subprocess.Popen(
            rows.command(row, folder, sys.executable),
            cwd=rows.directory(row, folder) or reports,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
            end = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            end = "time limit"
        if end:
            end = f"{end}: {' | '.join(output.strip().splitlines()[-3:])[-300:]}"
        figures = [json.loads(path.read_text()) for path in Path(reports).glob("*.json")]
    most = max(figures, key=lambda found: found["requested"], default={})
    return (
        *(row[key] for key in ("source", "program", "arguments", "settings")),
        *(most.get(key, "") for key in KEYS),
        f"{time.monotonic() - began:.1f}",
        end,
    )


if __name__ == "__main__":
    main()
