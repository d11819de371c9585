"""Errors that ``lint`` finds, and nodes that ``eliminate_dead_code`` keeps."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from building import names
from torch import nn
from torch.fx.node import Node as TheirNode
from torch.fx.node import _side_effectful_functions

import fx

from .libraries import refuses


def chain(library: ModuleType):
    """``relu(neg(x))`` as a graph without a module."""
    graph = library.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (graph.call_function(torch.neg, (x,)),)))
    return graph


def test_a_sound_graph_passes(library: ModuleType) -> None:
    chain(library).lint()
    library.Graph().lint()
    library.symbolic_trace(nn.Linear(2, 2)).graph.lint()


def test_use_before_definition_is_found(library: ModuleType) -> None:
    graph = chain(library)
    _x, neg, relu, _ = graph.nodes
    neg.prepend(relu)
    with refuses(library, RuntimeError, match="used before it has been\\s+defined"):
        graph.lint()


def test_argument_of_another_graph_is_found(library: ModuleType) -> None:
    graph = chain(library)
    _, neg, _, _ = graph.nodes
    neg.args = (library.Graph().placeholder("z"),)
    with refuses(library, RuntimeError, match="does not belong to this Graph"):
        graph.lint()


def test_use_of_an_erased_node_is_found(library: ModuleType) -> None:
    graph = chain(library)
    _, _, relu, _ = graph.nodes
    dead = graph.call_function(torch.neg, (relu,))
    graph.erase_node(dead)
    with refuses(library, RuntimeError):
        relu.args = (dead,)  # refused at once, or found later
        graph.lint()


def test_repeated_name_is_found(library: ModuleType) -> None:
    graph = chain(library)
    _, neg, relu, _ = graph.nodes
    relu.name = neg.name
    with refuses(library, RuntimeError, match="neg"):
        graph.lint()


@pytest.mark.parametrize("target", ["nowhere", "linear.nothing", "nowhere.weight"])
def test_missing_attribute_of_the_module_is_found(library: ModuleType, target: str) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.create_node("get_attr", target)
    with refuses(library, RuntimeError, match=target.rsplit(".", maxsplit=1)[-1] if "linear" in target else "nowhere"):
        module.graph.lint()


def test_called_attribute_that_is_no_module_is_found(library: ModuleType) -> None:
    module = library.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.create_node("call_module", "0.weight")
    with refuses(library, RuntimeError, match="weight"):
        module.graph.lint()


def test_dead_chain_is_removed_back_to_front(library: ModuleType) -> None:
    graph = chain(library)
    x, neg, _, output = graph.nodes
    with graph.inserting_before(output):
        first = graph.call_function(torch.sin, (x,))
        second = graph.call_method("cos", (first,))
        graph.call_function(operator.add, (second, neg))
    assert graph.eliminate_dead_code() is True
    assert names(graph) == "x neg relu output"
    assert list(x.users) == [neg]
    assert graph.eliminate_dead_code() is False


def test_unused_inputs_are_kept(library: ModuleType) -> None:
    graph = library.Graph()
    graph.placeholder("x")
    graph.output(None)
    assert graph.eliminate_dead_code() is False
    assert names(graph) == "x output"


@pytest.mark.parametrize(
    "create",
    [
        lambda graph, x: graph.call_function(torch._assert, (x, "message")),
        lambda graph, x: graph.call_function(operator.setitem, (x, 0, 1)),
        lambda graph, x: graph.call_function(torch.ops.aten.add_.Tensor, (x, 1)),
        lambda graph, x: graph.call_function(torch.rand, (2,)),
        lambda graph, x: graph.call_function(torch.ops.aten.bernoulli.default, (x,)),
        lambda graph, x: graph.call_function(torch.ops.profiler._record_function_enter_new, ("name",)),
    ],
    ids=["assert", "setitem", "in-place operator", "random", "random operator", "profiler"],
)
def test_effects_are_kept(library: ModuleType, create) -> None:
    graph = library.Graph()
    effect = create(graph, graph.placeholder("x"))
    graph.output(None)
    assert graph.eliminate_dead_code() is False
    assert effect in list(graph.nodes)


@pytest.mark.parametrize(
    "create",
    [
        lambda graph, x: graph.call_function(torch.add, (x, 1)),
        lambda graph, x: graph.call_function(torch.ops.aten.add.Tensor, (x, 1)),
        lambda graph, x: graph.call_method("view", (x, -1)),
        lambda graph, x: graph.get_attr("weight"),
        lambda graph, x: graph.call_function(getattr, (x, "shape")),
    ],
    ids=["function", "operator", "method", "attribute", "getattr"],
)
def test_pure_nodes_are_removed(library: ModuleType, create) -> None:
    graph = library.Graph()
    create(graph, graph.placeholder("x"))
    graph.output(None)
    assert graph.eliminate_dead_code() is True
    assert names(graph) == "x output"


def test_the_caller_decides_which_nodes_are_impure(library: ModuleType) -> None:
    graph = chain(library)
    x, *_, output = graph.nodes
    with graph.inserting_before(output):
        graph.call_function(torch.sin, (x,))
        graph.call_function(torch.rand, (2,))
    recorded = []

    def is_impure(node) -> bool:
        recorded.append(node.name)
        return node.op in ("placeholder", "output") or node.target is torch.sin

    assert graph.eliminate_dead_code(is_impure) is True
    assert names(graph) == "x neg relu sin output"
    assert set(recorded) >= {"sin", "rand"}


class Impure(nn.Module):
    """A module with a declared side effect."""

    _is_impure = True

    def forward(self, x):
        return x


class CallsBoth(nn.Module):
    """Calls one pure and one impure module for nothing."""

    def __init__(self):
        super().__init__()
        self.pure = nn.ReLU()
        self.impure = Impure()

    def forward(self, x):
        self.pure(x)
        self.impure(x)
        return x


def test_unused_calls_of_pure_modules_are_removed(library: ModuleType) -> None:
    class KeepImpure(library.Tracer):
        def is_leaf_module(self, module, name):
            return True

    root = CallsBoth()
    module = library.GraphModule(root, KeepImpure().trace(root))
    assert module.graph.eliminate_dead_code() is True
    assert names(module.graph) == "x impure output"


def test_dead_code_of_referenced_subgraphs_is_removed_too(library: ModuleType) -> None:
    def inner(x):
        torch.sin(x)
        return x + 1

    child = library.symbolic_trace(inner)
    graph = library.Graph()
    x = graph.placeholder("x")
    body = graph.get_attr("child")
    graph.output((x, body))
    module = library.GraphModule({"child": child}, graph)
    assert module.graph.eliminate_dead_code() is True
    assert names(module.child.graph) == "x add output"
    assert "sin" not in module.child.code


def test_misordered_graph_is_refused_before_anything_is_removed(library: ModuleType) -> None:
    graph = chain(library)
    _, neg, relu, _ = graph.nodes
    neg.prepend(relu)
    with refuses(library, RuntimeError):
        graph.eliminate_dead_code()
    assert len(graph.nodes) == 4


# Whatever torch.fx keeps in dead-code elimination is kept here too, over all operators of torch.


def operators() -> Iterator[Any]:
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        if namespace in ("aten", "prims", "profiler", "_c10d_functional"):
            overload_there = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
            if overload_there is not None:
                yield overload_there


def their_verdict(target: Any, impure_random: bool) -> bool:
    graph = torch.fx.Graph()
    return TheirNode(graph, "node", "call_function", target, (), {}).is_impure(impure_random)


def our_verdict(target: Any, impure_random: bool) -> bool:
    return fx.Graph().create_node("call_function", target, (), {}, "node").is_impure(impure_random)


@pytest.mark.parametrize("impure_random", [True, False])
def test_operators_that_are_kept_there_are_kept_here(impure_random: bool) -> None:
    count = 0
    for overload in operators():
        if their_verdict(overload, impure_random):
            count += 1
            assert our_verdict(overload, impure_random), overload
    assert count > 1000


def test_functions_that_are_kept_there_are_kept_here() -> None:
    for function in _side_effectful_functions:
        assert our_verdict(function, True), function


def test_operators_kept_by_fx_alone_have_a_reason() -> None:
    only_here = {
        str(overload) for overload in operators() if our_verdict(overload, False) and not their_verdict(overload, False)
    }
    explained = "batch_norm instance_norm _assert sym_constrain_range c10d profiler rrelu_with_noise".split()
    unexplained = {name for name in only_here if not any(word in name for word in explained)}
    returns_nothing = {str(overload) for overload in operators() if not overload._schema.returns}
    assert unexplained <= returns_nothing
