"""Figures and settings of this process, shared by all parts of the hook."""

import ctypes
import os
import time

# Maximum number of notes to keep. Also the maximum number of program lines to keep that copy
# results to the host.
MOST_LINES = 200


class State:
    """Figures and settings of this process."""

    def __init__(self):
        self.folder = os.environ["GPUHEAP_EMULATED_REPORT"]
        self.most_steps = int(os.environ.get("GPUHEAP_DRY_RUN_STEPS", 0))
        self.most_seconds = float(os.environ.get("GPUHEAP_DRY_RUN_SECONDS", 0))
        self.began = time.monotonic()
        self.written = 0.0
        self.torch = None
        # Number of reads, and last result, of each program line that reads results.
        self.lines = {}
        # Functions of the emulated libraries. `operands` reports the tensors that operators read,
        # `memory` reports PyTorch's memory. None if this PyTorch does not support them.
        self.operands = None
        self.memory = None
        # `branches` has the branch to take at each condition that depends on a result, keyed by
        # place in the code. `tests` has the statements with a condition, keyed by file.
        self.branches = {}
        self.tests = {}
        # Expressions that end loops (`branches.End`), keyed by place in the code.
        self.ends = {}
        # Number of rounds of a loop so far, keyed by place in the code.
        self.rounds = {}
        # Parsed sources, keyed by file.
        self.sources = {}
        # Name of the tensor that the loop around a line iterates over, keyed by line.
        self.loops = {}
        # For each place in the code that reads a number from the device: whether the number is a
        # size, and whether the function returns it.
        self.sized = {}
        # An iterator for each place in the code that reads slice bounds from the device. The
        # iterator returns 0 if the next read is the start of a slice, and 1 for the end.
        self.slices = {}
        # True between the two reads of `multinomial`.
        self.multinomial = False
        self.callback = None
        # Number of callbacks from native code that the main thread is executing.
        self.callbacks = 0
        # The C library; None if it lacks functions for native stacks. `places` caches the results
        # of `native_stack.native_place`, keyed by address.
        self.libc = None
        self.places = {}
        # Driver function to call after each optimiser step; None with PyTorch's own allocator.
        self.heap_step_done = None
        # False if the program replaced PyTorch's allocator.
        self.has_stats = True
        # True while the hook of a completed optimiser step runs.
        self.in_hook = False
        # Instances of `Owners` and `Remedies`; None before PyTorch is imported.
        self.owners = None
        self.remedies = None
        self.clear()

    def clear(self):
        self.is_recording = False
        self.steps = {}
        self.ended = None
        # Line that waits forever for a result; None if no line does.
        self.hang = None
        self.peaks = {}
        self.failures = []
        self.count_of_failures = 0
        self.steps_after_failure = False
        self.reads = 0
        self.sizes = {}
        self.notes = []
        if self.lines is not None:
            self.lines = {}

    def note(self, text):
        if text not in self.notes and len(self.notes) < MOST_LINES:
            self.notes.append(text)

    def allocated(self):
        """Returns PyTorch's peak bytes on a device, blocks handed out so far, and live bytes."""
        figures = [ctypes.c_ulonglong() for _ in range(3)]
        if self.memory is not None:
            self.memory(*map(ctypes.byref, figures))
        return tuple(figure.value for figure in figures)

    def step(self):
        """Returns the largest number of steps that any optimiser has made."""
        return max(self.steps.values(), default=0)


state = State()
