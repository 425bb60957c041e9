"""Makes the loops of `transformers` that generate text run to their maximum length.

A dry run reads no end token, so no sequence ends before its maximum length.
"""

import os

from .lines import variables
from .process import state

# File with the loops that generate text. Each loop reads a truth value from the device to decide
# whether to go on. In the function that `CONTINUES` names, True continues the loop. In all other
# functions, True ends the loop.
FILE = os.path.join("transformers", "generation", "utils.py")
CONTINUES = "_beam_search"
# File with the function that divides Whisper's text into segments, at time stamps in the text.
WHISPER = (os.path.join("models", "whisper", "generation_whisper.py"), "_retrieve_segment")
# Maximum number of stack frames to search for the variables with the sequences' lengths.
CALLERS = 3


def truth_in_generation(frame):
    """Chooses the truth value that `frame` reads in a loop that generates text; None elsewhere."""
    if not frame.f_code.co_filename.endswith(FILE):
        return None
    caller = frame
    for _ in range(CALLERS):
        if caller is None or not caller.f_code.co_filename.endswith(FILE):
            return None
        length, most = lengths(variables(caller))
        if length is not None and most is not None:
            is_finished = length >= most
            if is_finished:
                state.note(
                    f"text was generated up to its maximum length, {most} tokens: a dry run reads "
                    "no end token"
                )
            return is_finished != (frame.f_code.co_name == CONTINUES)
        caller = caller.f_back
    return None


def lengths(names):
    """Reads from local variables how long sequences are, and may become; None if not known."""
    length = names.get("cur_len")
    if length is None and getattr(names.get("input_ids"), "ndim", 0) == 2:
        length = names["input_ids"].shape[1]
    most = names.get("max_length")
    if most is None:
        most = getattr(names.get("stopping_criteria"), "max_length", None)
    return length, most


def finds_segments(frame):
    """Returns True in Whisper's search for time stamps.

    The hook then finds no time stamp, so that the whole text is one segment. The positions of time
    stamps would be results, and segments with wrong positions are empty.
    """
    if frame is None:
        return False
    file, function = WHISPER
    return frame.f_code.co_filename.endswith(file) and frame.f_code.co_name == function
