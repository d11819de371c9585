"""The spelling of arguments, targets and annotations in generated code: identifiers, literals, collected globals."""

from __future__ import annotations

import builtins
import collections.abc
import enum
import math
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from fx.container_kinds import held_classes, held_kind, map_parts
from fx.errors import CodegenError, type_in_words
from fx.naming.names import GENERATED_GLOBALS, Namespace, NoneType, is_identifier, snake_case
from fx.naming.targets import is_builtin, qualified_name, torch_path
from fx.node import Node

_AS_REPR = frozenset(
    {int, bool, NoneType, str, bytes, torch.dtype, torch.layout, torch.memory_format, torch.qscheme}
)  # fmt: skip
"""Exact types whose ``repr`` is source for the value; subclasses could return anything."""

_GENERICS: dict[Any, Any] = {
    list: typing.List,  # noqa: UP006  the alias is the global that generated code names
    dict: typing.Dict,  # noqa: UP006
    set: typing.Set,  # noqa: UP006
    frozenset: typing.FrozenSet,  # noqa: UP006
    tuple: typing.Tuple,  # noqa: UP006
    typing.Union: typing.Union,
    collections.abc.Sequence: typing.Sequence,
    collections.abc.Iterable: typing.Iterable,
    collections.abc.Mapping: typing.Mapping,
}


class VariableName:
    """The placeholder for a node in arguments of an overridden ``generate_output``; its ``repr`` is the variable."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Speller:
    """The speller of the parts of one function, which collects its globals and the names of its nodes."""

    def __init__(self, namespace: Namespace, global_values: dict[str, Any]) -> None:
        self.namespace = namespace
        self.globals = global_values
        self.names: dict[Node, str] = {}
        self.met: list[Node] = []
        """The nodes spelled as arguments since the list was last cleared, in order."""
        self._shadowed: set[str] = set()
        self._owners: dict[str, str] = {}
        self._spelled_callables: dict[int, tuple[Any, str]] = {}

    # Names.

    def name(self, node: Node) -> str:
        """Return the variable of ``node``."""
        name = self.names.get(node)
        if name is None:
            name = node._name
            if not self.namespace.claim(name):
                name = self.namespace.create_name(name)
            self.names[node] = name
        return name

    def shadow(self, parameter: str) -> None:
        """Record that a parameter hides a global or builtin of this name."""
        self._shadowed.add(parameter)
        if parameter not in GENERATED_GLOBALS and not hasattr(builtins, parameter):
            self.namespace.create_name(parameter)

    def _well_known(self, name: str, value: object) -> str:
        """Return the name of a builtin or preset global, or an alias if a parameter has its name."""
        return self._collect(f"_{name}", value) if name in self._shadowed else name

    def bind_global(self, hint: str, value: object) -> str:
        """Return the name of a global with ``value``; a new name is made from ``hint``."""
        if is_builtin(value):
            return self._well_known(value.__name__, value)  # type: ignore[attr-defined]
        if hint in ("forward", "wrap"):  # names that the generated module itself defines
            hint = f"_{hint}"
        return self._collect(hint, value)

    def _collect(self, hint: str, value: object) -> str:
        name = self.namespace.create_name(hint, value)
        self.globals[name] = value
        return name

    # Targets.

    def callable(self, target: Callable[..., Any]) -> str:
        """Spell a function or class: as a dotted path from ``torch`` if there is one, else as a global."""
        spelled = self._spelled_callables.get(id(target))
        if spelled is None:
            path = torch_path(target)
            if path is not None and target is not torch.device and all(map(is_identifier, path.split("."))):
                text = self._torch(path)
            elif target is torch.device:
                text = self._well_known("device", target)
            else:
                text = self.bind_global(_module_qualified(target), target)
            spelled = self._spelled_callables[id(target)] = (target, text)
        return spelled[1]

    def _torch(self, path: str) -> str:
        return self._well_known("torch", torch) + path[len("torch") :]

    def path(self, root: str, target: str) -> str:
        """Spell the attribute at the dotted path ``target`` of ``root``."""
        owner, _, name = target.rpartition(".")
        if not owner:
            return self.attribute(root, name)
        text = self._owners.get(owner)
        if text is None:
            text = self._owners[owner] = self.path(root, owner)
        return self.attribute(text, name)

    def attribute(self, owner: str, name: str) -> str:
        """Spell ``owner.name``, by ``getattr`` if ``name`` is not an identifier."""
        if is_identifier(name):
            return f"{owner}.{name}"
        return f"{self._well_known('getattr', getattr)}({owner}, {_quoted(name)})"

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Spell the arguments of a call, without the parentheses."""
        argument = self.argument
        parts = [argument(value) for value in args]
        if kwargs:
            parts += [f"{key} = {argument(value)}" for key, value in kwargs.items() if self._is_keyword(key)]
            odd = [f"{_quoted(key)}: {argument(value)}" for key, value in kwargs.items() if not self._is_keyword(key)]
            if odd:
                parts.append(f"**{{{', '.join(odd)}}}")
        return ", ".join(parts)

    @staticmethod
    def _is_keyword(key: object) -> bool:
        if type(key) is not str:
            raise CodegenError(
                f"a keyword argument is named by {key!r}, {type_in_words(key)}", why="only strings name arguments"
            )
        return is_identifier(key)

    # Arguments.

    def argument(self, value: Any) -> str:
        """Spell any argument of a node as an expression."""
        kind = type(value)
        if kind is Node and value in self.names:
            self.met.append(value)
            return self.names[value]
        if kind in _AS_REPR:
            return self._constant(value, kind)
        special = _SPELLINGS.get(kind)
        return special(self, value) if special is not None else self._by_class(value)

    def _constant(self, value: Any, kind: type) -> str:
        try:
            text = repr(value)
        except ValueError:  # an integer with more digits than Python converts
            return self._object(value)
        return self._torch(text) if kind.__module__ == "torch" else text

    def receiver(self, value: Any) -> str:
        """Spell an argument before ``.name``: a number needs parentheses."""
        text = self.argument(value)
        return f"({text})" if isinstance(value, (int, float, complex)) else text

    def _by_class(self, value: Any) -> str:
        if isinstance(value, Node):
            raise CodegenError(
                f"{value!r} is used but never computed",
                why="it was erased, comes after its user, or belongs to another graph",
                remedy="graph.lint() names the node that uses it",
            )
        if isinstance(value, enum.Enum):
            member, owner = value.name, type(value)
            if isinstance(member, str) and is_identifier(member) and getattr(owner, member, None) is value:
                return f"{self.callable(owner)}.{member}"
            return self._object(value)
        if (kind := held_kind(value)) is not None and kind.spelling is not None:
            return self._container(value)
        if isinstance(value, type) or callable(value):
            return self.callable(value)
        return self._object(value)

    def _object(self, value: Any) -> str:
        """Spell any other value as a global that holds the object itself."""
        return self.bind_global(f"_{snake_case(type(value).__name__)}", value)

    def _float(self, value: float) -> str:
        if math.isfinite(value):
            return repr(value)
        name = "nan" if math.isnan(value) else "inf"
        spelled = self._well_known(name, GENERATED_GLOBALS[name])
        return spelled if math.isnan(value) or value > 0 else f"-{spelled}"

    def _complex(self, value: complex) -> str:
        real, imaginary = math.copysign(1, value.real), math.copysign(1, value.imag)
        exact = real > 0 and (imaginary > 0 or (value.real != 0 and value.imag != 0))  # else a sign of zero is lost
        if exact and math.isfinite(value.real) and math.isfinite(value.imag):
            return repr(value)
        return f"{self._well_known('complex', complex)}({self._float(value.real)}, {self._float(value.imag)})"

    def _container(self, value: Any) -> str:
        kind = held_kind(value)
        assert kind is not None
        return kind.written(value, [self.argument(part) for part in kind.parts(value)], self._untraced, self.callable)

    def _set(self, value: set[Any] | frozenset[Any]) -> str:
        kind = self._well_known(type(value).__name__, type(value))
        return f"{kind}([{', '.join(sorted(map(self._untraced, value)))}])"

    def _untraced(self, value: Any) -> str:
        """Spell an element of a set or a key of a dict; use lists do not cover nodes in these."""
        before = len(self.met)
        text = self.argument(value)
        if len(self.met) > before:
            raise CodegenError(
                f"{value!r}, a traced value, is an element of a set or a key of a dict",
                why="nodes are found in tuples, lists, slices and the values of dicts only",
                remedy="put it into a list, or make the set or dict by a call_function node",
            )
        return text

    def _range(self, value: range) -> str:
        parts = (value.start, value.stop) if value.step == 1 else (value.start, value.stop, value.step)
        return f"{self._well_known('range', range)}({', '.join(map(self.argument, parts))})"

    def _device(self, value: torch.device) -> str:
        number: Any = value.index
        index = "" if number is None else f", index={number}"
        return f"{self._well_known('device', torch.device)}(type={value.type!r}{index})"

    def named(self, value: Any, make: Callable[[str], Any]) -> Any:
        """Return ``value`` with each node replaced by ``make`` of its variable name."""
        if isinstance(value, Node):
            return make(self.names[value])
        return map_parts(lambda part: self.named(part, make), value)

    # Annotations.

    def annotation(self, hint: Any) -> str:
        """Spell a type annotation; generics of ``typing`` and of the builtins in a form that TorchScript also reads."""
        if hint is None or hint is NoneType:
            return self._well_known("NoneType", NoneType)
        if isinstance(hint, types.UnionType):
            return "|".join(map(self.annotation, hint.__args__))
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is None:
            if isinstance(hint, type) or (callable(hint) and torch_path(hint) is not None):
                return self.callable(hint)
            return self.bind_global(str(hint) if not isinstance(hint, str) else f"_{hint}_", hint)
        # Arguments of `Literal` are values, and `Callable` may have a list as argument: neither is an annotation.
        is_plain = all(isinstance(arg, type) or arg is Ellipsis or typing.get_origin(arg) is not None for arg in args)
        generic = origin if isinstance(hint, types.GenericAlias) else _GENERICS.get(origin)
        if generic is None or not is_plain:
            return self.bind_global(str(hint), hint)
        name = self.bind_global(_generic_name(generic), generic)
        inner = ",".join("..." if arg is Ellipsis else self.annotation(arg) for arg in args)
        return f"{name}[{inner}]" if args else name


def _module_qualified(target: Any) -> str:
    name = qualified_name(target)
    return f"_{name}" if getattr(target, "__module__", None) == "_operator" else name


def _generic_name(generic: Any) -> str:
    return qualified_name(generic) if isinstance(generic, type) else f"typing_{generic.__name__}"


def _quoted(text: str) -> str:
    """Return a string literal, in double quotes if nothing in it needs an escape."""
    return f'"{text}"' if text.isprintable() and not set('"\\') & set(text) else repr(str(text))


_SPELLINGS: dict[type, Callable[[Speller, Any], str]] = {
    **dict.fromkeys(held_classes(), Speller._container),
    float: Speller._float,
    complex: Speller._complex,
    set: Speller._set,
    frozenset: Speller._set,
    range: Speller._range,
    torch.device: Speller._device,
    type(Ellipsis): lambda speller, value: speller._well_known("Ellipsis", value),
    VariableName: lambda speller, value: value.name,
}
