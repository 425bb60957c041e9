"""The `gpuheap` command, run by `python -m gpuheap`."""

import sys

from gpuheap._cli import main

sys.exit(main())
