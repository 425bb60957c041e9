"""Converts RMM's gzipped CSV log to the rows op,id,bytes,stream that workload.hpp reads."""

import csv
import gzip
import sys


def simplify(source, target):
    """Writes the rows. Returns their number."""
    live, streams, count, frees = {}, {}, 0, 0
    with gzip.open(source, "rt") as log, open(target, "w") as rows:
        rows.write("op,id,bytes,stream\n")
        for row in csv.DictReader(log):
            stream = streams.setdefault(row["Stream"], len(streams))
            if row["Action"] == "allocate":
                live[row["Pointer"]] = (count, int(row["Size"]))
                rows.write(f"a,{count},{row['Size']},{stream}\n")
                count += 1
            elif row["Action"] == "free" and row["Pointer"] in live:
                index, size = live.pop(row["Pointer"])
                rows.write(f"f,{index},{size},{stream}\n")
                frees += 1
    return count + frees


if __name__ == "__main__":
    simplify(*sys.argv[1:3])
