"""A bound on the memory that a block may ask for, so that a program too large raises in place of ending the process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MOST_MORE = 2 << 30
"""Bytes of address space beyond what the process has: two GiB."""


def _address_space() -> int:
    """Bytes of address space of this process; beyond any limit where there is no /proc, as in some containers."""
    import resource  # noqa: PLC0415 - there is none on Windows

    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 2**62
    return pages * resource.getpagesize()  # 4 KiB, on some machines 64


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
    bound = _address_space() + MOST_MORE
    known = [limit for limit in (before, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([bound, *known]), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
