"""pytest_fx.parallel.distribution: processes of a run share a machine, or one has it exclusively."""

import subprocess
import sys
import time

import pytest

from pytest_fx.parallel.distribution import MachineLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no record locks")

HOLD = """
import sys, time
from pytest_fx.parallel.distribution import MachineLock

lock = MachineLock(sys.argv[1])
lock.acquire(alone=sys.argv[2] == "alone")
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process that holds the lock until ``stop`` is called."""

    def __init__(self, run: str, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, run, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def holds(self) -> bool:
        return self.process.stdout.readline() == "held\n"

    def waits(self) -> bool:
        time.sleep(0.3)
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holder(tmp_path):
    started = []

    def start(run: str, how: str) -> Holder:
        started.append(Holder(f"{tmp_path}{run}", how))
        return started[-1]

    start.lock = MachineLock(f"{tmp_path}a run")
    yield start
    for trained_module in started:
        trained_module.stop()


def test_many_share_the_lock_and_an_exclusive_one_waits_for_all(holder):
    with holder.lock.turn(alone=False):
        assert holder("a run", "shared").holds()
        alone = holder("a run", "alone")
        assert alone.waits()
        assert holder("a run", "shared").holds()  # who waits holds nothing up


def test_an_exclusive_lock_is_not_shared(holder):
    with holder.lock.turn(alone=True):
        other = holder("a run", "shared")
        assert other.waits()
    assert other.holds()


def test_a_process_that_is_killed_gives_the_lock_up(holder):
    first = holder("a run", "alone")
    assert first.holds()
    second = holder("a run", "alone")
    assert second.waits()
    first.stop()
    assert second.holds()


def test_runs_do_not_wait_for_each_other(holder):
    with holder.lock.turn(alone=True):
        assert holder("another run", "alone").holds()


def test_an_error_in_a_turn_ends_it(holder):
    with pytest.raises(KeyboardInterrupt), holder.lock.turn(alone=True):
        raise KeyboardInterrupt
    assert holder("a run", "alone").holds()
