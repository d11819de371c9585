"""The interface that callers rely on: inputs, structure of the result, writes; and its comparison."""

from __future__ import annotations

import copy
import operator
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fx
import model_zoo
from fx.errors import GraphError
from fx.pipelines.interface import Interface, result_is_kept, signature_is_kept, writes_are_kept
from fx.pipelines.verification import KEPT, ProgramSnapshot, verify

Pair = namedtuple("Pair", "first second")


def interface(function: Callable[..., Any] | nn.Module, **options: Any) -> Interface:
    return Interface.of(fx.symbolic_trace(function, **options).graph)


@pytest.mark.parametrize(
    "before, after, message",
    [
        (lambda x, y: x, lambda x: x, "the program's inputs are (x) instead of (x, y)"),
        (lambda x, y: x, lambda y, x: x, "the program's inputs are (y, x) instead of (x, y)"),
        (lambda x: x, lambda z: z, "the program's inputs are (z) instead of (x)"),
        (lambda x, n=2: x, lambda x, n=3: x, "the default of input 'n' is 3 instead of 2"),
        (lambda x, n=2: x, lambda x, n=2.0: x, "the default of input 'n' is 2.0 instead of 2"),
        (lambda x, n=2: x, lambda x, n: x, "the default of input 'n' is none instead of 2"),
        (lambda x, n=float("nan"): x, lambda x, n=float("nan"): x, None),
    ],
)
def test_inputs_are_compared_by_name_order_and_default(before: Any, after: Any, message: str | None) -> None:
    violation = signature_is_kept(interface(before), interface(after))
    assert (violation and violation.what) == message


def test_another_way_to_take_inputs_is_seen() -> None:
    concrete = {"pair": (fx.PH, fx.PH)}
    flattened = fx.symbolic_trace(lambda pair: pair[0] + pair[1], concrete_args=concrete)
    before = Interface.of(flattened.graph)
    assert signature_is_kept(before, Interface.of(copy.deepcopy(flattened).graph)) is None
    flattened.graph.set_codegen(fx.CodeGen())
    violation = signature_is_kept(before, Interface.of(flattened.graph))
    assert violation is not None and violation.what == "the program's calling convention differs"


@pytest.mark.parametrize(
    "before, after, message",
    [
        (lambda x: (x, x), lambda x: (x,), "the result has 1 elements instead of 2"),
        (lambda x: (x, x), lambda x: [x, x], "the result is a immutable_list instead of a tuple"),
        (lambda x: {"a": x}, lambda x: {"b": x}, "the keys of the result are ['b'] instead of ['a']"),
        (
            lambda x: {"a": x, "b": x},
            lambda x: {"b": x, "a": x},
            "the keys of the result are ['b', 'a'] instead of ['a', 'b']",
        ),
        (lambda x: {"a": [x, x]}, lambda x: {"a": [x]}, "element 'a' of the result has 1 elements instead of 2"),
        (lambda x: (x, None), lambda x: (x, 3), "element 1 of the result is an int instead of a NoneType"),
        (lambda x: (x, 2), lambda x: (x, 3), "element 1 of the result is 3 instead of 2"),
        (lambda x: (x, 2), lambda x: (x, x.dim()), None),
        (lambda x: torch.split(x, 1), lambda x: (x, x), None),
        (lambda x: None, lambda x: None, None),
        (lambda x: torch.relu(x), lambda x: (torch.relu(x),), "the result is a tuple instead of a tensor"),
        (lambda x: (torch.relu(x), x), lambda x: torch.relu(x), "the result is a tensor instead of a tuple"),
        (lambda x: x, lambda x: (x,), None),
    ],
)
def test_results_are_compared_as_far_as_the_output_shows(before: Any, after: Any, message: str | None) -> None:
    violation = result_is_kept(interface(before), interface(after))
    actual = violation and violation.what.replace("a list", "a immutable_list")
    assert actual == message


def test_a_tuple_is_no_named_tuple() -> None:
    def returning(kind: Callable[..., Any]) -> Interface:
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output(kind((x, (x, 1))))
        return Interface.of(graph)

    assert result_is_kept(returning(Pair._make), returning(Pair._make)) is None
    violation = result_is_kept(returning(Pair._make), returning(tuple))
    assert violation is not None and violation.what == "the result is a tuple instead of a Pair"


def test_an_output_that_is_gone_is_seen() -> None:
    graph = fx.Graph()
    graph.placeholder("x")
    violation = result_is_kept(interface(lambda x: x), Interface.of(graph))
    assert violation is not None and violation.what == "the graph has no output any more"


def counter() -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("add_", (graph.get_attr("count"), 1))
    graph.output(graph.call_function(torch.add, (x, 1)))
    return fx.GraphModule({"count": torch.zeros(1)}, graph)


def writes_directly(x: Tensor) -> Tensor:
    torch.relu_(x)
    return x + 1


def writes_through_a_view(x: Tensor) -> Tensor:
    x[0].t().mul_(2)
    return x + 1


def writes_twice(x: Tensor) -> Tensor:
    x.add_(1).mul_(2)
    return x + 1


def writes_an_element(x: Tensor) -> Tensor:
    x[0] = 1.0
    return x + 1


def writes_nothing(x: Tensor) -> Tensor:
    return x + 1


def writes_to_a_copy(x: Tensor) -> Tensor:
    return (x + 1).mul_(2) + 1


@pytest.mark.parametrize("writes", [writes_directly, writes_through_a_view, writes_twice, writes_an_element])
def test_writes_to_inputs_that_are_dropped_or_new_are_seen(writes: Any) -> None:
    with_write, without = interface(writes), interface(writes_nothing)
    assert writes_are_kept(with_write, with_write) is None
    dropped, new = writes_are_kept(with_write, without), writes_are_kept(without, with_write)
    assert dropped is not None and dropped.what == "the program no longer writes to input 'x'"
    assert new is not None and new.what == "the program now writes to input 'x'"
    assert f"({__file__}:" in (dropped.why or "")


def test_writes_to_the_state_are_seen() -> None:
    without = interface(writes_nothing)
    for writes in (Interface.of(counter().graph), interface(nn.Sequential(nn.BatchNorm1d(3)).train())):
        violation = writes_are_kept(writes, without)
        assert violation is not None and violation.what == "the program no longer writes to its own state"


@pytest.mark.parametrize("other", [writes_to_a_copy, lambda x: torch.nn.functional.relu(x + 1, inplace=True)])
def test_writes_to_the_programs_own_values_do_not_count(other: Any) -> None:
    assert interface(other).writes == {}
    assert writes_are_kept(interface(other), interface(writes_nothing)) is None


def test_possible_writes_get_the_benefit_of_the_doubt() -> None:
    def unknown(x: Tensor) -> Tensor:
        return opaque(x) + 1

    unclear = interface(unknown)
    assert unclear.writes == {}
    for writes in (interface(writes_directly), Interface.of(counter().graph)):
        assert writes_are_kept(writes, unclear) is None
        assert writes_are_kept(unclear, writes) is None


@fx.wrap
def opaque(x: Tensor) -> Tensor:
    return x


def test_a_write_to_a_number_is_none() -> None:
    def counting(add: Callable[..., Any]) -> Interface:
        graph = fx.Graph()
        graph.output(graph.call_function(add, (graph.placeholder("n", int), 1)))
        return Interface.of(graph)

    assert counting(operator.iadd).writes == {}
    assert writes_are_kept(counting(operator.iadd), counting(operator.add)) is None


def test_a_write_through_a_container_is_possible() -> None:
    def through(box: list[Tensor], x: Tensor) -> Tensor:
        box.append(x)
        box[-1].add_(1)
        return x * 1

    def directly(box: list[Tensor], x: Tensor) -> Tensor:
        box.append(x)
        x.add_(1)
        return x * 1

    assert "input 'x'" in interface(directly).writes
    assert writes_are_kept(interface(directly), interface(through)) is None


def test_a_write_that_moves_into_a_program_inside_is_kept() -> None:
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    outer = fx.GraphModule({"inner": fx.symbolic_trace(writes_directly)}, graph)
    assert writes_are_kept(interface(writes_directly), Interface.of(outer.graph)) is None


@pytest.mark.parametrize("name", ["resnet_tiny", "two_heads", "dlrm_small", "learning_to_paint_actor_small"])
def test_copies_and_transformed_programs_are_the_same_to_callers(name: str) -> None:
    program = fx.symbolic_trace(model_zoo.get_model(name).build())
    before = ProgramSnapshot.of(program)
    for other in (program, copy.deepcopy(program), fx.Transformer(program).transform()):
        verify(other)
        after = ProgramSnapshot.of(other)
        assert [compare(before, after) for compare, _ in KEPT.values()] == [None] * len(KEPT)


def test_verify_names_the_program_inside_and_the_node() -> None:
    inner = fx.symbolic_trace(writes_nothing)
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    outer = fx.GraphModule({"inner": inner}, graph)
    verify(outer)
    inner.graph.find_nodes(op="call_function")[0].name = "x"
    with pytest.raises(GraphError, match="in submodule 'inner': Node redefined name x!"):
        verify(outer)
    inner.graph.find_nodes(op="call_function")[0].name = "add"
    with pytest.raises(GraphError, match="in submodule 'inner': the graph was edited, but the program not recompiled"):
        verify(outer)
    inner.recompile()
    verify(outer)


def test_writes_to_tensors_are_seen_where_torch_counts_them() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))

    def damage(write: Callable[[], object]) -> str | None:
        before = ProgramSnapshot.of(program)
        write()
        compare, _ = KEPT["tensors"]
        violation = compare(before, ProgramSnapshot.of(program))
        return violation and violation.what

    weight: Any = program.get_parameter("0.weight")
    assert damage(lambda: None) is None
    assert (
        damage(lambda: program(torch.ones(3, 2))) == "the tensor '1.num_batches_tracked' of the program was written to"
    )
    assert damage(lambda: setattr(weight, "data", torch.ones(2, 2))) == (
        "the tensor '0.weight' of the program was written to"
    )
    assert damage(lambda: setattr(program.get_submodule("0"), "weight", nn.Parameter(torch.ones(2, 2)))) is None


def test_tensors_that_torch_does_not_count_are_taken_as_they_are() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    for module in (model, nn.Linear(2, 2, device="meta")):
        ProgramSnapshot.of(fx.symbolic_trace(nn.Sequential(module)))


def test_a_write_to_a_copy_with_the_name_of_a_view_is_not_one_to_the_input() -> None:
    assert interface(lambda x: x.unfold(0, 1, 1).add_(1)).writes.keys() == {"input 'x'"}
    assert interface(lambda x: nn.functional.unfold(x, 1).add_(1)).writes == {}
