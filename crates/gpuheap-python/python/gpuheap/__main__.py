"""`python -m gpuheap`: the command, with `emulate` besides."""

import sys

from gpuheap._cli import main

sys.exit(main())
