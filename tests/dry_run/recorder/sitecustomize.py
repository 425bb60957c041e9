"""Writes the memory figures of each process that used CUDA to a file in the folder GPUHEAP_RECORD.

Ends the program once an optimiser has made GPUHEAP_RECORD_STEPS steps.
"""

import atexit
import importlib.abc
import json
import os
import sys

FOLDER = os.environ.get("GPUHEAP_RECORD")
STEPS = int(os.environ.get("GPUHEAP_RECORD_STEPS") or 0)


def write():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    figures = {
        "requested": stats["requested_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "in_use": total - free,
        "allocations": stats["allocation.all.allocated"],
        "of_process": of_process(),
        "device": torch.cuda.get_device_name(),
        "argv": sys.argv,
    }
    with open(os.path.join(FOLDER, f"{os.getpid()}.json"), "w") as file:
        json.dump(figures, file)


def of_process():
    """Returns the process's memory as NVML counts it, or NVML's error as text. None if NVML does
    not list the process."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
            if process.pid == os.getpid():
                return process.usedGpuMemory
    except Exception as error:
        return str(error)
    return None


class Steps(importlib.abc.MetaPathFinder):
    """Counts each optimiser's steps once `torch.optim.optimizer` is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            counts = {}

            def count(optimizer, *_):
                counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
                if counts[id(optimizer)] >= STEPS:
                    raise SystemExit(0)

            module.register_optimizer_step_post_hook(count)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    atexit.register(write)
    if STEPS:
        import importlib.util

        sys.meta_path.insert(0, Steps())
