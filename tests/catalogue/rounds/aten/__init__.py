"""Passes on ATen operators, written blindly: in all forms of graphs that ``torch.export`` and Inductor give to passes."""

from __future__ import annotations

from typing import Any

import torch

from ...rows import Pass

ROUND = 40
"""The number of the round."""
aten = torch.ops.aten


def decomposed(pass_: Pass) -> Pass:
    """Declare that a pass is written for programs after ``run_decompositions()``, which write nothing in place."""
    pass_.levels = ("decomposed",)  # pyright: ignore[reportFunctionMemberAccess]
    return pass_


def calls(graph: torch.fx.Graph, *targets: Any) -> list[torch.fx.Node]:
    """The nodes that call an operator."""
    return [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]


def is_call(node: Any, *targets: Any) -> bool:
    """Return whether an argument is a node that calls one of some operators."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def argument(node: torch.fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call by its place, its name or its default."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def value(node: Any) -> torch.Tensor:
    """The fake tensor of a node."""
    return node.meta["val"]


def done(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove what nobody reads, and compile."""
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
