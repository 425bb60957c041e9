"""Wraps functions of the hook, so that PyTorch and native code may call them."""

import ctypes
import threading
import time

from .lines import own_frames
from .process import state

MAIN_THREAD = threading.main_thread().ident


def guarded(function):
    """Wraps `function` so that its errors are noted in the report and not raised.

    If the program's signal handler raises an exception during the call, that exception is raised.
    """

    def call(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if is_of_program(error):
                raise
            state.note(f"the hook failed in {function.__name__}: {type(error).__name__}: {error}")

    return call


def is_of_program(error):
    """Returns True if the program's code, and not the hook's, raised `error`."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return next(own_frames(trace.tb_frame), None) is trace.tb_frame


def called_by_native_code(function):
    """Returns `function` in a form that native code may call: no exception leaves it.

    Python would print an exception that leaves a callback. During the callback, Python also runs
    the program's signal handlers. If a handler raises an exception, that exception is raised again
    in the main thread after the callback has returned.
    """
    function = guarded(function)

    def call(*arguments):
        is_main = threading.get_ident() == MAIN_THREAD
        try:
            if is_main:
                state.callbacks += 1
            function(*arguments)
        except BaseException as error:
            if is_main:
                threading.Thread(target=raise_later, args=(error,), daemon=True).start()
        finally:
            if is_main:
                state.callbacks -= 1

    return call


def raise_later(error):
    """Raises a signal handler's `error` in the main thread, once the callbacks have returned."""
    kind = type(error)
    if error.args:
        # The interpreter will create the exception without arguments, so a subclass supplies them.
        kind = type(
            kind.__name__,
            (kind,),
            {"__init__": lambda self: type(error).__init__(self, *error.args)},
        )
    while state.callbacks:
        time.sleep(0.001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(MAIN_THREAD), ctypes.py_object(kind))
