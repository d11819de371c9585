"""Programs that wait for a simulated network: calls are recorded, and answers come at drawn moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import torch

import fx
from fx.operators.asynchronous import register_async

CHANNELS = ("a", "b")


@dataclass
class Network:
    """The calls that have gone through, in order."""

    late: Callable[[int], bool] = lambda number: True
    """Whether the call of a number reads its arguments as late as it may, when it is waited for."""
    events: list[tuple[str, str, int]] = field(default_factory=list)
    """``(what, channel, number)``: the numbers are those of the calls in the original."""
    running: int = 0
    most: int = 0
    """The largest number of calls that ran at a time."""

    def start(self, channel: str, number: int, x: torch.Tensor) -> tuple[str, int, Callable[[], torch.Tensor]]:
        self.events.append(("start", channel, number))
        self.running += 1
        self.most = max(self.most, self.running)
        if self.late(number):
            return channel, number, lambda: x * 2 + number
        now = x * 2 + number
        return channel, number, lambda: now

    def wait(self, handle: tuple[str, int, Callable[[], torch.Tensor]]) -> torch.Tensor:
        channel, number, answer = handle
        self.events.append(("wait", channel, number))
        self.running -= 1
        return answer()


network = Network()


def fetch(channel: str, number: int, x: torch.Tensor) -> torch.Tensor:
    return network.wait(network.start(channel, number, x))


def send(channel: str, number: int, x: torch.Tensor) -> torch.Tensor:
    """As ``fetch``, but not independent of others."""
    return fetch(channel, number, x)


def start(channel: str, number: int, x: torch.Tensor) -> Any:
    return network.start(channel, number, x)


def start_sending(channel: str, number: int, x: torch.Tensor) -> Any:
    return network.start(channel, number, x)


def wait(handle: Any) -> torch.Tensor:
    return network.wait(handle)


def channel_of(args: Sequence[Any], kwargs: Any) -> Any:
    return args[0]


register_async(fetch, start, wait, channel=channel_of, independent=True)
register_async(send, start_sending, wait, channel=channel_of)


@st.composite
def programs(draw: st.DrawFn, calls: Sequence[str] | None = None) -> fx.GraphModule:
    """Random programs of arithmetic, writes in place and calls; with ``calls``, these channels one after the other."""
    graph = fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    remaining = None if calls is None else list(calls)
    number = 0
    for _ in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(("fetch", "fetch", "send", "sin", "view", "add", "mul_", "rand", "check")))
        x = draw(st.sampled_from(values))
        if kind in ("fetch", "send"):
            if remaining is not None and not remaining:
                continue
            channel = draw(st.sampled_from(CHANNELS)) if remaining is None else remaining.pop(0)
            values.append(graph.call_function(fetch if kind == "fetch" else send, (channel, number, x)))
            number += 1
        elif kind == "add":
            values.append(graph.call_function(torch.add, (x, draw(st.sampled_from(values)))))
        elif kind == "view":
            values.append(graph.call_method("view", (x, 3)))
        elif kind == "mul_":
            values.append(graph.call_method("mul_", (x, 3.0)))
        elif kind == "rand":
            values.append(graph.call_function(torch.rand_like, (x,)))
        elif kind == "check":
            graph.call_function(torch._assert, (True, "holds"))
        else:
            values.append(graph.call_function(torch.sin, (x,)))
    for channel in remaining or ():
        values.append(graph.call_function(fetch, (channel, number, values[-1])))
        number += 1
    graph.output(tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))))
    return fx.GraphModule(torch.nn.Module(), graph)


def run(program: fx.GraphModule, late: Callable[[int], bool] = lambda number: True) -> tuple[Any, Network]:
    """Return a program's result for fixed inputs, these inputs as it leaves them, and the calls through the network."""
    network.__init__(late)
    torch.manual_seed(0)
    inputs = torch.arange(3.0), torch.ones(3)
    return (program(*inputs), inputs, torch.rand(1)), Network(late, network.events, network.running, network.most)
