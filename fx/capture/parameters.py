"""What a function says of its parameters (annotations, defaults), and which of them its code asks for being given."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import torch

from fx.bytecode.dataflow import TEXTS, Dataflow, dataflow, parameters_given
from fx.bytecode.dialects import nested
from fx.bytecode.mentions import identities, keywords_asked_for
from fx.bytecode.values import Method, Names, callee_of, value_of
from fx.frames import is_users_file
from fx.provenance import GENERATED_FILES, SourceLocation

if sys.version_info >= (3, 14):
    import annotationlib

_DEEPEST = 8
"""Through how many functions an input is followed."""


def annotations_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function, or of a class without its bases, where text stays text.

    Python 3.14 evaluates them when somebody asks, and may lack a name then: such a one is a forward reference.
    """
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def evaluated_annotations(function: Any) -> dict[str, Any]:
    """The annotations of a function, as objects where its strings can be evaluated.

    Those of generated code are what its graph holds, which may come from a file: they stay what they are.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if getattr(code, "co_filename", None) in GENERATED_FILES:
        return annotations_of(function)
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:  # evaluating the user's annotations may do anything; as strings they are just names
        return annotations_of(function)


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters."""
    given = inspect.signature(function, follow_wrapped=False).parameters.values()
    return {one.name: one.default for one in given if one.default is not one.empty}


def asked_for(function: Any, names: Iterable[str], owner: Any = None, depth: int = 0) -> dict[str, SourceLocation]:
    """Return those of the parameters of a function that it asks for being ``None`` or given, with the line.

    So do functions and modules that it hands them on to, as far as its byte code shows which these are.

    Args:
        function: a function that Python code defines.
        names: the parameters.
        owner: the module whose method it is.
        depth: how many functions lie around it.
    """
    code = inspect.unwrap(function).__code__
    wanted = dict.fromkeys(names)
    found: dict[str, SourceLocation] = {}
    for one in nested(code):
        for test in identities(one):
            for name in wanted.keys() & (test.one | test.other) if test.with_none else ():
                if one is code or name in one.co_freevars:
                    found.setdefault(str(name), SourceLocation(one, test.offset))
    flow = dataflow(code)
    if flow is None:
        return found
    known = Names.of_function(inspect.unwrap(function))
    if owner is not None:
        known = Names({**known.local, code.co_varnames[0]: owner}, known.namespace)
    for name in wanted:
        for index in flow.loads(name):
            for use, _ in flow.uses.get(index, ()):
                if (where := _asked(flow, index, use, known, depth)) is not None:
                    found.setdefault(name, where)
    return found


def _asked(flow: Dataflow, index: int, use: int, known: Names, depth: int) -> SourceLocation | None:
    """Return where a parameter that one instruction loads and another takes is asked for; None if it is not there."""
    where = SourceLocation(flow.code, flow.steps[use].offset)
    if flow.asks_truth(use) or (flow.kind(use) in TEXTS and flow.compares_elements(use)):
        return where
    call = flow.call(use)
    if call is None:
        return None
    if callee_of(flow, call, known) in (isinstance, bool):
        return where if any(index in given for given in call.positional[:1]) else None
    try:
        called, module, skipped = _called(value_of(flow, call.callee, known))
    except LookupError:
        return None
    if called is None or call.is_spread or depth >= _DEEPEST:
        return None
    given = parameters_given(inspect.unwrap(called).__code__, call, index, bool(skipped))
    asked = asked_for(called, filter(None, given), module, depth + 1)
    return next(iter(asked.values()), None)


def asked_keywords(function: Any, name: str) -> SourceLocation | None:
    """Return where a function spreads its ``**kwargs``, or asks what is in them; None where it does neither."""
    code = inspect.unwrap(function).__code__
    offset = keywords_asked_for(code, name)
    return None if offset is None else SourceLocation(code, offset)


def _called(value: Any) -> tuple[Any, Any, int]:
    """Return what a call runs: a function, the module whose method it is, the number of parameters not in the call."""
    if isinstance(value, torch.nn.Module):
        return _users_own(type(value).forward), value, 1
    if isinstance(value, MethodType):
        return _users_own(value.__func__), value.__self__, 1
    if isinstance(value, Method):
        return _users_own(value.function), value.owner, 1
    return _users_own(value), None, 0


def _users_own(value: Any) -> Any:
    behind = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return value if isinstance(behind, FunctionType) and is_users_file(behind.__code__.co_filename) else None
