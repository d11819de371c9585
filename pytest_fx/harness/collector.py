"""The garbage collector, asked for what one test has made and dropped: it need not look at all that is there.

Programs and graphs know each other, and passes leave such rings, too. With a large model in them they are not left to
chance.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

MOST_IMMORTAL = 10_000
"""More objects out of the collector's sight than this were put there: torch makes ten times as many.

Python 3.12 counts those among them that live for ever, some hundreds."""


@contextmanager
def earlier_objects_left_out() -> Generator[None]:
    """Let :func:`collect` look in the block at objects made in the block alone, which takes milliseconds.

    What becomes garbage later is old then, and the collector seldom visits what is old: only for a test that collects.
    Where somebody else has put objects out of the collector's sight, that stays as it is.
    """
    if gc.get_freeze_count() > MOST_IMMORTAL:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def collect() -> None:
    """Free what nobody can reach any more."""
    gc.collect()
