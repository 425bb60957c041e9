"""Compares the outcomes of the suites with the known failures, and prints a table.

compare.py KNOWN FOLDER

For each process, FOLDER has the outcomes in SCHEDULE/SUITE/MODULE and the output in MODULE.log.
KNOWN has a line for each known failure. Tabs separate the line's fields: suite, pattern of the
name, pattern of the error, class, reason. Fails if a failed test matches no line of KNOWN, or if a
process ended early.
"""

import collections
import fnmatch
import pathlib
import sys

CLASSES = ["emulator", "missing", "scope"]


def is_named(line, suite, name, error):
    """Returns whether a line of known failures matches this failure."""
    matches = fnmatch.fnmatchcase
    return line[0] == suite and matches(name, line[1]) and matches(error, line[2])


def main(known_file, folder):
    known = []
    for text in pathlib.Path(known_file).read_text().splitlines():
        if text and not text.startswith("#"):
            line = suite, name, error, kind, _reason = text.split("\t")
            assert kind in CLASSES, f"{known_file}: class {kind!r}; use one of {CLASSES}"
            known.append(line)
    table = collections.defaultdict(collections.Counter)
    used, wrong = set(), []
    for file in sorted(pathlib.Path(folder).glob("*/*/*")):
        if file.suffix == ".log":
            continue
        schedule, suite = file.parts[-3:-1]
        worst, ended = {}, False
        for text in file.read_text().splitlines():
            outcome, name, error = text.split("\t")
            if outcome == "ended":
                ended = True
            elif worst.get(name, ("passed", ""))[0] != "failed":
                worst[name] = (outcome, error)
        if not ended:
            wrong.append(f"{schedule} {suite} {file.name}: the process ended early, see {file}.log")
        row = table[suite, schedule]
        for name, (outcome, error) in worst.items():
            if outcome != "failed":
                row[outcome] += 1
                continue
            place = next(
                (at for at, line in enumerate(known) if is_named(line, suite, name, error)), None
            )
            row["unknown" if place is None else known[place][3]] += 1
            used.add(place)
            if place is None:
                wrong.append(f"{schedule} {suite} {name}: {error}")
    columns = ["passed", "skipped", *CLASSES, "unknown"]
    print("| suite | schedule |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 2) + "|")
    for (suite, schedule), row in sorted(table.items()):
        print("|", suite, "|", schedule, "|", " | ".join(str(row[each]) for each in columns), "|")
    for place, line in enumerate(known):
        if place not in used:
            print("note: no test failed as this line says:", *line[:3])
    for text in wrong:
        print("unknown:", text)
    sys.exit(bool(wrong))


main(*sys.argv[1:])
