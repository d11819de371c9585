"""Where text goes that the user's code makes: into a message, or where something may be decided by it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from types import FrameType

from fx.checks.syntax import once_a_file
from fx.frames import callers, is_ours, is_pythons_file, is_users

_SHOWN_BY = "print|pprint|debug|info|warn|warning|critical|exception"
_SHOWS = re.compile(rf"(\w*_)?({_SHOWN_BY})(_once|_only)?|\w*(Error|Exception|Warning)")
_SAYS = re.compile(
    rf"(\w*_)?({_SHOWN_BY}|log|error|fatal|fail|write|annotate|mark|range_push|record_function|set_description|set_postfix)"
    r"(_once|_only|_event)?|_?assert\w*|_check\w*|\w*(Error|Exception|Warning|Exit)"
)
"""What functions and classes are called that show the text that they are given, and decide nothing by it."""
_MAKES = frozenset({"format", "join", "str", "repr", "ascii"})
_ASKED_BY = {
    "format": frozenset({"format", "str", "repr"}),
    "join": frozenset({"str", "repr"}),
    "str": frozenset({"repr"}),  # of what is in a container
}
_KEEPS = frozenset("format join strip lstrip rstrip ljust rjust center upper lower title capitalize replace".split())
"""Methods of text that give text."""


@dataclass(frozen=True, slots=True)
class _Made:
    first: int
    """The first line of an expression that makes text."""
    last: int
    """Its last line."""
    asks: frozenset[str]
    """The methods that it asks values by, without the underscores, for text that becomes a part of its own."""
    is_shown: bool
    """Whether it is only shown."""


def is_only_shown(frame: FrameType, method: str) -> bool:
    """Return whether text that ``frame`` asks a value for goes into a message, or stays the text of that value.

    So does what functions do that are called in a line that prints or raises. Where there is no source, and in the code
    of libraries below the user's, all text counts as shown.

    Args:
        frame: the caller of ``__format__``, ``__str__`` or ``__repr__``.
        method: the one of them that it calls, without the underscores.
    """
    if is_ours(frame) or not is_users(frame) or is_pythons_file(frame.f_code.co_filename):
        return True
    made = _made_in(frame.f_code.co_filename)
    if made is None:
        return True
    here = [one for one in made if method in one.asks and one.first <= frame.f_lineno <= one.last]
    if all(one.is_shown for one in here) and (here or method != "format"):
        return True
    return any(map(_shows, callers(frame)))


def _shows(frame: FrameType) -> bool:
    """Return whether what ``frame`` is calling may be for a message."""
    made = _made_in(frame.f_code.co_filename) or ()
    return any("show" in one.asks and one.first <= frame.f_lineno <= one.last for one in made)


@once_a_file
def _made_in(tree: ast.Module) -> tuple[_Made, ...]:
    """The expressions of a file that make text or show some."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found: list[_Made] = []
    for node in ast.walk(tree):
        asks = _asked_by(node)
        if asks and isinstance(node, ast.expr):
            shown = "show" in asks or _is_shown(node, parents, frozenset())
            found.append(_Made(node.lineno, node.end_lineno or node.lineno, asks, shown))
    return tuple(found)


def _asked_by(node: ast.AST) -> frozenset[str]:
    """The methods by which an expression asks values for their text, or ``"show"``."""
    if isinstance(node, ast.JoinedStr):
        return frozenset({"format", "repr"})
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return frozenset({"str", "repr", "format"})  # Python makes an f-string of some
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if _SHOWS.fullmatch(name):
            return frozenset({"show"})
        return _ASKED_BY.get(name, frozenset())
    return frozenset()


def _is_shown(node: ast.AST, parents: dict[ast.AST, ast.AST], followed: frozenset[str]) -> bool:
    """Return whether the value of an expression goes nowhere but into messages."""
    parent = parents.get(node)
    # Nothing reads the value of a statement that is an expression (ast.Expr).
    if isinstance(parent, (ast.Raise, ast.Expr)):
        return True
    if isinstance(parent, ast.Assert):
        return parent.msg is node
    if isinstance(parent, ast.Call):
        name = _last_name(parent.func)
        if name in _MAKES:
            return _is_shown(parent, parents, followed)
        return _SAYS.fullmatch(name) is not None
    if isinstance(parent, ast.Attribute):
        method = parents.get(parent)
        if not isinstance(method, ast.Call) or method.func is not parent:
            return False
        return parent.attr in _KEEPS and _is_shown(method, parents, followed)
    if isinstance(parent, ast.withitem) and isinstance(node, ast.Call):
        return _SAYS.fullmatch(_last_name(node.func)) is not None
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        stored = all(_is_shown_by_name(target, parents, followed) for target in targets)
        # `:=` has a value as well.
        return stored and (not isinstance(parent, ast.NamedExpr) or _is_shown(parent, parents, followed))
    joins = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Mod, ast.Mult))
    passes = (ast.FormattedValue, ast.JoinedStr, ast.IfExp, ast.BoolOp, ast.Lambda, ast.keyword, ast.Starred,
              ast.Tuple, ast.List, ast.ListComp, ast.GeneratorExp)  # fmt: skip
    # In `a if text else b` the text decides and is not shown.
    if isinstance(parent, ast.IfExp) and parent.test is node:
        return False
    return parent is not None and (joins or isinstance(parent, passes)) and _is_shown(parent, parents, followed)


def _is_shown_by_name(target: ast.AST, parents: dict[ast.AST, ast.AST], followed: frozenset[str]) -> bool:
    """Return whether what is stored in a variable of a function goes nowhere but into messages from there."""
    if not isinstance(target, ast.Name):
        return False
    if target.id in followed:
        return True
    around: ast.AST | None = target
    while around is not None and not isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        around = parents.get(around)
    if around is None:
        return False
    reads = [one for one in ast.walk(around) if isinstance(one, ast.Name) and one.id == target.id]
    loads = [one for one in reads if isinstance(one.ctx, ast.Load)]
    return all(_is_shown(one, parents, followed | {target.id}) for one in loads)


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
