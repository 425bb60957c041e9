"""Helpers that several tests use."""

import threading

import pytest

import gpuheap


def needs_driver(*modules):
    """Skips the test if the machine has no driver, real or emulated, or if one of `modules` is
    missing."""
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    try:
        gpuheap.Device("cuda:0")
    except gpuheap.DriverError as error:
        pytest.skip(f"no driver: {error}")


def in_threads(*works):
    """Runs each callable on a new thread, and waits for all threads. Returns their results. Raises
    the first error: without this, an error on a thread would end only that thread."""
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
