"""The two libraries under comparison, and how values of either are described and compared."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx

import fx

OURS: ModuleType = fx
THEIRS: ModuleType = torch.fx
LIBRARIES: tuple[ModuleType, ModuleType] = (THEIRS, OURS)
LIBRARY_NAMES: tuple[str, str] = ("torch.fx", "fx")


def describe_target(target: object) -> str:
    """Spell a node's target so that a function of either library reads the same."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", repr(target))
    return f"{module}.{name}"


def describe_argument(value: Any) -> str:
    """Spell an argument with the exact type of every container in it; nodes read ``%name``."""
    if hasattr(value, "all_input_nodes"):
        return f"%{value.name}"
    if isinstance(value, slice):
        return f"slice({', '.join(describe_argument(part) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, dict):
        items = ", ".join(f"{key!r}: {describe_argument(item)}" for key, item in value.items())
        return f"{type(value).__name__}{{{items}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(describe_argument(item) for item in value)})"
    return f"{type(value).__name__}:{value!r}"


def describe_node(node: Any) -> tuple[str, ...]:
    """All fields of one node: op, name, target, args, kwargs, type, inputs, users."""
    return (
        node.op,
        node.name,
        describe_target(node.target),
        describe_argument(node.args),
        describe_argument(node.kwargs),
        repr(node.type),
        " ".join(source.name for source in node.all_input_nodes),
        " ".join(user.name for user in node.users),
    )


def describe_graph(graph: Any) -> list[tuple[str, ...]]:
    """Describe the nodes in order; two graphs are the same program when these lists are equal."""
    return [describe_node(node) for node in graph.nodes]


def module_stacks(graph: Any) -> dict[str, list[tuple[str, str, str]]]:
    """Return the place of each node in the module hierarchy, as both libraries record it in ``meta``."""
    return {
        node.name: [
            (key, path, getattr(owner, "__qualname__", str(owner)))
            for key, (path, owner) in node.meta.get("nn_module_stack", {}).items()
        ]
        for node in graph.nodes
    }


def neutral(text: str) -> str:
    """Spell functions of torch by their public names, and ``wrap`` without a module, which torch.fx puts before it."""
    return re.sub(r"\btorch(\.\w+)+", _public_name, text.replace("torch.fx._symbolic_trace.wrap(", "wrap("))


def _public_name(match: re.Match[str]) -> str:
    try:
        value = operator.attrgetter(match[0].partition(".")[2])(torch)
    except (AttributeError, RuntimeError):
        return match[0]
    short = match[0].rpartition(".")[2]
    for namespace, path in ((torch, "torch"), (torch.nn.functional, "torch.nn.functional")):
        if callable(value) and getattr(namespace, short, None) is value:
            return f"{path}.{short}"
    return match[0]


def assert_identical(actual: Any, expected: Any) -> None:
    """Fail unless two results agree in structure, types and every bit (NaN equals NaN)."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert isinstance(actual, type(expected)) or isinstance(expected, type(actual))
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_identical(left, right)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_identical(actual[key], expected[key])
    else:
        assert type(actual) is type(expected)
        assert actual == expected


@contextmanager
def refuses(
    library: ModuleType, kind: type[Exception], match: str | None = None, ours: type[Exception] | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect torch.fx to raise ``kind``, and fx to raise its own subclass of ``kind``.

    If torch.fx answers a user's mistake with ``AssertionError``, any error of fx's own is enough. ``ours`` names the
    error of fx if it is intentionally another one (the page of differences lists those).
    """
    expected = kind
    if library is not THEIRS:
        expected = ours or (fx.FxError if kind is AssertionError else kind)
    with pytest.raises(expected, match=match) as caught:
        yield caught
    if library is not THEIRS:
        assert isinstance(caught.value, fx.FxError)
