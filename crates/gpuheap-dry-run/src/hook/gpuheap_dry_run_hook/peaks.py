"""Records peaks of memory, optimiser steps, and requests that failed."""

import sys
import time

from .callbacks import guarded
from .lines import lines_of, own_frames
from .owners import FIRST_STEPS
from .process import state
from .report import write, write_snapshot

# A request is absurd if it is at least this many times the peak of all other requests.
ABSURD = 3
# Maximum number of failures in a report: a program that tries smaller sizes may have many.
MOST_FAILURES = 20


def update_peaks():
    """Reads the peaks of all devices. If a peak rose, assigns it to the current step."""
    torch = state.torch
    if not (state.has_stats and torch.cuda.is_initialized()):
        return
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if not stats:
            continue
        of = lambda key, part="peak": stats.get(key, {}).get("all", {}).get(part, 0)
        peak = {
            "requested": of("requested_bytes"),
            "allocated": of("allocated_bytes"),
            "reserved": of("reserved_bytes"),
        }
        if not any(peak.values()):
            continue
        known = state.peaks.setdefault(
            device, {"device": device, "requested": 0, "allocated": 0, "reserved": 0, "step": 1}
        )
        if peak["allocated"] > known["allocated"]:
            known["step"] = max(state.step(), 1) if state.in_hook else state.step() + 1
        for key, value in peak.items():
            known[key] = max(known[key], value)
        known["allocations"] = of("allocation", "allocated")
        known["retries"] = stats.get("num_alloc_retries", 0)


def step_ended(optimizer, arguments, keywords):
    """Called after each step of each optimiser."""
    state.steps[id(optimizer)] = state.steps.get(id(optimizer), 0) + 1
    state.steps_after_failure = True
    guarded(after_step)(optimizer)
    if state.heap_step_done is not None:
        state.heap_step_done()
    if state.most_steps and state.step() >= state.most_steps:
        state.ended = "steps"
    elif state.most_seconds and time.monotonic() - state.began > state.most_seconds:
        state.ended = "time"
    if state.ended:
        guarded(write)()
        raise SystemExit(0)


def after_step(optimizer):
    peak = sum(known["allocated"] for known in state.peaks.values())
    state.in_hook = True
    try:
        update_peaks()
    finally:
        state.in_hook = False
    if state.owners is not None and hasattr(optimizer, "param_groups"):
        rose = sum(known["allocated"] for known in state.peaks.values()) > peak
        state.owners.look(optimizer, rose or state.step() <= FIRST_STEPS)
        state.remedies.note_optimiser(optimizer)
    # Writes a report if the last one is a second old: a killed process leaves recent figures.
    if time.monotonic() - state.written > 1.0:
        write()


def out_of_memory(device, requested, total, free):
    """Called by PyTorch before it raises `torch.OutOfMemoryError`."""
    update_peaks()
    state.count_of_failures += 1
    state.steps_after_failure = False
    if len(state.failures) < MOST_FAILURES:
        torch = state.torch
        state.failures.append(
            {
                "device": device,
                "requested": requested,
                "total": total,
                "free": free,
                "allocated": torch.cuda.memory_allocated(device),
                "reserved": torch.cuda.memory_reserved(device),
                "step": state.step() + 1,
                "lines": lines_of(sys._getframe()),
                "is_absurd": is_absurd(device, requested, sys._getframe()),
            }
        )
    if state.owners is not None:
        guarded(state.owners.look)()
    write()
    write_snapshot()


def is_absurd(device, requested, frame):
    """Returns True for a request far above the peak, by a function that reads kernels' results.

    No kernel runs, so the hook chose the results. The function may have computed the size of the
    request from one of them.
    """
    peak = state.peaks.get(device, {}).get("allocated", 0)
    own = next(own_frames(frame), None)
    if own is None or requested < ABSURD * max(peak, 1):
        return False
    return any(
        code is own.f_code and read.last.value is not None
        for (code, _), read in state.lines.items()
    )
