"""Programs that tests of drawings draw."""

from __future__ import annotations

import random

import torch
from building import Calling
from torch import nn

import fx
import model_zoo
from fx.drawing.clusters import make_clusters
from fx.drawing.rows import Edge, Rows, make_rows


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.relu(self.wide(x)))


class Blocks(nn.Module):
    """Equal blocks, and a different one."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Sequential(nn.Linear(4, 2), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def each_kind() -> nn.Module:
    """A module whose program has a node of each opcode."""

    def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(module.linear(x) * module.weight).neg()

    return Calling(call, linear=nn.Linear(2, 2), weight=nn.Parameter(torch.ones(2)))


def captured(name: str) -> fx.GraphModule:
    return fx.symbolic_trace(model_zoo.get_model(name).build())


def random_rows(seed: int, count: int = 60) -> tuple[list[Rows], list[Edge]]:
    """A random program in random modules, whose edges may also point backward."""
    draw = random.Random(seed)
    modules = [tuple(f"m{draw.randrange(2)}" for _ in range(draw.randrange(4))) for _ in range(count)]
    modules = [path for path in modules for _ in range(draw.randrange(1, 4))][:count]
    edges = [
        (draw.randrange(max(0, node - draw.choice([2, 5, 60])), node), node, draw.randrange(1, 4))
        for node in range(1, count)
        for _ in range(draw.randrange(3))
    ]
    edges += [(draw.randrange(1, count), 0, 1)]
    edges = list({(tail, head): states for tail, head, states in edges}.items())  # type: ignore[assignment]
    flat_edges: list[Edge] = [(tail, head, states) for (tail, head), states in edges]  # type: ignore[misc]
    inputs: list[list[int]] = [[] for _ in range(count)]
    for tail, head, _ in flat_edges:
        inputs[head].append(tail)
    root = make_clusters(modules, {}, [draw.randrange(3) for _ in range(count)], inputs)
    return make_rows(root, flat_edges, lambda node: node == 0), flat_edges
