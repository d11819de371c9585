"""Graphs: insertion points, erasing, copying, dead code, and order after any number of edits."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx
from fx.provenance import SourceLocation


def chain(length: int) -> tuple[fx.Graph, list[fx.Node]]:
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(length):
        nodes.append(graph.call_function(torch.neg, (nodes[-1],)))
    graph.output(nodes[-1])
    return graph, nodes


def check_order(graph: fx.Graph) -> None:
    """Comparing nodes agrees with the order of the list."""
    nodes = list(graph.nodes)
    assert len(nodes) == len(graph.nodes)
    assert nodes[::-1] == list(reversed(graph.nodes))
    for before, after in itertools.pairwise(nodes):
        assert before < after
        assert after > before
        assert before <= after
        assert after >= before
        assert before.next is after
        assert after.prev is before


def test_erasing_a_used_node_names_its_users() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    relu.source = SourceLocation.of("gate.py", 12, "forward", "torch.relu(x)")
    graph.output((graph.call_function(torch.neg, (relu,)), graph.call_function(torch.abs, (relu,))))
    with pytest.raises(fx.GraphError) as caught:
        graph.erase_node(relu)
    assert str(caught.value) == (
        "Tried to erase Node relu but it still had 2 users in the graph: neg, abs_1\n"
        "  where  gate.py:12, in forward:  torch.relu(x)\n"
        "  value  %relu = call_function[torch.relu](%x)\n"
        "  try    give the users another input first: node.replace_all_uses_with(other)"
    )
    assert relu in list(graph.nodes)


def test_erasing_twice_warns_once_more() -> None:
    graph, nodes = chain(1)
    unused = graph.call_function(torch.abs, (nodes[0],))
    graph.erase_node(unused)
    with pytest.warns(UserWarning, match=r"erase_node\(abs_1\) on an already erased node"):
        graph.erase_node(unused)
    assert len(graph.nodes) == 3
    assert unused.args == (None,)
    assert nodes[0].users == {nodes[1]: None}


def test_a_node_of_another_graph_is_not_erased() -> None:
    graph, _ = chain(1)
    other, _ = chain(1)
    with pytest.raises(fx.GraphError, match="Attempting to remove output from wrong graph!"):
        graph.erase_node(other.output_node())


def test_an_insertion_point_of_another_graph_is_refused() -> None:
    graph, _ = chain(1)
    with pytest.raises(fx.GraphError, match="Node to insert at is not in graph"):
        graph.inserting_before(chain(1)[1][0])


def test_order_is_kept_through_random_edits() -> None:
    chooser = random.Random(0)
    graph, nodes = chain(10)
    for step in range(3000):
        anchor = chooser.choice(nodes)
        action = chooser.randrange(4)
        if action == 0:
            with graph.inserting_before(anchor):
                nodes.append(graph.call_function(torch.rand, (step,)))
        elif action == 1:
            with graph.inserting_after(anchor):
                nodes.append(graph.call_function(torch.rand, (step,)))
        else:
            getattr(anchor, "append" if action == 2 else "prepend")(chooser.choice(nodes))
        if step % 500 == 0:
            check_order(graph)
    check_order(graph)


@pytest.mark.parametrize("side", ["inserting_before", "inserting_after"])
def test_order_is_kept_where_all_insertions_are_in_one_place(side: str) -> None:
    graph, nodes = chain(2)
    anchor = nodes[1]
    for step in range(3000):
        with getattr(graph, side)(anchor):
            new = graph.call_function(torch.rand, (step,))
        if step % 2:
            anchor = new
    check_order(graph)


def test_order_is_kept_where_insertions_halve_one_gap() -> None:
    graph, nodes = chain(2)
    left, right = nodes[1], nodes[2]
    for step in range(2000):
        with graph.inserting_after(left):
            new = graph.call_function(torch.rand, (step,))
        left, right = (new, right) if step % 2 else (left, new)
    check_order(graph)


def test_order_is_kept_in_copies() -> None:
    graph = fx.Graph()
    nodes = [graph.call_function(torch.rand, (i,)) for i in range(50)]
    for node in nodes[40:45]:
        nodes[3].append(node)
    copied = copy.deepcopy(graph)
    check_order(copied)
    assert [node.name for node in copied.nodes] == [node.name for node in graph.nodes]


def test_long_chains_are_built_read_rewired_and_erased_without_recursion() -> None:
    graph, nodes = chain(20_000)
    graph.lint()
    copied = copy.deepcopy(graph)
    assert len(copied.nodes) == 20_002
    for node in nodes[1:]:
        node.replace_all_uses_with(nodes[0])
    assert graph.eliminate_dead_code()
    assert [node.op for node in graph.nodes] == ["placeholder", "output"]
    last = copied.output_node()
    copied.erase_node(last)
    for node in reversed(copied.nodes):
        copied.erase_node(node)
    assert len(copied.nodes) == 0


@pytest.mark.parametrize(
    "edit",
    [
        lambda graph, x, y: graph.erase_node(graph.output_node()),
        lambda graph, x, y: graph.call_function(torch.relu, (x,)),
        lambda graph, x, y: y.append(x),
        lambda graph, x, y: setattr(y, "args", (x, 1)),
        lambda graph, x, y: setattr(y, "kwargs", {"other": 1}),
        lambda graph, x, y: setattr(y, "target", torch.relu),
        lambda graph, x, y: setattr(y, "name", "z"),
        lambda graph, x, y: setattr(y, "type", torch.Tensor),
        lambda graph, x, y: setattr(y, "op", "call_method"),
        lambda graph, x, y: y.update_arg(0, 1),
        lambda graph, x, y: y.insert_arg(0, 1),
        lambda graph, x, y: y.update_kwarg("k", 1),
        lambda graph, x, y: y.replace_input_with(x, y),
        lambda graph, x, y: y.replace_all_uses_with(x),
        lambda graph, x, y: graph.set_codegen(fx.CodeGen()),
    ],
)
def test_every_edit_changes_the_revision(edit: Callable[..., Any]) -> None:
    graph, (x, y) = chain(1)
    before = graph.revision
    edit(graph, x, y)
    assert graph.revision > before


def test_reading_leaves_the_revision() -> None:
    graph, (x, y) = chain(1)
    before = graph.revision
    str(graph), list(graph.nodes), graph.find_nodes(op="output"), graph.lint(), graph.python_code("self"), x < y
    copy.deepcopy(graph)
    y.meta["k"] = 1
    assert not graph.eliminate_dead_code()
    assert graph.revision == before


def test_found_nodes_follow_edits() -> None:
    graph, nodes = chain(3)
    assert graph.find_nodes(op="call_function", target=torch.neg) == nodes[1:]
    nodes[1].target = torch.relu
    nodes[2].prepend(nodes[3])
    assert graph.find_nodes(op="call_function", target=torch.neg) == [nodes[3], nodes[2]]
    assert graph.find_nodes(op="call_function") == [nodes[1], nodes[3], nodes[2]]
    assert graph.find_nodes(op="call_module") == []
    placeholders = graph.find_nodes(op="placeholder")
    placeholders.clear()
    assert graph.find_nodes(op="placeholder") == nodes[:1]
    with graph.inserting_after(nodes[0]):
        added = graph.call_function(torch.neg, (nodes[0],))
    assert graph.find_nodes(op="call_function", target=torch.neg) == [added, nodes[3], nodes[2]]
    assert set(graph.find_nodes(op="call_function", sort=False)) == {added, *nodes[1:]}
    graph.erase_node(added)
    nodes[1].op, nodes[1].target = "call_method", "neg"
    assert graph.find_nodes(op="call_function") == [nodes[3], nodes[2]]
    assert graph.find_nodes(op="call_method", target="neg") == nodes[1:2]


def test_a_target_without_a_hash_is_found_by_identity() -> None:
    class Scale:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

        def __call__(self, x: Any) -> Any:
            return x

    graph, (x, _) = chain(1)
    scales = Scale(), Scale()
    nodes = [graph.call_function(scale, (x,)) for scale in scales]
    assert graph.find_nodes(op="call_function", target=scales[1]) == nodes[1:]
    nodes[0].target = scales[1]
    assert graph.find_nodes(op="call_function", target=scales[1]) == nodes
    graph.erase_node(nodes[0])
    assert graph.find_nodes(op="call_function", target=scales[1]) == nodes[1:]
    assert graph.find_nodes(op="call_function", target=scales[0]) == []


def test_finding_nodes_after_edits_takes_the_same_in_graphs_of_all_lengths() -> None:
    def calls_of(length: int) -> int:
        graph, nodes = chain(length)
        graph.find_nodes(op="output")
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            with graph.inserting_after(nodes[1]):
                added = graph.call_function(torch.relu, (nodes[1],))
            nodes[2].replace_input_with(nodes[1], added)
            assert graph.find_nodes(op="call_function", target=torch.relu) == [added]
            added.target = torch.sigmoid
            assert graph.find_nodes(op="call_function", target=torch.sigmoid) == [added]
            assert graph.find_nodes(op="call_function", target=torch.relu) == []
            nodes[2].replace_input_with(added, nodes[1])
            graph.erase_node(added)
            assert graph.find_nodes(op="call_function", target=torch.sigmoid) == []
        finally:
            sys.setprofile(None)
        return len(events)

    calls_of(10)
    assert calls_of(1_000) == calls_of(10)


@pytest.mark.parametrize("attribute, value", [("op", "output"), ("target", "x"), ("name", "x"), ("type", int)])
def test_the_root_of_a_graph_is_not_edited(attribute: str, value: Any) -> None:
    graph, nodes = chain(1)
    with pytest.raises(fx.GraphError, match="a graph keeps its root, which is not an operation"):
        setattr(nodes[0].prev, attribute, value)
    graph.lint()


def test_a_graph_without_output_says_so() -> None:
    with pytest.raises(fx.GraphError, match="the graph has no output node"):
        fx.Graph().output_node()


def test_arguments_of_the_wrong_kind_are_refused() -> None:
    graph = fx.Graph()
    with pytest.raises(fx.GraphError, match="args must be a tuple, not a list"):
        graph.create_node("call_function", torch.relu, [1])  # type: ignore[arg-type]
    with pytest.raises(fx.GraphError, match="kwargs must be a dict, not a tuple"):
        graph.create_node("call_function", torch.relu, (), ())  # type: ignore[arg-type]
    with pytest.raises(fx.GraphError, match="unknown opcode 'call'") as caught:
        graph.create_node("call", "x")
    assert "try    use one of placeholder, get_attr, call_function, call_method, call_module, output" in str(
        caught.value
    )
    with pytest.raises(fx.GraphError, match="the target of a call_function node is a callable, not str: 'relu'"):
        graph.create_node("call_function", "relu")
    with pytest.raises(fx.GraphError, match="the target of a call_method node is a string, not builtin_function"):
        graph.create_node("call_method", torch.relu)
    assert len(graph.nodes) == 0


def test_copied_graphs_carry_notes_sources_and_constants() -> None:
    graph = fx.symbolic_trace(lambda x: x + torch.ones(1)).graph
    add = next(node for node in graph.nodes if node.name == "add")
    add.meta["note"] = shared = [1]
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    twin = next(node for node in copied.nodes if node.name == "add")
    assert twin.meta["note"] is shared
    assert twin.meta is not add.meta
    assert twin.source is add.source
    assert torch.equal(fx.GraphModule(torch.nn.Module(), copied)(torch.ones(1)), torch.full((1,), 2.0))


def test_constants_of_one_name_in_two_graphs_stay_two() -> None:
    ones = fx.symbolic_trace(lambda x: x + torch.ones(1)).graph
    twos = fx.symbolic_trace(lambda x: x * torch.full((1,), 2.0)).graph
    graph = fx.Graph()
    x = graph.placeholder("x")
    added = graph.graph_copy(ones, {next(iter(ones.nodes)): x})
    graph.output(graph.graph_copy(twos, {next(iter(twos.nodes)): added}))
    assert torch.equal(fx.GraphModule({}, graph)(torch.ones(1)), torch.full((1,), 4.0))
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["_tensor_constant0", "_tensor_constant0_1"]
    assert list(ones.constants) == list(twos.constants) == ["_tensor_constant0"]


def test_a_graph_is_copied_into_the_middle_of_another() -> None:
    inner = fx.symbolic_trace(lambda a, b: {"sum": a + b, "rest": [b]}).graph
    graph, nodes = chain(2)
    with graph.inserting_before(nodes[2]):
        copies = dict(zip(inner.find_nodes(op="placeholder"), nodes, strict=False))
        value = graph.graph_copy(inner, copies)
    assert value == {"sum": copies[next(n for n in inner.nodes if n.name == "add")], "rest": [nodes[1]]}
    nodes[2].args = (value["sum"],)  # type: ignore[index]
    graph.lint()
    assert torch.equal(fx.GraphModule({}, graph)(torch.ones(1)), torch.zeros(1))


def test_dead_code_is_removed_in_one_go_and_reported() -> None:
    graph, nodes = chain(1)
    dead = nodes[0]
    with graph.inserting_before(graph.output_node()):
        for _ in range(5):
            dead = graph.call_function(torch.relu, (dead,))
        graph.call_function(torch._assert, (nodes[0], "message"))
    assert graph.eliminate_dead_code()
    assert [node.name for node in graph.nodes] == ["x", "neg", "_assert", "output"]
    assert not graph.eliminate_dead_code()


def test_targets_that_are_missing_are_reported() -> None:
    module = fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.warns(UserWarning, match="a get_attr node for 'weight' refers to nothing"):
        module.graph.get_attr("weight")
    with pytest.raises(
        AttributeError, match=r"a call_module node for '1' refers to nothing[\s\S]*add it first"
    ) as caught:
        module.graph.call_module("1")
    assert isinstance(caught.value, fx.GraphError)


def test_nodes_for_sizes_strides_and_offsets_compute_them_and_know_their_value() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = tensor = torch.empty(4, 6)[1:, ::2]
    nodes = [graph.create_size_node(x, 0), graph.create_stride_node(x, 1), graph.create_storage_offset_node(x)]
    graph.output(tuple(nodes))
    assert [node.meta["val"] for node in nodes] == [3, 2, 6]
    assert fx.GraphModule({}, graph)(tensor) == (3, 2, 6)


def test_an_erased_node_and_one_of_another_graph_are_not_among_the_nodes() -> None:
    graph = fx.Graph()
    x, other = graph.placeholder("x"), fx.Graph().placeholder("x")
    assert x in graph.nodes and other not in graph.nodes and "x" not in graph.nodes
    graph.erase_node(x)
    assert x not in graph.nodes
