"""Magics of IPython and Jupyter: `%load_ext gpuheap`.

%%gpumem         peak and kept GPU memory of a cell, by line
%gpuflush        releases objects that an error left, and returns cached memory
%gpuflush -o     empties Out, _ and _1, _2... too
"""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from gpuheap._flush import flush
from gpuheap._heap import FlushReport
from gpuheap._meter import Reading, meter


@magics_class
class GpuMagics(Magics):
    """`%%gpumem` and `%gpuflush`."""

    @no_var_expand
    @cell_magic
    def gpumem(self, line: str, cell: str) -> None:
        """Runs the cell. Prints the peak of GPU memory, and the bytes that each line keeps.

        Counts the default heap, with all libraries that `gpuheap.install()` hooked, and PyTorch's
        own allocator. If the heap has `track="lines"`, the report names the lines.
        """
        measured = meter()
        try:
            self.shell.run_cell(cell)  # type: ignore[union-attr]
        finally:
            print(describe(measured.read()))

    @magic_arguments()  # type: ignore[untyped-decorator, no-untyped-call]
    @argument(  # type: ignore[untyped-decorator, no-untyped-call]
        "-o", "--outputs", action="store_true", help="empty Out, _ and _1, _2... too"
    )
    @line_magic
    def gpuflush(self, line: str) -> FlushReport:
        """Releases objects that the last error and ended threads left, collects garbage, and
        flushes the heap. Shows the bytes that each step freed."""
        arguments = parse_argstring(self.gpuflush, line)  # type: ignore[no-untyped-call]
        return flush(tracebacks=True, outputs=arguments.outputs)


def describe(reading: Reading) -> str:
    """Returns the memory use of a cell as a text."""
    return f"GPU memory: {reading}"


def load(shell: Any) -> None:
    """Registers the magics."""
    shell.register_magics(GpuMagics)
