"""Operations that wait for something else, such as another process, and the two halves of each: start and wait.

For a fetch from a server, the start returns a handle at once, and the wait takes the handle and returns the result.
Collectives of ``torch.ops._c10d_functional`` consist of two halves already.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverloadPacket

from fx.argument_types import checked
from fx.arguments import refusal

Channel: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], Hashable]
"""A function from the arguments of a call to its channel; calls through the same channel start in program order."""

MOST_THREADS = 8
"""The number of calls that run on threads of :func:`start_on_thread` at a time; further calls wait for one of them."""


@dataclass(frozen=True, slots=True)
class Halves:
    """The two halves of an operation: its start and its wait."""

    start: Callable[..., Any]
    """The function that takes the arguments of the operation and returns a handle."""
    wait: Callable[[Any], Any]
    """The function that takes the handle and returns the result, or raises the operation's error."""
    channel: Channel
    """The function that returns the channel of a call."""
    independent: bool = False
    """True if calls write to no values of the program, and may move past each other and other effects."""
    on_thread: bool = False
    """True if ``start`` takes the operation before its arguments."""
    wait_method: str = ""
    """The method of the handle that programs call to wait, or ``""`` if there is none."""


_halves: dict[Any, Halves] = {}
"""The registered operations."""


@checked()
def register_async(
    blocking: Callable[..., Any],
    start: Callable[..., Any] | None = None,
    wait: Callable[[Any], Any] | None = None,
    *,
    channel: Channel | None = None,
    independent: bool = False,
) -> None:
    """Declare that calls of ``blocking`` can be divided into a start and a wait, for the pass ``"overlap"``.

    Args:
        blocking: the function, as graphs call it; :func:`fx.wrap` makes a function that cannot be traced a leaf.
        start: takes the same arguments and returns a handle at once; it starts this operation alone. Without ``start``
            and ``wait``, the function runs on another thread, in the modes (gradients, autocast) of its caller.
        wait: takes the handle, and returns the result of ``blocking``, or raises its error.
        channel: returns the channel for the arguments ``(args, kwargs)`` of a call, such as the name of a server. Calls
            through the same channel start in the order of the program. Without it, all calls use one channel. An
            argument that the program computes is a node; if ``channel`` returns it, that means every channel.
        independent: calls write to no values of the program, may run while other operations with effects run, and may
            run several at a time. Without it they keep their places among those, like all calls not known to be pure.

    Raises:
        GraphError: only one of ``start`` and ``wait`` is given, or an argument is not callable.
    """
    if (start is None) != (wait is None):
        raise refusal("register_async takes both start and wait, or none of them", start or wait)
    goes_through = channel or functools.partial(_one_channel, blocking)
    if start is None or wait is None:
        _halves[blocking] = Halves(start_on_thread, wait_for, goes_through, independent, on_thread=True)
    else:
        _halves[blocking] = _begun[start] = Halves(start, wait, goes_through, independent)


def halves_of(target: Any) -> Halves | None:
    """Return the halves of calls of ``target``, or None if they are not known."""
    try:
        return _halves[target] if target in _halves else _halves_of_rpc(target)
    except TypeError:  # unhashable targets are not registered
        return None


def halves_begun_by(target: Any, args: Sequence[Any]) -> Halves | None:
    """Return the halves that a call of ``target`` starts: of a collective, or of a call that the pass divided."""
    try:
        halves = _halves.get(args[0]) if target is start_on_thread and args else _begun.get(_overload(target))
        return halves or _rpc_halves().get(target)
    except TypeError:  # as above
        return None


def waits_for(op: str, target: Any, halves: Halves) -> bool:
    """Return whether a call of ``target``, a function or the name of a method, is the waiting half."""
    if op == "call_method":
        return bool(halves.wait_method) and target == halves.wait_method
    return op == "call_function" and _overload(target) is halves.wait


def _overload(target: Any) -> Any:
    """Return the default overload of ``torch.ops.….name``, if it has one; operators that communicate have one."""
    return getattr(target, "default", target) if isinstance(target, OpOverloadPacket) else target


def channel_of(halves: Halves, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """Return the channel of a call of the operation, or ``None``, for any channel, if the program computes it."""
    channel = halves.channel(args, kwargs)
    return None if hasattr(channel, "users") else channel


def start_on_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Call ``function`` on another thread, with the modes of this one, and return its future.

    A call that already runs on such a thread calls it at once: otherwise all threads could wait for further threads.
    """
    if not getattr(_is_ours, "yes", False):
        return _threads().submit(_call_in, _modes(), function, args, kwargs)
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


def wait_for(future: Any) -> Any:
    """Wait for a future, and return its result or raise its error."""
    return future.result() if isinstance(future, Future) else future.wait()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, "fx-overlap", initializer=lambda: setattr(_is_ours, "yes", True))


_is_ours = threading.local()
"""The mark of the threads of this module."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not survive a fork


def _modes() -> list[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Return functions that create this thread's modes as context managers; modes are per thread."""
    devices = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    casts = [
        functools.partial(torch.autocast, kind, torch.get_autocast_dtype(kind), cache_enabled=False) for kind in devices
    ]
    return [
        functools.partial(torch.inference_mode, torch.is_inference_mode_enabled()),
        functools.partial(torch.set_grad_enabled, torch.is_grad_enabled()),
        *casts,
    ]


def _call_in(modes: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode())
        return function(*args, **kwargs)


def _one_channel(operation: Any, args: object, kwargs: object) -> Hashable:
    return id(operation)


def _server(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    return "torch.distributed.rpc", args[0] if args else kwargs.get("to")


def _group(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    return "torch.distributed", args[-1] if args and "group_name" not in kwargs else kwargs.get("group_name")


def remote_calls() -> tuple[Any, ...]:
    """Return the functions of ``torch.distributed.rpc`` for remote calls, if it is available; programs call them."""
    if not _remote_calls and (rpc := sys.modules.get("torch.distributed.rpc")) is not None and rpc.is_available():
        _remote_calls.extend([rpc.rpc_sync, rpc.rpc_async, rpc.remote])
    return tuple(_remote_calls)


_remote_calls: list[Any] = []
"""The remote calls, looked up once, since capture replaces them in their module for a while."""


def _halves_of_rpc(target: Any) -> Halves | None:
    """Return the halves of ``rpc_sync``."""
    calls = remote_calls()
    return Halves(calls[1], wait_for, _server) if calls and target is calls[0] else None


def _rpc_halves() -> dict[Any, Halves]:
    """Return the halves whose start is in the program already: ``rpc_async``, and ``remote`` with its fetch."""
    methods = {"rpc_async": "wait", "remote": "to_here"}
    return {call: Halves(call, wait_for, _server, wait_method=methods[call.__name__]) for call in remote_calls()[1:]}


def _collectives() -> dict[Any, Halves]:
    if not torch.distributed.is_available():
        return {}
    operators = torch.ops._c10d_functional
    wait = operators.wait_tensor.default
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
    starts = [getattr(operators, name).default for name in names if hasattr(operators, name)]
    return {start: Halves(start, wait, _group, independent=True) for start in starts}


_begun: dict[Any, Halves] = _collectives()
"""The halves by their starts: collectives, which return new tensors, and the registered operations."""
