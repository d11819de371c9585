"""The watchdog, beside what its users' tests show."""

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
