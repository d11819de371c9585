"""Programs that the benchmarks capture, edit and run. Imports neither library, so that memory is measured for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn


def chain(operations: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function of ``operations`` small steps: functions, operators and methods in turn."""

    def steps(x: torch.Tensor) -> torch.Tensor:
        for index in range(operations):
            if index % 3 == 0:
                x = torch.relu(x)
            elif index % 3 == 1:
                x = x + 1.0
            else:
                x = x.neg()
        return x

    return steps


def trace(library: ModuleType, root: Any) -> Any:
    """Capture a graph without making a module."""
    return library.Tracer().trace(root)


def chain_graph(library: ModuleType, operations: int, *, dead: bool = False) -> Any:
    """Return the graph of a chain, built without tracing; with ``dead``, every second node is dead code."""
    graph = library.Graph()
    value = graph.placeholder("x")
    for index in range(operations):
        step = graph.call_function(torch.relu if index % 2 else torch.neg, (value,))
        if not (dead and index % 2):
            value = step
    graph.output(value)
    return graph


class Block(nn.Module):
    """Four leaf modules as in typical models: attributes of a module with a ``forward``, and a nested container."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU()
        self.rest = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU(), nn.Identity()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


def small_blocks(count: int) -> nn.Module:
    """Return ``count`` leaf modules in blocks, five blocks to a container."""
    stages = range(0, count, 20)
    return nn.Sequential(*[nn.Sequential(*[Block() for _ in range(5)]) for _ in stages])


def small_modules(count: int) -> nn.Module:
    """Return ``count`` leaf modules, ten to a container, in nested containers."""
    layers: list[nn.Module] = [nn.Identity() if index % 2 else nn.ReLU() for index in range(count)]
    while len(layers) > 1:
        layers = [nn.Sequential(*layers[start : start + 10]) for start in range(0, len(layers), 10)]
    return layers[0]


def small_functions(count: int) -> nn.Module:
    """Return a module that applies ``count`` functions."""

    class Functions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.neg(x)
            return x

    return Functions()


class Perceptron(nn.Module):
    """Four linear layers with functions between them: few enough operations to show the fixed cost of a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def hooked_perceptron() -> nn.Module:
    """Return a perceptron with a forward hook on each layer."""
    module = Perceptron()
    for layer in module.layers:
        layer.register_forward_hook(lambda module, args, output: output)
    return module


class Layers(nn.Module):
    """Thirty linear layers, each followed by a function, an operator and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + 1.0
            x = x.neg()
        return x


class HandlingLayers(Layers):
    """The same layers in code that handles an exception."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            for layer in self.layers:
                x = torch.relu(layer(x)) + 1.0
                x = x.neg()
        except ValueError:
            x = x * 2
        return x


def pairs_module(library: ModuleType, operations: int) -> Any:
    """Return a chain of neg, relu, tanh and exp in turn, as a module of ``library``, built without tracing."""
    graph = library.Graph()
    value = graph.placeholder("x")
    functions = (torch.neg, torch.relu, torch.tanh, torch.exp)
    for index in range(operations):
        value = graph.call_function(functions[index % 4], (value,))
    graph.output(value)
    return library.GraphModule(nn.Module(), graph)


def repeated_module(library: ModuleType, operations: int) -> Any:
    """Return a chain in which half of the operations repeat another one, as a module of ``library``."""
    graph = library.Graph()
    value = graph.placeholder("x")
    for _ in range(operations // 4):
        first, second = (graph.call_function(torch.tanh, (value,)) for _ in range(2))
        value = graph.call_function(torch.relu, (graph.call_function(torch.add, (first, second)),))
    graph.output(value)
    return library.GraphModule(nn.Module(), graph)


def parallel_layers(library: ModuleType, operations: int) -> Any:
    """Return groups of three linear layers on one input with added results, as a module of ``library``."""
    graph, root = library.Graph(), nn.Module()
    value = graph.placeholder("x")
    for index in range(operations // 5):
        parts = []
        for name in "abc":
            root.add_module(f"{name}{index}", nn.Linear(1, 1))
            parts.append(graph.call_module(f"{name}{index}", (value,)))
        value = graph.call_function(torch.add, (graph.call_function(torch.add, (parts[0], parts[1])), parts[2]))
    graph.output(value)
    return library.GraphModule(root, graph)


def effects_module(library: ModuleType, operations: int) -> Any:
    """Return writes, views, sizes, random numbers and sums on one value and its views, as a module of ``library``."""
    graph = library.Graph()
    x = value = graph.placeholder("x")
    for number in range(operations // 6):
        view = graph.call_method("view", (value, -1))
        graph.call_method("add_", (view, number))
        size = graph.call_method("size", (x, 0))
        graph.call_function(math.sqrt, (size,))
        dropped = graph.call_function(nn.functional.dropout, (value,))
        value = graph.call_function(torch.add, (dropped, value))
    graph.output(value)
    return library.GraphModule(nn.Module(), graph)
