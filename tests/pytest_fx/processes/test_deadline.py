"""The watchdog, beyond the tests of its users."""

import time

import pytest

from pytest_fx.processes.child import Child, Limits
from pytest_fx.processes.deadline import TookTooLong, Watchdog


def never_ends():
    while True:
        time.sleep(0.01)


def test_a_watchdog_that_was_made_before_the_process_was_copied_watches_the_copy():
    watchdog = Watchdog()

    def work(channel):
        try:
            with watchdog, watchdog.limit(0.1):
                never_ends()
        except TookTooLong:
            channel.send(b"interrupted")

    with Child(work) as child:
        assert child.receive(Limits(seconds=60)) == b"interrupted"


def test_a_watchdog_watches_as_often_as_it_is_entered():
    watchdog = Watchdog()
    for _ in range(2):
        with pytest.raises(TookTooLong), watchdog, watchdog.limit(0.1):
            never_ends()


class Swallowing:
    """Ends in a destructor, where Python ignores exceptions."""

    def __init__(self, seconds: float):
        self.until = time.monotonic() + seconds

    def __del__(self):
        while time.monotonic() < self.until:
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_block_that_swallowed_the_error_is_interrupted_again():
    def swallow_and_go_on():
        Swallowing(1.0)
        never_ends()

    with Watchdog() as watchdog, pytest.raises(TookTooLong), watchdog.limit(0.1):
        swallow_and_go_on()


def test_a_block_that_only_waited_for_a_processor_is_not_interrupted_at_once():
    with Watchdog() as watchdog:
        with watchdog.limit(0.1, computing=True):
            time.sleep(0.2)  # as on a machine with other work
        with pytest.raises(TookTooLong), watchdog.limit(0.1, computing=True):
            never_ends()
