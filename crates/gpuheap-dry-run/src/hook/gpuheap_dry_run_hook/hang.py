"""Finds a program that waits forever for a result.

No kernel runs, so a value for which a program waits may never come.
"""

import os
import threading
import time

from .process import state
from .report import write

# Seconds without progress after which the program is ended.
SECONDS = 10.0
# Number of reads of results without progress from which a program counts as waiting for a result.
# The program is then ended. `POLLS_WITH_BLOCKS` is for programs that allocate memory between reads.
# A loop that evaluates a model also allocates memory, but reads less often.
POLLS = 500
POLLS_WITH_BLOCKS = 50_000
# Exit code of a program that was ended because it waits forever.
CODE = 3


class Progress:
    """Time of the last progress, and the reads since then."""

    def __init__(self):
        # Number of optimiser steps and peak of memory at the last change of either number.
        self.mark = None
        # Program lines that have read a result since that change.
        self.lines = set()
        self.since = 0.0
        self.reads = 0
        self.blocks = 0


progress = Progress()


def check_progress(place, frame):
    """Ends the program if it has read results without progress for some time.

    Progress is a higher peak, an optimiser step, or a line's first read of a result since the last
    peak or step.
    """
    peak, blocks, _ = state.allocated()
    mark, line = (state.step(), peak), (frame.f_code, frame.f_lineno)
    if mark != progress.mark:
        progress.mark = mark
        progress.lines.clear()
    if line not in progress.lines:
        progress.lines.add(line)
        progress.since = time.monotonic()
        progress.reads, progress.blocks = 0, blocks
        return
    progress.reads += 1
    least = POLLS if blocks == progress.blocks else POLLS_WITH_BLOCKS
    if progress.reads < least or time.monotonic() - progress.since < SECONDS:
        return
    if state.ended == "hang":
        # The first attempt failed: the program caught `SystemExit`, or it was in another thread
        # than the main thread, where no exception is raised.
        os._exit(CODE)
    state.ended, state.hang = "hang", place(frame)
    progress.mark = None
    write()
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(CODE)
