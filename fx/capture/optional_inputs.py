"""Inputs that a program can do without: which it asks for, by identity with ``None`` or by their truth."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import torch

from fx.checks.bytecode import nested, working_steps
from fx.checks.identities import identities
from fx.checks.recognition import syntax_tree
from fx.frames import is_users_file
from fx.provenance import SourceLocation

_DEEPEST = 8
"""Through how many functions an input is followed."""


def asked_for(function: Any, names: Iterable[str], owner: Any = None, depth: int = 0) -> dict[str, SourceLocation]:
    """Return those of the parameters of a function that it asks for being ``None`` or given, with the line.

    So do functions and modules that it hands them on to by name, as far as its text shows which these are.

    Args:
        function: a function that Python code defines.
        names: the parameters.
        owner: the module whose method it is.
        depth: how many functions lie around it.
    """
    code = inspect.unwrap(function).__code__
    wanted = set(names)
    found: dict[str, SourceLocation] = {}
    for one in nested(code):
        for test in identities(one):
            if test.with_none and test.one in wanted and (one is code or test.one in one.co_freevars):
                found.setdefault(str(test.one), SourceLocation(one, test.offset))
    for node in itertools.chain.from_iterable(map(ast.walk, syntax_tree(code).body)):
        for name, line in _asked_by(node, wanted):
            found.setdefault(name, _line(code, line))
        if isinstance(node, ast.Call) and depth < _DEEPEST:
            for name, location in _handed_on(node, wanted, function, owner, depth):
                found.setdefault(name, location)
    return found


def asked_keywords(function: Any, name: str) -> SourceLocation | None:
    """Return where a function spreads its ``**kwargs``, or asks what is in them; None where it does neither."""
    code = inspect.unwrap(function).__code__
    for step, following in itertools.pairwise(working_steps(code)):
        if step.name.startswith("LOAD_FAST") and step.value == name:
            spread = following.name in _SPREADING or "JUMP_IF" in following.name
            if spread or (following.name.startswith("LOAD") and following.value in _OF_DICTS):
                return SourceLocation(code, following.offset)
    return None


_SPREADING = frozenset({"DICT_MERGE", "DICT_UPDATE", "CALL_FUNCTION_EX", "CONTAINS_OP", "GET_ITER", "TO_BOOL"})
_OF_DICTS = frozenset({"items", "keys", "values"})


def _line(code: CodeType, line: int) -> SourceLocation:
    offset = next((start for start, _, number in code.co_lines() if number == line), 0)
    return SourceLocation(code, offset)


def _asked_by(node: ast.AST, wanted: set[str]) -> Iterator[tuple[str, int]]:
    """The parameters whose truth, or whether they are tensors, an expression or statement asks for."""
    asked: list[ast.AST] = []
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        asked = [node.test]
    elif isinstance(node, ast.BoolOp):
        asked = list(node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        asked = [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "bool"):
        asked = list(node.args[:1])
    # `any(one is None for one in (mask, bias))` asks for both.
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp, ast.SetComp)) and _compares(node):
        elements = node.generators[0].iter
        asked = list(elements.elts) if isinstance(elements, (ast.Tuple, ast.List)) else []
    for one in asked:
        if isinstance(one, ast.Name) and one.id in wanted:
            yield one.id, one.lineno


def _compares(node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> bool:
    """Return whether a comprehension asks elements of what it goes through for their identity or truth."""
    target = node.generators[0].target
    if not isinstance(target, ast.Name):
        return False
    parts = [node.elt, *(test for generator in node.generators for test in generator.ifs)]
    compared = [one.left for part in parts for one in ast.walk(part) if isinstance(one, ast.Compare)]
    return any(isinstance(one, ast.Name) and one.id == target.id for one in (*parts[1:], *compared))


def _handed_on(
    call: ast.Call, wanted: set[str], function: Any, owner: Any, depth: int
) -> Iterator[tuple[str, SourceLocation]]:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not any(isinstance(one, ast.Name) and one.id in wanted for one in given):
        return
    called, module, skipped = _called(call.func, inspect.unwrap(function), owner)
    if called is None or any(isinstance(one, ast.Starred) for one in call.args):
        return
    code = inspect.unwrap(called).__code__
    parameters = code.co_varnames[skipped : code.co_argcount + code.co_kwonlyargcount]
    pairs = [*zip(parameters, call.args, strict=False), *((one.arg, one.value) for one in call.keywords)]
    names = {
        parameter: value.id
        for parameter, value in pairs
        if parameter is not None and isinstance(value, ast.Name) and value.id in wanted
    }
    for parameter, location in asked_for(called, names, module, depth + 1).items():
        yield names[parameter], location


def _called(callee: ast.expr, function: Any, owner: Any) -> tuple[Any, Any, int]:
    """Return what a call runs: a function, the module whose method it is, the number of parameters not in the call."""
    first, *path = ast.unparse(callee).split(".")
    value: Any = {"self": owner}.get(first) if path else function.__globals__.get(first)
    for name in path:
        value = _stored(value, name)
    if isinstance(value, torch.nn.Module):
        return _users_own(type(value).forward), value, 1
    if isinstance(value, MethodType):
        return _users_own(value.__func__), value.__self__, 1
    return _users_own(value), None, 0


def _stored(holder: Any, name: str) -> Any:
    """Return an attribute without running properties, or recording a parameter before all inputs."""
    if isinstance(holder, torch.nn.Module) and name in holder._modules:
        return holder._modules[name]
    value = inspect.getattr_static(holder, name, None)
    owner = cast("type", holder if isinstance(holder, type) else type(holder))
    is_method = isinstance(value, (FunctionType, classmethod, staticmethod))
    if is_method and inspect.getattr_static(owner, name, None) is value:
        return value.__get__(None if owner is holder else holder, owner)
    return value


def _users_own(value: Any) -> Any:
    behind = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return value if isinstance(behind, FunctionType) and is_users_file(behind.__code__.co_filename) else None
