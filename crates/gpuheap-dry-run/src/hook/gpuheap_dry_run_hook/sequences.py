"""Packed sequences whose lengths were computed on the device: the hook makes them all full.

A dry run would read 0 for each length, and PyTorch refuses to pack a sequence without elements.
"""

import functools
import sys

from . import rules
from .callbacks import guarded
from .lines import reader
from .process import state
from .reads import note_read
from .results import bounded_count


def fill_packed_sequences(torch):
    rnn = torch.nn.utils.rnn
    pack = rnn.pack_padded_sequence

    @functools.wraps(pack)
    def pack_full(input, lengths, batch_first=False, enforce_sorted=True):
        full = None
        if not getattr(getattr(torch, "compiler", None), "_is_compiling_flag", False):
            full = guarded(full_lengths)(input, lengths, 1 if batch_first else 0)
        return pack(input, lengths if full is None else full, batch_first, enforce_sorted)

    # TorchScript compiles PyTorch's function.
    pack_full.__prepare_scriptable__ = lambda: pack
    rnn.pack_padded_sequence = pack_full


def full_lengths(padded, lengths, dimension):
    """Returns lengths that are all as large as a dimension of `padded`.

    Returns None if the program may have set `lengths` itself. Lengths that a kernel computed are
    all 0, or 1 if the program raised them.
    """
    torch, most = state.torch, padded.shape[dimension]
    if torch.jit.is_tracing() or getattr(lengths, "is_cuda", False) or not len(lengths):
        return None
    if max(map(int, lengths)) > 1 or most <= 1:
        return None
    frame = reader(sys._getframe())
    at = None if frame is None else (frame.f_code, frame.f_lineno)
    shape = (len(lengths),)
    length = bounded_count(most, shape, rules.rule_at(at), rules.is_largest_at(at))
    length.value = min(max(length.value, 1), most)
    note_read(state.sizes, (at, "pack_padded_sequence"), length)
    return torch.full(shape, length.value, dtype=torch.int64, device="cpu")
