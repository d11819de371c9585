"""A bound on the memory that a block may ask for, so that a program too large raises in place of ending the process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

MOST_MORE = 2 << 30
"""Bytes of address space beyond what the process has: two GiB."""
_PAGE = 4096


@contextmanager
def little_memory() -> Generator[None]:
    """Let an allocation of more than two GiB raise inside the block; on Linux, elsewhere nothing is bound.

    The kernel ends a process that touches more memory than there is, and with it all that it has found.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as sizes:
        bound = int(sizes.read().split()[0]) * _PAGE + MOST_MORE
    known = [limit for limit in (before, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([bound, *known]), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
