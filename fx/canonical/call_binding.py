"""Calls of torch's functions with every argument by name, as the operator schemas have them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, TypeAlias

import torch

from fx.immutable_collections import immutable_list
from fx.node import Argument, Node
from fx.operators.overloads import Overload, get_overloads, get_python_signature

ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other", "a": "input"}
"""NumPy's names of arguments, which torch's functions take too."""

_LITERALS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


IsTensor: TypeAlias = Callable[[Node], bool]
"""Whether a value of the program is known to be a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """The arguments of one call, by name."""

    arguments: dict[str, Argument]
    """All arguments in the order of the signature, defaults included."""
    given: frozenset[str]
    """The names of those that the call gives."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a signature asks of a call, with the types that decide between overloads."""

    positional: tuple[str, ...]
    """Names of the arguments that may be passed by position, in order."""
    names: tuple[str, ...]
    """Names of all arguments, in order."""
    defaults: Mapping[str, Any]
    """Defaults of those that have one."""
    kinds: Mapping[str, tuple[str, ...]]
    """For each argument the kinds of literals that it takes; an empty mapping takes all."""
    counts: Mapping[str, int]
    """For each list of integers that one integer may stand for, how many there are."""
    reals: frozenset[str] = frozenset()
    """Names of the arguments for which an integer means the same as a float."""
    packed: str | None = None
    """The list of integers that may be spread over the positional arguments."""
    tuples: bool = True
    """Whether a list means the same as a tuple, as it does to torch's functions."""

    def bind(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], is_tensor: IsTensor) -> Binding | None:
        """The arguments of a call by name, or None where it does not fit."""
        positional = self.positional
        is_one_size = self.packed is not None and len(args) == len(positional) and type(args[-1]) is int
        if len(args) > len(positional) or is_one_size:
            if self.packed is None:
                return None
            count = len(positional) - 1
            if not all(type(size) is int or isinstance(size, Node) for size in args[count:]):
                return None
            args = (*args[:count], args[count:])
        given = dict(zip(positional, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                name = ALIASES.get(name, name)
            if name in given or name not in self.names:
                return None
            given[name] = value
        bound: dict[str, Argument] = {}
        for name in self.names:
            if name in given:
                value = given[name]
                if name in self.kinds and not _takes(self.kinds[name], value, is_tensor):
                    return None
                bound[name] = self._tidy(name, value)
            elif name in self.defaults:
                if _is_literal(self.defaults[name]):
                    bound[name] = self.defaults[name]
            else:
                return None
        return Binding(bound, frozenset(given))

    def is_unclear(self, args: tuple[Argument, ...]) -> bool:
        """Return whether a computed value may be a number that stands for a list, as it does by position but not by
        name.
        """
        return self.packed is not None and len(args) == len(self.positional) and _may_be_a_number(args[-1])

    def _tidy(self, name: str, value: Argument) -> Argument:
        kind = type(value)
        if kind is int and name in self.counts:
            return (value,) * self.counts[name]
        if kind is int and name in self.reals:
            return float(value)
        if self.tuples and (kind is immutable_list or kind is list):
            return tuple(value)
        return value


def _takes(kinds: tuple[str, ...], value: Argument, is_tensor: IsTensor) -> bool:
    if isinstance(value, Node):
        if "literal" in kinds or "known" in kinds:
            return "known" in kinds and is_tensor(value)
        return "tensor" in kinds or "number" in kinds or "any" in kinds or not is_tensor(value)
    return is_of_kinds(kinds, value)


_OF_KIND: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "none": lambda value: value is None,
    "number": lambda value: type(value) in (int, float, bool, complex),
    "float": lambda value: type(value) in (int, float),
    "index": lambda value: type(value) is int and value >= -1,
    "list": lambda value: isinstance(value, (tuple, list)),
    "ints": lambda value: (
        isinstance(value, (tuple, list)) and all(type(one) is int or isinstance(one, Node) for one in value)
    ),
    "size1": lambda value: isinstance(value, (tuple, list)) and len(value) == 1,
    "size2": lambda value: isinstance(value, (tuple, list)) and len(value) == 2,
    "size3": lambda value: isinstance(value, (tuple, list)) and len(value) == 3,
}
"""Whether a literal is of a kind; any other kind is the name of a type."""


def is_of_kinds(kinds: tuple[str, ...], value: Argument) -> bool:
    """Return whether a literal is of one of these kinds."""
    return any(_OF_KIND[kind](value) if kind in _OF_KIND else type(value).__name__ == kind for kind in kinds)


def _is_literal(value: Any) -> bool:
    """Return whether a default may be written out: equal wherever it is made."""
    return all(map(_is_literal, value)) if type(value) is tuple else type(value) in _LITERALS


_OWN_BINDINGS = frozenset({"to"})
"""Methods whose parameters in Python are not those of the schemas."""

_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
"""As operator schemas number them."""

_KINDS = {
    "int": ("int",),
    "float": ("float",),
    "number": ("number",),
    "Scalar": ("number",),
    "bool": ("bool",),
    "str": ("str",),
    "Tensor": ("tensor",),
    "ScalarType": ("dtype",),
    "Layout": ("layout",),
    "Device": ("device", "str", "int"),
    "MemoryFormat": ("memory_format",),
    "List[int]": ("ints",),
    "Generator": (),
}


def kinds_of(described: str, count: int | None) -> tuple[str, ...]:
    """The kinds of literals that an argument of a schema takes, by its type and how many numbers one may stand for."""
    if described.startswith("Optional["):
        return ("none", *kinds_of(described[len("Optional[") : -1], count))
    kinds = _KINDS.get(described, ("list",) if described.startswith("List[") else ("any",))
    return (*kinds, "int") if described == "List[int]" and count is not None else kinds


def shape_of_overload(overload: Overload, *, skip: int | None = None) -> Shape:
    """Return what an overload asks of a call, but for the argument at position ``skip``, as a method's receiver."""
    arguments = list(zip(overload.signature.parameters.values(), overload.schema.arguments, strict=True))
    if skip is not None:
        del arguments[skip]
    kinds: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int] = {}
    reals: set[str] = set()
    defaults: dict[str, Any] = {}
    for parameter, argument in arguments:
        name, described = _name(parameter), str(getattr(argument, "real_type", argument.type))
        count: int | None = getattr(argument, "N", None)
        kinds[name] = kinds_of(described, count)
        if "List[int]" in described and count is not None:
            counts[name] = count
        if described in ("float", "Optional[float]"):
            reals.add(name)
        if parameter.default is not Parameter.empty:
            default = parameter.default
            if "MemoryFormat" in described and type(default) is int:
                default = _MEMORY_FORMATS[default]
            defaults[name] = tuple(default) if isinstance(default, list) else default
    positional = [(p, a) for p, a in arguments if p.kind is not Parameter.KEYWORD_ONLY]
    packed = None
    if len(positional) == 1 and str(positional[0][1].type) in ("List[int]", "Optional[List[int]]"):
        packed = _name(positional[0][0])
    names = tuple(_name(p) for p, _ in arguments)
    return Shape(tuple(_name(p) for p, _ in positional), names, defaults, kinds, counts, frozenset(reals), packed)


def _name(parameter: Parameter) -> str:
    """Return what an argument is called in all overloads: a number in the place of the tensor `input` is called
    `self`.
    """
    return "input" if parameter.name == "self" else parameter.name


def by_position(target: Callable[..., Any]) -> int:
    """Return how many arguments a call has to pass by position: those up to one that is `input` or `self`, by its
    value.
    """
    places: list[int] = []
    for overload in _callable_overloads(get_overloads(target)):
        names = list(overload.signature.parameters)
        if "self" in names:
            places.append(names.index("self") + 1)
    return max(places, default=0)


def shapes_of(target: Callable[..., Any]) -> list[Shape]:
    """Return what the overloads of a function of torch ask, those that only TorchScript calls and ``out=`` left out."""
    return [shape_of_overload(overload) for overload in _callable_overloads(get_overloads(target))]


def shapes_of_method(name: str) -> list[tuple[Shape, str]]:
    """Return what the overloads of a tensor's method ask, the tensor itself aside, and what that is called in
    functions.
    """
    packet = None if name in _OWN_BINDINGS else getattr(torch.ops.aten, name, None)
    shapes: list[tuple[Shape, str]] = []
    for overload in _callable_overloads(get_overloads(packet)) if packet is not None else ():
        names = [argument.name for argument in overload.schema.arguments]
        if "self" in names and str(overload.schema.arguments[names.index("self")].type) == "Tensor":
            place = names.index("self")
            shapes.append((shape_of_overload(overload, skip=place), list(overload.signature.parameters)[place]))
    return shapes


def _callable_overloads(overloads: tuple[Overload, ...]) -> list[Overload]:
    plain = [one for one in overloads if "out" not in one.written and not one.schema.overload_name.endswith("_out")]
    plain = [one for one in plain if not one.written] or plain
    with_tensors = [one for one in plain if any("Tensor" in str(a.type) for a in one.schema.arguments)]
    return with_tensors or plain


def shape_of_function(function: Callable[..., Any], *, follow: bool) -> Shape | None:
    """Return what a Python function asks, or None where keywords cannot spell a call of it.

    ``follow`` is for functions of torch, whose decorators keep signatures.
    """
    try:
        signature = get_python_signature(function) if follow else inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = () if signature is None else signature.parameters.values()
    if signature is None or any(
        p.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) for p in parameters
    ):
        return None
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
    positional = tuple(p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters)
    reals = frozenset(p.name for p in parameters if follow and p.annotation in (float, "float"))
    return Shape(positional, names, defaults, {}, {}, reals, tuples=follow)


def _may_be_a_number(value: Argument) -> bool:
    """Return whether ``value`` is computed, and not by ``x.size()`` or ``x.shape``, which are lists."""
    if not isinstance(value, Node):
        return False
    is_size = value.target in ("size", torch.Tensor.size) and len(value.args) + len(value.kwargs) == 1
    return not (is_size or (value.target is getattr and value.args[1:] == ("shape",)))
