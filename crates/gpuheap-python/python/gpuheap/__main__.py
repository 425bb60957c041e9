"""`python -m gpuheap`: the command, and `emulate`."""

import sys

from gpuheap._cli import main

sys.exit(main())
