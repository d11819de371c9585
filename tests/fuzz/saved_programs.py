"""Saved programs to damage: between them they have every opcode, kind of module, tensor and argument."""

from __future__ import annotations

import enum
import functools
import json
import tempfile
from pathlib import Path
from typing import Any, List, NamedTuple, Optional  # noqa: UP035  annotations of a traced program

import torch

import fx
from fx import serialization


@serialization.allow
class Pair(NamedTuple):
    first: Any
    second: Any


@serialization.allow
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@serialization.allow
def keep(x: Any, *more: Any, **named: Any) -> Any:
    return x


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(inplace=True))
        self.attention = torch.nn.MultiheadAttention(4, 2)
        self.lstm = torch.nn.LSTM(4, 3, batch_first=True)
        self.scale = torch.nn.Parameter(torch.ones(2, 1, 1))
        self.again = self.scale
        self.register_buffer("shift", torch.ones(3, 4, dtype=torch.complex64).t().real, persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]).expand(3, 2))

    def forward(self, x: torch.Tensor, k: Optional[List[int]] = None, *, mode: Any = Mode.FAST) -> Any:  # noqa: UP006, UP045
        y = self.body(x) * self.scale * self.again + torch.ones(1)
        z = self.attention(y[0], y[0], y[0], need_weights=False)[0]
        z = self.lstm(z)[0].add(self.shift.sum(), alpha=2).to(torch.float64).clamp(max=float("inf"))
        torch._assert(z.shape[0] > 0, "no rows")
        return keep(Pair(z, y.size()), mode, {"mask": self.mask, 1: [..., slice(None, 2)]}, b=b"x", c=1j, n=10**30)


def _small() -> fx.GraphModule:
    program = fx.symbolic_trace(Small().eval())
    program.graph.output_node().meta["numbers"] = {"shape": torch.Size([2, 3]), "dtype": torch.float32}
    return program


def _nested() -> fx.GraphModule:
    inner = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()))
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_module("block", (x,))
    graph.output((graph.call_module("other", (first,)), graph.get_attr("block.0.weight")))
    root = torch.nn.Module()
    root.block = root.other = inner
    return fx.GraphModule(root, graph, "Outer")


def _structured() -> fx.GraphModule:
    return fx.symbolic_trace(
        lambda pair, flag: {"sum": pair["a"] + pair["b"][0], "flag": flag},
        concrete_args={"pair": {"a": fx.PH, "b": [fx.PH]}, "flag": fx.PH},
    )


def saved(program: fx.GraphModule) -> bytes:
    """The bytes of the file that holds ``program``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        serialization.save(program, path)
        return path.read_bytes()


@functools.lru_cache(maxsize=1)
def saved_programs() -> tuple[bytes, ...]:
    """A file of each program."""
    torch.manual_seed(0)
    return tuple(saved(make()) for make in (_small, _nested, _structured))


def take_apart(data: bytes) -> tuple[dict[str, Any], Any, bytes]:
    """The header without its text, the text as JSON, and the bytes of the tensors."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header.pop("__metadata__")["fx"]), data[8 + length :]


def put_together(header: dict[str, Any], program: Any, rest: bytes) -> bytes:
    """The file again, its lengths in order."""
    return _file(header, json.dumps(program), rest)


def with_text(data: bytes, text: str) -> bytes:
    """The file ``data`` with ``text`` in the place of the program."""
    header, _, rest = take_apart(data)
    return _file(header, text, rest)


def _file(header: dict[str, Any], text: str, rest: bytes) -> bytes:
    encoded = json.dumps({"__metadata__": {"fx": text}, **header}).encode()
    return len(encoded).to_bytes(8, "little") + encoded + rest
