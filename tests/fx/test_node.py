"""Nodes: arguments, use lists, edits, and the errors of misuse."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from building import Point

import fx
from fx.node import map_aggregate, map_arg


@pytest.fixture
def graph() -> fx.Graph:
    return fx.Graph()


def check_uses(graph: fx.Graph) -> None:
    """Check that use lists agree with arguments."""
    for node in graph.nodes:
        assert node.all_input_nodes == [used for used in node.all_input_nodes if node in used.users]
        for user in node.users:
            assert node in user.all_input_nodes


def test_uses_are_found_at_every_depth(graph: fx.Graph) -> None:
    a, b, c, d, e = (graph.placeholder(name) for name in "abcde")
    node = graph.call_function(print, ([a, (b, {"k": slice(c, None, [d])})],), {"pair": Point(e, a)})
    assert node.all_input_nodes == [a, b, c, d, e]
    assert all(list(used.users) == [node] for used in (a, b, c, d, e))
    node.args = ()
    assert node.all_input_nodes == [e, a]
    assert not b.users


def test_use_lists_stay_right_through_random_edits(graph: fx.Graph) -> None:
    chooser = random.Random(0)
    nodes = [graph.placeholder(f"x{i}") for i in range(5)]
    for step in range(400):
        node = graph.call_function(print, (), {})
        node.args = tuple(
            chooser.choices([*nodes, [chooser.choice(nodes)], {"k": (chooser.choice(nodes), 1)}, slice(nodes[0])], k=3)
        )
        nodes.append(node)
        changed, old, new = chooser.choice(nodes), chooser.choice(nodes[:5]), chooser.choice(nodes[:5])
        changed.replace_input_with(old, new)
        assert old is new or old not in changed.all_input_nodes
        if step % 7 == 0:
            chooser.choice(nodes[5:]).replace_all_uses_with(nodes[0])
        if step % 5 == 0 and not nodes[-1].users:
            graph.erase_node(nodes.pop())
    check_uses(graph)
    check_uses(copy.deepcopy(graph))


def test_arguments_of_the_wrong_kind_are_refused(graph: fx.Graph) -> None:
    node = graph.call_function(print)
    with pytest.raises(fx.GraphError, match="args of a node is a tuple, not an int"):
        node.args = 1  # type: ignore[assignment]
    with pytest.raises(fx.GraphError, match="kwargs of a node is a dict, not a list"):
        node.kwargs = [1]  # type: ignore[assignment]
    assert node.args == ()


def test_replacing_a_node_by_a_use_of_itself_leaves_that_use_to_the_caller(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    user = graph.call_function(torch.neg, (x,))
    wrapped = graph.call_function(torch.relu, (x,))
    assert x.replace_all_uses_with(wrapped, lambda node: node is not wrapped) == [user]
    assert user.args == (wrapped,)
    assert wrapped.args == (x,)


def test_meta_moves_only_where_there_is_none(graph: fx.Graph) -> None:
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["k"] = 1
    x.replace_all_uses_with(y, propagate_meta=True)
    assert y.meta == {"k": 1}
    with pytest.raises(fx.GraphError, match=r"would overwrite meta[\s\S]*already has meta: k"):
        x.replace_all_uses_with(y, propagate_meta=True)


def test_insert_arg_takes_places_that_exist(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    node = graph.call_function(print, (1,))
    node.insert_arg(0, x)
    node.insert_arg(2, "end")
    assert node.args == (x, 1, "end")
    for index in (-1, 4):
        with pytest.raises(fx.GraphError, match=r"insert_arg index must be between 0 and len\(self.args\) = 3"):
            node.insert_arg(index, 0)


def test_moving_to_another_graph_is_refused(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    other = fx.Graph().placeholder("y")
    with pytest.raises(fx.GraphError, match="cannot move a node between graphs") as caught:
        x.append(other)
    assert "graph.node_copy" in str(caught.value)


def test_an_erased_node_has_no_place(graph: fx.Graph) -> None:
    a, b, c = (graph.placeholder(name) for name in "abc")
    graph.erase_node(b)
    for misplace in (
        lambda: a.append(b),
        lambda: c.prepend(b),
        lambda: b.append(a),
        lambda: b.prepend(c),
        lambda: graph.inserting_after(b).__enter__() or graph.placeholder("d"),
        lambda: graph.inserting_before(b).__enter__() or graph.placeholder("d"),
    ):
        with pytest.raises(fx.GraphError, match="node b was erased, so it has no place in the graph any more"):
            misplace()
    assert list(graph.nodes) == [a, c]
    assert list(reversed(graph.nodes)) == [c, a]


def test_moving_next_to_itself_changes_nothing(graph: fx.Graph) -> None:
    a, b = graph.placeholder("a"), graph.placeholder("b")
    revision = graph.revision
    a.append(a)
    b.prepend(b)
    assert graph.revision == revision
    a.append(b)
    b.prepend(a)
    assert list(graph.nodes) == [a, b]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_node_is_not_copied_on_its_own(graph: fx.Graph, way: Any) -> None:
    x = graph.placeholder("x")
    with pytest.raises(fx.GraphError, match="a node cannot be copied or pickled on its own") as caught:
        way(x)
    assert "graph.node_copy" not in str(caught.value) or "other_graph.node_copy(node)" in str(caught.value)


def test_targets_and_names_are_plain_strings(graph: fx.Graph) -> None:
    class Text(str):
        __slots__ = ()

    node = graph.call_method(Text("relu"), (graph.placeholder("x"),))
    assert type(node.target) is str
    node.target = Text("neg")
    node.name = Text("other")
    assert (type(node.target), type(node.name)) == (str, str)
    assert (node.target, node.name) == ("neg", "other")


def test_map_arg_visits_nodes_only_and_keeps_unchanged_containers(graph: fx.Graph) -> None:
    x, y = graph.placeholder("x"), graph.placeholder("y")
    met: list[Any] = []
    argument = (x, [1, {"k": Point(x, slice(y, 2))}], torch.Size([3]), None)
    mapped = map_arg(argument, lambda node: met.append(node) or y)
    assert met == [x, x, y]
    assert mapped == (y, [1, {"k": Point(y, slice(y, 2))}], torch.Size([3]), None)
    assert type(mapped[1][1]["k"]) is Point
    unchanged = (1, Point(2, (3,)))
    assert map_arg(unchanged, lambda node: node) is unchanged
    with pytest.raises(fx.GraphError, match="map_arg takes a function from nodes to arguments, not an int"):
        map_arg(x, 3)  # type: ignore[arg-type]


def test_map_aggregate_takes_named_tuples_with_a_constructor_that_checks_its_elements() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3)])
    mapped = map_aggregate(packed, lambda leaf: None if leaf is None else leaf.shape)
    assert type(mapped) is type(packed) and mapped[:2] == (torch.Size([2, 3]), torch.Size([2]))


def test_normalized_arguments_fill_in_defaults(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    node = graph.call_function(torch.nn.functional.softmax, (x, 1))
    pair = node.normalized_arguments(torch.nn.Module(), normalize_to_only_use_kwargs=True)
    assert pair is not None
    assert pair.kwargs["input"] is x
    assert pair.kwargs["dim"] == 1
    assert x.normalized_arguments(torch.nn.Module()) is None


def test_a_node_takes_attributes_of_the_users_own() -> None:
    node = fx.Graph().placeholder("x")
    node.shape = (2, 3)
    assert node.shape == (2, 3)


def test_a_node_that_takes_over_many_others_represents_all_of_them_once() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [graph.call_function(torch.relu, (x,)) for _ in range(20)]
    graph.output(tuple(nodes))
    for node in nodes:
        node.origins = (node.name, "relu")
    copied = None
    for number, node in enumerate(nodes[1:], 1):
        node.replace_all_uses_with(nodes[0])
        if number == 10:
            copied = graph.node_copy(nodes[0])
    assert nodes[0].origins == tuple(node.name for node in nodes)
    assert copied is not None and copied.origins == tuple(node.name for node in nodes[:11])
