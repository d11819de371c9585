"""A fresh program, and values to misuse it with."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

import fx
from fx.arguments import shown


class Unprintable:
    """Neither repr nor hash nor comparison works."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


class World:
    """A fresh program, and values to misuse it with."""

    def __init__(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.program = fx.symbolic_trace(model)
        self.graph = self.program.graph
        self.input, self.linear, self.relu, self.output = self.graph.nodes
        self.erased = self.graph.call_function(torch.neg, (self.input,))
        self.graph.erase_node(self.erased)
        self.other = fx.Graph()
        self.foreign = self.other.placeholder("foreign")
        self.other.output(self.foreign)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.theirs = torch.fx.symbolic_trace(model)
        self.values = self._values()

    def _values(self) -> dict[str, Any]:
        cycle: list[Any] = []
        cycle.append(cycle)
        cyclic_dict: dict[str, Any] = {}
        cyclic_dict["k"] = ([cyclic_dict],)
        deep: Any = 1
        for _ in range(sys.getrecursionlimit()):
            deep = [deep]
        return {
            "none": None,
            "zero": 0,
            "minus": -1,
            "huge": 10**5000,
            "float": 1.5,
            "true": True,
            "empty": "",
            "spaces": "a b",
            "dots": "a..b",
            "word": "zzz",
            "bytes": b"x",
            "list": [],
            "numbers": [1, "a"],
            "tuple": (),
            "cycle": cycle,
            "in a tuple": (cycle,),
            "dict": {},
            "numbered dict": {1: 2},
            "cyclic dict": cyclic_dict,
            "deep": deep,
            "set": {1},
            "object": object(),
            "unprintable": Unprintable(),
            "function": lambda: None,
            "class": torch.nn.Linear,
            "module": torch.nn.ReLU(),
            "tensor": torch.ones(2),
            "node": self.relu,
            "output": self.output,
            "erased": self.erased,
            "root": self.output.next,
            "foreign": self.foreign,
            "Node": fx.Node,
            "proxy": fx.Proxy(self.input),
            "graph": self.other,
            "Graph": fx.Graph,
            "program": self.program,
            "GraphModule": fx.GraphModule,
            "theirs": self.theirs,
            "their node": next(iter(self.theirs.graph.nodes)),
        }

    def snapshot(self) -> list[Any]:
        """Return the state that a failed call must not change."""
        lines = [(n, n.name, n.op, n.target, shown(n.args), shown(n.kwargs), tuple(n.users)) for n in self.graph.nodes]
        foreign = [(n, shown(n.args), tuple(n.users)) for n in self.other.nodes]
        place = (self.graph._insert, self.graph._codegen, self.graph.owning_module)
        state = [(name, id(value)) for name, value in self.program.named_modules()]
        return [lines, foreign, place, state, self.program.graph, self.graph.revision, self.program.training]
