"""Models and passes for what a run is asked: modes, dtypes of inputs, changes."""

from __future__ import annotations

import operator

import torch
from torch import nn


class Net(nn.Module):
    """Computes something else in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bn, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.bn(self.linear(x))))


class Scaled(nn.Module):
    """Returns the wider dtype of its weight and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def training():
    return Net(), torch.randn(8, 6)


def evaluation():
    return Net().eval(), torch.randn(8, 6)


def one_sample():
    return Net(), torch.randn(1, 6)


def wide():
    return Scaled(), torch.rand(3, 4, dtype=torch.float64)


pair = Scaled(), torch.rand(3, 4)


def drop(program):
    """Remove dropout, in whichever mode."""
    for node in list(program.graph.nodes):
        if node.op == "call_module" and node.target == "dropout":
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.recompile()


def drop_in_evaluation(program):
    """Remove dropout where it does nothing."""
    if not program.training:
        drop(program)


def narrow(program):
    """Compute in float32, whatever the input is."""
    for node in program.graph.find_nodes(op="call_function", target=operator.mul):
        with program.graph.inserting_before(node):
            narrowed = program.graph.call_method("float", (node.args[0],))
        node.args = (narrowed, node.args[1])
    program.recompile()


def swap(program):
    """Exchange factors."""
    for node in program.graph.find_nodes(op="call_function", target=operator.mul):
        node.args = node.args[::-1]
    program.recompile()
