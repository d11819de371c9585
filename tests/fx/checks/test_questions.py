"""Questions about traced values that byte code or their text shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx


def _stored(x: Any) -> Any:
    kind = x.dtype
    return x * (2 if kind is torch.float32 else 3)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if x.dtype is torch.float32 else x,
        lambda x: x * 2 if x.dtype is not torch.float32 else x,
        lambda x: x * 2 if x.grad is None else x,
        lambda x: x if x.grad_fn is not None else x * 2,
        _stored,
    ],
)
def test_a_comparison_by_identity_with_an_attribute_is_refused(program: Any) -> None:
    said = (
        r"(?s)cannot compare the \w+ of a traced value by identity.*test_questions.py:\d+.*value +Proxy\(x\.\w+\).*try "
    )
    with pytest.raises(fx.TraceError, match=said):
        fx.symbolic_trace(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if str(x.dtype) == "torch.float32" else x,
        lambda x: x * 2 if "cuda" in str(x.device) else x,
        lambda x: x * 2 if f"{x.dtype}".endswith("32") else x,
        lambda x: x * {"torch.float32": 2}[repr(x.dtype)],
    ],
)
def test_a_decision_by_the_text_of_a_value_is_refused(program: Any) -> None:
    said = r"(?s)cannot decide by the text of a traced value.*test_questions.py:\d+.*value +Proxy\(x\.\w+\).*why .*try "
    with pytest.raises(fx.TraceError, match=said):
        fx.symbolic_trace(program)


def test_reading_an_attribute_and_printing_it_are_no_decisions() -> None:
    def program(x: Any) -> Any:
        print(x.dtype, f"{x.shape}")
        label = None
        return x.to(x.dtype) if label is None else x

    assert fx.symbolic_trace(program)(torch.ones(2)).tolist() == [1, 1]


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


def test_torch_and_code_that_is_not_traced_find_the_class_that_stands_for_a_value() -> None:
    proxy = fx.Proxy(fx.Graph().placeholder("x"))
    assert proxy.__class__ is fx.Proxy and not isinstance(proxy, torch.Tensor)


def test_asking_for_a_class_that_names_a_dtype_is_refused() -> None:
    said = (
        r"(?s)cannot tell whether a traced value is a torch.FloatTensor.*test_questions.py:\d+.*value +%x .*"
        r"why .*dtype.*try .*isinstance\(value, torch.Tensor\)"
    )
    for classes in (torch.FloatTensor, (int, torch.FloatTensor)):
        with pytest.raises(fx.TraceError, match=said):
            fx.symbolic_trace(lambda x: x * 2 if isinstance(x, classes) else x)  # noqa: B023


def test_an_attribute_in_the_place_of_a_text_is_refused_by_its_line() -> None:
    def autocast_by_device(x: Any) -> Any:
        with torch.autocast(x.device.type):
            return x @ x

    with pytest.raises(fx.TraceError, match=r"(?s)cannot use a traced value.*test_questions.py:\d+.*torch.autocast"):
        fx.symbolic_trace(autocast_by_device)
