"""The stack for signals: a library that frees it from another thread does not end the process at the next signal."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the structure is that of Linux")

REPLACES = """
import ctypes, mmap, os, signal

class Stack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

def test_frees_its_stack_for_signals():
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    size = 64 * mmap.PAGESIZE
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.sigaltstack(ctypes.byref(Stack(address, 0, size)), None) == 0
    assert libc.munmap(address, size) == 0

def test_handles_a_signal():
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard
"""


def test_a_signal_after_a_test_that_freed_the_stack_for_signals_is_handled(pytester):
    result = pytester.runpytest_subprocess(pytester.makepyfile(REPLACES))
    result.assert_outcomes(passed=2)
