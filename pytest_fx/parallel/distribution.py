"""Beside pytest-xdist: checks run on all workers, timings on one of them, and never beside other work."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_fx.options import ADDED, OPTIONS
from pytest_fx.records.baseline import BASELINE
from pytest_fx.records.benchmark_records import TIMING_FIXTURE, benchmarks_disabled

if sys.platform != "win32":
    import fcntl

TIMING_GROUP = "fx-timing"
"""The ``xdist_group`` of all tests that take times. A test that the user marks with it counts as one of them."""


class MachineLock:
    """A lock on one machine that any number of processes of a run share, or one of them holds exclusively.

    It is a record lock on a byte of a file in the system's folder for temporary files. The byte depends on the run, so
    that runs do not wait for each other, not even nested ones. The file belongs to the user and stays. The system
    releases the lock however a process ends, and children do not inherit it. A waiting process holds nothing, so there
    are no deadlocks. Raises :class:`OSError` if such a file cannot be made.

    >>> lock = MachineLock("a run")
    >>> with lock.turn(alone=True):
    ...     pass
    """

    def __init__(self, run: str) -> None:
        if sys.platform == "win32":
            raise OSError("this system has no record locks")
        self._byte = int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "big")
        path = Path(tempfile.gettempdir(), f"pytest-fx-{os.getuid()}.lock")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def acquire(self, *, alone: bool) -> None:
        """Wait until no process of the run holds the lock, or none exclusively if not ``alone``, and take it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, self._byte)

    def release(self) -> None:
        """Release the lock, if it is held."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Generator[None]:
        """Hold the lock inside the block."""
        self.acquire(alone=alone)
        try:
            yield
        finally:
            self.release()


LOCK = pytest.StashKey[MachineLock]()
"""The key of the lock by which a worker takes turns; it has none if the system has no such locks."""
TIMED = pytest.StashKey[bool]()
"""True if a worker collected any timing, so that turns matter."""


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs tests for another one."""
    return hasattr(config, "workerinput")


def timings_last(config: pytest.Config) -> bool:
    """Return whether this process schedules all timings on one worker, after the checks, as ``-n`` alone does."""
    options = config.stash[OPTIONS]
    is_used = options.used or config.getoption("fx_tables") is not None
    return is_used and options.timing and config.getoption("dist", "no") == "load"


def describe(config: pytest.Config) -> str | None:
    """Return the line of the header on the place of timings, if tests are distributed."""
    how = config.getoption("dist", "no")
    if how == "no" or is_worker(config) or not config.stash[OPTIONS].timing:
        return None
    if timings_last(config) or how == "loadgroup":
        return "timings on one worker, never beside other work on its machine"
    return f"timings never beside other work on their machine (--dist {how} spreads them over workers)"


def reason_not_to_time(config: pytest.Config) -> str | None:
    """Return why times taken now would mean nothing or are not wanted, or None."""
    if benchmarks_disabled(config):
        return "benchmarks are switched off (--benchmark-disable)"
    if is_worker(config) and LOCK not in config.stash:
        return "times taken beside other workers mean nothing, and no file can be locked here: run without -n"
    return None


def instruct(config: pytest.Config, worker_input: dict[str, Any]) -> None:
    """Send a worker, whose files may differ, the settings of this process."""
    worker_input["fx_timings_last"] = timings_last(config) or config.getoption("dist") == "loadgroup"
    worker_input["fx_root"] = str(config.rootpath)
    worker_input["fx_suites"] = config.stash[ADDED]
    baseline = config.stash[BASELINE]
    if baseline is not None:
        worker_input["fx_baseline"] = baseline.as_data()


def suites_added(config: pytest.Config) -> list[str]:
    """Return, in a worker, the suites that the controller adds to the user's tests; only the controller knows paths."""
    return config.workerinput["fx_suites"] if is_worker(config) else []  # type: ignore[attr-defined]


def root_of_run(config: pytest.Config) -> Path:
    """Return the root folder of the run: in a worker, whose own may differ, that of the controller."""
    return Path(config.workerinput["fx_root"]) if is_worker(config) else config.rootpath  # type: ignore[attr-defined]


def take_turns(config: pytest.Config) -> None:
    """Let a worker share its machine from now on. It imports and collects while no other worker times."""
    if is_worker(config) and config.stash[OPTIONS].timing:
        with contextlib.suppress(OSError):
            lock = MachineLock(config.workerinput["testrunuid"])  # type: ignore[attr-defined]
            lock.acquire(alone=False)
            config.stash[LOCK] = lock


def leave_turns(config: pytest.Config) -> None:
    """Let a child process of this one take no turns, since its parent does."""
    config.stash[TIMED] = False


def is_timing(item: pytest.Item) -> bool:
    """Return whether a test takes times: by its fixtures, or by the mark ``xdist_group("fx-timing")``."""
    groups = [(*marker.args, *marker.kwargs.values()) for marker in item.iter_markers("xdist_group")]
    fixtures = getattr(item, "fixturenames", ())
    return TIMING_FIXTURE in fixtures or "fx_candidate" in fixtures or (TIMING_GROUP,) in groups


@contextlib.contextmanager
def timings_grouped(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """In a worker, group the timings among ``items``, and put them last if the controller asks for it."""
    if not is_worker(config):
        yield
        return
    for item in filter(is_timing, items):
        item.add_marker(pytest.mark.xdist_group(TIMING_GROUP))
    yield
    config.stash[TIMED] = any(map(is_timing, items))
    if _are_last(config):
        items.sort(key=is_timing)


@contextlib.contextmanager
def collection_reported(session: pytest.Session) -> Generator[None]:
    """In a worker, mark timings in the names that the controller gets; then release the lock, so that others can time.

    Only names are sent. The group is appended to the name as pytest-xdist does it, and only for this moment: in reports
    and on the command line each test has one name.
    """
    config = session.config
    timings = [item for item in session.items if is_timing(item)] if _are_last(config) else []
    for item in timings:
        _rename(item, f"{plain_name(item.nodeid)}@{TIMING_GROUP}")
    try:
        yield
    finally:
        for item in timings:
            _rename(item, plain_name(item.nodeid))
        lock = config.stash.get(LOCK, None)
        if lock is not None:
            lock.release()


def _are_last(config: pytest.Config) -> bool:
    return is_worker(config) and config.workerinput.get("fx_timings_last", False)  # type: ignore[attr-defined]


def _rename(item: Any, name: str) -> None:
    """Rename a test. pytest keeps the name in one of two places; if a future version used a third, only the grouping of
    timings on one worker would be lost."""
    if hasattr(item, "_id"):  # pytest 9.2
        item._id = type(item._id).parse(name)
    else:
        item._nodeid = name


def plain_name(test: str) -> str:
    """Return the name of a test without the group that older versions append to it under ``--dist loadgroup``."""
    return test.removesuffix(f"@{TIMING_GROUP}")


@contextlib.contextmanager
def turn_of(item: pytest.Item) -> Generator[None]:
    """Run a test in its turn: a timing alone on the machine, any other test beside other tests but no timing."""
    lock = item.config.stash.get(LOCK, None)
    if lock is None or not item.config.stash.get(TIMED, False):
        yield
    else:
        with lock.turn(alone=is_timing(item)):
            yield
