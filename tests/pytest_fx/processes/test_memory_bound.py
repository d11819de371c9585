"""pytest_fx.processes.memory_bound: how much a block may ask for, on machines of several kinds."""

import sys
from pathlib import Path

import pytest

from pytest_fx.processes.memory_bound import MOST_MORE, little_memory

resource = pytest.importorskip("resource", reason="there are no limits of memory on Windows")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is bound on Linux alone")


def bound_inside():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with little_memory():
        inside, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    return inside


def pages():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])


def test_pages_have_the_size_that_the_machine_gives_them(monkeypatch):
    assert MOST_MORE < bound_inside() < 2 * (pages() * resource.getpagesize() + MOST_MORE)
    monkeypatch.setattr(resource, "getpagesize", lambda: 65536)
    assert bound_inside() > pages() * 65536


def test_nothing_more_is_bound_where_the_size_of_the_process_is_not_known(monkeypatch):
    def missing(*args, **options):
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(Path, "read_text", missing)
    before, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert bound_inside() >= (before if before != resource.RLIM_INFINITY else 2**62)
