"""Signatures, normalization and the check for mutable operations, on every function of torch that has schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import operator_schemas as theirs

from fx import operator_schemas as ours


def functions_with_schemas() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (torch, F, torch.linalg, torch.fft, torch.special):
        for name in sorted(dir(module)):
            function = getattr(module, name)
            if callable(function) and torch.jit._builtins._find_builtin(function) is not None:
                yield f"{module.__name__}.{name}", function


def spelled(signatures: list[Any] | None) -> list[str] | None:
    """Signatures as text, with one spelling for the generator types of both libraries."""
    if signatures is None:
        return None
    return [re.sub(r"(torch\._C|torch|typing)\.Generator", "Generator", str(signature)) for signature in signatures]


BETTER_HERE = {"torch.nonzero", "torch.quantized_gru", "torch.quantized_lstm", "torch.wait"}
"""Functions for which torch.fx has an unusable argument name, or an annotation that is no Python type."""


def called_as_there(signatures: list[str] | None) -> list[str] | None:
    """Use `input`, torch.fx's name for a `self` that is not a tensor; Python cannot pass it by this name."""
    if signatures is None:
        return None
    return [re.sub(r"\bself(?=: (?!torch\.Tensor\b))", "input", signature) for signature in signatures]


def test_all_signatures_and_schemas_are_equal() -> None:
    compared = 0
    for name, function in functions_with_schemas():
        expected, expected_schemas = theirs.get_signature_for_torch_op(function, return_schemas=True)
        signatures, schemas = ours.get_signature_for_torch_op(function, return_schemas=True)
        if name not in BETTER_HERE:
            assert called_as_there(spelled(signatures)) == spelled(expected), name
        assert (schemas is None) == (expected_schemas is None), name
        assert list(map(str, schemas or ())) == list(map(str, expected_schemas or ())), name
        compared += 1
    assert compared > 1000


def outcome(normalize: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return normalize(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        return RuntimeError if isinstance(error, RuntimeError) else TypeError


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (torch.relu, ("x",), {}),
    (torch.add, ("x", "y"), {"alpha": 2}),
    (torch.add, ("x",), {"other": "y"}),
    (torch.max, ("x",), {"dim": 1}),
    (torch.sum, ("x",), {"dim": [1], "keepdim": True}),
    (torch.cat, (["x", "y"], 1), {}),
    (torch.ops.aten.add.Tensor, ("x", "y"), {}),
    (torch.ops.aten.uniform_.default, ("x", 0.0), {"to": 1.0}),
    (torch.relu, (), {}),
    (torch.rand, (2,), {}),
    (F.relu, ("x",), {}),
    (F.dropout, ("x", 0.1), {"training": False}),
    (F.conv2d, ("x", "w"), {"stride": 2}),
    (F.max_pool2d, ("x",), {"kernel_size": 2}),
    (F.linear, ("x", "w"), {"bias": None}),
    (F.batch_norm, ("x", "m", "v"), {}),
    (F.softmax, ("x",), {"dim": -1}),
    (F.relu, ("x",), {"unknown": 1}),
    (torch.einsum, ("ij,jk", "x", "y"), {}),
    (len, ("x",), {}),
]


@pytest.mark.parametrize("only_keywords", [False, True])
@pytest.mark.parametrize("target, args, kwargs", CALLS)
def test_calls_are_normalized_alike(target: Any, args: Any, kwargs: Any, only_keywords: bool) -> None:
    options = {"normalize_to_only_use_kwargs": only_keywords}
    expected = outcome(theirs.normalize_function, target, args, kwargs, **options)
    answer = outcome(ours.normalize_function, target, args, kwargs, **options)
    assert answer == expected


@pytest.mark.parametrize("kwargs", [{}, {"as_tuple": True}])
def test_nonzero_is_normalized_though_not_there(kwargs: dict[str, Any]) -> None:
    assert theirs.normalize_function(torch.nonzero, ("x",), kwargs) is None
    assert ours.normalize_function(torch.nonzero, ("x",), kwargs) == (("x",), kwargs)


@pytest.mark.parametrize(
    "target, types",
    [
        (torch.add, (torch.Tensor, torch.Tensor)),
        (torch.add, (torch.Tensor, int)),
        (torch.div, (torch.Tensor, float)),
        (torch.pow, (float, torch.Tensor)),
        (torch.max, (torch.Tensor, int)),
        (torch.max, (torch.Tensor, torch.Tensor)),
        (torch.sum, (torch.Tensor, list[int])),
        (torch.sum, (torch.Tensor, torch.dtype)),
        (torch.where, (torch.Tensor, torch.Tensor, float)),
    ],
)
def test_types_choose_the_same_overload(target: Any, types: tuple[Any, ...]) -> None:
    args = tuple(f"argument_{number}" for number in range(len(types)))
    assert outcome(ours.normalize_function, target, args, {}, types) == outcome(
        theirs.normalize_function, target, args, {}, types
    )


@pytest.mark.parametrize(
    "target, args, kwargs",
    [
        (torch.sigmoid, ("x",), {"out": "y"}),
        (torch.sigmoid, ("x",), {}),
        (torch.relu_, ("x",), {}),
        (torch.relu_, ("x", "y", "z"), {}),
        (torch.add, ("x", "y"), {}),
        (torch.sort, ("x",), {}),
        (torch.rand, (2,), {}),
        (torch.ops.aten.mul_.Tensor, ("x", "y"), {}),
        (F.relu, ("x",), {"inplace": True}),
        (len, ("x",), {}),
    ],
)
def test_calls_are_refused_as_mutable_alike(target: Any, args: Any, kwargs: Any) -> None:
    expected = outcome(theirs.check_for_mutable_operation, target, args, kwargs)
    assert outcome(ours.check_for_mutable_operation, target, args, kwargs) == expected


@pytest.mark.parametrize(
    "target, args, kwargs", [(torch.clamp_, ("x", 0, 1), {}), (torch.add, ("x", "y"), {"out": "z"})]
)
def test_calls_whose_overloads_all_write_are_refused_here_only(target: Any, args: Any, kwargs: Any) -> None:
    theirs.check_for_mutable_operation(target, args, kwargs)
    with pytest.raises(RuntimeError, match="mutable operation aten::"):
        ours.check_for_mutable_operation(target, args, kwargs)
