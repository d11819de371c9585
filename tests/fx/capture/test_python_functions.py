"""Functions of Python that give concrete values alone, recorded."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import fx
from fx.errors import GuardError


def targets(traced: fx.GraphModule) -> list[Any]:
    return [node.target for node in traced.graph.nodes if node.op in ("call_function", "call_method")]


def test_conversions_are_recorded_where_the_program_calls_them() -> None:
    traced = fx.symbolic_trace(lambda x: x * int(x.shape[0] / 2) + float(x.sum()) + len(x))
    assert int in targets(traced) and float in targets(traced) and len in targets(traced)
    assert torch.equal(traced(torch.ones(4)), torch.ones(4) * 2 + 4 + 4)


def test_a_captured_program_with_conversions_is_captured_again() -> None:
    traced = fx.symbolic_trace(lambda x: x[: int(x.shape[0] * 0.5)] * round(x.shape[0] / 4) * max(x.shape[0], 3))
    again = fx.symbolic_trace(traced)
    assert targets(again) == targets(traced)
    assert torch.equal(again(torch.ones(4)), torch.ones(2) * 4)


def test_python_has_its_functions_back_after_the_trace() -> None:
    fx.symbolic_trace(lambda x: x * int(x.shape[0]))
    assert not {"int", "len", "max", "sum"} & set(globals())


def test_classes_that_are_called_are_still_compared() -> None:
    def program(x: Any) -> Any:
        n = int(x.shape[0])
        assert isinstance(n, int) and isinstance(3, int) and isinstance(3, (int, float)) and not isinstance("", int)
        return x * n

    traced = fx.symbolic_trace(program)
    assert torch.equal(traced(torch.ones(3)), torch.ones(3) * 3)


@pytest.mark.parametrize("condition", ["type(3) is int", "int is type(3)"])
def test_a_class_that_is_compared_by_identity_is_not_recorded(condition: str) -> None:
    namespace: dict[str, Any] = {"__name__": "compares_classes"}
    exec(f"def program(x):\n    return x * int(x.shape[0]) if {condition} else x", namespace)
    with pytest.raises(fx.TraceError, match="cannot convert a traced value to int"):
        fx.symbolic_trace(namespace["program"])


def test_parts_of_known_number_are_elements_and_the_program_checks_the_number() -> None:
    traced = fx.symbolic_trace(lambda x: sum(i * part.sum() for i, part in enumerate(x.chunk(3))))
    assert targets(traced).count(operator.getitem) == 3
    assert traced(torch.arange(6.0)).item() == 23
    with pytest.raises(GuardError, match=r"captured for 3 elements: .*test_python_functions"):
        traced(torch.arange(2.0))


def test_parts_of_given_sizes_need_no_check() -> None:
    traced = fx.symbolic_trace(lambda x: torch.stack([part.sum() for part in x.split([1, 2])]))
    assert len not in targets(traced)
    assert traced(torch.arange(3.0)).tolist() == [0, 3]


def test_methods_that_no_tensor_has_are_not_cut_into_parts() -> None:
    def program(x: str) -> Any:
        return list(x.split(["a"]))  # type: ignore[arg-type]

    assert list in targets(fx.symbolic_trace(program))


def test_a_failed_second_run_shows_the_refusal_of_the_first() -> None:
    def program(x: Any) -> Any:
        n = int(x.shape[0])
        return x * n + torch.zeros(2, dtype=int)  # type: ignore[arg-type]

    with pytest.raises(fx.TraceError, match="cannot convert a traced value to int"):
        fx.symbolic_trace(program)


def test_text_of_a_traced_value_is_no_argument() -> None:
    with pytest.raises(fx.TraceError, match="cannot branch on the text of a traced value"):
        fx.symbolic_trace(lambda x: {"name": f"{x.shape[0]} rows", "x": x})
