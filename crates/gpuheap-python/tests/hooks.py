"""What the tests of hooks share: programs that run in a process of their own, on the emulated driver."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap

import pytest

PREAMBLE = """
import gc, threading
import gpuheap

def refused(kind, use):
    try:
        use()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")
"""


def needs(*distributions):
    """Skips unless the libraries are installed, and a driver is there, real or emulated."""
    for name in distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")


def run(program, **environment):
    """Runs a program on the emulated driver, and fails with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GPUHEAP_EMULATED_DEVICE": "1GiB,1GiB", "GPUHEAP_EMULATED_CHECKS": "1", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    misuse = [line for line in done.stderr.splitlines() if line.startswith("gpuheap: ")]
    assert not misuse, misuse
    return done.stdout
