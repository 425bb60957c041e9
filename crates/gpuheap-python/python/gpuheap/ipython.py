"""Magics of IPython and Jupyter: `%load_ext gpuheap`.

%%gpumem         peak and kept GPU memory of a cell, by line
%%gpurecord      records the allocations of a cell into cell.gph
%%gpurecord FILE records them into FILE
%%gpuwatch       draws a chart of live and cached GPU memory while a cell runs
%gpuflush        releases objects that an error left, and returns cached memory
%gpuflush -o     empties Out, _ and _1, _2... too
"""

from __future__ import annotations

import shlex
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from gpuheap._flush import flush
from gpuheap._heap import FlushReport
from gpuheap._meter import Reading, meter
from gpuheap._record import record
from gpuheap._watch import watch


@magics_class
class GpuMagics(Magics):
    """`%%gpumem`, `%%gpurecord`, `%%gpuwatch` and `%gpuflush`."""

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

    @no_var_expand
    @cell_magic
    def gpurecord(self, line: str, cell: str) -> None:
        """Runs the cell and records its allocations into the named file, by default `cell.gph`.
        Prints the command that reports them.

        Records the default heap and all heaps of `gpuheap.install`.
        """
        with record(" ".join(shlex.split(line)) or "cell.gph") as recording:
            self.shell.run_cell(cell)  # type: ignore[union-attr]
        print(f"GPU memory: gpuheap report {shlex.join(recording.paths)}")

    @no_var_expand
    @cell_magic
    def gpuwatch(self, line: str, cell: str) -> None:
        """Runs the cell. While it runs, draws a chart of live and cached GPU memory by library, as
        `gpuheap.watch` does."""
        with watch():
            self.shell.run_cell(cell)  # type: ignore[union-attr]

    @magic_arguments()  # type: ignore[untyped-decorator, no-untyped-call]
    @argument(  # type: ignore[untyped-decorator, no-untyped-call]
        "-o", "--outputs", action="store_true", help="empty Out, _ and _1, _2... too"
    )
    @line_magic
    def gpuflush(self, line: str) -> FlushReport:
        """Releases objects that the last error's traceback or an ended thread keeps alive, collects
        garbage, and flushes the heap. Shows the bytes that each step freed."""
        arguments = parse_argstring(self.gpuflush, line)  # type: ignore[no-untyped-call]
        return flush(tracebacks=True, outputs=arguments.outputs)


def describe(reading: Reading) -> str:
    """Returns the memory use of a cell as a text."""
    return f"GPU memory: {reading}"


def load(shell: Any) -> None:
    """Registers the magics."""
    shell.register_magics(GpuMagics)
