"""Writes the table of errors in docs/dry-run.md from figures.csv and found.csv.

    table.py [--check]

figures.csv has figures of GPUs, and found.csv has figures of dry runs (`check.py --save`). With
`--check`, the script writes nothing, and fails if the page is not up to date.
"""

import statistics
import sys
import textwrap

import check
import rows

PAGE = rows.HERE.parent.parent / "docs" / "dry-run.md"
# Figures of the table, and their words.
FIGURES = {"requested": "requested", "reserved": "reserved", "in_use": "in use at the end"}
# The table shows at most this many characters of a program's arguments.
ARGUMENTS = 60


def main():
    measured = list(pairs())
    text = PAGE.read_text(encoding="utf-8")
    written = replace(replace(text, "summary", summary(measured)), "table", table(measured))
    if "--check" not in sys.argv:
        PAGE.write_text(written, encoding="utf-8")
    elif written != text:
        sys.exit(f"{PAGE.name} is not of figures.csv and found.csv; run tests/dry_run/table.py")


def pairs():
    """Yields each row of figures.csv, and the same program's row of found.csv or None."""
    found = {tuple(row[key] for key in rows.KEY): row for row in rows.read("found.csv")}
    for row in rows.read("figures.csv"):
        yield row, found.get(tuple(row[key] for key in rows.KEY))


def replace(text, name, new):
    """Returns `text` with new content between the marks of `name`."""
    begin, end = f"<!-- {name}: tests/dry_run/table.py -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        sys.exit(f"{PAGE.name} lacks the marks of {name}: {begin.strip()} and {end.strip()}")
    return f"{before}{begin}{new}{end}{after}"


def errors(measured, key):
    """Returns the relative errors of a figure, each with its row."""
    return [
        (int(found[key]) / int(row[key]) - 1, row)
        for row, found in measured
        if found and row[key] and found[key]
    ]


def summary(measured):
    count = sum(bool(row["requested"]) for row, _ in measured)
    missing = [short(row) for row, found in measured if row["requested"] and not found]
    lines = []
    for key in ("requested", "reserved"):
        of = errors(measured, key)
        middle = statistics.median(abs(error) for error, _ in of)
        worst, row = max(of, key=lambda pair: abs(pair[0]))
        lines.append(
            f"* Peak {FIGURES[key]}: median {percent(middle)}, worst {percent(worst, signed=True)},"
            f" of {short(row)}."
        )
    names = f": {'; '.join(missing)}" if missing else ""
    lines.append(f"* Without figures of a dry run: {len(missing)} of {count} rows{names}.")
    beyond = [short(row) for row, found in measured if is_beyond(row, found)]
    lines.append(f"* Beyond the marks of check.py without a reason: {'; '.join(beyond) or 'none'}.")
    wrap = lambda line: textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(map(wrap, lines)) + "\n"


def is_beyond(row, found):
    """Returns whether a figure of the dry run differs too much from the GPU's figure (MARKS of
    check.py), and figures.csv gives no reason for a difference."""
    if not found or row["apart"]:
        return False
    pairs = [(key, int(row[key]), int(found[key] or 0)) for key in check.MARKS if row[key]]
    return not all(check.is_within(row, *pair) for pair in pairs)


def table(measured):
    head = "| program | " + " | ".join(f"{words}, MiB | error" for words in FIGURES.values())
    lines = [f"{head} | seconds |\n", "|---|" + "---:|" * (2 * len(FIGURES) + 1) + "\n"]
    for row, found in measured:
        cells = []
        for key in FIGURES:
            if row[key]:
                cells.append(f"{int(row[key]) / 2**20:,.1f}")
                cells.append(difference(row, found, key))
            else:
                known = found and found[key] and f"({int(found[key]) / 2**20:,.1f})"
                cells += [known or "", ""]
        cells.append(found["seconds"] if found else "no figures")
        lines.append(f"| {short(row)} | {' | '.join(cells)} |\n")
    return "".join(lines)


def difference(row, found, key):
    if not found or not found[key]:
        return ""
    if row[key] == found[key]:
        return "equal"
    return percent(int(found[key]) / int(row[key]) - 1, signed=True)


def percent(part, signed=False):
    """Returns a fraction in percent, with two significant digits if it is below 10 %."""
    if 0 < abs(part) < 0.0001:
        return "< 0.01 %"
    words = (
        f"{part * 100:{'+' * signed}.1f}"
        if abs(part) >= 0.0995
        else f"{part * 100:{'+' * signed}.2g}"
    )
    return f"{words} %"


def short(row):
    """Returns the name of a row for the table. Shortens the program's arguments."""
    arguments = row["arguments"]
    if len(arguments) > ARGUMENTS:
        arguments = arguments[:ARGUMENTS].rpartition(" ")[0] + " …"
    program = "torchrun" if row["program"] == "-m torch.distributed.run" else row["program"]
    words = [row["source"], f"`{' '.join(filter(None, [program, arguments]))}`", row["settings"]]
    if row["devices"]:
        words.append(f"{row['devices']} devices")
    return ", ".join(filter(None, words))


if __name__ == "__main__":
    main()
