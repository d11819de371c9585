"""Functions that wait for something else, for passes that divide such calls into a start and a wait.

The functions that a user registers talk to other processes, and are not called with random tensors. The halves of
these read their argument as early or as late as allowed, so that a write in between shows each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import fx
from fx.operators.asynchronous import register_async


@dataclass(frozen=True, slots=True)
class Pending:
    """The object that the start of a call hands to the wait."""

    value: Tensor
    """The argument, or the result."""


@fx.wrap
def fetched(x: Tensor) -> Tensor:
    """Return a new tensor, like a fetch from a server; calls commute with all that leaves the argument alone."""
    return x * 2 + 1


@fx.wrap
def start_fetch(x: Tensor) -> Pending:
    """Start the work of :func:`fetched`: the argument is read now."""
    return Pending(x * 2 + 1)


@fx.wrap
def wait_for_fetch(pending: Pending) -> Tensor:
    """Return the result that :func:`start_fetch` has computed."""
    return pending.value


@fx.wrap
def relayed(x: Tensor) -> Tensor:
    """Return a new tensor, like a relay that reads the argument late."""
    return x * 3 - 1


@fx.wrap
def start_relay(x: Tensor) -> Pending:
    """Start the work of :func:`relayed`."""
    return Pending(x)


@fx.wrap
def wait_for_relay(pending: Pending) -> Tensor:
    """Return the result for :func:`start_relay`: the argument is read now."""
    return pending.value * 3 - 1


@fx.wrap
def exchanged(x: Tensor) -> Tensor:
    """Write to the argument and return a new tensor, so that calls keep their places among other writes and reads."""
    result = x + 1
    x.detach().mul_(0.5)
    return result


register_async(fetched, start_fetch, wait_for_fetch, independent=True)
register_async(relayed, start_relay, wait_for_relay, independent=True)
register_async(exchanged)  # on another thread

WAITING = (fetched, relayed, exchanged)
"""All functions that wait."""
