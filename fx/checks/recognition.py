"""Recognizing checks: branches on a traced value whose other side only raises (``if n != 4: raise``, ``assert``).

The decision reads the byte code of the branching function (:mod:`fx.checks.flow`), the message its source. Needs
neither torch nor the graph. Nothing is recognized where the byte code is unknown (:mod:`fx.checks.bytecode`). What is
recorded calls ``fx.assertions``.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from fx.checks.flow import Comparison, Flow, flow_of, value_of
from fx.provenance import line_of


class Check(NamedTuple):
    """A branch of which one side raises."""

    raises_if: bool
    """The truth value that leads to the ``raise``."""
    message: str
    """The message of the exception, with the source of what it formats in braces."""
    raised: CodeType | None
    """Code that leaves what is raised, or the message of an ``assert``, in the variable ``RAISED``.

    None where it says no more than the message."""


def pending_check(frame: FrameType, compared: Comparison | None = None) -> Check | None:
    """The check that ``frame`` is about to decide on, or None where both sides of its branch go on.

    It asks for the truth of a value, which ``compared`` gave, if that is known.
    """
    flow = flow_of(frame.f_code)
    sides = None if flow is None else flow.branch(frame.f_lasti)
    if flow is None or sides is None:
        return None
    for side, raises_if in zip(sides, (True, False), strict=True):
        if flow.raises(side, _let_through(frame.f_code)):
            line = line_of(frame.f_code, flow.raise_offset(side))
            if _is_control_flow(frame.f_code, line) or not flow.hangs_on(frame, compared, raises_if):
                return None
            return _check(frame, raises_if, line)
    return None


def _check(frame: FrameType, raises_if: bool, line: int) -> Check:
    """The check that ``frame`` decides on, whose ``raise`` stands in ``line``."""
    code = frame.f_code
    decided = line_of(code, frame.f_lasti)
    statement = _raising(code, line)
    if statement is None:
        shown = linecache.getline(code.co_filename, decided).strip()
        return Check(raises_if, shown or f"check in {code.co_name}, line {decided}", None)
    return Check(raises_if, _message_of(statement), _raised(code, statement, decided))


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
    if flow is None or found is None or compared.operator != "eq":
        return None
    operator, sides = found
    for side, holds in zip(sides, (True, False), strict=True):
        line = line_of(code, flow.raise_offset(side))
        if operator not in _OF_ELEMENTS or not flow.raises(side, _let_through(code)) or _is_control_flow(code, line):
            continue
        equal_raises = holds is _OF_ELEMENTS[operator]
        if operator in ("eq", "ne"):
            return None if equal_raises else ElementCheck(_check(frame, False, line), None)
        options = _options(flow, frame)
        if equal_raises and not isinstance(options, _HASHED):
            return ElementCheck(_check(frame, True, line), None)
        known = isinstance(options, (tuple, list, *_HASHED)) and not any(
            isinstance(one, compared.traced) for one in options
        )
        return ElementCheck(_check(frame, equal_raises, line), tuple(options)) if known else None
    return None


def hash_of_option(frame: FrameType) -> int | None:
    """The hash of the first of those that ``frame`` checks a value to be in, if it is a set; None if it does not."""
    flow = flow_of(frame.f_code)
    found = None if flow is None else flow.branch_on_elements(frame.f_lasti)
    if flow is None or found is None or found[0] not in ("in", "not in"):
        return None
    options = _options(flow, frame)
    raises = any(flow.raises(side, _let_through(frame.f_code)) for side in found[1])
    return hash(next(iter(options))) if raises and isinstance(options, _HASHED) and options else None


def _options(flow: Flow, frame: FrameType) -> Any:
    operands = flow.operands(frame.f_lasti)
    try:
        return value_of(operands[1] if operands else (), frame)
    except (LookupError, AttributeError):
        return None


_HASHED = (set, frozenset, dict)
_OF_ELEMENTS = {"eq": True, "ne": False, "in": True, "not in": False}
"""Comparisons that ask elements whether they are equal, and whether they hold where these are."""


def leaves(frame: FrameType) -> bool:
    """Return whether an exception that comes out of what ``frame`` is calling leaves ``frame`` too."""
    flow = flow_of(frame.f_code)
    return flow is not None and flow.leaves(frame.f_lasti, _let_through(frame.f_code))


class CompoundCheck(NamedTuple):
    """A check of several conditions, the first of which is asked for: ``if a and b: raise``, ``assert a or b``."""

    raises_if: bool
    """The truth value that all conditions must have for the ``raise``."""
    rest: tuple[CodeType, ...]
    """The conditions behind the one asked for, as expressions to evaluate in the frame."""
    message: str
    """As in ``Check``."""
    raised: CodeType | None
    """As in ``Check``."""


def compound_check(frame: FrameType, compared: Comparison | None = None) -> CompoundCheck | None:
    """The compound check that ``frame`` is deciding on, as :func:`pending_check`, or None. Needs the source."""
    code = frame.f_code
    flow = flow_of(code)
    if flow is None or flow.branch(frame.f_lasti) is None:
        return None
    for statement in _plain_statements(syntax_tree(code).body):
        found = _conditions(statement)
        if found is None:
            continue
        conditions, raises_if, raising = found
        index = _asked(frame, flow, conditions)
        if index is None or index == len(conditions) - 1:
            continue
        if not flow.hangs_on(frame, compared, raises_if):
            return None
        rest = [ast.Expression(expression) for expression in conditions[index + 1 :]]
        if any(isinstance(node, _WITH_EFFECTS) for tree in rest for node in ast.walk(tree)):
            return None
        compiled = tuple(compile(tree, code.co_filename, "eval") for tree in rest)
        decided = line_of(code, frame.f_lasti)
        return CompoundCheck(raises_if, compiled, _message_of(raising), _raised(code, raising, decided))
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


def _plain_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at any depth that no ``try`` with handlers surrounds."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.Try) and statement.handlers:
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _plain_statements(getattr(statement, field, []))


def _conditions(statement: ast.stmt) -> tuple[list[ast.expr], bool, ast.Raise | ast.Assert] | None:
    """The conditions of a compound check, the truth value of all that raises, and the statement that does."""
    if not isinstance(statement, (ast.If, ast.Assert)) or not isinstance(statement.test, ast.BoolOp):
        return None
    test = statement.test
    if isinstance(statement, ast.Assert):
        return (test.values, False, statement) if isinstance(test.op, ast.Or) else None
    raising = statement.body[0]
    only_raises = len(statement.body) == 1 and isinstance(test.op, ast.And)
    return (test.values, True, raising) if only_raises and isinstance(raising, ast.Raise) else None


_TRANSPARENT = frozenset(
    {"no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "record_function", "nullcontext",
     "device", "stream", "profile", "set_multithreading_enabled", "sdpa_kernel"}
)  # fmt: skip
"""Context managers that let exceptions through; any other may swallow them, as ``contextlib.suppress`` does."""


def _let_through(code: CodeType) -> Callable[[int], bool]:
    """Return whether all ``with`` blocks around an offset of ``code`` are of known, transparent context managers."""
    return lambda offset: _lets_exceptions_through(code, line_of(code, offset))


def _lets_exceptions_through(code: CodeType, line: int) -> bool:
    around = [s for s in ast.walk(syntax_tree(code)) if isinstance(s, ast.With) and _spans(s, line)]
    managers = [item.context_expr for statement in around for item in statement.items]
    called = [manager.func if isinstance(manager, ast.Call) else manager for manager in managers]
    names = [getattr(function, "attr", getattr(function, "id", "")) for function in called]
    return bool(names) and all(name in _TRANSPARENT for name in names)


def _is_control_flow(code: CodeType, raise_line: int) -> bool:
    """Return whether the ``raise`` ends an iteration, which is no error."""
    raised = [s.exc for s in ast.walk(syntax_tree(code)) if isinstance(s, ast.Raise) and _spans(s, raise_line)]
    named = [exception.func if isinstance(exception, ast.Call) else exception for exception in raised]
    return any(getattr(name, "id", "") in ("StopIteration", "StopAsyncIteration") for name in named)


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


RAISED = "__raised__"
"""See ``Check.raised``."""


def _raised(code: CodeType, statement: ast.Raise | ast.Assert, decided: int) -> CodeType | None:
    """Return what ``Check.raised`` says: variables that are set behind the line ``decided``, and what ``statement``
    raises.
    """
    raised = statement.msg if isinstance(statement, ast.Assert) else statement.exc
    arguments = raised.args if isinstance(raised, ast.Call) and not raised.keywords else [raised]
    if len(arguments) <= 1 and all(isinstance(argument, (ast.Constant, type(None))) for argument in arguments):
        return None
    branch = next(body for parent in ast.walk(syntax_tree(code)) for body in _blocks(parent) if statement in body)
    before = [
        one for one in branch[: branch.index(statement)] if one.lineno > decided and not isinstance(one, ast.Expr)
    ]
    if not all(isinstance(one, ast.Assign) and all(isinstance(to, ast.Name) for to in one.targets) for one in before):
        return None
    said = ast.copy_location(ast.Assign([ast.Name(RAISED, ast.Store())], cast("ast.expr", raised)), statement)
    module = ast.Module(copy.deepcopy([*before, said]), [])
    try:
        return compile(ast.fix_missing_locations(_Percent().visit(module)), code.co_filename, "exec")
    except (SyntaxError, ValueError):  # it needs its place in the source: await, say
        return None


def _blocks(parent: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(parent, field, None), list):
            yield block


class _Percent(ast.NodeTransformer):
    """Writes ``"got %d" % n`` as ``f"got {n}"``: only formatted strings, and not numbers, wait for a traced value."""

    conversion = re.compile(r"%(?:(%)|(\d*)(\.\d+)?([sradiufFeEgGxXo]))")

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Write it so where all conversions are plain, and their number is known."""
        self.generic_visit(node)
        pattern = node.left.value if isinstance(node.left, ast.Constant) else None
        if not isinstance(node.op, ast.Mod) or not isinstance(pattern, str):
            return node
        given = list(node.right.elts) if isinstance(node.right, ast.Tuple) else [node.right]
        found = list(self.conversion.finditer(pattern))
        count = sum(conversion[1] is None for conversion in found)
        if len(given) != count or pattern.count("%") != len(found) + len(found) - count:
            return node
        parts: list[ast.expr] = []
        end = 0
        for conversion in found:
            parts.append(ast.Constant(pattern[end : conversion.start()] + (conversion[1] or "")))
            end = conversion.end()
            if conversion[1] is None:
                parts.append(_formatted(given.pop(0), *conversion.groups()[1:]))
        return ast.copy_location(ast.JoinedStr([*parts, ast.Constant(pattern[end:])]), node)


def _formatted(value: ast.expr, width: str, precision: str | None, kind: str) -> ast.expr:
    """``value`` as a part of a formatted string that a conversion with ``%`` makes of it."""
    is_text = kind in "sra"
    form = (">" if is_text and width else "") + width + (precision or "") + ("" if kind in "sradiu" else kind)
    spec = ast.JoinedStr([ast.Constant(form)]) if form else None
    return ast.FormattedValue(value, ord(kind) if is_text and kind != "s" else -1, spec)


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
