"""What a pass is written for, as its code shows: ``is_for_torch``, which library; ``form_of``, functions or ATen."""

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

_torch: Any = torch  # for the parts of it that have no types
_OPERATORS: Any = (_torch._ops.OpOverload, _torch._ops.OpOverloadPacket)
_ATEN = re.compile(r"(torch\.ops\.)?aten([.:][\w.:]*)?")
_LIBRARIES = ("torch", "fx")
"""Whose passes find what they look for in functions."""
_MOST_MEMBERS = 300
"""How many members of a container are looked at."""
_OURS = re.compile(r"(?<![\w.])fx(?![\w])")
_THEIRS = re.compile(r"(?<![\w.])torch\.fx(?![\w])")


def is_for_torch(pass_: object) -> bool:
    """Return whether a pass is written for ``torch.fx``, as far as it shows.

    Where classes, annotations, and then what the code mentions, name one of the libraries, that decides; what names
    both takes our programs too. Where they name none, the pass's own functions that it calls are asked in turn.
    """
    return _library_of(pass_) == "torch.fx"


def is_for_ours(pass_: object) -> bool:
    """Return whether a pass is written for programs of this library, as far as it shows, as ``is_for_torch`` does."""
    return _library_of(pass_) == "fx"


def _library_of(pass_: object) -> str | None:
    for part in _parts(pass_):
        for evidence in _evidence(part):
            ours, theirs = any(map(_OURS.search, evidence)), any(map(_THEIRS.search, evidence))
            if ours or theirs:
                return "fx" if ours else "torch.fx"
    return None


def form_of(pass_: object) -> Form | None:
    """The form of exported programs that a pass is written for; None where nothing shows it.

    It is ``"aten"`` where the pass's code, or a function, a container or an attribute of its own that this leads to,
    mentions operators of ATen, as such or in a text (``"aten.relu.default"``), whatever else it mentions. It is
    ``"functional"`` for passes of this library, and where they mention functions that compute with tensors, or calls
    of methods.
    """
    mentioned = mentions_of(pass_)
    if any(map(_is_aten, mentioned)):
        return "aten"
    is_ours = _name(_behind(pass_)).partition(".")[0] == "fx" or _name(_class(_behind(pass_))).startswith("fx.")
    return "functional" if is_ours or any(map(_is_of_functions, mentioned)) else None


def mentions_of(pass_: object) -> list[Any]:
    """Return what the pass's own code refers to, and what its containers and attributes hold.

    >>> torch.relu in mentions_of(lambda graph_module: torch.relu)
    True
    """
    return [value for part in _parts(pass_) if not _is_of_library(part) for value in _mentioned_by(part)]


def _parts(pass_: object) -> Iterator[Any]:
    """Yield a pass and what it leads to, each once, but not what parts of the libraries lead to.

    Their functions use torch.fx, and operators of ATen, for their own ends.
    """
    pending, seen = [pass_], list[object]()
    while pending:
        part = _behind(pending.pop(0))
        if all(part is not known for known in seen):
            seen.append(part)
            yield part
            pending += [] if _is_of_library(part) else _own_parts(part)


def _is_of_library(part: Any) -> bool:
    return _name(part).partition(".")[0] in _LIBRARIES


def _mentioned_by(part: Any) -> Iterator[Any]:
    """Yield what a function refers to, and the constants in its code; or what an object and its class hold."""
    if isinstance(part, FunctionType):
        found = [*_used_in(part.__code__, _known_in(part)), *_constants_in(part.__code__), *(part.__defaults__ or ())]
    else:
        found = [
            *getattr(part, "__dict__", {}).values(),
            *(v for base in _class(part).__mro__ for v in vars(base).values()),
        ]
        found += [getattr(part, name, None) for name in getattr(_class(part), "__dataclass_fields__", ())]
    for value in found:
        yield value
        yield from _members(value)


def _constants_in(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants_in(constant)
        else:
            yield constant


def _members(value: Any, depth: int = 2) -> Iterator[Any]:
    """Yield what containers hold, and containers in them."""
    if isinstance(value, (dict, MappingProxyType)):
        value = (*value, *value.values())
    if depth and isinstance(value, (tuple, list, set, frozenset)):
        for member in tuple(cast("Any", value))[:_MOST_MEMBERS]:
            yield member
            yield from _members(member, depth - 1)


def _is_aten(mentioned: Any) -> bool:
    if isinstance(mentioned, str):
        return _ATEN.fullmatch(mentioned) is not None
    if isinstance(mentioned, ModuleType):
        return mentioned is torch.ops.aten
    return isinstance(mentioned, _OPERATORS) and str(mentioned).startswith("aten.")


def _is_of_functions(mentioned: Any) -> bool:
    """Return whether only programs in functions and methods have what is mentioned."""
    is_function = callable(mentioned) and not isinstance(mentioned, type) and find_operator(mentioned) is not None
    return is_function or (isinstance(mentioned, str) and mentioned in ("call_method", "call_module"))


def _behind(part: Any) -> Any:
    """Return what partial functions, bound methods and decorators stand for."""
    while True:
        if isinstance(part, functools.partial):
            part = part.func
        elif isinstance(part, (MethodType, staticmethod, classmethod)):
            part = part.__func__
        elif (
            inspect.getattr_static(part, "__wrapped__", None) is not None
        ):  # a traced value seems to have any attribute
            part = part.__wrapped__
        else:
            return part


def _evidence(part: Any) -> Iterator[list[str]]:
    """Names of what a pass is or uses, the most telling first."""
    if isinstance(part, FunctionType):
        known = _known_in(part)
        yield [part.__module__]
        yield [_annotation(annotation, known) for annotation in annotations_of(part).values()]
        yield [_name(used) for used in _used_in(part.__code__, known)]
    else:
        yield [base.__module__ for base in _class(part).__mro__]


def _own_parts(part: Any) -> list[Any]:
    """Return what a part may call: functions of its module that it names, what is around it, its methods and
    attributes.
    """
    if isinstance(part, FunctionType):
        around = [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        named = [used for used in _used_in(part.__code__, _known_in(part)) if _name(used) == part.__module__]
        return [one for one in (*around, *named) if callable(one)]
    methods = [value for base in _class(part).__mro__ for value in vars(base).values()]
    called = [inspect.getattr_static(_class(part), "__call__", None), *methods]
    return [
        *(method for method in map(_behind, called) if isinstance(method, FunctionType)),
        *(held for held in getattr(part, "__dict__", {}).values() if callable(held) and not isinstance(part, type)),
    ]


def _class(part: Any) -> type[Any]:
    return part if isinstance(part, type) else type(part)


def _annotation(annotation: Any, known: dict[str, Any]) -> str:
    """An annotation with the names that it has where it is defined, however it is written."""
    if isinstance(annotation, str):
        try:
            return str(eval(annotation, known))
        except Exception:  # names that only type checkers import, say: the text is all there is
            return annotation
    return str(annotation)


def _name(used: Any) -> str:
    name = used.__name__ if isinstance(used, ModuleType) else getattr(used, "__module__", None)
    return name if isinstance(name, str) else ""


def _known_in(function: FunctionType) -> dict[str, Any]:
    """Return what names mean inside of a function when it starts."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _used_in(code: CodeType, known: dict[str, Any]) -> Iterator[Any]:
    """Yield what code refers to: what its names mean, what it imports itself, and attributes of modules."""
    # A local variable hides the global of its name, until an import stores into it below.
    known = {name: value for name, value in known.items() if name not in code.co_varnames}
    module = current = None
    is_imported = False
    for kind, name in references(code):
        if kind == "module":
            module = current = sys.modules.get(name) or ModuleType(name)
            is_imported = True
        elif kind == "member":
            current, is_imported = getattr(module, name, None), True
        elif kind == "store" and is_imported:
            known[name] = current
            is_imported = False
        elif kind == "attribute":
            current = getattr(current, name, None) if isinstance(current, ModuleType) else None
        elif kind == "name":
            current = known.get(name)
        else:
            continue
        yield current
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used_in(constant, known)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
