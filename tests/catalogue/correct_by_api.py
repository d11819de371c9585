"""Right passes in every style that torch.fx's users write: patterns, transformers, interpreters, edits in place."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .correct import arithmetic, methods, network, permutes, plain
from .rows import calls, fetched, layers, of, replace, right, substitute

# Patterns.


@right(of(lambda m, x: F.silu(x) + x * torch.sigmoid(x), (4,)))
def silu_by_pattern(gm: fx.GraphModule) -> None:
    """x times its sigmoid is silu."""

    def pattern(x: Any) -> Any:
        return x * torch.sigmoid(x)

    def replacement(x: Any) -> Any:
        return F.silu(x)

    fx.replace_pattern(gm, pattern, replacement)


@right(of(lambda m, x: torch.neg(x) + torch.relu(x), (4,)), contract=exact)
def negation_by_pattern(gm: fx.GraphModule) -> None:
    """Negation is written by its other name."""

    def pattern(x: Any) -> Any:
        return torch.neg(x)

    def replacement(x: Any) -> Any:
        return torch.negative(x)

    fx.replace_pattern(gm, pattern, replacement)


@right(of(lambda m, x, y: torch.matmul(x, y) + 1, (2, 3), (3, 2)), contract=exact)
def matmul_by_pattern(gm: fx.GraphModule) -> None:
    """A product of matrices is written as an operator."""

    def pattern(x: Any, y: Any) -> Any:
        return torch.matmul(x, y)

    def replacement(x: Any, y: Any) -> Any:
        return x @ y

    fx.replace_pattern(gm, pattern, replacement)


# Transformers and interpreters.


@right(methods, contract=exact)
def methods_by_transformer(gm: fx.GraphModule) -> fx.GraphModule:
    """A transformer calls methods as functions of the same name."""

    class Respell(fx.Transformer):
        def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target in ("sigmoid", "relu", "tanh"):
                return super().call_function(getattr(torch, target), args, kwargs)
            return super().call_method(target, args, kwargs)

    return Respell(gm).transform()


@right(arithmetic, contract=exact)
def copied_node_by_node(gm: fx.GraphModule) -> fx.GraphModule:
    """Nodes are copied into a new graph one by one, some of them respelled."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        new = graph.node_copy(node, copies.__getitem__)
        if node.target is torch.relu and not node.kwargs:
            new.op, new.target = "call_method", "relu"
        copies[node] = new
    return fx.GraphModule(gm, graph)


@right(of(lambda m, x: (x * 2 + 1) * 2, (2,)), contract=exact)
def calls_counted(gm: fx.GraphModule) -> None:
    """An interpreter that only looks counts calls; how many stands in the names of the values."""

    class Count(fx.Interpreter):
        def __init__(self, module: Any) -> None:
            super().__init__(module)
            self.found = [node for node in module.graph.nodes if node.op == "call_function"]

    names = {node.name for node in gm.graph.nodes}
    for number, node in enumerate(Count(gm).found):
        if f"call_{number}" not in names:
            node.name = f"call_{number}"
    gm.recompile()


# Edits in place, in torch.fx's vocabulary.


@right(arithmetic, contract=exact)
@adapt
def powers_by_function(gm: torch.fx.GraphModule) -> None:
    """The second power by an operator becomes a method, and methods of that name functions."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is operator.pow and node.args[1:] == (2,):
            with gm.graph.inserting_after(node):
                call = gm.graph.call_method("pow", node.args)
            call.meta = dict(node.meta)
            substitute(node, call)
    for node in gm.graph.nodes:
        if node.op == "call_method" and node.target == "pow":
            node.op, node.target = "call_function", torch.pow
    gm.recompile()


@right(permutes, contract=exact)
@adapt
def permutes_by_function(gm: torch.fx.GraphModule) -> None:
    """x.permute(a, b) is torch.permute(x, (a, b))."""
    for node in list(gm.graph.nodes):
        if node.op == "call_method" and node.target == "permute" and not node.kwargs:
            order = node.args[1:] if not isinstance(node.args[1], (tuple, list)) else tuple(node.args[1])
            replace(node, torch.permute, node.args[0], tuple(order))
    gm.graph.lint()
    gm.recompile()


@right(network, contract=exact)
@adapt
def activations_as_new_modules(gm: torch.fx.GraphModule) -> None:
    """Each call of a relu that does not write in place gets a module of its own."""
    for node, module in layers(gm, nn.ReLU):
        if not module.inplace and not hasattr(gm, f"own_{node.name}"):
            gm.add_submodule(f"own_{node.name}", nn.ReLU())
            node.target = f"own_{node.name}"
    gm.delete_all_unused_submodules()
    gm.recompile()


@right(of(lambda m, x: m.n(x), (2, 3), n=nn.LayerNorm(3)), contract=exact)
def layer_norm_with_all_settings(gm: fx.GraphModule) -> None:
    """Layer norms become functions with all their settings."""
    for node in plain(layers(gm, nn.LayerNorm)):
        norm = gm.get_submodule(node.target)
        weight, bias = fetched(gm, node, "weight", "bias")
        replace(node, F.layer_norm, *node.args, norm.normalized_shape, weight, bias, norm.eps)
    gm.recompile()


@right(of(lambda m, x: (y := x.size(0)) * x.sum() + y, (2, 3)), contract=exact)
def dead_calls_by_hand(gm: fx.GraphModule) -> None:
    """Shapes are read anew by each that needs them, and calls without users and effects erased by hand."""
    for node in calls(gm, "size"):
        for user in list(node.users)[1:]:
            with gm.graph.inserting_after(node):
                again = gm.graph.node_copy(node)
            user.replace_input_with(node, again)
    for node in reversed(gm.graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not node.is_impure():
            gm.graph.erase_node(node)
    gm.recompile()


def _write(m: Any, x: Any) -> Any:
    y = x * 2
    y.add_(1)
    return torch.relu(y), y


@right(of(_write, (2, 3)), of(lambda m, x: torch.relu(x) + 1, (3,)), contract=exact)
def relu_copied(gm: fx.GraphModule) -> None:
    """A relu is the relu in place of a copy, right where it stood."""
    for node in plain(calls(gm, torch.relu)):
        with gm.graph.inserting_before(node):
            copied = gm.graph.call_method("clone", node.args)
        replace(node, torch.relu_, copied)
    gm.recompile()


@right(of(lambda m, x: {"a": x + 1, "b": (x - 1, x)}, (3,)), contract=exact)
def results_through_identities(gm: fx.GraphModule) -> None:
    """Every value that is returned passes through a module that returns its input."""
    output = next(iter(reversed(gm.graph.nodes)))
    name = next(name for name in (f"passed{number}" for number in itertools.count()) if not hasattr(gm, name))
    gm.add_submodule(name, nn.Identity())

    def passed(value: fx.Node) -> fx.Node:
        with gm.graph.inserting_before(output):
            return gm.graph.call_module(name, (value,))

    output.args = (fx.map_arg(output.args[0], passed),)
    gm.recompile()
