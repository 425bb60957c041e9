"""The `gpuheap` command, also run by `python -m gpuheap`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs the command with the arguments of the process. Returns its exit code."""
    if sys.argv[1:2] in (["dry-run"], ["emulate"], ["run"]):
        from gpuheap import emulate

        # The command searches for the emulated libraries in the folder of its executable. Here the
        # executable is the Python interpreter, so pass the folder of the libraries.
        os.environ.setdefault("GPUHEAP_STAND_INS", str(emulate.folder()))
    from gpuheap import _gpuheap

    # Ctrl-C and a closed pipe end the command at once. Python's own handlers would wait until the
    # native code returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return _gpuheap.run_command(["gpuheap", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
