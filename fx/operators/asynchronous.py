"""Operations that wait for something else, such as another process, and the two halves that each can be divided into.

A fetch from a server is a start, which returns a handle at once, and a wait, which takes the handle and returns the
result. Collectives of ``torch.ops._c10d_functional`` come in two halves from the outset.
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

from fx.arguments import refusal

Channel: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], Hashable]
"""From the arguments of a call, what it goes through; calls through the same keep the order in which they start."""

MOST_THREADS = 8
"""Calls that run on threads of :func:`start_on_thread` at a time; further ones wait for one of them."""


@dataclass(frozen=True, slots=True)
class Halves:
    """How an operation is started and waited for."""

    start: Callable[..., Any]
    """Takes the arguments of the operation and returns a handle."""
    wait: Callable[[Any], Any]
    """Takes the handle and returns the result, or raises what the operation raised."""
    channel: Channel
    """What a call goes through."""
    independent: bool = False
    """Whether calls write to nothing that the program has, and may pass others with effects, also such as these."""
    on_thread: bool = False
    """Whether ``start`` takes the operation before its arguments."""
    wait_method: str = ""
    """The method of the handle that programs call to wait, where there is one."""


_halves: dict[Any, Halves] = {}
"""Operations that were registered."""


def register_async(
    blocking: Callable[..., Any],
    start: Callable[..., Any] | None = None,
    wait: Callable[[Any], Any] | None = None,
    *,
    channel: Channel | None = None,
    independent: bool = False,
) -> None:
    """Say that calls of ``blocking`` can be started and waited for, for the pass ``"overlap"``.

    Args:
        blocking: the function, as graphs call it; one that cannot be traced is made a leaf by :func:`fx.wrap`.
        start: takes the same arguments and returns a handle at once; it starts this operation alone. Without it, and
            without ``wait``, the function runs on another thread, in the modes (gradients, autocast) of who started it.
        wait: takes the handle, and returns what ``blocking`` would have, or raises that.
        channel: what the arguments ``(args, kwargs)`` of a call say that it goes through, such as the name of a server;
            calls through the same channel start in the order of the program. Without it, all calls go through one.
            Where it returns an argument that the program computes, that is a node, and stands for every channel.
        independent: calls write to nothing that the program has, and may run while other operations with effects do,
            and several at a time. Without it they keep their places among those, like all that is not known to be pure.

    Raises:
        GraphError: only one of ``start`` and ``wait`` is given, or something cannot be called.
    """
    for name, function in (("blocking", blocking), ("start", start), ("wait", wait), ("channel", channel)):
        if not callable(function) and (function is not None or name == "blocking"):
            raise refusal(f"register_async takes a function as {name}", function)
    if (start is None) != (wait is None):
        raise refusal("register_async takes both start and wait, or none of them", start or wait)
    goes_through = channel or functools.partial(_one_channel, blocking)
    if start is None or wait is None:
        _halves[blocking] = Halves(start_on_thread, wait_for, goes_through, independent, on_thread=True)
    else:
        _halves[blocking] = _begun[start] = Halves(start, wait, goes_through, independent)


def halves_of(target: Any) -> Halves | None:
    """Return how calls of ``target`` are started and waited for, if that is known."""
    try:
        return _halves[target] if target in _halves else _halves_of_rpc(target)
    except TypeError:  # what cannot be hashed is not registered
        return None


def halves_begun_by(target: Any, args: Sequence[Any]) -> Halves | None:
    """The halves of which a call of ``target`` is the start: of a collective, or as the pass leaves them."""
    try:
        known = _halves.get(args[0]) if target is start_on_thread and args else _begun.get(_overload(target))
        return known or _rpc_halves().get(target)
    except TypeError:  # as above
        return None


def waits_for(op: str, target: Any, halves: Halves) -> bool:
    """Return whether a call of ``target``, a function or the name of a method, is the half that waits."""
    if op == "call_method":
        return bool(halves.wait_method) and target == halves.wait_method
    return op == "call_function" and _overload(target) is halves.wait


def _overload(target: Any) -> Any:
    """The operator that a call of ``torch.ops.….name`` runs, where that has one, as those that communicate have."""
    return getattr(target, "default", target) if isinstance(target, OpOverloadPacket) else target


def channel_of(halves: Halves, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """Return what a call of the operation goes through; ``None``, for any, where only the program knows."""
    found = halves.channel(args, kwargs)
    return None if hasattr(found, "users") else found


def start_on_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Call ``function`` on another thread, with the modes of this one, and return its future.

    What runs on such a thread already calls it at once: all threads could wait for further ones otherwise.
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
    """Return what a future holds, or raise what its call raised, once that has ended."""
    return future.result() if isinstance(future, Future) else future.wait()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, "fx-overlap", initializer=lambda: setattr(_is_ours, "yes", True))


_is_ours = threading.local()
"""What a thread of these is known by."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # the threads are not there


def _modes() -> list[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Return what makes the modes of this thread, which each thread has of its own."""
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
    """The functions of ``torch.distributed.rpc`` that call others, where there is such: captured programs have them."""
    if not _remote_calls and (rpc := sys.modules.get("torch.distributed.rpc")) is not None and rpc.is_available():
        _remote_calls.extend([rpc.rpc_sync, rpc.rpc_async, rpc.remote])
    return tuple(_remote_calls)


_remote_calls: list[Any] = []
"""Looked up once, since others stand in their places while a program is captured."""


def _halves_of_rpc(target: Any) -> Halves | None:
    """Those of ``rpc_sync``."""
    calls = remote_calls()
    return Halves(calls[1], wait_for, _server) if calls and target is calls[0] else None


def _rpc_halves() -> dict[Any, Halves]:
    """Those of which the start is there: a future that is waited for, and a reference whose value is fetched."""
    methods = {"rpc_async": "wait", "remote": "to_here"}
    return {call: Halves(call, wait_for, _server, wait_method=methods[call.__name__]) for call in remote_calls()[1:]}


def _collectives() -> dict[Any, Halves]:
    if not torch.distributed.is_available():
        return {}
    operators = torch.ops._c10d_functional
    wait = operators.wait_tensor.default
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
    found = [getattr(operators, name).default for name in names if hasattr(operators, name)]
    return {start: Halves(start, wait, _group, independent=True) for start in found}


_begun: dict[Any, Halves] = _collectives()
"""Starts: operators whose result another one waits for, which return new tensors, and those that were registered."""
