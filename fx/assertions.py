"""Checks that programs call at run time: conditions, and messages that are written only when a check fails."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.overrides import handle_torch_function, has_torch_function

from fx.errors import GuardError

T = TypeVar("T")

READ_ATTRIBUTES = frozenset(
    "shape ndim dtype device layout requires_grad is_sparse is_cuda is_quantized T mT H real imag".split()
)
"""Attributes that a message may read: those of every tensor."""
READ_METHODS = frozenset(
    "size dim ndimension numel nelement element_size stride is_contiguous is_floating_point is_complex item tolist "
    "min max sum mean std var any all abs norm isnan isinf".split()
)
"""Methods that a message may call, without arguments: none that writes."""
READ_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list, "len": len}
"""Functions of one argument that a message may call."""

_STEP = re.compile(r"\.(\w+)(\(\))?|\[(-?\d*(?::-?\d*)*)\]|\|(\w+)", re.ASCII)
_FIELD = re.compile(rf"(\d+)((?:{_STEP.pattern})*)", re.ASCII)


def check(condition: Any, template: str, *values: Any) -> None:
    """Raise an ``AssertionError`` unless ``condition`` holds; its message is ``template`` filled with ``values``.

    The template is one of ``str.format`` with numbered fields, such as ``"{0}"``. A field may read shape, dtype and the
    like, and call methods without arguments: ``{0.shape[1]}``, ``{0.max()}``, ``{0.shape|tuple}``. It is read when the
    check fails. ``torch._assert`` is for messages that are known before.

    >>> check(False, "expected 2D, got {0.ndim}D", torch.ones(3))
    Traceback (most recent call last):
        ...
    AssertionError: expected 2D, got 1D
    """
    if has_torch_function((condition,)):  # while either library captures a program
        handle_torch_function(check, (condition,), condition, template, *values)
    elif torch.compiler.is_dynamo_compiling():  # Dynamo knows this one, but not how to write the message
        vars(torch)["_assert"](condition, template)
    elif not condition:
        raise AssertionError(_Message().vformat(template, values, {}))


def is_false(value: Any) -> Any:
    """Return ``not value``, recorded when ``value`` is traced; part of recorded checks."""
    return handle_torch_function(is_false, (value,), value) if has_torch_function((value,)) else not value


def assert_is_none(value: T, msg: str) -> T:
    """Fail with ``msg`` unless ``value`` is None; recorded when ``value`` is traced."""
    if has_torch_function((value,)):
        return handle_torch_function(assert_is_none, (value,), value, msg)
    if value is not None:
        raise AssertionError(msg)
    return value


def check_value(value: Any, expected: Any, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` unless ``value`` is the same as when the program was captured.

    >>> check_value(2, 2, "the program was captured where this was 2")
    """
    if value is expected:  # nearly always, and in each call of a program
        return
    if has_torch_function((value,)):
        handle_torch_function(check_value, (value,), value, expected, message)
    elif not _is_equal(value, expected):
        remedy = "capture the program again as it is now, or make the module that decides it a leaf"
        raise _changed(message, f"it is {value!r} now", remedy)


def _is_equal(value: Any, expected: Any) -> bool:
    """Return whether two values are equal; a flag equals no number, and a tensor no other value."""
    if isinstance(value, bool) != isinstance(expected, bool) or isinstance(value, torch.Tensor):
        return False
    return bool(value == expected)


def check_given(value: Any, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` if an optional input is missing that the program was captured with.

    >>> check_given(torch.ones(2), "the program was captured where x is given")
    """
    if has_torch_function((value,)) and not isinstance(value, torch.Tensor):
        handle_torch_function(check_given, (value,), value, message)
    elif value is None:
        raise _changed(message, "it is None", "pass it, or capture the program without it (concrete_args)")


def check_not_given(value: Any, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` if an optional input is given that the program was captured without.

    For ``**kwargs``, no entry may be given.

    >>> check_not_given(None, "the program was captured where x is not given")
    """
    if has_torch_function((value,)) and not isinstance(value, torch.Tensor):
        handle_torch_function(check_not_given, (value,), value, message)
    elif value is not None and not (type(value) is dict and not value):
        current = f"it is {sorted(value)} now" if type(value) is dict else f"it is of {type(value)} now"
        raise _changed(message, current, "leave it out, or capture the program with it (concrete_args)")


def check_distinct(value: Any, other: Any, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` if two inputs are the same object.

    >>> check_distinct(torch.ones(2), torch.ones(2), "the program was captured where x and y are different objects")
    """
    inputs = [each for each in (value, other) if not isinstance(each, torch.Tensor)]
    if has_torch_function(tuple(inputs)):
        handle_torch_function(check_distinct, tuple(inputs), value, other, message)
    elif value is other:
        raise _changed(
            message, "they are the same now", "pass a clone, or put the comparison in a function under fx.wrap"
        )


def _changed(message: str, value: str, remedy: str) -> GuardError:
    why = "the program was specialized to it, once, while it was captured"
    return GuardError(message, value=value, why=why, remedy=remedy)


def handled_error(names: Sequence[str], where: object, error: Exception) -> GuardError | None:
    """Return the error to raise instead of one that the traced code would have handled; None if it would not have.

    Args:
        names: the names of the classes of exceptions that the traced code handles there.
        where: the line of the error.
        error: the exception that an operation of the program has raised.

    >>> print(str(handled_error(["RuntimeError"], "model.py:12", RuntimeError("no"))).splitlines()[0])
    the program was captured where this raised nothing: model.py:12
    """
    if {kind.__name__ for kind in type(error).__mro__}.isdisjoint(names):
        return None
    return GuardError(
        f"the program was captured where this raised nothing: {where}",
        value=f"{type(error).__name__}: {error}",
        why=f"the traced code continues where this is handled ({' or '.join(dict.fromkeys(names))}), "
        "and a graph cannot",
        remedy="test a condition instead of handling the exception, or put the lines in a function marked fx.wrap",
    )


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, torch.Size, torch.dtype, torch.device),
        *(tuple, list, dict, int, float, bool, str),
    )
}
"""The classes that programs check their values for, by name; those of which a tensor is by a mark are among them."""


def name_of_kind(kind: type) -> str:
    """Return the name of a class for ``check_kind``: a name in :data:`KINDS`, else its module and name."""
    return kind.__name__ if kind in KINDS.values() else f"{kind.__module__}.{kind.__qualname__}"


def check_kind(value: Any, kind: str, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` unless ``value`` is of the class called ``kind``.

    ``kind`` is the result of ``name_of_kind``.

    >>> check_kind(torch.ones(2), "Tensor", "the program was captured for a tensor")
    """
    if has_torch_function((value,)) and not isinstance(value, torch.Tensor):
        handle_torch_function(check_kind, (value,), value, kind, message)
    elif not _is_of(value, kind):
        remedy = "annotate the parameter with its class, or fix the argument with concrete_args"
        raise _changed(message, f"it is of {type(value)}", remedy)


def check_not_kind(value: Any, kind: str, message: str) -> None:
    """Raise a ``GuardError`` with ``message`` if ``value`` is of the class called ``kind``, as in ``check_kind``.

    >>> check_not_kind(torch.ones(2), "Parameter", "the program was captured where x is no Parameter")
    """
    if has_torch_function((value,)) and not isinstance(value, torch.Tensor):
        handle_torch_function(check_not_kind, (value,), value, kind, message)
    elif _is_of(value, kind):
        remedy = "convert the input, or put the query in a function marked fx.wrap"
        raise _changed(message, f"it is of {type(value)}", remedy)


def _is_of(value: Any, kind: str) -> bool:
    if kind in KINDS:
        return isinstance(value, KINDS[kind])
    return any(f"{base.__module__}.{base.__qualname__}" == kind for base in type(value).__mro__)


CHECKS = (vars(torch)["_assert"], check, assert_is_none)
"""The functions whose calls refuse inputs of a program."""


class _Message(string.Formatter):
    """Fills in fields that read only the names listed above, since templates also come from untrusted files."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a field."""
        field = _FIELD.fullmatch(field_name)
        if field is None:
            raise ValueError(f"a message cannot read {field_name!r}")
        value = args[int(field[1])]
        for name, is_call, index, function in _STEP.findall(field[2]):
            if function in READ_FUNCTIONS:
                value = READ_FUNCTIONS[function](value)
            elif name in (READ_METHODS if is_call else READ_ATTRIBUTES):
                value = getattr(value, name)() if is_call else getattr(value, name)
            elif index:
                bounds = [int(bound) if bound else None for bound in index.split(":")]
                value = value[slice(*bounds) if ":" in index else bounds[0]]
            else:
                raise ValueError(f"a message cannot read {field_name!r}")
        return value, field_name


GUARDS = (check_value, check_distinct, check_given, check_not_given, check_kind, check_not_kind)
"""The functions that check that a value which decided the course of a capture is still the same."""
ASSERTIONS = (assert_is_none, check, *GUARDS)
"""The functions that programs call for checks: they have no other effect, and no result."""
