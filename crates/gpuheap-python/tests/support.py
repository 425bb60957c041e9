"""Helpers that several tests use."""

import os
import subprocess
import sys
import threading

import pytest

import gpuheap

# Names of the element types, in the order of the extension module.
KINDS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
KINDS += ["float32", "float64"]


def needs_driver(*modules):
    """Skips the test if the machine has no driver, real or emulated, or if one of `modules` is
    missing."""
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    try:
        gpuheap.Device("cuda:0")
    except gpuheap.DriverError as error:
        pytest.skip(f"no driver: {error}")


# First lines of each program of `run_program`.
BEGIN = """
import gc, sys, types, gpuheap
def refused(use):
    try:
        use()
    except gpuheap.BadInput as error:
        return str(error)
    raise AssertionError("no error")
"""


def run_program(program, **variables):
    """Runs a program in a new process that has `variables` in its environment. The program has a
    function `refused`, which returns the text of an error."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def in_threads(*works):
    """Runs each callable on a new thread, and waits for all threads. Returns their results. Raises
    the first error of a thread, because by itself the error would end only that thread."""
    answers, errors = [None] * len(works), []

    def run(at):
        try:
            answers[at] = works[at]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return answers
