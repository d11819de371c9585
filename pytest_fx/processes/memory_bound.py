"""A bound on the memory that a block may allocate: a program that is too large raises instead of ending the process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MOST_MORE = 2 << 30
"""Bytes of address space beyond those of the process: two GiB."""


def _address_space() -> int:
    """Return the bytes of address space of this process; beyond any limit without /proc, as in some containers."""
    import resource  # noqa: PLC0415 - there is none on Windows

    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 2**62
    return pages * resource.getpagesize()  # 4 KiB, on some machines 64


@contextmanager
def little_memory() -> Generator[None]:
    """Let an allocation of more than two GiB raise inside the block; only Linux enforces this.

    The kernel ends a process that touches more memory than there is, and its findings are lost.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    bound = _address_space() + MOST_MORE
    finite = [limit for limit in (before, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([bound, *finite]), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
