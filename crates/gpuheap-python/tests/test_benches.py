"""Runs the script that times the hooks, on an emulated device."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benches" / "python" / "hooks.py"


def run(*arguments):
    command = [
        sys.executable,
        str(SCRIPT),
        "--rounds",
        "1",
        "--device",
        "emulated:1GiB",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_row_has_a_figure_per_way():
    done = run("--only", "heap")
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^\| heap \| 1 [KM]iB \| ([\d,]+) \| ([\d,]+) \| [\d.]+ \| 200 \| ([\d,]+) \|$",
        done.stdout,
        re.M,
    )
    assert len(rows) == 2, done.stdout
    assert all(int(figure.replace(",", "")) > 0 for row in rows for figure in row)


@pytest.mark.parametrize(
    "arguments, told", [(("--only", "heep"), "there is no 'heep'; there are heap,")]
)
def test_wrong_names_are_reported(arguments, told):
    done = run(*arguments)
    assert done.returncode == 2 and told in done.stderr


def test_failing_library_is_skipped_by_name():
    done = run("--only", "heap", "--seconds", "0.01")
    assert done.returncode == 0 and "heap: own: no figures after 0.01 s" in done.stdout


def test_scopes_have_six_figures():
    script = SCRIPT.with_name("scopes.py")
    command = [sys.executable, str(script), "--count", "100", "--tasks", "10", "--depth", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\| (?:a pair|the end).* \| [\d.]+ n?s \|$", done.stdout, re.M)) == 6, (
        done.stdout
    )


def test_groups_have_a_row_per_count():
    script = SCRIPT.with_name("groups.py")
    command = [sys.executable, str(script), "--device", "emulated:1GiB", "--rows", "5000"]
    command += ["--groups", "10,9000", "--turns", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\| [\d,]+ \| [\d.]+ \| [\d.]+ \|$", done.stdout, re.M)) == 2, (
        done.stdout
    )
