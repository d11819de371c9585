"""Values that traced code compares by identity."""

from __future__ import annotations

import enum
import functools
import operator
import os
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import fx
from fx.errors import GuardError

HERE = os.path.abspath(__file__)


def same_as_input(x: Any) -> Any:
    y = x.contiguous()
    return y * 2 if y is x else y * 3


def same_at_once(x: Any) -> Any:
    return x * 2 if x.to(torch.float32) is x else x


def same_by_walrus(x: Any) -> Any:
    if (y := x.add_(1)) is not x:
        y = y * 2
    return y


@pytest.mark.parametrize("program", [same_as_input, same_at_once, same_by_walrus])
def test_a_value_that_may_be_the_one_it_is_compared_with_is_refused(program: Any) -> None:
    with pytest.raises(fx.TraceError, match="cannot compare traced values by identity") as info:
        fx.symbolic_trace(program)
    assert f"{HERE}:" in str(info.value)


def test_the_refusal_names_the_line_and_a_remedy() -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(same_as_input)
    assert str(info.value).splitlines() == [
        "cannot compare traced values by identity",
        f"  where  {HERE}:25, in same_as_input:  return y * 2 if y is x else y * 3",
        "  value  %contiguous = call_method[contiguous](%x)",
        "  why    the operation may return the very tensor that it takes, which is known only when the module runs",
        "  try    compare what decides it (shape, dtype, device), or put the line in a function marked fx.wrap",
    ]


_MISSING = object()


def test_new_values_and_constants_are_compared_as_they_are() -> None:
    def program(x: Any, kept: Any = 1.0) -> Any:
        y = x * 2
        z = y
        if y is x or y is _MISSING or z is not y or kept is None:
            return x
        return y

    assert torch.equal(fx.symbolic_trace(program)(torch.ones(2)), torch.full((2,), 2.0))


def optional_entry(batch: Any) -> Any:
    mask = batch.get("mask")
    return batch["x"] if mask is None else batch["x"] * mask


def test_an_entry_that_is_compared_with_none_has_to_be_there() -> None:
    traced, x = fx.symbolic_trace(optional_entry), torch.ones(2)
    assert torch.equal(traced({"x": x, "mask": x * 3}), x * 3)
    with pytest.raises(GuardError) as info:
        traced({"x": x})
    assert str(info.value).splitlines()[0] == (
        "the program was captured where this is given, and not None: "
        f'{HERE}:73, in optional_entry:  return batch["x"] if mask is None else batch["x"] * mask'
    )
    assert fx.symbolic_trace(traced).code == traced.code


@fx.wrap
def _perhaps(x: Any) -> Any:
    return x if x.sum() > 0 else None


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Any) -> Any:
        y, weights = self.attention(x, x, x, need_weights=False)
        return y if weights is None else y * 2


def test_results_of_calls_that_are_kept_whole_are_not_taken_to_be_given() -> None:
    def program(x: Any) -> Any:
        if (result := _perhaps(x)) is None:
            return x * 2
        return result

    traced, weights = fx.symbolic_trace(program), fx.symbolic_trace(Weights())
    assert torch.equal(traced(torch.ones(2)), torch.ones(2))
    assert [
        str(node.args[0]) for node in weights.graph.find_nodes(op="call_function", target=fx.assertions.check_given)
    ] == ["getitem_1"]
    for call, value in ((traced, -torch.ones(2)), (weights, torch.ones(3, 1, 4))):
        with pytest.raises(GuardError, match="where this is given"):
            call(value)


def test_results_of_operations_of_torch_are_not_checked_for_none() -> None:
    def program(x: Any) -> Any:
        y = x.relu() if x is not None else None
        return x if y is None else y

    assert [node.op for node in fx.symbolic_trace(program).graph.nodes] == ["placeholder", "call_method", "output"]


def test_functions_that_a_trace_replaces_still_belong_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(x: Any) -> Any:
        y = torch.empty(x.size(0))
        if y is None:
            y = x
        return x + y * 0

    monkeypatch.setattr("fx.naming.targets._paths", {})
    first = fx.symbolic_trace(filled)
    assert "check_given" not in first.code
    assert fx.symbolic_trace(filled).code == first.code


def test_a_check_inside_a_call_is_not_taken_for_a_test_of_its_result_for_none() -> None:
    class Sums(nn.Module):  # as the fusing layers of HRNet
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.BatchNorm2d(2), nn.BatchNorm2d(2)])

        def forward(self, x: torch.Tensor) -> Any:
            y = None
            for part in self.parts:
                y = part(x) if y is None else y + part(x)
            return y

    model, x = Sums().eval(), torch.ones(1, 2, 3, 3)
    opened = fx.GraphModule(model, OpensModules().trace(model))
    assert torch.equal(opened(x), model(x))


class OpensModules(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class FastAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x):
        y, weights = self.attention(x, x, x, need_weights=False)
        return y if weights is None else y * 2


def test_each_element_that_is_unpacked_may_be_compared_and_example_inputs_say_which_is_none():
    model, x = FastAttention().eval(), torch.ones(2, 4, 6)
    with pytest.raises(fx.GuardError, match="captured where this is given, and not None"):
        fx.symbolic_trace(model)(x)
    program = fx.capture(model, (x,))
    assert program.meta["capture"].way == "guided"
    assert torch.equal(program(x), model(x))


class Mode(enum.Enum):
    DOUBLE = 1
    NEGATE = 2


def by_mode(x: Any, mode: Any) -> Any:
    return x * 2 if mode is Mode.DOUBLE else -x


def by_local_name(x: Any, mode: Any) -> Any:
    double = Mode.DOUBLE
    return -x if double is not mode else x * 2


def by_function(x: Any, mode: Any) -> Any:
    return x * 2 if operator.is_(mode, Mode.DOUBLE) else -x


def by_class(x: Any, mode: Any) -> Any:
    return x * 2 if mode is int else -x


def by_builtin(x: Any, mode: Any) -> Any:
    return x * 2 if mode is torch.relu else -x


@pytest.mark.parametrize(
    "program, double, other",
    [
        (by_mode, Mode.DOUBLE, Mode.NEGATE),
        (by_local_name, Mode.DOUBLE, Mode.NEGATE),
        (by_function, Mode.DOUBLE, Mode.NEGATE),
        (by_class, int, float),
        (by_builtin, torch.relu, torch.tanh),
    ],
)
def test_an_input_that_is_compared_with_an_object_is_a_tensor_or_an_example_decides(
    program: Any, double: Any, other: Any
) -> None:
    x = torch.ones(2)
    with pytest.raises(GuardError, match=r"captured where (mode|this) is (a tensor|a Tensor)"):
        fx.symbolic_trace(program)(x, double)
    assert torch.equal(fx.symbolic_trace(program)(x, x), -x)
    guided = fx.capture(program, (x, double))
    assert torch.equal(guided(x, double), x * 2)
    with pytest.raises(GuardError):
        guided(x, other)


def test_the_guard_of_a_comparison_with_an_object_names_its_line() -> None:
    with pytest.raises(GuardError) as info:
        fx.symbolic_trace(by_mode)(torch.ones(2), Mode.DOUBLE)
    first = str(info.value).splitlines()[0]
    assert first.startswith(f"the program was captured where mode is a tensor: {HERE}:")
    assert first.endswith("in by_mode:  return x * 2 if mode is Mode.DOUBLE else -x")


@pytest.mark.parametrize(
    "program",
    [
        lambda batch: batch["x"] if batch["mode"] is Mode.DOUBLE else -batch["x"],
        lambda batch: batch["x"] if operator.is_not(batch["mode"], Mode.DOUBLE) else -batch["x"],
    ],
)
def test_an_entry_that_is_compared_with_an_object_is_guarded(program: Any) -> None:
    batch = {"x": torch.ones(2), "mode": Mode.DOUBLE}
    with pytest.raises(GuardError, match="captured where this is a Tensor"):
        fx.symbolic_trace(program)(batch)
    assert torch.equal(fx.capture(program, (batch,))(batch), program(batch))


def test_an_attribute_with_the_name_of_a_method_of_tensors_is_guarded_where_it_is_compared() -> None:
    def program(options: Any) -> Any:
        return options.x if options.mode is Mode.DOUBLE else -options.x

    options = SimpleNamespace(x=torch.ones(2), mode=Mode.DOUBLE)
    with pytest.raises(GuardError, match="captured where this is a Tensor"):
        fx.symbolic_trace(program)(options)
    with pytest.raises(fx.TraceError, match="cannot compare traced values by identity"):
        fx.symbolic_trace(program, example_inputs=(options,))


def test_the_dtype_that_a_function_compares_by_identity_is_answered_like_that_of_the_operator() -> None:
    def program(x: Any) -> Any:
        return x if operator.is_(x.dtype, torch.float32) else x.float() * 2

    with pytest.raises(fx.TraceError, match="cannot compare the dtype of a traced value by identity"):
        fx.symbolic_trace(program)
    guided = fx.capture(program, (torch.ones(2),))
    assert torch.equal(guided(torch.ones(3)), torch.ones(3))
    with pytest.raises(GuardError):
        guided(torch.ones(2).double())


def _of_parts(x: Any, parts: Any) -> Any:
    (mask,) = parts
    return x if mask is None else mask


class _Context:
    def __init__(self, mask: Any) -> None:
        self.mask = mask


class _Inner(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        return x if mask is None else mask


class InLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Inner()])

    def forward(self, x: Any, mask: Any) -> Any:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def in_object(x: Any, mask: Any) -> Any:
    context = _Context(mask)
    return x if context.mask is None else context.mask


def in_match(x: Any, mask: Any) -> Any:
    match (x, mask):
        case (_, None):
            return x
        case _:
            return mask


def in_filter(x: Any, mask: Any) -> Any:
    return x * len(list(filter(lambda value: value is not None, (x, mask))))


_HELPERS = {"none": functools.partial(operator.is_, None)}


@pytest.mark.parametrize(
    "program",
    [
        lambda x, mask: _of_parts(x, (mask,)),
        lambda x, mask: x if operator.is_(mask, None) else mask,
        lambda x, mask: x if _HELPERS["none"](mask) else mask,
        in_object,
        in_match,
        in_filter,
        InLoop(),
    ],
)
def test_an_input_without_a_default_is_taken_to_be_given_however_the_program_compares_it(program: Any) -> None:
    x, mask = torch.ones(2), torch.zeros(2)
    traced = fx.symbolic_trace(program)
    assert torch.equal(traced(x, mask), program(x, mask))
    with pytest.raises(GuardError, match=r"where (mask|this) is given"):
        traced(x, None)
    assert torch.equal(fx.capture(program, (x, None))(x, None), program(x, None))


@pytest.mark.parametrize(
    "program",
    [lambda x, y: torch.cat([x, y]), lambda x, y: [x, (y,)], lambda x, y: {"x": x, "y": [x, y][1]}],
)
def test_an_input_that_is_only_put_into_containers_is_not_checked(program: Any) -> None:
    assert not fx.symbolic_trace(program).guards


def sequence_or_tensor(x: Any) -> Any:
    match x:
        case [*_]:
            return torch.stack(list(x)).sum(0)
        case _:
            return x - 1


def mapping_or_tensor(x: Any) -> Any:
    match x:
        case {"mask": mask, "x": whole}:
            return mask * whole
        case {"x": whole}:
            return whole
        case _:
            return x - 1


def test_a_pattern_for_any_sequence_is_answered_by_examples_or_refused() -> None:
    x = torch.ones(2)
    for examples in (None, (x,)):
        with pytest.raises(fx.TraceError, match="cannot match the input 'x'"):
            fx.symbolic_trace(sequence_or_tensor, example_inputs=examples)
    guided = fx.capture(sequence_or_tensor, ([x, x],))
    assert torch.equal(guided([x, x]), x * 2)
    with pytest.raises(GuardError):
        guided(x)
    assert fx.symbolic_trace(lambda x: sequence_or_tensor(x.shape) if x is None else x * 2) is not None


def test_a_pattern_for_a_mapping_is_one_for_the_class_of_the_value() -> None:
    x = torch.ones(2)
    traced = fx.symbolic_trace(mapping_or_tensor)
    assert torch.equal(traced(x), x - 1)
    with pytest.raises(GuardError, match="where x is a tensor"):
        traced({"x": x})
    for batch in ({"x": x}, {"x": x, "mask": x * 3}):
        assert torch.equal(fx.capture(mapping_or_tensor, (batch,))(batch), mapping_or_tensor(batch))


def test_numpys_queries_of_the_class_of_a_value_are_answered_for_the_value() -> None:
    def program(x: Any, scale: Any) -> Any:
        return x * scale if numpy.isscalar(scale) else x + scale

    x = torch.ones(2)
    traced = fx.symbolic_trace(program)
    assert torch.equal(traced(x, x), x + x)
    with pytest.raises(GuardError, match="captured for a value of"):
        traced(x, 2.0)
    assert torch.equal(fx.capture(program, (x, 3.0))(x, 2.0), x * 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def test_an_optional_part_that_torchs_own_code_compares_is_checked_or_refused() -> None:
    args = torch.ones(2, 4, 3), torch.tensor([4, 2])
    with pytest.raises(GuardError, match=r"where this is given.*pad_packed_sequence"):
        fx.symbolic_trace(Recurrent())(*args)
    with pytest.raises(fx.TraceError, match="cannot compare a traced value by identity"):
        fx.symbolic_trace(Recurrent(), example_inputs=args)


class _Passing(nn.Module):
    def forward(self, y: Any, x: Any) -> Any:
        return y


class Reassigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Passing()])

    def forward(self, x: Any, y: Any) -> Any:
        result = x
        x = 1
        for layer in self.layers:
            y = layer(y, x)
        return result, y


def test_the_uses_of_a_variable_that_is_assigned_again_are_not_those_of_the_input() -> None:
    (guard,) = fx.symbolic_trace(Reassigned()).guards
    assert "where y is given" in str(guard)
