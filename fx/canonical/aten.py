"""Calls of ATen, as in exported programs, and the functions and methods with the same meaning.

The table of equal spellings gives an overload its canonical function. The way back is a search: the overload of a
canonical call is the first one whose canonical spelling is this call.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fx.canonical.call_binding import IsTensor, is_of_kinds, kinds_of
from fx.canonical.rows import SpellingRow, rows_by_canonical_function
from fx.node import Argument, Node
from fx.operators.overloads import Overload, builtin_name, get_overloads

_torch: Any = torch  # for the parts of it that have no types
_HOMES: tuple[tuple[Any, str], ...] = (
    (torch.nn.functional, ""),
    (torch, ""),
    (torch.special, "special_"),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
)
"""The modules with functions for operators, and the prefix of the operators' names in each."""
_NUMBERS_AS_TENSORS = frozenset(
    f"{name}{suffix}" for name in ("add", "sub", "mul", "div", "floor_divide", "true_divide") for suffix in ("", "_")
)
"""Operators that take a number for a tensor in calls from Python, which use no overload for numbers."""
_LARGEST = sys.maxsize
"""The end of a slice without an end."""


def is_of_aten(target: Any) -> bool:
    """Return whether ``target`` is an overload of an operator of ATen."""
    return isinstance(target, _torch._ops.OpOverload) and target.namespace == "aten"


def packet_of(overload: Any) -> Any:
    """Return the operator of ``overload``, with all its overloads."""
    return getattr(torch.ops.aten, str(overload._schema.name).partition("::")[2])


def is_used_as_list(node: Node) -> bool:
    """Return whether a call returns a list of tensors that is used as a whole: functions of torch return tuples."""
    target: Any = node._target
    returns = target._schema.returns
    if len(returns) != 1 or str(returns[0].type) != "List[Tensor]":
        return False
    return any(user._target is not operator.getitem or user._args[:1] != (node,) for user in node.users)


@functools.cache
def function_of(name: str) -> Callable[..., Any] | None:
    """Return the public builtin function of torch that calls the operator of ATen by that name, or None.

    >>> function_of("conv2d") is torch.nn.functional.conv2d, function_of("view")
    (True, None)
    """
    for home, prefix in () if name.startswith(("_", "native_")) else _HOMES:
        function = getattr(home, name.removeprefix(prefix), None) if name.startswith(prefix) else None
        if isinstance(function, types.BuiltinFunctionType | types.BuiltinMethodType) and (
            builtin_name(function) == f"aten::{name}"
        ):
            return function
    return None


def by_name_of_python(arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Return keyword arguments of an operator under the names that functions use for them."""
    return {"input" if name == "self" else name: value for name, value in arguments.items()}


# Slices, which are not a function of torch.


def spell_slice(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> tuple[Argument, Argument] | None:
    """Return operands of ``operator.getitem`` for ``aten.slice.Tensor``, if its dimension counts from the front.

    >>> x = torch.fx.Graph().placeholder("x")
    >>> spell_slice((x, 1, 2, 9223372036854775807), {})
    (x, (slice(None, None, None), slice(2, None, None)))
    """
    arguments: dict[str, Argument] = {"dim": 0, "start": None, "end": None, "step": 1}
    arguments.update(dict(zip(("self", *arguments), args, strict=False)), **kwargs)
    dim, start, end, step = (arguments[name] for name in ("dim", "start", "end", "step"))
    if "self" not in arguments or type(dim) is not int or dim < 0:
        return None
    part = slice(
        None if type(start) is int and start == 0 else start,
        None if type(end) is int and end == _LARGEST else end,
        None if type(step) is int and step == 1 else step,
    )
    return arguments["self"], (*(slice(None),) * dim, part)


def _sliced(index: Argument) -> dict[str, Argument] | None:
    """Return the arguments of ``aten.slice.Tensor`` for an index of one slice, perhaps after full slices."""
    if not isinstance(index, tuple) or not index or not all(isinstance(part, slice) for part in index):
        return None
    *before, last = index
    if any((part.start, part.stop, part.step) != (None, None, None) for part in before):
        return None
    end = _LARGEST if last.stop is None else last.stop
    return {"dim": len(before), "start": last.start or 0, "end": end, "step": 1 if last.step is None else last.step}


# The way back.


@functools.cache
def _overload(name: str, overload: str) -> Any:
    return getattr(getattr(torch.ops.aten, name), overload or "default")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An operator of ATen that may be the source of a call in canonical form."""

    operation: Any
    """The operator, or an overload of it."""
    values: dict[str, Argument]
    """The arguments that it would have, by name; ``self`` is called ``input``."""
    fixed: dict[str, Argument]
    """Arguments with fixed values, if it takes them."""


def candidates(
    target: Callable[..., Any], args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> Iterator[Candidate]:
    """Yield operators that may be the source of a call in canonical form, the likeliest first."""
    if target is operator.getitem and len(args) == 2 and (sliced := _sliced(args[1])) is not None:
        yield Candidate(torch.ops.aten.slice.Tensor, {"input": args[0], **sliced}, {})
    own = target.__name__ if isinstance(target, types.MethodDescriptorType) else builtin_name(target) or ""
    own = own.removeprefix("aten::")
    named = [(_row_name(row), row) for row in rows_by_canonical_function().get(id(target), [])]
    first = [(name, row) for name, row in named if _is_operator(row.source)]
    first += [
        (name, row) for name, row in named if name == own and _packet(own) is not None and not _is_operator(row.source)
    ]
    yield from (_by_row(name, row, args, kwargs) for name, row in first)
    if (packet := _packet(own)) is not None:
        names = get_overloads(packet)[0].signature.parameters
        yield Candidate(packet, {**dict(zip(names, args, strict=False)), **kwargs}, {})
    for name, row in sorted(named, key=lambda pair: len(pair[0])):  # `sub`, and not `subtract`
        if (name, row) not in first and _packet(name) is not None:
            yield _by_row(name, row, args, kwargs)


def _by_row(name: str, row: SpellingRow, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Candidate:
    operation = row.source if _is_operator(row.source) else _packet(name)
    return Candidate(operation, by_name_of_python(row.invert(args, kwargs)), by_name_of_python(row.fixed))


def _is_operator(source: Any) -> bool:
    return isinstance(source, _torch._ops.OpOverload | _torch._ops.OpOverloadPacket)


def _row_name(row: SpellingRow) -> str:
    if isinstance(row.source, str):
        return row.source
    return (builtin_name(row.source) or str(row.source.__name__)).removeprefix("aten::")


@functools.cache
def _packet(name: str) -> Any:
    return getattr(torch.ops.aten, name, None) if name else None


def overloads_of(operation: Any) -> list[tuple[Any, Overload]]:
    """Return the callable overloads of an operator or overload: those that write to one ``out`` at most."""
    if isinstance(operation, _torch._ops.OpOverload):
        return [(operation, get_overloads(operation)[0])]
    return [
        (_overload(str(operation.__name__), overload.schema.overload_name), overload)
        for overload in get_overloads(operation)
        if overload.written <= {"out", *overload.positional} and _is_of_dispatcher(overload)
    ]


def _is_of_dispatcher(overload: Overload) -> bool:
    """Return whether an overload is in the dispatcher; others, for numbers or lists, are TorchScript's alone."""
    name = f"{overload.schema.name}.{overload.schema.overload_name}".removesuffix(".")
    return bool(_torch._C._dispatch_has_kernel(name)) if "aten::" in name else False


def arguments_for(
    overload: Overload, candidate: Candidate, is_tensor: IsTensor, is_number: IsTensor
) -> tuple[tuple[Argument, ...], dict[str, Argument]] | None:
    """Return the arguments of a call of ``overload``, one of a candidate's; None if it does not take them."""
    args: list[Argument] = []
    kwargs: dict[str, Argument] = {}
    needed = 0
    schema = overload.schema
    takes_numbers = str(schema.name).partition("::")[2] in _NUMBERS_AS_TENSORS
    names = ["input" if argument.name == "self" else str(argument.name) for argument in schema.arguments]
    values = {**candidate.fixed, **candidate.values}
    # `aten.sum` is tried for `torch.sum(x, dim=None)`: its overload without `dim` takes the call, too.
    if any(name not in names and not (name in candidate.fixed and value == candidate.fixed[name])
           for name, value in candidate.values.items()):  # fmt: skip
        return None
    for name, argument in zip(names, schema.arguments, strict=True):
        if name not in values and not argument.has_default_value():
            return None
        value = values.get(name, argument.default_value)
        described = str(getattr(argument, "real_type", argument.type))
        # None for a function may be a number here: a missing padding_idx of `aten.embedding` is -1.
        if value is None and not described.startswith("Optional["):
            value = argument.default_value
        may_be_number = takes_numbers and name != "input"
        if name in values and not _fits(argument, described, value, may_be_number, is_tensor, is_number):
            return None
        # Exported programs have lists, and so have the defaults, which are compared to omit an argument.
        if isinstance(value, tuple) and "List[" in described:
            value = list(value)
        is_default = argument.has_default_value() and _is_same(value, argument.default_value)
        if argument.kwarg_only:
            kwargs.update({} if is_default else {str(argument.name): value})
        else:
            args.append(value)
            needed = needed if is_default else len(args)
    return tuple(args[:needed]), kwargs


def _is_same(value: Argument, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _fits(
    argument: Any, described: str, value: Argument, takes_numbers: bool, is_tensor: IsTensor, is_number: IsTensor
) -> bool:
    """Return whether an argument of a schema takes ``value``: tensors and numbers are distinct."""
    if described in ("Tensor", "Optional[Tensor]"):
        if isinstance(value, Node):
            return takes_numbers or not is_number(value)
        return (
            value is None if "Optional" in described else takes_numbers and type(value) in (int, float, bool, complex)
        )
    if isinstance(value, Node):
        return not is_tensor(value)
    if described == "List[Tensor]" or described == "List[Optional[Tensor]]":
        return isinstance(value, (tuple, list))
    return is_of_kinds(kinds_of(described, getattr(argument, "N", None)), value)
