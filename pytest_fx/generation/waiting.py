"""Functions that wait for something else, in programs for passes that divide such calls into a start and a wait.

Those that a user registers talk to other processes, and are not called with random tensors.
"""

from __future__ import annotations

from concurrent.futures import Future

from torch import Tensor

import fx
from fx.operators.asynchronous import register_async, start_on_thread, wait_for


@fx.wrap
def fetched(x: Tensor) -> Tensor:
    """Return a new tensor, as a fetch from a server does; calls commute with whatever leaves the argument alone."""
    return x * 2 + 1


@fx.wrap
def relayed(x: Tensor) -> Tensor:
    """Return a new tensor by way of halves that are functions of their own."""
    return wait_for_relayed(start_relayed(x))


@fx.wrap
def exchanged(x: Tensor) -> Tensor:
    """Write to the argument and return a new tensor, so that calls keep their places among other writes and reads."""
    result = x + 1
    x.detach().mul_(0.5)
    return result


@fx.wrap
def start_relayed(x: Tensor) -> Future[Tensor]:
    """Start what :func:`relayed` waits for."""
    return start_on_thread(fetched, x)


@fx.wrap
def wait_for_relayed(future: Future[Tensor]) -> Tensor:
    """Return the result of what :func:`start_relayed` has started."""
    return wait_for(future)


register_async(fetched, independent=True)
register_async(relayed, start_relayed, wait_for_relayed, independent=True)
register_async(exchanged)

WAITING = (fetched, relayed, exchanged)
"""All of them."""
