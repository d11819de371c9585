"""The target of a pass, read from its code: ``is_for_torch`` for the library, ``form_of`` for functions or ATen."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, cast

import torch

from fx.bytecode.mentions import references
from fx.canonical.forms import Form
from fx.capture.parameters import annotations_of
from fx.operators.families import find_operator

_torch: Any = torch  # for untyped parts of torch
_OPERATORS: Any = (_torch._ops.OpOverload, _torch._ops.OpOverloadPacket)
_ATEN = re.compile(r"(torch\.ops\.)?aten([.:][\w.:]*)?")
_LIBRARIES = ("torch", "fx")
"""Libraries whose own functions are not searched: they use both libraries, and ATen, internally."""
_MOST_MEMBERS = 300
"""Maximum number of members of a container that are examined."""
_OURS = re.compile(r"(?<![\w.])fx(?![\w])")
_THEIRS = re.compile(r"(?<![\w.])torch\.fx(?![\w])")


def is_for_torch(pass_: object) -> bool:
    """Return whether a pass is written for ``torch.fx``, judged from its code.

    Checked in order: its module or base classes, annotations, names in the code. The first that names a library
    decides; naming both counts as ours. If none does, the pass's own functions that it calls are checked in turn.
    """
    return _library_of(pass_) == "torch.fx"


def is_for_ours(pass_: object) -> bool:
    """Return whether a pass is written for programs of this library, judged as by ``is_for_torch``."""
    return _library_of(pass_) == "fx"


def _library_of(pass_: object) -> str | None:
    for part in _parts(pass_):
        for evidence in _evidence(part):
            ours, theirs = any(map(_OURS.search, evidence)), any(map(_THEIRS.search, evidence))
            if ours or theirs:
                return "fx" if ours else "torch.fx"
    return None


def form_of(pass_: object) -> Form | None:
    """Return the form of exported programs that a pass is written for; None if its code does not show it.

    The form is ``"aten"`` if the code mentions operators of ATen, as objects or by name (``"aten.relu.default"``),
    whatever else it mentions. Functions, containers and attributes of the pass that the code leads to count too.
    Otherwise it is ``"functional"`` for passes of this library, and for passes that mention functions that compute
    with tensors, or calls of methods. A pass that mentions none of these but the class of operators is for ATen.
    """
    mentioned = mentions_of(pass_)
    if any(map(_is_aten, mentioned)):
        return "aten"
    is_ours = _name(_behind(pass_)).partition(".")[0] == "fx" or _name(_class(_behind(pass_))).startswith("fx.")
    if is_ours or any(map(_is_of_functions, mentioned)):
        return "functional"
    return "aten" if any(any(value is kind for kind in _OPERATORS) for value in mentioned) else None


def mentions_of(pass_: object) -> list[Any]:
    """Return the values that the pass's own code refers to, and the contents of its containers and attributes."""
    return [value for part in _parts(pass_) if not _is_of_library(part) for value in _mentioned_by(part)]


def _parts(pass_: object) -> Iterator[Any]:
    """Yield a pass and the objects reachable from it, each once, without following parts of the libraries.

    Library functions use torch.fx, and operators of ATen, internally.
    """
    pending, visited = [pass_], list[object]()
    while pending:
        part = _behind(pending.pop(0))
        if all(part is not earlier for earlier in visited):
            visited.append(part)
            yield part
            pending += [] if _is_of_library(part) else _own_parts(part)


def _is_of_library(part: Any) -> bool:
    return _name(part).partition(".")[0] in _LIBRARIES


def _mentioned_by(part: Any) -> Iterator[Any]:
    """Yield the references and constants of a function, or the attributes of an object and its class."""
    if isinstance(part, FunctionType):
        values = [
            *_used_in(part.__code__, _namespace_of(part)),
            *_constants_in(part.__code__),
            *(part.__defaults__ or ()),
        ]
    else:
        values = [
            *getattr(part, "__dict__", {}).values(),
            *(member for base in _class(part).__mro__ for member in vars(base).values()),
        ]
        values += [getattr(part, name, None) for name in getattr(_class(part), "__dataclass_fields__", ())]
    for value in values:
        yield value
        yield from _members(value)


def _constants_in(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants_in(constant)
        else:
            yield constant


def _members(value: Any, depth: int = 2) -> Iterator[Any]:
    """Yield the members of a container, and of containers nested up to ``depth`` levels."""
    if isinstance(value, (dict, MappingProxyType)):
        value = (*value, *value.values())
    if depth and isinstance(value, (tuple, list, set, frozenset)):
        for member in tuple(cast("Any", value))[:_MOST_MEMBERS]:
            yield member
            yield from _members(member, depth - 1)


def _is_aten(value: Any) -> bool:
    if isinstance(value, str):
        return _ATEN.fullmatch(value) is not None
    if isinstance(value, ModuleType):
        return value is torch.ops.aten
    return isinstance(value, _OPERATORS) and str(value).startswith("aten.")


def _is_of_functions(value: Any) -> bool:
    """Return whether ``value`` occurs only in programs that are written in functions and methods."""
    is_function = callable(value) and not isinstance(value, type) and find_operator(value) is not None
    return is_function or (isinstance(value, str) and value in ("call_method", "call_module"))


def _behind(part: Any) -> Any:
    """Return the function behind partial functions, bound methods and decorators."""
    while True:
        if isinstance(part, functools.partial):
            part = part.func
        elif isinstance(part, (MethodType, staticmethod, classmethod)):
            part = part.__func__
        elif inspect.getattr_static(part, "__wrapped__", None) is not None:  # a Proxy seems to have every attribute
            part = part.__wrapped__
        else:
            return part


def _evidence(part: Any) -> Iterator[list[str]]:
    """Yield lists of names that show the library of a pass, the strongest evidence first."""
    if isinstance(part, FunctionType):
        namespace = _namespace_of(part)
        yield [part.__module__]
        yield [_annotation(annotation, namespace) for annotation in annotations_of(part).values()]
        yield [_name(used) for used in _used_in(part.__code__, namespace)]
    else:
        yield [base.__module__ for base in _class(part).__mro__]


def _own_parts(part: Any) -> list[Any]:
    """Return the callables of a part: functions of its module that it names, its closure, methods and attributes."""
    if isinstance(part, FunctionType):
        enclosed = [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        named = [used for used in _used_in(part.__code__, _namespace_of(part)) if _name(used) == part.__module__]
        return [callee for callee in (*enclosed, *named) if callable(callee)]
    methods = [value for base in _class(part).__mro__ for value in vars(base).values()]
    called = [inspect.getattr_static(_class(part), "__call__", None), *methods]
    return [
        *(method for method in map(_behind, called) if isinstance(method, FunctionType)),
        *(
            attribute
            for attribute in getattr(part, "__dict__", {}).values()
            if callable(attribute) and not isinstance(part, type)
        ),
    ]


def _class(part: Any) -> type[Any]:
    return part if isinstance(part, type) else type(part)


def _annotation(annotation: Any, namespace: dict[str, Any]) -> str:
    """Return an annotation as text; string annotations are evaluated to qualify their names."""
    if isinstance(annotation, str):
        try:
            return str(eval(annotation, namespace))
        except Exception:  # for example, names imported under TYPE_CHECKING
            return annotation
    return str(annotation)


def _name(used: Any) -> str:
    name = used.__name__ if isinstance(used, ModuleType) else getattr(used, "__module__", None)
    return name if isinstance(name, str) else ""


def _namespace_of(function: FunctionType) -> dict[str, Any]:
    """Return the globals and closure variables of a function by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _used_in(code: CodeType, namespace: dict[str, Any]) -> Iterator[Any]:
    """Yield the objects that code refers to: values of names, imports in the code, and attributes of modules."""
    # A local variable hides the global of the same name, until an import below stores into it.
    namespace = {name: value for name, value in namespace.items() if name not in code.co_varnames}
    module = current = None
    is_imported = False
    for kind, name in references(code):
        if kind == "module":
            module = current = sys.modules.get(name) or ModuleType(name)
            is_imported = True
        elif kind == "member":
            current, is_imported = getattr(module, name, None), True
        elif kind == "store" and is_imported:
            namespace[name] = current
            is_imported = False
        elif kind == "attribute":
            current = getattr(current, name, None) if isinstance(current, ModuleType) else None
        elif kind == "name":
            current = namespace.get(name)
        else:
            continue
        yield current
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used_in(constant, namespace)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
