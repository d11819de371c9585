"""The rules of a well-formed graph, each with the message that a broken one gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx
from fx.provenance import SourceLocation


@pytest.fixture
def module() -> fx.GraphModule:
    return fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)))


def by_name(module: fx.GraphModule, name: str) -> fx.Node:
    return next(node for node in module.graph.nodes if node.name == name)


def misordered(module: fx.GraphModule) -> None:
    by_name(module, "_1").append(by_name(module, "_0"))


def erased(module: fx.GraphModule) -> None:
    node = by_name(module, "_0")
    users = list(node.users)
    node.users.clear()
    module.graph.erase_node(node)
    node.users.update(dict.fromkeys(users))


def foreign(module: fx.GraphModule) -> None:
    by_name(module, "_1").args = (fx.Graph().placeholder("other"),)


def renamed(module: fx.GraphModule) -> None:
    by_name(module, "_1").name = "_0"


def not_listed(module: fx.GraphModule) -> None:
    by_name(module, "_0").users.clear()


def stray_user(module: fx.GraphModule) -> None:
    by_name(module, "_0").users[fx.Graph().placeholder("stray")] = None


def no_module(module: fx.GraphModule) -> None:
    by_name(module, "_1").target = "2"


def no_attribute(module: fx.GraphModule) -> None:
    by_name(module, "_1").target = "1.weights"


def called_tensor(module: fx.GraphModule) -> None:
    by_name(module, "_1").target = "1.weight"


USED_EARLY = "Argument '_0' of Node '_1' was used before it has been defined"
BROKEN: dict[str, tuple[Callable[[fx.GraphModule], None], str]] = {
    "misordered": (misordered, USED_EARLY + "(.|\\n)*it stands behind its user(.|\\n)*"
                   "move one of the two with prepend or append"),
    "erased": (erased, USED_EARLY + "(.|\\n)*it was erased from the graph"),
    "foreign": (foreign, "Argument 'other' of Node '_1' does not belong to this Graph(.|\\n)*copy it over with"),
    "renamed": (renamed, "Node redefined name _0!"),
    "not listed": (not_listed, "node _0 does not list its user _1"),
    "stray user": (stray_user, "node _0 lists stray as a user, which is not in the graph"),
    "no module": (no_module, "Node _1 target 2 references nonexistent attribute 2 of the root module"),
    "no attribute": (no_attribute, "Node _1 target 1.weights references nonexistent attribute weights of 1"),
    "called tensor": (called_tensor, "Node _1 target 1.weight does not reference an nn.Module(.|\\n)*is a Parameter"),
}  # fmt: skip


@pytest.mark.parametrize("break_it, message", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found_and_its_node_named(
    module: fx.GraphModule, break_it: Callable[[fx.GraphModule], None], message: str
) -> None:
    module.graph.lint()
    for node in module.graph.nodes:
        node.source = SourceLocation.of("net.py", 3, "forward", "x")
    break_it(module)
    with pytest.raises(fx.GraphError, match=message) as caught:
        module.graph.lint()
    assert "\n  value  %" in str(caught.value)
    assert "\n  where  net.py:3, in forward:  x" in str(caught.value)


def test_targets_are_not_looked_up_without_an_owner() -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("nothing", (graph.get_attr("at all"),)))
    graph.lint()


@pytest.mark.parametrize("kind", [torch.nn.Linear, torch.nn.MultiheadAttention])
def test_captured_programs_are_well_formed(kind: Any) -> None:
    module = kind(4, 2)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("inner", (x,) * (1 if kind is torch.nn.Linear else 3)))
    fx.GraphModule({"inner": module}, graph).graph.lint()
