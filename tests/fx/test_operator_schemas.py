"""Signatures from schemas, and calls brought into the form that the signature has."""

from __future__ import annotations

import inspect
import numbers
import typing
from typing import Any, Optional

import pytest
import torch
from building import Unhashable

import fx
from fx.errors import FxError, GraphError
from fx.operator_schemas import (
    check_for_mutable_operation,
    create_type_hint,
    get_signature_for_torch_op,
    normalize_function,
    normalize_module,
    type_matches,
)
from fx.operators.overloads import get_overloads


def test_arguments_up_to_from_are_positional_only() -> None:
    (signature,) = get_signature_for_torch_op(torch.ops.aten.uniform_.default)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    assert kinds["input"] is kinds["from"] is inspect.Parameter.POSITIONAL_ONLY
    assert kinds["to"] is inspect.Parameter.POSITIONAL_OR_KEYWORD


def test_a_python_function_has_no_schema() -> None:
    def user_function(x: Any) -> Any:
        return x

    assert get_signature_for_torch_op(user_function) is None
    assert get_signature_for_torch_op(user_function, return_schemas=True) == (None, None)
    assert get_overloads(user_function) == ()


def test_unhashable_callables_have_no_schema() -> None:
    assert get_signature_for_torch_op(Unhashable()) is None


def test_functions_that_compare_equal_keep_their_own_schemas() -> None:
    assert torch.hsmm == torch.hspmm  # type: ignore[attr-defined]
    assert get_overloads(torch.hsmm) != get_overloads(torch.hspmm)  # type: ignore[attr-defined]


def test_overloads_are_worked_out_once() -> None:
    assert get_overloads(torch.relu) is get_overloads(torch.relu)


@pytest.mark.parametrize(
    "count, keywords, fits",
    [(2, [], True), (1, ["other"], True), (1, [], False), (3, [], False), (2, ["alpha"], True), (2, ["other"], False)],
)
def test_an_overload_accepts_the_calls_that_its_signature_binds(count: int, keywords: list[str], fits: bool) -> None:
    (overload,) = get_overloads(torch.ops.aten.add.Tensor)
    assert overload.accepts(count, keywords) is fits
    try:
        overload.signature.bind(*range(count), **dict.fromkeys(keywords))
    except TypeError:
        assert not fits
    else:
        assert fits


def test_an_overload_knows_its_written_arguments() -> None:
    assert get_overloads(torch.ops.aten.add.out)[0].written == {"out"}
    assert get_overloads(torch.ops.aten.add_.Tensor)[0].written == {"input"}
    assert get_overloads(torch.ops.aten.add.Tensor)[0].written == frozenset()


def test_nodes_are_values_like_any_other() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    pair = normalize_function(torch.relu, (x,), normalize_to_only_use_kwargs=True)
    assert pair is not None
    assert pair.kwargs == {"input": x}


def test_ambiguous_overloads_need_types() -> None:
    with pytest.raises(GraphError, match="the schema match was ambiguous") as caught:
        normalize_function(torch.add, (1, 2))
    assert "try    pass arg_types and kwarg_types" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_types_choose_among_overloads() -> None:
    pair = normalize_function(torch.add, ("x", "y"), arg_types=(torch.Tensor, torch.Tensor))
    assert pair == (("x", "y"), {"alpha": 1})
    pair = normalize_function(
        torch.add, ("x",), {"other": 3}, (torch.Tensor,), {"other": int}, normalize_to_only_use_kwargs=True
    )
    assert pair == ((), {"input": "x", "other": 3, "alpha": 1})


def test_types_that_fit_no_overload_normalize_to_nothing() -> None:
    assert normalize_function(torch.add, ("x", "y"), arg_types=(torch.Tensor, torch.nn.Module)) is None


def test_functions_with_variable_arguments_are_not_normalized() -> None:
    def variadic(*args: Any) -> Any:
        return args

    assert normalize_function(variadic, (1, 2)) is None


def test_an_operator_wrapped_by_another_dialect_is_looked_into() -> None:
    class Wrapper:
        _op = torch.ops.aten.relu.default

        def __call__(self, x: Any) -> Any:
            return x

    assert normalize_function(Wrapper(), ("x",), normalize_to_only_use_kwargs=True) == ((), {"input": "x"})


def test_module_calls_are_normalized_by_the_signature_of_forward() -> None:
    root = torch.nn.Sequential(torch.nn.ConvTranspose2d(1, 1, 1))
    pair = normalize_module(root, "0", ("x",), normalize_to_only_use_kwargs=True)
    assert pair == ((), {"input": "x", "output_size": None})


def test_modules_that_are_not_torchs_are_not_normalized() -> None:
    class Own(torch.nn.ReLU):
        pass

    assert normalize_module(torch.nn.Sequential(Own()), "0", ("x",)) is None


def test_a_missing_module_is_named() -> None:
    with pytest.raises(GraphError, match="there is no module 'nowhere'") as caught:
        normalize_module(torch.nn.Sequential(), "nowhere", ("x",))
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_call_that_writes_for_sure_is_refused() -> None:
    with pytest.raises(GraphError, match=r"Tried to trace mutable operation aten::sigmoid.out") as caught:
        check_for_mutable_operation(torch.sigmoid, ("x",), {"out": "y"})
    assert "writes to `out`" in str(caught.value)
    assert isinstance(caught.value, FxError) and isinstance(caught.value, RuntimeError)
    with pytest.raises(GraphError, match="writes to `input`"):
        check_for_mutable_operation(torch.relu_, ("x",), {})
    with pytest.raises(GraphError, match="writes to `input`"):  # several overloads fit, and all of them write
        check_for_mutable_operation(torch.clamp_, ("x", 0, 1), {})


def test_nodes_normalize_their_own_arguments() -> None:
    traced = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    (call,) = traced.graph.find_nodes(op="call_module")
    pair = call.normalized_arguments(traced, normalize_to_only_use_kwargs=True)
    assert pair is not None
    assert list(pair.kwargs) == ["input"]


@pytest.mark.parametrize(
    "signature_type, argument_type, fits",
    [
        (torch.Tensor, torch.Tensor, True),
        (torch.Tensor, torch.nn.Parameter, True),
        (torch.Tensor, int, False),
        (Optional[int], int, True),  # noqa: UP045
        (Optional[int], str, False),  # noqa: UP045
        (int | None, type(None), True),
        (typing.List[int], int, True),  # noqa: UP006
        (typing.List[float], int, False),  # noqa: UP006
        (list[int], list[int], True),
        (list[int], tuple[int, int], True),
        (list[int], tuple[int, ...], True),
        (list[int], tuple[int, str], False),
        (list[int], tuple[()], True),
        (list[torch.Tensor], list[torch.nn.Parameter], True),
        (list[torch.Tensor], torch.Tensor, False),
        (list[list[torch.Tensor]], list[list[torch.Tensor]], True),
        (list[Optional[torch.Tensor]], list[torch.Tensor], True),  # noqa: UP045
        (int, torch.dtype, True),
        (float, torch.dtype, False),
        (numbers.Number, int, True),
        (numbers.Number, float, True),
        (numbers.Number, str, False),
    ],
)
def test_types_match_as_torch_converts_arguments(signature_type: Any, argument_type: Any, fits: bool) -> None:
    assert type_matches(signature_type, argument_type) is fits


@pytest.mark.parametrize(
    "given, hint",
    [
        (int, int),
        ([int, int], list[int]),
        ((int, bool), tuple[int, ...]),
        ([bool, int], list[int]),
        ([int, str], list[Any]),
        ([], list[Any]),
        ((), tuple[Any, ...]),
        ([1, 2], [1, 2]),
    ],
)
def test_type_hints_of_containers_name_the_common_type(given: Any, hint: Any) -> None:
    assert create_type_hint(given) == hint
