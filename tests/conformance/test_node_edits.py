"""Editing nodes: arguments, use lists, erasing, replacing, moving."""

from __future__ import annotations

import operator
import warnings
from collections import namedtuple
from types import ModuleType

import pytest
import torch

from .libraries import refuses

Pair = namedtuple("Pair", "left right")


def users(node) -> str:
    return " ".join(user.name for user in node.users)


def inputs(node) -> str:
    return " ".join(source.name for source in node.all_input_nodes)


@pytest.fixture
def graph(library: ModuleType):
    """``f(x, y) = (x + x, relu(x), cat([x, y]))``, not yet returned."""
    graph = library.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_function(operator.add, (x, x))
    graph.call_function(torch.relu, (x,))
    graph.call_function(torch.cat, ([x, y],), {"dim": 0})
    return graph


def test_each_user_is_listed_once_in_order_of_first_use(graph) -> None:
    x, y, add, relu, cat = graph.nodes
    assert list(x.users) == [add, relu, cat]
    assert list(y.users) == [cat]
    assert add.all_input_nodes == [x]
    assert cat.all_input_nodes == [x, y]
    assert isinstance(x.users, dict)
    assert len(x.users) == 3


def test_assigning_arguments_updates_users_on_both_sides(graph) -> None:
    x, y, add, relu, _ = graph.nodes
    add.args = (y, 1)
    assert users(x) == "relu cat"
    assert users(y) == "cat add"
    relu.kwargs = {"out": y, "alpha": [add]}
    assert inputs(relu) == "x y add"
    assert users(y) == "cat add relu"
    assert users(add) == "relu"
    assert users(x) == "cat relu"
    relu.kwargs = {}
    assert users(y) == "cat add"
    assert users(add) == ""
    add.args = (x, x)
    assert users(x) == "cat relu add"


def test_arguments_are_frozen_at_every_depth(library: ModuleType, graph) -> None:
    immutables = library.immutable_collections
    x, *_ = graph.nodes
    arguments = ([x, {"k": [1, x]}], (x, [2]), slice(x, None, [x]), range(3), Pair(x, [x]))
    node = graph.call_function(torch.ones, arguments, {"a": {"b": [x]}})
    first, second, third, fourth, fifth = node.args
    assert type(first) is immutables.immutable_list
    assert type(first[1]) is immutables.immutable_dict
    assert type(first[1]["k"]) is immutables.immutable_list
    assert type(second) is tuple
    assert type(second[1]) is immutables.immutable_list
    assert type(third) is slice
    assert third.start is x
    assert type(third.step) is immutables.immutable_list
    assert fourth == range(3)
    assert type(fifth) is Pair
    assert fifth.left is x
    assert type(fifth.right) is immutables.immutable_list
    assert type(node.kwargs) is immutables.immutable_dict
    assert type(node.kwargs["a"]["b"]) is immutables.immutable_list
    assert node.args == arguments


def test_argument_lists_are_not_aliased(graph) -> None:
    x, y, *_ = graph.nodes
    inputs = [x]
    node = graph.call_function(torch.cat, (inputs,))
    inputs.append(y)
    assert node.args == ([x],)
    assert users(y) == "cat"


def test_update_and_insert_change_one_argument(graph) -> None:
    x, y, add, relu, cat = graph.nodes
    add.update_arg(1, y)
    assert add.args == (x, y)
    add.insert_arg(0, relu)
    assert add.args == (relu, x, y)
    add.insert_arg(3, 5)
    assert add.args == (relu, x, y, 5)
    cat.update_kwarg("dim", 1)
    cat.update_kwarg("out", y)
    assert cat.kwargs == {"dim": 1, "out": y}
    assert list(cat.kwargs) == ["dim", "out"]
    assert set(add.all_input_nodes) == {relu, x, y}
    with pytest.raises(IndexError):
        add.update_arg(9, x)


def test_insert_arg_refuses_an_index_outside(library: ModuleType, graph) -> None:
    add = list(graph.nodes)[2]
    with refuses(library, AssertionError):
        add.insert_arg(3, 1)
    with refuses(library, AssertionError):
        add.insert_arg(-1, 1)


def test_insert_arg_registers_the_new_use(graph) -> None:
    _, y, add, *_ = graph.nodes
    add.insert_arg(1, [y, {"k": y}])
    assert users(y) == "cat add"


def test_replacing_an_input_reaches_every_depth(graph) -> None:
    x, y, add, _, cat = graph.nodes
    nested = graph.call_function(torch.ones, ((x, [x, {"k": slice(x, x)}]),), {"a": x})
    nested.replace_input_with(x, add)
    assert inputs(nested) == "add"
    assert nested.args == ((add, [add, {"k": slice(add, add)}]),)
    assert nested.kwargs == {"a": add}
    cat.replace_input_with(x, y)
    assert cat.args == ([y, y],)
    assert users(x) == "add relu"


def test_replacing_all_uses_returns_the_changed_users(graph) -> None:
    x, y, add, relu, cat = graph.nodes
    assert x.replace_all_uses_with(y) == [add, relu, cat]
    assert add.args == (y, y)
    assert cat.args == ([y, y],)
    assert users(x) == ""
    assert users(y) == "add relu cat"
    assert x.replace_all_uses_with(y) == []


def test_callback_decides_which_uses_are_replaced(graph) -> None:
    x, y, add, relu, cat = graph.nodes
    recorded = []

    def only_functions(user) -> bool:
        recorded.append(user)
        return user is not relu

    assert x.replace_all_uses_with(y, only_functions) == [add, cat]
    assert recorded == [add, relu, cat]
    assert relu.args == (x,)
    assert x.replace_all_uses_with(y, delete_user_cb=lambda user: False) == []


def test_meta_is_propagated_on_request(library: ModuleType, graph) -> None:
    x, y, add, *_ = graph.nodes
    x.meta = {"note": [1]}
    x.replace_all_uses_with(y, propagate_meta=True)
    assert y.meta == {"note": [1]}
    assert y.meta["note"] is x.meta["note"]
    with refuses(library, AssertionError):
        add.replace_all_uses_with(y, propagate_meta=True)


def test_used_node_is_not_erased_and_its_users_are_named(library: ModuleType, graph) -> None:
    x = next(iter(graph.nodes))
    with refuses(library, RuntimeError) as caught:
        graph.erase_node(x)
    for name in ("x", "add", "relu", "cat"):
        assert name in str(caught.value)
    assert len(graph.nodes) == 5


def test_erased_node_is_taken_out_of_the_use_lists(graph) -> None:
    x, y, _, _, cat = graph.nodes
    graph.erase_node(cat)
    assert users(x) == "add relu"
    assert users(y) == ""
    assert cat.args == ([None, None],)
    assert cat.all_input_nodes == []
    assert cat not in list(graph.nodes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.erase_node(cat)
    assert len(caught) == 1
    assert len(graph.nodes) == 4


def test_node_of_another_graph_is_not_erased(library: ModuleType, graph) -> None:
    stranger = library.Graph().placeholder("z")
    with refuses(library, RuntimeError):
        graph.erase_node(stranger)


def test_nodes_are_moved_by_prepend_and_append(graph) -> None:
    x, y, add, relu, cat = graph.nodes
    add.prepend(cat)
    assert list(graph.nodes) == [x, y, cat, add, relu]
    add.append(cat)
    assert list(graph.nodes) == [x, y, add, cat, relu]
    x.prepend(relu)
    assert list(graph.nodes) == [relu, x, y, add, cat]
    cat.append(relu)
    assert list(graph.nodes) == [x, y, add, cat, relu]
    assert list(reversed(graph.nodes)) == [relu, cat, add, y, x]
    assert x < add < cat < relu
    assert len(graph.nodes) == 5


@pytest.mark.filterwarnings("ignore:Trying to prepend a node to itself")
def test_moving_a_node_to_itself_changes_nothing(graph) -> None:
    before = list(graph.nodes)
    before[2].prepend(before[2])
    before[2].append(before[3])
    before[3].prepend(before[2])
    assert list(graph.nodes) == before


def test_nodes_are_not_moved_between_graphs(library: ModuleType, graph) -> None:
    stranger = library.Graph().placeholder("z")
    with refuses(library, AssertionError):
        next(iter(graph.nodes)).prepend(stranger)
    with refuses(library, AssertionError):
        next(iter(graph.nodes)).append(stranger)


def test_target_op_and_type_may_be_assigned(graph) -> None:
    _, _, add, relu, _ = graph.nodes
    relu.target = torch.neg
    assert relu.target is torch.neg
    assert relu.name == "relu"
    relu.op, relu.target = "call_method", "sigmoid"
    assert relu.op == "call_method"
    add.type = int
    assert add.type is int
    assert repr(add) == str(add) == "add"


def test_stack_trace_lives_in_meta(graph) -> None:
    x = next(iter(graph.nodes))
    assert x.meta == {}
    x.stack_trace = "File x"
    assert x.meta["stack_trace"] == "File x"
    assert x.stack_trace == "File x"


def test_map_arg_reaches_nodes_and_map_aggregate_everything(library: ModuleType, graph) -> None:
    x, y, *_ = graph.nodes
    argument = ([x, 1], {"k": (y, None)}, slice(x, 2, None), Pair(x, "text"))
    recorded = []
    mapped = library.node.map_arg(argument, lambda node: recorded.append(node) or node.name)
    assert recorded == [x, y, x, x]
    assert mapped == (["x", 1], {"k": ("y", None)}, slice("x", 2, None), Pair("x", "text"))
    assert type(mapped[0]) is library.immutable_collections.immutable_list
    assert type(mapped[1]) is library.immutable_collections.immutable_dict
    assert type(mapped[3]) is Pair
    leaves = []
    library.node.map_aggregate(argument, lambda leaf: leaves.append(leaf) or leaf)
    assert leaves == [x, 1, y, None, x, 2, None, x, "text"]
    assert library.node.map_aggregate(3, str) == "3"
    assert library.node.map_aggregate([range(2)], lambda leaf: leaf) == [range(2)]


def test_impurity_is_known_per_node(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    assert x.is_impure()
    assert graph.call_function(torch._assert, (x, "message")).is_impure()
    assert not graph.call_function(torch.relu, (x,)).is_impure()
    assert graph.call_function(torch.rand, (2,)).is_impure()
    dropout = graph.call_function(torch.ops.aten.native_dropout.default, (x, 0.5, True))
    assert dropout.is_impure()
    assert not dropout.is_impure(impure_random=False)
    assert graph.call_function(operator.setitem, (x, 0, 1)).is_impure()
    assert graph.call_function(torch.ops.aten.add_.Tensor, (x, x)).is_impure()
    assert not graph.call_method("relu", (x,)).is_impure()
    assert not graph.get_attr("weight").is_impure()
    assert graph.output(x).is_impure()


def side_effect(x):
    """Registered as having a side effect below."""
    return x


def test_functions_can_be_declared_to_have_side_effects(library: ModuleType) -> None:
    graph = library.Graph()
    node = graph.call_function(side_effect, (1,))
    registry = library.node.has_side_effect(side_effect)
    assert registry is side_effect
    assert node.is_impure()


def test_nodes_cannot_be_hashed_apart_or_compared_across_graphs(library: ModuleType) -> None:
    first, second = library.Graph().placeholder("x"), library.Graph().placeholder("x")
    assert first != second
    assert len({first, second}) == 2
