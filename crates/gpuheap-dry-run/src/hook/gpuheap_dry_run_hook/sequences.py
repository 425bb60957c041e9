"""Packed sequences whose lengths were computed on the device: the hook makes them all full.

A dry run reads 0 for such a length, and PyTorch refuses to pack a sequence without elements.
"""

import functools
import sys

from .callbacks import guarded
from .lines import reader
from .process import state
from .reads import note_read
from .results import Result


def fill_packed_sequences(torch):
    rnn = getattr(getattr(torch, "nn", None), "utils", None)
    rnn = getattr(rnn, "rnn", None)
    if rnn is None:
        return
    pack = rnn.pack_padded_sequence

    @functools.wraps(pack)
    def pack_full(input, lengths, batch_first=False, enforce_sorted=True):
        full = guarded(full_lengths)(input, lengths, 1 if batch_first else 0)
        return pack(input, lengths if full is None else full, batch_first, enforce_sorted)

    rnn.pack_padded_sequence = pack_full


def full_lengths(padded, lengths, dimension):
    """Returns lengths as large as a dimension of `padded`; None if all of `lengths` are valid."""
    count = len(lengths)
    if not count or min(map(int, lengths)) > 0:
        return None
    most = padded.shape[dimension]
    frame = reader(sys._getframe())
    at = None if frame is None else (frame.f_code, frame.f_lineno)
    note_read(state.sizes, (at, "pack_padded_sequence"), Result(most, is_bound=True))
    return state.torch.full((count,), most, dtype=state.torch.int64, device="cpu")
