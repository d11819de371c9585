"""The stack on which a thread handles signals, which some native libraries replace."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Generator
from contextlib import contextmanager


class _SignalStack(ctypes.Structure):
    """The ``stack_t`` of Linux, from sigaltstack(2)."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Generator[None]:
    """Set this thread's stack for signals back at the end.

    A library may set a stack of its own and free it from another thread. OpenVINO's plugin for the CPU does so when
    its last user ends in a thread. The next signal then ends the process, also one that Python handles, such as the
    alarm of a time limit.
    """
    if sys.platform != "linux":
        yield
        return
    stack, set_stack = _SignalStack(), ctypes.CDLL(None).sigaltstack
    set_stack(None, ctypes.byref(stack))
    try:
        yield
    finally:
        set_stack(ctypes.byref(stack), None)
