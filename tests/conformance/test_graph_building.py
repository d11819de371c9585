"""Creation of nodes, insertion points, and iteration over the list."""

from __future__ import annotations

import inspect
import operator
import warnings
from types import ModuleType

import pytest
import torch
from building import names
from torch import nn

import fx

from .libraries import refuses


def test_creation_methods_fill_the_node(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor)
    y = graph.placeholder("y", default_value=3)
    weight = graph.get_attr("weight")
    add = graph.call_function(the_function=torch.add, args=(x, weight), kwargs={"alpha": y})
    view = graph.call_method(method_name="view", args=(add, -1), type_expr=torch.Tensor)
    linear = graph.call_module(module_name="linear", args=(view,), kwargs={})
    output = graph.output(result=[linear, {"y": y}], type_expr=list)
    assert [(node.op, node.target) for node in graph.nodes] == [
        ("placeholder", "x"),
        ("placeholder", "y"),
        ("get_attr", "weight"),
        ("call_function", torch.add),
        ("call_method", "view"),
        ("call_module", "linear"),
        ("output", "output"),
    ]
    assert (x.args, x.type, y.args, y.type) == ((), torch.Tensor, (3,), None)
    assert (add.args, add.kwargs) == ((x, weight), {"alpha": y})
    assert (view.args, view.type) == ((add, -1), torch.Tensor)
    assert (output.args, output.type) == (([linear, {"y": y}],), list)
    assert graph.output_node() is output
    assert len(graph.nodes) == 7


def test_a_missing_default_differs_from_none(library: ModuleType) -> None:
    graph = library.Graph()
    assert graph.placeholder("x").args == ()
    assert graph.placeholder("y", default_value=None).args == (None,)
    assert graph.placeholder("z", default_value=inspect.Signature.empty).args == ()


def test_create_node_takes_missing_arguments_as_empty(library: ModuleType) -> None:
    graph = library.Graph()
    node = graph.create_node("call_function", torch.ones, None, None)
    assert node.args == ()
    assert node.kwargs == {}
    assert type(node.kwargs) is library.immutable_collections.immutable_dict
    assert graph.create_node("call_function", torch.ones, (2,), {}, "named", torch.Tensor).name == "named"


def test_create_node_refuses_invalid_nodes(library: ModuleType) -> None:
    graph = library.Graph()
    with refuses(library, AssertionError):
        graph.create_node("call_function", torch.ones, [2])
    with refuses(library, AssertionError):
        graph.create_node("call_function", torch.ones, (2,), [1])
    with refuses(library, AssertionError):
        graph.create_node("call_everything", "x")
    with refuses(library, ValueError, match="Callable|callable", ours=fx.GraphError):
        graph.create_node("call_function", "relu")
    with refuses(library, ValueError, match="str", ours=fx.GraphError):
        graph.create_node("call_method", torch.relu)


def test_insertion_point_is_restored_by_with(library: ModuleType) -> None:
    graph = library.Graph()
    a, c = graph.placeholder("a"), graph.placeholder("c")
    with graph.inserting_before(c):
        graph.placeholder("b1")
        with graph.inserting_after(c):
            graph.placeholder("d1")
            graph.placeholder("d2")
        graph.placeholder("b2")
    graph.placeholder("e")
    with graph.inserting_before():
        graph.placeholder("first")
    with graph.inserting_after():
        graph.placeholder("last")
    with graph.inserting_after(a):
        graph.placeholder("a1")
    assert names(graph) == "first a a1 b1 b2 c d2 d1 e last"


def test_insertion_point_without_with_stays(library: ModuleType) -> None:
    graph = library.Graph()
    graph.placeholder("a")
    b = graph.placeholder("b")
    graph.inserting_before(b)
    graph.placeholder("x")
    graph.placeholder("y")
    assert names(graph) == "a x y b"


def test_insertion_point_is_restored_after_an_error(library: ModuleType) -> None:
    graph = library.Graph()
    a = graph.placeholder("a")
    with pytest.raises(KeyError), graph.inserting_before(a):
        raise KeyError
    graph.placeholder("b")
    assert names(graph) == "a b"


def test_insertion_point_must_be_in_the_graph(library: ModuleType) -> None:
    stranger = library.Graph().placeholder("x")
    with refuses(library, AssertionError):
        library.Graph().inserting_before(stranger)
    with refuses(library, AssertionError):
        library.Graph().inserting_after(stranger)


def test_nodes_are_walked_in_both_directions(library: ModuleType) -> None:
    graph = library.Graph()
    a, b, c = (graph.placeholder(name) for name in "abc")
    assert list(graph.nodes) == [a, b, c]
    assert list(reversed(graph.nodes)) == [c, b, a]
    assert (
        list(reversed(reversed(graph.nodes))) == [a, b, c] if hasattr(reversed(graph.nodes), "__reversed__") else True
    )
    assert (a.next, c.prev) == (b, b)
    assert a.prev is c.next
    assert len(graph.nodes) == 3


def test_list_may_change_while_it_is_walked(library: ModuleType) -> None:
    graph = library.Graph()
    nodes = [graph.placeholder(name) for name in "abcd"]
    recorded = []
    for node in graph.nodes:
        recorded.append(node.name)
        if node is nodes[1]:
            graph.erase_node(node)
            with graph.inserting_after(nodes[2]):
                graph.placeholder("new")
    assert recorded == ["a", "b", "c", "new", "d"]
    for node in reversed(graph.nodes):
        graph.erase_node(node)
    assert len(graph.nodes) == 0


def test_nodes_compare_by_position(library: ModuleType) -> None:
    graph = library.Graph()
    a, b, c = (graph.placeholder(name) for name in "abc")
    with graph.inserting_before(b):
        between = graph.placeholder("between")
    assert a < between < b < c
    assert c > a
    assert a <= a
    assert c >= b
    assert sorted([c, b, between, a]) == [a, between, b, c]
    assert a != b
    assert a == a
    assert len({a, b, a}) == 2


def test_find_nodes_filters_by_op_and_target(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.relu, (x,))
    other = graph.call_function(torch.neg, (first,))
    with graph.inserting_before(first):
        inserted = graph.call_function(torch.relu, (x,))
    method = graph.call_method("relu", (other,))
    assert list(graph.find_nodes(op="call_function", target=torch.relu)) == [inserted, first]
    assert list(graph.find_nodes(op="call_method")) == [method]
    assert list(graph.find_nodes(op="call_method", target="relu")) == [method]
    assert list(graph.find_nodes(op="call_method", target="neg")) == []
    assert set(graph.find_nodes(op="call_function", target=torch.relu, sort=False)) == {first, inserted}
    first.target = torch.neg
    assert list(graph.find_nodes(op="call_function", target=torch.neg)) == [first, other]
    graph.erase_node(method)
    assert list(graph.find_nodes(op="call_method", target="relu")) == []


def test_node_is_copied_with_its_arguments_mapped(library: ModuleType) -> None:
    source, target = library.Graph(), library.Graph()
    x = source.placeholder("x", type_expr=int)
    add = source.call_function(operator.add, (x, [x, 1]), {}, type_expr=float)
    add.meta["note"] = ["kept"]
    y = target.placeholder("y")
    copied = target.node_copy(add, lambda node: y)
    assert copied.graph is target
    assert (copied.args, copied.type, copied.target) == ((y, [y, 1]), float, operator.add)
    assert copied.meta == add.meta
    assert copied.meta is not add.meta
    assert copied.meta["note"] is add.meta["note"]
    assert list(y.users) == [copied]


def test_graph_copy_returns_the_output_value_and_fills_the_map(library: ModuleType) -> None:
    source = library.Graph()
    x = source.placeholder("x")
    relu = source.call_function(torch.relu, (x,))
    source.output((relu, x))
    target = library.Graph()
    y = target.placeholder("y")
    values = {x: y}
    result = target.graph_copy(source, values)
    assert [node.op for node in target.nodes] == ["placeholder", "call_function"]
    assert result == (values[relu], y)
    assert values[relu].args == (y,)
    _value, output = library.Graph().graph_copy(source, {}, return_output_node=True)
    assert output is source.output_node()
    assert library.Graph().graph_copy(library.Graph(), {}) is None


def test_owned_graph_takes_targets_that_exist(library: ModuleType) -> None:
    owner = nn.Module()
    owner.linear = nn.Linear(2, 2)
    graph = library.Graph(owner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.get_attr("linear.weight")
        graph.call_module("linear", ())
    assert graph.owning_module is owner


@pytest.mark.parametrize("missing", ["nowhere.weight", "linear.nothing"])
def test_owned_graph_warns_of_attributes_that_are_missing(library: ModuleType, missing: str) -> None:
    owner = nn.Module()
    owner.linear = nn.Linear(2, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.Graph(owner).get_attr(missing)
    assert caught
    assert all(issubclass(warning.category, UserWarning) for warning in caught)
