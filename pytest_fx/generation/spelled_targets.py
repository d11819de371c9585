"""The targets that texts of the grammar call, and the expressions for targets."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from fx.operators.python import OPERATORS
from pytest_fx.generation.productions import NAMESPACE, written

Target = Any
"""A function, the name of a method, or a class of modules."""

CHECK: Target = vars(torch)["_assert"]
"""The function that a check is captured as."""
ATTRIBUTES = frozenset({"T", "mT"})
"""Names of attributes that are also operations."""


def _by_sign() -> Iterator[tuple[tuple[type[ast.AST], type[ast.AST]], Callable[..., Any]]]:
    """Yield the functions of Python's operators, by the kind of expression or statement and its sign."""
    yield (ast.UnaryOp, ast.Not), operator.not_
    for row in OPERATORS:
        match ast.parse(row.template.format(*"abc")).body[0]:
            case ast.Expr(value=ast.BinOp(op=sign) | ast.UnaryOp(op=sign) | ast.Compare(ops=[sign]) as tree):
                yield (type(tree), type(sign)), row.function
            case ast.AugAssign(op=sign) as tree:
                yield (type(tree), type(sign)), row.function
            case _:
                pass


_OPERATORS = dict(_by_sign())


@functools.cache
def targets_of(spelling: str, operands: int) -> frozenset[Target]:
    """Return the targets that a spelling calls: functions, names of methods, classes of modules.

    >>> targets_of("{0} + {1}", 2) == {operator.add}, sorted(targets_of(".view", 1))
    (True, ['view'])
    """
    text = re.sub(r"\{(\w+)\}", r"_\1", written(spelling, operands).replace("{*}", ""))
    return frozenset(_targets(ast.parse(text)))


def _targets(tree: ast.AST) -> Iterator[Target]:
    for part in ast.walk(tree):
        match part:
            case ast.Call(func=function):
                yield from _called(function)
            case ast.UnaryOp(operand=ast.Constant()):
                pass
            case ast.BinOp(op=sign) | ast.AugAssign(op=sign) | ast.UnaryOp(op=sign) | ast.Compare(ops=[sign]):
                yield _OPERATORS[type(part), type(sign)]
            case ast.Subscript(ctx=ast.Store()):
                yield operator.setitem
            case ast.Subscript():
                yield operator.getitem
            case ast.Attribute(attr="shape" | "T" | "mT" | "dtype" as name):
                yield getattr
                yield from ATTRIBUTES & {name}
            case ast.Assert() | ast.Raise():
                yield CHECK
            case _:
                pass


def _called(function: ast.expr) -> Iterator[Target]:
    name = ast.unparse(function)
    root = name.partition(".")[0]
    if root in NAMESPACE and re.fullmatch(r"[\w.]+", name):
        yield functools.reduce(getattr, name.split(".")[1:], NAMESPACE[root])
    elif isinstance(function, ast.Attribute):
        yield function.attr
    elif hasattr(builtins, name):
        yield getattr(builtins, name)


def path_of(target: Any) -> tuple[str, str] | None:
    """Return the expression for a function or a class in a source, and its import; None if there is none.

    >>> path_of(torch.relu), path_of(operator.add)
    (('torch.relu', ''), ('_operator.add', '_operator'))
    """
    for path, module in (("torch", torch), ("F", F), ("torch.special", torch.special), ("torch.linalg", torch.linalg),
                         ("torch.fft", torch.fft)):  # fmt: skip
        for name, value in vars(module).items():  # torch.linalg.inv is called linalg_inv
            if value is target:
                return f"{path}.{name}", ""
    name, home = getattr(target, "__qualname__", ""), getattr(target, "__module__", None) or ""
    if not home or not name or "<" in name or home == "__main__" or _imported(home, name) is not target:
        return None
    return f"{home}.{name}", home


def _imported(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), __import__(module, fromlist=["_"]))
    except (ImportError, AttributeError):
        return None
