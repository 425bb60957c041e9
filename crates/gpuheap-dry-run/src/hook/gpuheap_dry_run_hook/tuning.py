"""Turns off options of `torch.compile` that time kernels.

In a dry run, kernels take no time, so their times mean nothing. PyTorch would still compile dozens
of kernels for each matrix product, to compare their times.
"""

import os

from .process import state

TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")


def leave_out_tuning(torch):
    """Makes `torch.compile` ignore the options in `TIMED`.

    Ignores them in modes and arguments, and in environment variables.
    """
    values = [os.environ.pop(f"TORCHINDUCTOR_{name.upper()}", "0") for name in TIMED]
    if "1" in values:
        note_tuning()
    compiler = getattr(torch, "_TorchCompileInductorWrapper", None)
    if compiler is None:
        return
    apply = compiler.apply_options

    def apply_others(self, options):
        others = {name: value for name, value in (options or {}).items() if name not in TIMED}
        if options and len(others) < len(options):
            note_tuning()
        return apply(self, others)

    compiler.apply_options = apply_others


def note_tuning():
    state.note(
        "torch.compile was to choose kernels by their time (max-autotune). A dry run has no times, "
        "so it took the kernels of the other modes; memory for timing is not in the figures"
    )
