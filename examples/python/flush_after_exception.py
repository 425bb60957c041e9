"""Why is GPU memory still full after an exception, and how does it come back without a restart?

The prompt keeps the last error for a debugger. The error's traceback keeps all local variables.
This program runs cells at a prompt, as a notebook does. It lists the holders of the memory, and
gets the memory back. In IPython and Jupyter the last step is `%load_ext gpuheap` and `%gpuflush`.

    python flush_after_exception.py                 # on an emulated device
    python flush_after_exception.py cuda:0
"""

import code
import contextlib
import io
import sys

import gpuheap

heap = gpuheap.Heap(
    sys.argv[1] if len(sys.argv) > 1 else "emulated:1GiB", limit="512MiB", track="lines"
)
gpuheap.set_default_heap(heap)

DEFINE = """
def train(batch):
    activations = heap.alloc(300 << 20)
    raise ValueError(f"batch {batch} has a wrong shape")
"""

prompt = code.InteractiveInterpreter({"heap": heap})


def cell(source):
    """Runs a cell as a notebook does, and returns the last line that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        prompt.runsource(source, symbol="exec")
    return (printed.getvalue().strip().splitlines() or ["done"])[-1]


cell(DEFINE)
print("In [1]: train(7)")
print(cell("train(7)"))

print("\nThe function ended, and nothing else runs. Who holds its memory?")
for held in heap.held():
    print(f"  {held.bytes >> 20} MiB of line {held.line}:")
    for holder in held.holders:
        print(f"    {holder.name.partition(' at ')[0]}")

print("\nDeleting names and collecting garbage gives nothing back, for there is no name to delete:")
print(
    "  given back:",
    gpuheap.flush().given_back >> 20,
    "MiB; live:",
    heap.stats()["live"] >> 20,
    "MiB",
)

print("\nWhat holds it is needed by no code, so it can be released:")
report = gpuheap.flush(tracebacks=True)
for released in report.released:
    print(f"  {released.bytes >> 20} MiB: {released.name}")

print("\nIn [2]: weights = heap.alloc(300 << 20)")
print(cell("weights = heap.alloc(300 << 20)"))

print("\nA flush takes no memory that a name still reaches:")
gpuheap.flush(tracebacks=True, outputs=True)
print("  live:", heap.stats()["live"] >> 20, "MiB")
