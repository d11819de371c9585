"""Recognizing checks: branches on a traced value whose other side only raises (``if n != 4: raise``, ``assert``).

The decision reads the byte code of the branching function (:mod:`fx.bytecode.flow`), the message its source. Needs
neither torch nor the graph. Nothing is recognized where the byte code is unknown (:mod:`fx.bytecode.dialects`). What is
recorded calls ``fx.assertions``.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from fx.bytecode.dataflow import Names, dataflow, may_return_truth, value_of
from fx.bytecode.flow import Comparison, Flow, flow_of
from fx.provenance import line_of


class Raise(NamedTuple):
    """A ``raise`` or ``assert``."""

    code: CodeType
    """The code of its function."""
    start: int
    """Where the way to it begins."""
    end: int
    """Where it raises."""


class Check(NamedTuple):
    """A branch of which one side raises."""

    raises_if: bool
    """The truth value that leads to the ``raise``."""
    message: str
    """The message of the exception, with the source of what it formats in braces."""
    raised: Raise
    """Where it is raised."""


def pending_check(frame: FrameType, compared: Comparison | None = None) -> Check | None:
    """The check that ``frame`` is about to decide on, or None where both sides of its branch go on.

    It asks for the truth of a value, which ``compared`` gave, if that is known.
    """
    flow = flow_of(frame.f_code)
    sides = None if flow is None else flow.branch(frame.f_lasti)
    if flow is None or sides is None:
        return None
    for side, raises_if in zip(sides, (True, False), strict=True):
        if flow.raises(side, _let_through(frame)):
            offset = flow.raise_offset(side)
            if _is_control_flow(frame, offset) or not flow.hangs_on(frame, compared, raises_if):
                return None
            return _check(frame, raises_if, offset)
    return None


def _check(frame: FrameType, raises_if: bool, offset: int) -> Check:
    """The check that ``frame`` decides on, which raises at an offset."""
    code = frame.f_code
    raised = Raise(code, frame.f_lasti, offset)
    statement = _raising(code, line_of(code, offset))
    if statement is None:
        decided = line_of(code, frame.f_lasti)
        shown = linecache.getline(code.co_filename, decided).strip()
        return Check(raises_if, shown or f"check in {code.co_name}, line {decided}", raised)
    return Check(raises_if, _message_of(statement), raised)


class ElementCheck(NamedTuple):
    """A check of a comparison of containers, or of ``value in container``, that is asking one of its elements."""

    check: Check
    """The check, of the element that is being asked whether it is equal."""
    options: tuple[Any, ...] | None
    """What the value has to be one of; None where each element that is asked decides by itself."""


def element_check(frame: FrameType, compared: Comparison) -> ElementCheck | None:
    """The check that ``frame`` is about to decide on by a comparison that asks elements, or None.

    It asks one whether it is equal, which ``compared`` gave.
    """
    code = frame.f_code
    flow = flow_of(code)
    found = None if flow is None else flow.branch_on_elements(frame.f_lasti)
    # From Python 3.13 on a comparison asks the truth of its own result here, too: that of `__ne__` of a class, say.
    if flow is None or found is None or compared.operator != "eq":
        return None
    operator, sides = found
    for side, holds in zip(sides, (True, False), strict=True):
        offset = flow.raise_offset(side)
        raises = operator in _OF_ELEMENTS and flow.raises(side, _let_through(frame))
        if not raises or _is_control_flow(frame, offset):
            continue
        equal_raises = holds is _OF_ELEMENTS[operator]
        # Where equal containers raise, all elements have to be equal and none decides alone; else each decides.
        if operator in ("eq", "ne"):
            return None if equal_raises else ElementCheck(_check(frame, False, offset), None)
        options = _options(frame)
        # A sequence asks each of its elements in turn, a set only those with the hash of the value.
        if equal_raises and not isinstance(options, _HASHED):
            return ElementCheck(_check(frame, True, offset), None)
        known = isinstance(options, (tuple, list, *_HASHED)) and not any(
            isinstance(one, compared.traced) for one in options
        )
        return ElementCheck(_check(frame, equal_raises, offset), tuple(options)) if known else None
    return None


def hash_of_option(frame: FrameType) -> int | None:
    """The hash of the first of those that ``frame`` checks a value to be in, if it is a set; None if it does not."""
    flow = flow_of(frame.f_code)
    found = None if flow is None else flow.branch_on_elements(frame.f_lasti)
    if flow is None or found is None or found[0] not in ("in", "not in"):
        return None
    options = _options(frame)
    raises = any(flow.raises(side, _let_through(frame)) for side in found[1])
    return hash(next(iter(options))) if raises and isinstance(options, _HASHED) and options else None


def _options(frame: FrameType) -> Any:
    """What ``frame`` looks for a value in; None where that is not known."""
    flow = dataflow(frame.f_code)
    try:
        return None if flow is None else value_of(flow, flow.operand(flow.running(frame), 1), Names.of_frame(frame))
    except LookupError:
        return None


_HASHED = (set, frozenset, dict)
_OF_ELEMENTS = {"eq": True, "ne": False, "in": True, "not in": False}
"""Comparisons that ask elements whether they are equal, and whether they hold where these are."""


def leaves(frame: FrameType) -> bool:
    """Return whether an exception that comes out of what ``frame`` is calling leaves ``frame`` too."""
    flow = flow_of(frame.f_code)
    return flow is not None and flow.leaves(frame.f_lasti, _let_through(frame))


class CompoundCheck(NamedTuple):
    """A check of several conditions, the first of which is asked for: ``if a and b: raise``, ``assert a or b``."""

    raises_if: bool
    """The truth value that all conditions must have for the ``raise``."""
    rest: tuple[CodeType, ...]
    """The conditions behind the one asked for, as expressions of the frame."""
    message: str
    """As in ``Check``."""
    raised: Raise
    """As in ``Check``."""


def compound_check(frame: FrameType, compared: Comparison | None = None) -> CompoundCheck | None:
    """The compound check that ``frame`` is deciding on, as :func:`pending_check`, or None. Needs the source."""
    code = frame.f_code
    flow = flow_of(code)
    if flow is None or flow.branch(frame.f_lasti) is None:
        return None
    for statement in ast.walk(syntax_tree(code)):
        found = _conditions(statement)
        if found is None:
            continue
        conditions, raises_if, raising = found
        index = _asked(frame, flow, conditions)
        # What asks for the last condition is a check of that one alone, or no check: pending_check has decided it.
        if index is None or index == len(conditions) - 1:
            continue
        if not flow.hangs_on(frame, compared, raises_if):
            return None
        # Where one condition decides, its branch leads to the `raise`; here it leads to the next condition first.
        lines = range(raising.lineno, (raising.end_lineno or raising.lineno) + 1)
        offset = flow.raise_within(frame.f_lasti, lambda at, lines=lines: line_of(code, at) in lines)
        lets_through = _let_through(frame)
        if offset is None or _is_control_flow(frame, offset) or not flow.leaves(frame.f_lasti, lets_through):
            return None
        rest = [compile(ast.Expression(one), code.co_filename, "eval") for one in conditions[index + 1 :]]
        return CompoundCheck(raises_if, tuple(rest), _message_of(raising), Raise(code, frame.f_lasti, offset))
    return None


def _asked(frame: FrameType, flow: Flow, conditions: list[ast.expr]) -> int | None:
    """Return which of these conditions ``frame`` is asking for, if it is one of them."""
    code = frame.f_code
    positions: Any = getattr(code, "co_positions", tuple)
    line, _, column, _ = next(itertools.islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is not None and column is not None:
        # columns are those of the dedented source, which a method's body starts further right in
        places = [(condition.lineno, condition.col_offset + _indentation(code)) for condition in conditions]
        return places.index((line, column)) if (line, column) in places else None
    # Python 3.10 has no columns, nor has any other version with -X no_debug_ranges: conditions and branches are counted
    lines = range(conditions[0].lineno, (conditions[-1].end_lineno or conditions[-1].lineno) + 1)
    branches = [offset for offset in flow.branches() if line_of(code, offset) in lines]
    if len(branches) != len(conditions) or not all(map(_is_one_branch, conditions)):
        return None
    if line_of(code, frame.f_lasti) not in lines:
        return None
    return next((index for index, offset in enumerate(branches) if offset >= frame.f_lasti), None)


def _is_one_branch(condition: ast.expr) -> bool:
    """Return whether a condition is compiled to one branch: no constant, and nothing in it that branches by itself."""
    nodes = list(ast.walk(condition))
    branching = (ast.BoolOp, ast.IfExp, *_WITH_EFFECTS)
    chains = any(isinstance(node, ast.Compare) and len(node.ops) > 1 for node in nodes)
    return not (isinstance(condition, ast.Constant) or chains or any(isinstance(node, branching) for node in nodes))


_WITH_EFFECTS = (ast.NamedExpr, ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.ListComp, ast.GeneratorExp)


def _conditions(statement: ast.AST) -> tuple[list[ast.expr], bool, ast.Raise | ast.Assert] | None:
    """The conditions of a compound check, the truth value of all that raises, and the statement that does."""
    if not isinstance(statement, (ast.If, ast.Assert)) or not isinstance(statement.test, ast.BoolOp):
        return None
    test = statement.test
    if isinstance(statement, ast.Assert):
        return (test.values, False, statement) if isinstance(test.op, ast.Or) else None
    raising = statement.body[0]
    only_raises = len(statement.body) == 1 and isinstance(test.op, ast.And)
    return (test.values, True, raising) if only_raises and isinstance(raising, ast.Raise) else None


def _let_through(frame: FrameType) -> Callable[[int], bool]:
    """Return whether the context manager of the ``with`` whose handler stands at an offset of a frame's code never
    swallows exceptions.
    """
    return lambda offset: _lets_exceptions_through(frame, offset)


def _lets_exceptions_through(frame: FrameType, handler: int) -> bool:
    flow = dataflow(frame.f_code)
    if flow is None:
        return False
    names = Names.of_frame(frame)
    try:
        makers = flow.manager(handler)
        kind, _, call = flow.expression(makers)
        manager = value_of(flow, call.callee if kind == "call" else makers, names)
    except LookupError:
        return False
    if kind == "call" and isinstance(manager, FunctionType):
        return _never_handles(manager)
    leave = inspect.getattr_static(manager if isinstance(manager, type) else type(manager), "__exit__", None)
    leave = vars(leave).get("_stands_for", leave) if isinstance(leave, FunctionType) else leave
    return isinstance(leave, FunctionType) and not may_return_truth(leave.__code__)


def _never_handles(function: FunctionType) -> bool:
    """Return whether exceptions leave a function under ``contextlib.contextmanager`` wherever it yields."""
    behind = vars(function).get("__wrapped__")
    if function.__code__ is not _OF_GENERATORS or not isinstance(behind, FunctionType):
        return False
    flow = flow_of(behind.__code__)
    return flow is not None and all(flow.leaves(offset, lambda _: False) for offset in flow.yields())


_OF_GENERATORS: Any = contextlib.contextmanager(lambda: iter(())).__code__  # type: ignore[attr-defined]
"""The code of what ``contextlib.contextmanager`` makes."""


def _is_control_flow(frame: FrameType, offset: int) -> bool:
    """Return whether what is raised at an offset ends an iteration, which is no error."""
    flow = dataflow(frame.f_code)
    try:
        makers = frozenset[int]() if flow is None else flow.raised(offset)
        if flow is not None and flow.expression(makers).kind == "call":
            makers = flow.expression(makers).detail.callee
        kind = None if flow is None else value_of(flow, makers, Names.of_frame(frame))
    except LookupError:
        return False
    return isinstance(kind, type) and issubclass(kind, (StopIteration, StopAsyncIteration))


def _raising(code: CodeType, raise_line: int) -> ast.Raise | ast.Assert | None:
    """The ``raise`` or ``assert`` at ``raise_line`` of ``code``; None where there is no source."""
    for statement in ast.walk(syntax_tree(code)):
        if isinstance(statement, (ast.Assert, ast.Raise)) and _spans(statement, raise_line):
            return statement
    return None


def _message_of(statement: ast.stmt) -> str:
    """The message of an ``assert`` or ``raise``."""
    if isinstance(statement, ast.Assert):
        return f"assertion failed: {ast.unparse(statement.test)}" if statement.msg is None else _text(statement.msg)
    raised = statement.exc if isinstance(statement, ast.Raise) else None
    if raised is None:
        return "raised again"
    return _text(raised.args[0]) if isinstance(raised, ast.Call) and raised.args else ast.unparse(raised)


def _spans(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


@lru_cache(maxsize=32)
def syntax_tree(code: CodeType) -> ast.Module:
    """The syntax tree of the function, with the file's line numbers; empty where there is no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return ast.Module(body=[], type_ignores=[])
    return ast.increment_lineno(tree, max(first, 1) - 1)


@lru_cache(maxsize=256)
def _indentation(code: CodeType) -> int:
    """Return how many columns the source of the function is indented by, which ``syntax_tree`` leaves out."""
    lines, _ = inspect.getsourcelines(code)
    return len(lines[0]) - len(lines[0].lstrip())


def _text(message: ast.expr) -> str:
    """A message as text: a constant as it is, what is formatted in braces."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(_text(part) for part in message.values)
    if isinstance(message, ast.FormattedValue):
        return f"{{{ast.unparse(message.value)}}}"
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        return _text(message.left) + _text(message.right)
    if isinstance(message, ast.Call) and isinstance(message.func, ast.Attribute) and message.func.attr == "format":
        return _text(message.func.value)
    return ast.unparse(message)
