"""Calls of torch's functions with every argument by its name in the operator schemas."""

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
"""NumPy's names of arguments, which torch's functions accept, too."""

_LITERALS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


IsTensor: TypeAlias = Callable[[Node], bool]
"""The check that a value of the program is known to be a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """The arguments of one call, by name."""

    arguments: dict[str, Argument]
    """All arguments in the order of the signature, defaults included."""
    passed: frozenset[str]
    """The names of the arguments that the call passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The parameters of a signature, with the types that decide between overloads."""

    positional: tuple[str, ...]
    """Names of the arguments that may be passed by position, in order."""
    names: tuple[str, ...]
    """Names of all arguments, in order."""
    defaults: Mapping[str, Any]
    """The defaults, by name."""
    kinds: Mapping[str, tuple[str, ...]]
    """The kinds of literals that each argument takes; an empty mapping takes all."""
    counts: Mapping[str, int]
    """The lengths of lists of integers for which one integer may be passed."""
    reals: frozenset[str] = frozenset()
    """Names of the arguments for which an integer means the same as a float."""
    packed: str | None = None
    """The list of integers that may be spread over the positional arguments."""
    tuples: bool = True
    """True if a list means the same as a tuple, as for torch's functions."""

    def bind(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], is_tensor: IsTensor) -> Binding | None:
        """Return the arguments of a call by name, or None if it does not fit."""
        positional = self.positional
        # `x.permute(0)` passes one size and no tuple: it counts as a tuple of one.
        is_one_size = self.packed is not None and len(args) == len(positional) and type(args[-1]) is int
        if len(args) > len(positional) or is_one_size:
            if self.packed is None:
                return None
            count = len(positional) - 1
            if not all(type(size) is int or isinstance(size, Node) for size in args[count:]):
                return None
            args = (*args[:count], args[count:])
        passed = dict(zip(positional, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                name = ALIASES.get(name, name)
            if name in passed or name not in self.names:
                return None
            passed[name] = value
        bound: dict[str, Argument] = {}
        for name in self.names:
            if name in passed:
                value = passed[name]
                if name in self.kinds and not _takes(self.kinds[name], value, is_tensor):
                    return None
                bound[name] = self._tidy(name, value)
            elif name in self.defaults:
                # Defaults that are unique objects, such as sentinels, keep their meaning only if omitted.
                if _is_literal(self.defaults[name]):
                    bound[name] = self.defaults[name]
            else:
                return None
        return Binding(bound, frozenset(passed))

    def is_unclear(self, args: tuple[Argument, ...]) -> bool:
        """Return whether a computed value may be a single number for a list: allowed by position but not by name."""
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
        isinstance(value, (tuple, list)) and all(type(part) is int or isinstance(part, Node) for part in value)
    ),
    "size1": lambda value: isinstance(value, (tuple, list)) and len(value) == 1,
    "size2": lambda value: isinstance(value, (tuple, list)) and len(value) == 2,
    "size3": lambda value: isinstance(value, (tuple, list)) and len(value) == 3,
}
"""The check of a literal for each kind; any other kind is the name of a type."""


def is_of_kinds(kinds: tuple[str, ...], value: Argument) -> bool:
    """Return whether a literal is of one of these kinds."""
    return any(_OF_KIND[kind](value) if kind in _OF_KIND else type(value).__name__ == kind for kind in kinds)


def _is_literal(value: Any) -> bool:
    """Return whether a default may be written out as a literal: every copy is equal."""
    return all(map(_is_literal, value)) if type(value) is tuple else type(value) in _LITERALS


_OWN_BINDINGS = frozenset({"to"})
"""Methods whose parameters in Python differ from the schemas."""

_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
"""Memory formats in the numbering of operator schemas."""

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
    """Return the kinds of literals for an argument of a schema, by its type and its length if one number may do."""
    if described.startswith("Optional["):
        return ("none", *kinds_of(described[len("Optional[") : -1], count))
    kinds = _KINDS.get(described, ("list",) if described.startswith("List[") else ("any",))
    return (*kinds, "int") if described == "List[int]" and count is not None else kinds


def shape_of_overload(overload: Overload, *, skip: int | None = None) -> Shape:
    """Return the parameters of an overload, without the one at position ``skip``, such as a method's receiver."""
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
    """Return the common name of an argument in all overloads: a number for the tensor `input` is called `self`."""
    return "input" if parameter.name == "self" else parameter.name


def by_position(target: Callable[..., Any]) -> int:
    """Return the number of arguments to pass by position: those up to one whose name, `input` or `self`, varies."""
    places: list[int] = []
    for overload in _callable_overloads(get_overloads(target)):
        names = list(overload.signature.parameters)
        if "self" in names:
            places.append(names.index("self") + 1)
    return max(places, default=0)


def shapes_of(target: Callable[..., Any]) -> list[Shape]:
    """Return the parameters of a torch function's overloads, except those of TorchScript alone and with ``out=``."""
    return [shape_of_overload(overload) for overload in _callable_overloads(get_overloads(target))]


def shapes_of_method(name: str) -> list[tuple[Shape, str]]:
    """Return the parameters of a tensor method's overloads without the tensor, and the tensor's name in functions."""
    packet = None if name in _OWN_BINDINGS else getattr(torch.ops.aten, name, None)
    shapes: list[tuple[Shape, str]] = []
    for overload in _callable_overloads(get_overloads(packet)) if packet is not None else ():
        names = [argument.name for argument in overload.schema.arguments]
        if "self" in names and str(overload.schema.arguments[names.index("self")].type) == "Tensor":
            place = names.index("self")
            shapes.append((shape_of_overload(overload, skip=place), list(overload.signature.parameters)[place]))
    return shapes


def _callable_overloads(overloads: tuple[Overload, ...]) -> list[Overload]:
    plain = [
        overload
        for overload in overloads
        if "out" not in overload.written and not overload.schema.overload_name.endswith("_out")
    ]
    plain = [overload for overload in plain if not overload.written] or plain
    with_tensors = [overload for overload in plain if any("Tensor" in str(a.type) for a in overload.schema.arguments)]
    return with_tensors or plain


def shape_of_function(function: Callable[..., Any], *, follow: bool) -> Shape | None:
    """Return the parameters of a Python function, or None if keywords cannot spell its calls.

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
