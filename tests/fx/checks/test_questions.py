"""Questions about traced values that byte code or their text shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx
from fx.checks.traced_values import count_of


def _stored(x: Any) -> Any:
    kind = x.dtype
    return x * (2 if kind is torch.float32 else 3)


def _stored_by_name(x: Any) -> Any:
    gradient = getattr(x, "grad", None)
    return x * (2 if gradient is None else 3)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if x.dtype is torch.float32 else x,
        lambda x: x * 2 if x.dtype is not torch.float32 else x,
        lambda x: x * 2 if x.grad is None else x,
        lambda x: x if x.grad_fn is not None else x * 2,
        lambda x: x * 2 if getattr(x, "grad", None) is None else x,
        lambda x: x * 2 if getattr(x, "dtype") is torch.float32 else x,  # noqa: B009 - a name that is known
        _stored,
        _stored_by_name,
    ],
)
def test_a_comparison_by_identity_with_an_attribute_is_refused(program: Any) -> None:
    expected = (
        r"(?s)cannot compare the \w+ of a traced value by identity.*test_questions.py:\d+.*value +Proxy\(x\.\w+\).*try "
    )
    with pytest.raises(fx.TraceError, match=expected):
        fx.symbolic_trace(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if str(x.dtype) == "torch.float32" else x,
        lambda x: x * 2 if "cuda" in str(x.device) else x,
        lambda x: x * 2 if f"{x.dtype}".endswith("32") else x,
        lambda x: x * {"torch.float32": 2}[repr(x.dtype)],
        lambda x: x * 2 if str(x.dtype).rstrip("2") == "torch.float3" else x,
        lambda x: x * 2 if str(x.dtype)[-1] == "2" else x,
        lambda x: x * 2 if "2" in list(str(x.dtype)) else x,
    ],
)
def test_a_decision_by_the_text_of_a_value_is_refused(program: Any) -> None:
    message = (
        r"(?s)cannot branch on the text of a traced value.*test_questions.py:\d+.*value +Proxy\(x\.\w+\).*why .*try "
    )
    with pytest.raises(fx.TraceError, match=message):
        fx.symbolic_trace(program)


@pytest.mark.parametrize(
    "program, guarded",
    [
        (lambda x: x * 2 if "cpu" in str(x.device) else x, "x.device was device(type='cpu')"),
        (lambda x: x * {"torch.float32": 2}[repr(x.dtype)], "x.dtype was torch.float32"),
        (lambda x: x * 2 if f"{x.dtype}".endswith("32") else x, "x.dtype was torch.float32"),
        (lambda x: x * 2 if str(x.dtype) == str(torch.float32) else x, "x.dtype was torch.float32"),
        (lambda x: x * 2 if str(x.shape[1]) in {"2"} else x, "x.shape[1] was 2"),
        (lambda x: x * 2 if str(x.dtype)[6:] == "float32" else x, "x.dtype was torch.float32"),
        (lambda x: x * 2 if str(x.shape[1]).zfill(2) == "02" else x, "x.shape[1] was 2"),
        (lambda x: x * int(str(x.shape[1])[0]), "x.shape[1] was 2"),
        (lambda x: x * torch.full((2,), 2.0, device=str(x.device)), "x.device was device(type='cpu')"),
        (lambda x: x * torch.full_like(x, 2.0, device=str(x.device)), "x.device was device(type='cpu')"),
    ],
)
def test_with_example_inputs_the_text_of_a_value_decides_and_is_guarded(program: Any, guarded: str) -> None:
    captured = fx.symbolic_trace(program, example_inputs=(torch.ones(3, 2),))
    assert [str(guard).partition(": ")[0] for guard in captured.guards] == [f"the program was captured where {guarded}"]
    assert captured(torch.ones(5, 2)).tolist() == [[2.0, 2.0]] * 5


def test_the_text_of_a_tensor_is_refused_with_example_inputs_too() -> None:
    message = r"(?s)cannot branch on the text of a traced value.*the example inputs do not determine it: it is a tensor"
    with pytest.raises(fx.TraceError, match=message):
        fx.symbolic_trace(lambda x: x * 2 if "nan" in str(x) else x, example_inputs=(torch.ones(2),))


def test_a_part_of_the_text_of_a_value_is_refused_where_something_is_decided_by_it() -> None:
    with pytest.raises(fx.TraceError, match=r"(?s)cannot branch on the text of a traced value.*test_questions.py:\d+"):
        fx.symbolic_trace(lambda x: x * 2 if str(x.dtype)[6:] == "float32" else x)


@pytest.mark.parametrize(
    "program, expected",
    [
        (lambda x: x.chunk(2), (2, False)),
        (lambda x: x.split([1, 2]), (2, True)),
        (lambda x: x.tensor_split([1, 3]), (3, True)),
        (lambda x: x.tensor_split(3), (3, True)),
        (lambda x: x.split(2), None),
        (lambda x: x.shape[-2:], (2, False)),
    ],
)
def test_how_many_parts_there_are_is_read_from_the_call(program: Any, expected: Any) -> None:
    assert count_of(fx.symbolic_trace(program).graph.output_node().args[0]) == expected


def test_reading_an_attribute_and_printing_it_are_no_decisions() -> None:
    def program(x: Any) -> Any:
        print(x.dtype, f"{x.shape}")
        label = None
        return x.to(x.dtype) if label is None else x

    assert fx.symbolic_trace(program)(torch.ones(2)).tolist() == [1, 1]
    assert not fx.symbolic_trace(program, example_inputs=(torch.ones(2),)).guards


@pytest.mark.parametrize(
    "convert",
    [int, float, complex, len, lambda n: {n: 1}],
    ids=["int", "float", "complex", "len", "key"],
)
def test_a_refusal_ends_the_trace_though_the_program_catches_it(convert: Any) -> None:
    def program(x: Any) -> Any:
        try:
            return x * convert(x.shape[0])
        except Exception:
            return x

    with pytest.raises(fx.TraceError, match=r"(?s)test_questions.py:\d+.*try "):
        fx.symbolic_trace(program)


def _matched(x: Any) -> Any:
    match x:
        case int():
            return x
        case torch.Tensor():
            return x * 2
        case _:
            return x * 3


@pytest.mark.parametrize("program", [_matched, lambda x: x * (2 if x.__class__ is torch.Tensor else 3)])
def test_the_class_of_a_value_is_answered_where_it_is_written_and_checked_when_the_program_runs(program: Any) -> None:
    captured = fx.symbolic_trace(program)
    assert captured(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(fx.FxError, match="the program was captured for a value of"):
        captured(1)


def test_torch_and_code_that_is_not_traced_find_the_class_that_represents_a_value() -> None:
    proxy = fx.Proxy(fx.Graph().placeholder("x"))
    assert proxy.__class__ is fx.Proxy and not isinstance(proxy, torch.Tensor)


def test_asking_for_a_class_that_names_a_dtype_is_refused() -> None:
    expected = (
        r"(?s)cannot tell whether a traced value is a torch.FloatTensor.*test_questions.py:\d+.*value +%x .*"
        r"why .*dtype.*try .*isinstance\(value, torch.Tensor\)"
    )
    for classes in (torch.FloatTensor, (int, torch.FloatTensor)):
        with pytest.raises(fx.TraceError, match=expected):
            fx.symbolic_trace(lambda x: x * 2 if isinstance(x, classes) else x)  # noqa: B023


def test_autocast_by_the_device_of_an_input_is_refused_by_its_line_and_guarded_with_example_inputs() -> None:
    def autocast_by_device(x: Any) -> Any:
        with torch.autocast(device_type=x.device.type, enabled=x.is_cuda):
            return x @ x

    expected = (
        r"(?s)cannot set autocast by a traced value.*test_questions.py:\d+.*torch.autocast.*why .*try .*example_inputs"
    )
    with pytest.raises(fx.TraceError, match=expected):
        fx.symbolic_trace(autocast_by_device)
    captured = fx.symbolic_trace(autocast_by_device, example_inputs=(torch.ones(2, 2),))
    questions = [str(guard).partition(": ")[0].partition("where ")[2] for guard in captured.guards]
    assert questions == ["x.device.type was 'cpu'", "x.is_cuda was False"]
    assert captured(torch.ones(3, 3)).tolist() == [[3.0] * 3] * 3
