"""Traced values: recorded operations, and errors where Python needs a concrete value."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fx
from fx.proxy import Attribute, MetaProxy


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def iterates(x: Any) -> Any:
    return [row + 1 for row in x]


def splats(x: Any) -> Any:
    return torch.stack([*x])


def takes_len(x: Any) -> Any:
    return x * x.__len__()


def matches_two(x: Any) -> Any:
    match x.shape:
        case rows, _:
            return x * rows
    return x


def matches_the_first(x: Any) -> Any:
    match x:
        case [first, *_]:
            return first
        case _:
            return x


def to_int(x: Any) -> Any:
    return x.shape[0].__int__()


def to_float(x: Any) -> Any:
    return x.sum().__float__()


def to_bool(x: Any) -> Any:
    return bool(x)


def contains(x: Any) -> Any:
    return 3 in x


def indexes_a_list(x: Any) -> Any:
    return [1, 2, 3][x]


def ranges(x: Any) -> Any:
    return list(range(x.shape[0]))


def looks_up(x: Any) -> Any:
    return {1: "a"}[x]


def is_in_a_set(x: Any) -> Any:
    return x * 2 if x.shape[0] in {1, 3} else x


def fills_a_dict(x: Any) -> Any:
    table = {}
    table[x] = 1
    return x * table.get(x, 7)


DICT_KEY = (
    "cannot use a traced value as the key of a dict or an element of a set. "
    "Keys for dictionaries used as an argument cannot contain a Node"
)


def keys_a_dict(x: Any) -> Any:
    return torch.stack({x: x})


def double_stars(x: Any) -> Any:
    return dict(**x)


def sets_an_attribute(x: Any) -> Any:
    x.requires_grad = True
    return x


def deletes_an_element(x: Any) -> Any:
    del x[0]
    return x


def slices_a_list(x: Any) -> Any:
    return [1, 2][: x.size(0)]


def passes_a_set(x: Any) -> Any:
    return x.sum(dim={0})


@pytest.mark.parametrize(
    "program, what, value",
    [
        (branches, "symbolically traced variables cannot be used as inputs to control flow", "%gt = call_function"),
        (iterates, "Proxy object cannot be iterated", "%x = placeholder"),
        (splats, "Proxy object cannot be iterated", "%x = placeholder"),
        (matches_two, "cannot match a traced value against a sequence pattern", "%getattr_1 = call_function"),
        (matches_the_first, "cannot match a traced value against a sequence pattern", "%x = placeholder"),
        (takes_len, "'len' is not supported in symbolic tracing by default", "%x = placeholder"),
        (to_int, "cannot convert a traced value to int", "%getitem = call_function"),
        (to_float, "cannot convert a traced value to float", "%sum_1 = call_method"),
        (to_bool, "symbolically traced variables cannot be used as inputs to control flow", "%x = placeholder"),
        (contains, "Proxy object cannot be iterated", "%x = placeholder"),
        (indexes_a_list, "cannot use a traced value as an index of a real list or tuple", "%x = placeholder"),
        (ranges, "cannot use a traced value as an integer", "%x = placeholder"),
        (looks_up, DICT_KEY, "%x = placeholder"),
        (is_in_a_set, DICT_KEY, "%getitem = call_function"),
        (fills_a_dict, DICT_KEY, "%x = placeholder"),
        (double_stars, "Proxy object cannot be iterated", "%keys = call_method[keys](%x)"),
        (sets_an_attribute, "cannot set an attribute of a traced value", "%x = placeholder"),
        (deletes_an_element, "cannot delete an element of a traced value", "%x = placeholder"),
        (slices_a_list, "cannot use a traced value as a bound of a slice of a real list or tensor", "%x = placeholder"),
        (passes_a_set, "argument of type: <class 'set'> cannot be held by a node", "{0}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_traced_value_used_as_a_real_one_is_an_error_with_its_line_and_a_remedy(
    program: Callable[..., Any], what: str, value: str
) -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(program)
    first, *rest = str(info.value).splitlines()
    lines = {line[2:8].strip(): line[9:] for line in rest}
    assert first == what
    assert lines["where"].startswith(__file__)
    assert f"in {program.__name__}:" in lines["where"]
    assert value in lines["value"]
    assert lines["why"]
    assert lines["try"]


def test_a_dict_with_traced_keys_is_no_argument() -> None:
    with pytest.raises(fx.TraceError, match=r"(?s)Keys for dictionaries used as an argument.*torch_stack_of"):
        fx.symbolic_trace(lambda x: torch_stack_of({x: 1}, x))


def torch_stack_of(mapping: Any, x: Any) -> Any:
    return x.gather(mapping)


def test_values_of_two_traces_cannot_meet() -> None:
    graphs = [fx.Graph(), fx.Graph()]
    left, right = (fx.Proxy(graph.placeholder("x")) for graph in graphs)
    with pytest.raises(fx.TraceError, match="multiple different tracers"):
        left + right
    with pytest.raises(fx.TraceError, match="multiple different tracers"):
        torch.add(left, right)


def test_a_value_that_outlives_its_trace_is_refused_with_the_line() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()  # the capture would remove it from a container

    def keeps(x: Any) -> Any:
        queue.put(itertools.repeat(x))
        return x

    fx.symbolic_trace(keeps)
    value = next(queue.get_nowait())
    with pytest.raises(fx.TraceError, match=r"(?s)after its trace is over.*value \+ 1"):
        value + 1
    with pytest.raises(fx.TraceError, match=r"(?s)does not belong to.*its own trace is over"):
        fx.symbolic_trace(lambda x: x + value)


def test_errors_of_the_users_own_stay_as_they_are() -> None:
    def fails(x: Any) -> Any:
        raise TypeError("mine, about no traced value")

    with pytest.raises(TypeError, match=r"^mine") as info:
        fx.symbolic_trace(fails)
    assert not isinstance(info.value, fx.TraceError)


def test_unpacking_into_names_is_recorded() -> None:
    def unpacks(x: Any) -> Any:
        first, (second, third) = x
        return first + second * third

    traced = fx.symbolic_trace(unpacks)
    assert traced((1, (2, 3))) == 7


def test_assigning_to_elements_is_recorded_in_order() -> None:
    def writes(x: Any) -> Any:
        y = x.clone()
        before = y.sum()
        y[:, 0] = 5.0
        return y, before, y.sum()

    traced = fx.symbolic_trace(writes)
    x = torch.ones(2, 2)
    for ours, eager in zip(traced(x), writes(x), strict=True):
        assert torch.equal(ours, eager)
    traced.graph.eliminate_dead_code()
    assert traced.graph.find_nodes(op="call_function", target=operator.setitem)


def test_an_attribute_is_recorded_when_it_is_used_not_when_it_is_read() -> None:
    graph = fx.Graph()
    x = fx.Proxy(graph.placeholder("x"))
    shape = x.shape
    assert isinstance(shape, Attribute)
    assert len(graph.nodes) == 1
    x.view(shape)
    assert [node.name for node in graph.nodes] == ["x", "getattr_1", "view"]


def test_a_proxy_of_an_existing_node_appends_to_its_graph() -> None:
    traced = fx.symbolic_trace(lambda x: torch.relu(x))
    relu = traced.graph.find_nodes(op="call_function")[0]
    with traced.graph.inserting_after(relu):
        doubled = fx.Proxy(relu) * 2
    traced.graph.output_node().args = (doubled.node,)
    traced.graph.lint()
    traced.recompile()
    assert traced(torch.ones(1)).item() == 2


def test_numpy_functions_do_not_iterate_over_a_traced_value() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises((fx.TraceError, TypeError)):
        fx.symbolic_trace(lambda x: numpy.add(x, 1) if x is None else numpy.zeros(x))


def test_a_meta_proxy_computes_on_fake_values_as_it_records() -> None:
    with FakeTensorMode() as mode:
        value = torch.empty(2, 3)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    result = torch.cat([MetaProxy(x, fake_mode=mode), MetaProxy(x, fake_mode=mode)], dim=1)
    assert type(result) is MetaProxy
    assert result.node.meta["val"].shape == (2, 6)
    assert [node.name for node in graph.nodes] == ["x", "cat"]


def test_a_traced_value_matches_sequence_patterns_without_being_a_sequence() -> None:
    def program(x: Any) -> Any:
        assert not isinstance(x, Sequence)
        return x

    fx.symbolic_trace(program)


def test_a_power_with_a_modulus_is_one_call() -> None:
    traced = fx.symbolic_trace(lambda x: x * pow(x.shape[0], 3, 5))
    assert torch.equal(traced(torch.ones(4)), torch.full((4,), 4.0))
    (power,) = traced.graph.find_nodes(op="call_function", target=pow)
    assert power.args[1:] == (3, 5)
