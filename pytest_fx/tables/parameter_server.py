"""Processes that hold embedding tables, and programs that fetch rows of them by ``torch.distributed.rpc``."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import rpc

import fx
from fx.operators.asynchronous import register_async
from pytest_fx.errors import FetchError
from pytest_fx.processes.child import Channel, Child, Limits
from pytest_fx.processes.child import unavailable as child_unavailable

STARTING = 60.0
"""Seconds in which all processes must connect."""
CLIENT = "client"
"""The name of the client process."""

Lookup = Callable[[Tensor], Any]
"""A table: a function from ids to their vectors."""

_tables: dict[str, Lookup] = {}
"""The tables of this process, if it is a server."""


def unavailable() -> str | None:
    """Return the reason why no server can run on this system, or None."""
    if not torch.distributed.is_available() or not rpc.is_available():
        return "this build of torch has no torch.distributed.rpc"
    return child_unavailable()


@contextlib.contextmanager
def parameter_servers(servers: Mapping[str, Mapping[str, Lookup]]) -> Generator[dict[str, Child]]:
    """Start a process for each of ``servers``, which holds its tables, and connect to them over the loopback.

    The servers are forks of this process. A process can be the client only once, so callers run this in a
    :class:`~pytest_fx.processes.child.Child`. The servers end with the block or with this process, or are killed.
    """
    with contextlib.ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory()), "meeting")
        join = partial(_join, meeting=meeting, processes=len(servers) + 1)
        started = {
            name: stack.enter_context(Child(partial(_serve, name, rank, tables, join)))
            for rank, (name, tables) in enumerate(servers.items(), start=1)
        }
        join(CLIENT, 0)
        stack.callback(rpc.shutdown, graceful=False)  # does not wait for servers, which may have ended
        for server in started.values():
            server.receive(Limits(seconds=STARTING))
        yield started


def _serve(name: str, rank: int, tables: Mapping[str, Lookup], join: Callable[[str, int], None], own: Channel) -> None:
    _tables.update(tables)
    torch.set_num_threads(1)
    join(name, rank)
    own.send(b"ready")
    own.receive()  # until the client ends


def _join(name: str, rank: int, meeting: Path, processes: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=meeting.as_uri(),
        rpc_timeout=STARTING,
        _transports=["uv"],  # TCP, as between machines, not shared memory
        _channels=["basic"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rpc itself uses deprecated parts of torch.distributed
        rpc.init_rpc(name, rank=rank, world_size=processes, rpc_backend_options=options)


def look_up(table: str, ids: Tensor) -> Any:
    """Look up ``ids`` in the table of this process called ``table``."""
    with torch.no_grad():
        return _tables[table](ids)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A pending request for rows of a table."""

    server: str
    table: str
    shape: tuple[int, int]
    seconds: float
    future: Any


@fx.wrap
def fetch(server: str, table: str, ids: Tensor, width: int, seconds: float) -> Tensor:
    """Return the vectors, (batch, width), of ``ids``, (batch, ids) of int64, from ``table`` of ``server``.

    Raises :class:`~pytest_fx.errors.FetchError` if none arrive within ``seconds``, or their shape or dtype is wrong.
    """
    return wait_for_vectors(start_fetch(server, table, ids, width, seconds))


def start_fetch(server: str, table: str, ids: Tensor, width: int, seconds: float) -> _Fetch:
    """Request vectors, as :func:`fetch` does, and return at once; :func:`wait_for_vectors` raises all errors."""
    try:
        future = rpc.rpc_async(server, look_up, (table, ids), timeout=seconds)
    except RuntimeError as error:
        future = torch.futures.Future[Any]()
        future.set_exception(error)
    return _Fetch(server, table, (len(ids), width), seconds, future)


def wait_for_vectors(fetched: _Fetch) -> Tensor:
    """Wait for the requested vectors, and return them."""
    what = f"table {fetched.table!r} of server {fetched.server!r} returned no vectors"
    try:
        answer = fetched.future.wait()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        remedy = f"check that the server runs and answers within {fetched.seconds:g} s"
        raise FetchError(what, why=f"{type(error).__name__}: {reason}", remedy=remedy) from error
    received = (tuple(answer.shape), answer.dtype) if isinstance(answer, Tensor) else type(answer).__name__
    if received != (fetched.shape, torch.float32):
        raise FetchError(what, value=received, why=f"expected {fetched.shape}, torch.float32")
    return answer


register_async(fetch, start_fetch, wait_for_vectors, channel=lambda args, kwargs: args[0], independent=True)


class RemoteTable(nn.Module):
    """A replacement for an embedding whose table is on a server; each call waits for its vectors."""

    def __init__(self, server: str, table: str, width: int, seconds: float = 10.0) -> None:
        """Take the names of server and table, the length of a vector, and the seconds to wait for an answer."""
        super().__init__()
        self.server, self.table, self.width, self.seconds = server, table, width, seconds

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids, (batch, ids) of int64, to (batch, width)."""
        return fetch(self.server, self.table, ids, self.width, self.seconds)
