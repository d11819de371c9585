"""Values that count as sharing memory: views, containers, inputs, state, and arguments of unknown functions."""

from __future__ import annotations

import inspect
import itertools
import operator
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import fx
from fx.analysis.aliases import Aliases
from fx.operators.effects import declare_pure
from fx.operators.sharing import find_sharing


def user_function(x: Any) -> Any:
    return x


declared = declare_pure(lambda x: x)


def shares(make: Callable[[fx.Graph, fx.Node], fx.Node], kind: Any = torch.Tensor, root: Any = None) -> bool:
    """Return whether the node from ``make`` may share memory with the input."""
    graph = fx.Graph(owning_module=root)
    x = graph.placeholder("x", kind)
    new = make(graph, x)
    return Aliases(graph).may_share(x, new)


def call(target: Any, *rest: Any, **kwargs: Any) -> Callable[[fx.Graph, fx.Node], fx.Node]:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return graph.create_node(
            "call_method" if isinstance(target, str) else "call_function", target, (x, *rest), kwargs
        )

    return make


VIEWS: list[Any] = [
    call("view", -1), call("t"), call("reshape", -1), call("contiguous"), call("detach"), call("to", torch.float64),
    call("float"), call("cpu"), call("chunk", 2), call("split", 2), call("unbind"), call("add_", 1),
    call("type_as", 1), call("__getitem__", 0), call("numpy"), call(torch.transpose, 0, 1), call(torch.flatten),
    call(torch.Tensor.view, -1), call(torch.ops.aten.view.default, [-1]),
    call(torch.ops.aten._unsafe_view.default, [-1]), call(torch.ops.aten.native_dropout.default, 0.5, False),
    call(torch.meshgrid), call(torch.broadcast_tensors), call(torch.atleast_2d), call(torch.positive),
    call(F.dropout, 0.5, False), call(F.pad, (0, 0)), call(F.relu, inplace=True), call(operator.getitem, 0),
    call(operator.pos), call(getattr, "T"), call(getattr, "data"), call(getattr, "grad"), call(user_function),
    call(declared), lambda graph, x: graph.call_function(torch.add, (1, 1), {"out": x}),
    lambda graph, x: graph.call_function(torch.einsum, ("i->i", x)),
    lambda graph, x: graph.call_function(torch.reshape, (), {"input": x, "shape": (-1,)}),
    lambda graph, x: graph.call_function(tuple, ((1, x),)),
    lambda graph, x: graph.call_function(dict, (), {"a": [x]}), lambda graph, x: graph.call_function(zip, ((x,),)),
    lambda graph, x: graph.call_function(slice, (x,)),
]  # fmt: skip

FRESH: list[Any] = [
    call("clone"), call("add", 1), call("sum"), call("new_zeros", 3), call("tolist"), call("size"), call("item"),
    call("__add__", 1), call(torch.relu), call(torch.add, 1, out=None), call(torch.matmul, 1), call(torch.var_mean),
    call(torch.softmax, 0), call(torch.tensor), call(F.relu), call(F.linear, 1), call(F.layer_norm, (3,)),
    call(F.cross_entropy, 1), call(operator.add, 1), call(operator.mul, 2), call(operator.neg),
    call(operator.truediv, 2), call(len), call(getattr, "shape"), call(getattr, "dtype"),
    lambda graph, x: graph.call_function(torch.cat, ([x, x],)),
    lambda graph, x: graph.call_function(operator.mul, (graph.call_method("size", (x, 0)), 2)),
]  # fmt: skip


@pytest.mark.parametrize("make", VIEWS)
def test_calls_that_may_return_their_argument_share_its_memory(make: Any) -> None:
    assert shares(make)


@pytest.mark.parametrize("make", FRESH)
def test_computing_calls_share_no_memory(make: Any) -> None:
    assert not shares(make)


@pytest.mark.parametrize("target, number", [(operator.add, [1]), (operator.mul, 2), (operator.or_, {})])
def test_arithmetic_on_a_possible_list_shares_its_elements(target: Any, number: Any) -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        graph.call_function(operator.getitem, (x, 0))
        return graph.call_function(target, (x, number))

    assert shares(make, kind=None)
    assert not shares(lambda graph, x: graph.call_function(target, (x, number)), kind=None)
    assert not shares(lambda graph, x: graph.call_function(target, (x, 1.5)), kind=None)


def test_a_value_used_as_a_tensor_is_a_tensor() -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        graph.call_function(operator.getitem, (x, 0))
        call = graph.call_function(operator.mul, (x, 2))
        graph.call_method("add_", (call, 1))
        return call

    assert not shares(make, kind=None)


@pytest.mark.parametrize("write", [("append", "call_method"), (operator.setitem, "call_function")])
def test_elements_of_a_container_share_memory_with_it(write: Any) -> None:
    target, op = write

    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        call = graph.call_function(list, ((1, 2),))
        graph.create_node(op, target, (call, x) if op == "call_method" else (call, 0, x))
        return graph.call_function(operator.getitem, (call, 0))

    assert shares(make)


@pytest.mark.parametrize("target", ["set_", torch.Tensor.set_, torch.ops.aten.set_.source_Tensor])
def test_a_tensor_that_takes_over_the_memory_of_another_shares_it(target: Any) -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        new = graph.call_function(torch.ones, (3,))
        call(target, x)(graph, new)
        return new

    assert shares(make)


def test_writing_elements_of_a_tensor_copies_them() -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        call = graph.call_function(torch.ones, (3,))
        graph.call_function(operator.setitem, (call, 0, x))
        graph.call_function(operator.iadd, (call, x))
        return call

    assert not shares(make)


@pytest.mark.parametrize("question", [torch.is_tensor, torch.numel, torch.typename])
def test_properties_of_a_tensor_hold_no_memory(question: Any) -> None:
    assert not shares(call(question))


def test_inputs_may_be_one_tensor_unless_they_are_numbers() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    n = graph.placeholder("n", int)
    aliases = Aliases(graph)
    assert aliases.may_share(x, y) and not aliases.may_share(x, n)
    assert aliases.group_of(n) is None


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3))
        self.tied = self.weight
        self.register_buffer("view", self.weight.detach()[0])
        self.register_buffer("apart", torch.eye(3))
        values = numpy.zeros(8, dtype=numpy.float32)
        self.register_buffer("front", torch.from_numpy(values[:5]))
        self.register_buffer("back", torch.from_numpy(values[4:]))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("empty", torch.ones(3, device="meta"))
        self.register_buffer("hollow", torch.ones(3, device="meta"))
        self.number = 3
        self.inner = nn.Linear(3, 3)
        self.inner.weight = self.weight
        self.identity = nn.Identity()
        self.parts = nn.Sequential(nn.Identity())


PAIRS = [
    ("weight", "tied", True), ("weight", "view", True), ("weight", "apart", False), ("front", "back", True),
    ("front", "apart", False), ("sparse", "sparse", True), ("empty", "hollow", False), ("weight", "number", False),
    ("weight", "inner", True), ("apart", "inner", False),
]  # fmt: skip


@pytest.mark.parametrize("one, two, shared", PAIRS)
def test_attributes_share_memory_as_their_tensors_do(one: str, two: str, shared: bool) -> None:
    graph = fx.Graph(owning_module=State())  # type: ignore[arg-type]
    first, second = graph.get_attr(one), graph.get_attr(two)
    assert Aliases(graph).may_share(first, second) == shared


def test_attributes_of_a_graph_without_a_module_may_be_one() -> None:
    graph = fx.Graph()
    first, second = graph.get_attr("one"), graph.get_attr("two")
    assert Aliases(graph).may_share(first, second)


@pytest.mark.parametrize("path, shared", [("identity", True), ("parts", True), ("inner", False)])
def test_modules_that_only_compute_return_new_tensors(path: str, shared: bool) -> None:
    assert shares(lambda graph, x: graph.call_module(path, (x,)), root=State()) == shared


def test_a_module_that_is_not_torchs_may_return_its_state() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(3))

    root = nn.Module()
    root.leaf = Returning()
    graph = fx.Graph(owning_module=root)  # type: ignore[arg-type]
    x = graph.placeholder("x")
    called, fetched = graph.call_module("leaf", (x,)), graph.get_attr("leaf.kept")
    aliases = Aliases(graph)
    assert aliases.may_share(called, fetched) and aliases.may_share(called, x)


def test_a_program_that_is_called_may_return_its_state() -> None:
    inner = fx.Graph()
    inner.placeholder("x")
    inner.output(inner.get_attr("kept"))
    root = nn.Module()
    root.inner = fx.GraphModule({"kept": torch.ones(3)}, inner)
    graph = fx.Graph(owning_module=root)  # type: ignore[arg-type]
    called = graph.call_module("inner", (graph.call_function(torch.ones, (3,)),))
    fetched = graph.get_attr("inner.kept")
    assert Aliases(graph).may_share(called, fetched)


def test_unknown_functions_may_return_the_arguments_of_others() -> None:
    graph = fx.Graph()
    call = graph.call_function(torch.ones, (3,))
    graph.call_function(user_function, (call,))
    returned = graph.call_function(user_function, (1,))
    apart = graph.call_function(torch.ones, (3,))
    aliases = Aliases(graph)
    assert aliases.may_share(call, returned) and not aliases.may_share(apart, returned)


@pytest.mark.thorough
def test_operators_that_really_share_memory_are_known_to() -> None:
    # in a thread, as torch looks at the whole stack for each operator it lists, and pytest's is deep
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as executor:
        warnings.simplefilter("ignore")
        assert executor.submit(check_all_operators).result() > 500


def check_all_operators() -> int:
    """Call every operator that torch has samples for as a function and as a method, and return how many these are."""
    from torch.testing._internal.common_methods_invocations import op_db

    listed = [operation for operation in op_db if operation.dtypes]  # those with none are not for a CPU
    for operation in listed:
        dtype = torch.float32 if torch.float32 in operation.dtypes else next(iter(operation.dtypes))
        for sample in itertools.islice(operation.sample_inputs("cpu", dtype), 4):
            for target in (operation.op, operation.method_variant):
                if target is not None:
                    assert_sharing_is_known(operation.name, target, (sample.input, *sample.args), sample.kwargs)
    return len(listed)


def assert_sharing_is_known(name: str, target: Any, args: Any, kwargs: Any) -> None:
    is_method = inspect.ismethoddescriptor(target) or getattr(torch.Tensor, name, None) is target
    sharing = find_sharing(target.__name__ if is_method else target)
    try:
        result = target(*args, **kwargs)
    except Exception:  # samples that need a kernel which this build of torch lacks
        return
    if sharing.places is None or sharing.kind in ("arithmetic", "element"):
        return
    arguments_there = [args[place] if place < len(args) else kwargs.get(key) for place, key in sharing.places]
    allowed = {memory(leaf) for leaf in tree_leaves(arguments_there)}
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            assert sharing.kind != "number", name
            shared = {memory(leaf) for leaf in tree_leaves((args, kwargs))} & {memory(leaf)} - {None}
            assert shared <= allowed, name


def memory(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage().data_ptr() or None
