"""The records of proxies, outside of a trace too."""

from __future__ import annotations

import copy
import operator
from types import ModuleType

import pytest
import torch

from .libraries import refuses


@pytest.fixture
def graph(library: ModuleType):
    """A graph with one input."""
    graph = library.Graph()
    graph.placeholder("x")
    return graph


@pytest.fixture
def x(library: ModuleType, graph):
    """The input as a proxy that appends to its graph."""
    return library.Proxy(next(iter(graph.nodes)))


def last(graph) -> tuple[str, object, tuple[object, ...], dict[str, object]]:
    """Return the operation of the latest node, arguments by name."""
    node = next(iter(reversed(graph.nodes)))
    return node.op, node.target, node.args, dict(node.kwargs)


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor"]


@pytest.mark.parametrize("name", BINARY)
def test_operators_record_functions_of_operator(graph, x, name: str) -> None:
    function = getattr(operator, name)
    function(x, 2)
    assert last(graph) == ("call_function", function, (x.node, 2), {})
    function(2, x)
    assert last(graph) == ("call_function", function, (2, x.node), {})


@pytest.mark.parametrize("name, mirrored", [("eq", "eq"), ("ne", "ne"), ("lt", "gt"), ("le", "ge")])
def test_comparisons_record_and_mirror(graph, x, name: str, mirrored: str) -> None:
    getattr(operator, name)(x, 2)
    assert last(graph)[1:3] == (getattr(operator, name), (x.node, 2))
    getattr(operator, name)(2, x)
    assert last(graph)[1:3] == (getattr(operator, mirrored), (x.node, 2))


@pytest.mark.parametrize("name", ["neg", "pos", "invert", "abs"])
def test_unary_operators_record(graph, x, name: str) -> None:
    getattr(operator, name)(x)
    assert last(graph) == ("call_function", getattr(operator, name), (x.node,), {})


def test_augmented_assignment_records_the_plain_operator(graph, x) -> None:
    y = x
    y += 1
    assert last(graph)[1] is operator.add
    y @= x
    assert last(graph)[1] is operator.matmul
    assert y is not x


def test_indexing_records_getitem_with_its_index(graph, x) -> None:
    x[0, 1:, ..., None, x]
    assert last(graph)[1:3] == (operator.getitem, (x.node, (0, slice(1, None), ..., None, x.node)))


def test_attribute_is_recorded_when_used_and_once(library: ModuleType, graph, x) -> None:
    attribute = x.shape
    assert isinstance(attribute, library.proxy.Attribute)
    assert len(graph.nodes) == 1
    attribute[0]
    attribute[1]
    assert [node.name for node in graph.nodes] == ["x", "getattr_1", "getitem", "getitem_1"]


def test_called_attribute_is_a_method(graph, x) -> None:
    x.view(-1, x).add(other=1)
    nodes = list(graph.nodes)
    assert [(node.op, node.target) for node in nodes[1:]] == [("call_method", "view"), ("call_method", "add")]
    assert nodes[1].args == (nodes[0], -1, nodes[0])
    assert (nodes[2].args, nodes[2].kwargs) == ((nodes[1],), {"other": 1})


def test_called_proxy_records_its_call(graph, x) -> None:
    x(1, k=2)
    assert last(graph) == ("call_method", "__call__", (x.node, 1), {"k": 2})
    assert next(iter(reversed(graph.nodes))).name == "call"


def test_functions_of_torch_record_themselves(graph, x) -> None:
    torch.relu(x)
    assert last(graph) == ("call_function", torch.relu, (x.node,), {})
    torch.add(x, x, alpha=2)
    assert last(graph) == ("call_function", torch.add, (x.node, x.node), {"alpha": 2})
    torch.nn.functional.dropout(x, 0.3)
    assert last(graph)[3] == {"p": 0.3, "training": True, "inplace": False}
    torch.ops.aten.relu(x)
    assert last(graph)[1] is torch.ops.aten.relu
    torch._assert(x, "message")
    assert last(graph) == ("call_function", torch._assert, (x.node, "message"), {})


def test_tensor_on_the_left_records_a_method(library: ModuleType) -> None:
    constant = torch.ones(2)

    def root(x):
        return constant + x, constant[x], constant.add(x), torch.add(constant, x)

    graph = library.symbolic_trace(root).graph
    called = [node.target for node in graph.nodes if node.op.startswith("call")]
    assert called == ["add", "__getitem__", "add", torch.add]


def test_unpacking_records_items(graph, x) -> None:
    first, (second, third) = x
    assert [node.name for node in graph.nodes] == ["x", "getitem", "getitem_1", "getitem_2", "getitem_3"]
    assert (first.node.args[1], third.node.args[1]) == (0, 1)
    assert second.node.args[0] is first.node.next


def test_starred_unpacking_and_loops_are_refused(library: ModuleType, x) -> None:
    error = library.proxy.TraceError
    with refuses(library, error):
        _first, *rest = x
        print(rest)
    with refuses(library, error):
        for _ in x:
            pass
    with refuses(library, error):
        list(x)
    with refuses(library, error):
        print(*x)
    for program in (lambda x: 1 in x, lambda x: dict(**x)):
        with refuses(library, error):
            library.symbolic_trace(program)


def test_truth_is_refused(library: ModuleType, x) -> None:
    for decide in (bool, lambda value: value and 1, lambda value: not value, lambda value: 1 if value > 0 else 2):
        with refuses(library, library.proxy.TraceError):
            decide(x)
    with refuses(library, library.proxy.TraceError):
        _ = 1 < x < 2


def test_length_is_refused(library: ModuleType, x) -> None:
    with refuses(library, RuntimeError, match="len"):
        len(x)


def test_numbers_are_not_made_of_proxies(x) -> None:
    for convert in (int, float, operator.index, range, complex, [1, 2].__getitem__):
        with pytest.raises((TypeError, ValueError)):
            convert(x)


def test_keys_record_a_method(graph, x) -> None:
    x.keys()
    assert last(graph) == ("call_method", "keys", (x.node,), {})


def test_identity_and_class_checks_see_a_proxy(library: ModuleType, x) -> None:
    assert (x is None) is False
    assert isinstance(x, library.Proxy)
    assert not isinstance(x, torch.Tensor)
    assert hasattr(x, "anything")
    assert hash(x) == hash(x) and {x: 1}[x] == 1 if library.Proxy.__hash__ is not None else True


def test_proxies_of_two_tracers_are_refused_together(library: ModuleType, graph) -> None:
    node = next(iter(graph.nodes))
    first, second = library.Proxy(node, library.Tracer()), library.Proxy(node, library.Tracer())
    with refuses(library, RuntimeError, match="tracer"):
        torch.add(first, second)


def test_proxies_extend_a_graph_in_a_transform(library: ModuleType) -> None:
    module = library.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    relu = module.graph.find_nodes(op="call_module")[0]
    with module.graph.inserting_before(module.graph.output_node()):
        value = library.Proxy(relu)
        changed = torch.clamp(value * 2, max=1.0).node
    module.graph.output_node().args = (changed,)
    module.recompile()
    assert torch.equal(module(torch.tensor([-1.0, 0.25, 3.0])), torch.tensor([0.0, 0.5, 1.0]))


def test_appending_tracer_has_no_module(library: ModuleType, graph) -> None:
    tracer = library.proxy.GraphAppendingTracer(graph)
    tracer.create_proxy("call_function", torch.relu, (tracer.proxy(next(iter(graph.nodes))),), {})
    assert last(graph)[1] is torch.relu
    assert library.Proxy(next(iter(graph.nodes))).tracer.graph is graph


def test_proxies_are_copied(library: ModuleType, graph, x) -> None:
    copied = copy.deepcopy(x)
    assert isinstance(copied, library.Proxy)
    assert copied.node.name == "x"
    assert copy.copy(x).node.name == "x"


class Applied(torch._ops.HigherOrderOperator):
    """An operator that takes a function."""

    def __init__(self) -> None:
        super().__init__("conformance_applied")

    def __call__(self, function, x):
        return super().__call__(function, x)


applied = Applied()


def test_higher_order_operators_with_functions_are_refused(library: ModuleType) -> None:
    def root(x):
        return applied(torch.sin, x)

    with refuses(library, RuntimeError):
        library.symbolic_trace(root)
