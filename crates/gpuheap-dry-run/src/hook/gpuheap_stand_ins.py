"""Makes a Python program load the libraries that stand in for CUDA's."""

import ctypes
import os
import sys

from gpuheap_import_waiter import Waiter

# Names of the libraries that stand in for CUDA's in this process.
PRELOADED = {os.path.basename(path) for path in os.environ.get("LD_PRELOAD", "").split(":") if path}


def load_stand_ins_by_name():
    """Makes `ctypes` ignore the folder in a library's path if the library has a stand-in.

    PyTorch loads CUDA's libraries by the paths of files in its wheel. Given a path, the loader
    would load the vendor's file in addition to the stand-in.
    """
    load = ctypes.CDLL.__init__

    def by_name(self, name, *arguments, **options):
        if isinstance(name, str) and os.path.basename(name) in PRELOADED:
            name = os.path.basename(name)
        load(self, name, *arguments, **options)

    ctypes.CDLL.__init__ = by_name


def torch_imported(_):
    """Lets the emulated driver accept PyTorch's kernels, and do nothing for them."""
    os.environ.setdefault("GPUHEAP_EMULATED_KERNELS", "no-op")


load_stand_ins_by_name()
# Makes the loader bind a function at its first call. By default, the interpreter binds all
# functions at load. So a CUDA function without a stand-in fails when it is called, and not when
# PyTorch is loaded.
sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)
sys.meta_path.insert(0, Waiter("torch", torch_imported))
