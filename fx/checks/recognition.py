"""Recognition of checks: branches on a traced value whose other side only raises (``if n != 4: raise``, ``assert``).

The decision reads the byte code of the branching function (:mod:`fx.bytecode.flow`), the message its source. Needs
neither torch nor the graph. Nothing is recognized if the byte code is unknown (:mod:`fx.bytecode.dialects`). The
recorded nodes call ``fx.assertions``.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import operator
import textwrap
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple

from fx.bytecode.dataflow import CodeCall, Dataflow, Makers, dataflow, known_dataflow
from fx.bytecode.dialects import asks_identity
from fx.bytecode.flow import Condition
from fx.bytecode.values import Evaluator, Names, lets_through, value_of
from fx.provenance import line_of


class Check(NamedTuple):
    """A branch with one side that raises."""

    raises_if: bool
    """The truth value that leads to the ``raise``."""
    message: str
    """The message of the exception, with the source of formatted values in braces."""
    raised_at: int
    """The offset of the instruction that raises it."""
    rest: tuple[Condition, ...] = ()
    """The other conditions that have to hold for the ``raise``: ``if a and b: raise``, ``assert a or b``."""
    options: tuple[Any, ...] = ()
    """The container of ``assert x.ndim in (2, 3)``, when the value is compared with the first of its elements."""


class DecidingComparison(NamedTuple):
    """The comparison that resulted in the value whose truth is tested."""

    operator: str
    """The name of the operation: ``"eq"``, ``"lt"``, …; only those of comparisons matter."""
    traced: type
    """The class of traced values; their attributes, elements and results are traced values too."""


_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The comparison that Python tries on the right operand if the left one does not implement it."""


def pending_check(frame: FrameType, compared: DecidingComparison | None = None) -> Check | None:
    """Return the check that ``frame`` is about to decide on, or None if both sides of its branch continue.

    It tests the truth of a value, which ``compared`` resulted in, if that is known.
    """
    flow = dataflow(frame.f_code)
    if flow is None:
        return None
    conditions = flow.conditions(frame.f_lasti, _let_through(frame))
    if conditions and _depends_only_on(flow, frame, compared, conditions[0].raises_if):
        check = _check(frame, conditions[0].raises_if, flow.raise_offset(conditions[-1].leads_to))
        return None if check is None else check._replace(rest=tuple(conditions[1:]))
    return None if compared is None else _element_check(flow, frame, compared)


def _depends_only_on(flow: Dataflow, frame: FrameType, compared: DecidingComparison | None, raises_if: bool) -> bool:
    """Return whether the branch in ``frame`` depends only on the value whose truth is tested.

    A comparison that converts its result tests two truths in one place. If it compares containers, it tests the results
    for elements first, and then its own. ``(x.size(0), n) == (3, 4)`` tests ``x.size(0) == 3``.

    Args:
        flow: the function of the frame.
        frame: the testing frame, at an instruction for which ``branch`` returns two sides.
        compared: the comparison with the value as result, or None if it is not known.
        raises_if: the truth value that leads to a ``raise``.
    """
    index = flow.running(frame)
    if not flow.is_converted(index):
        return True
    comparison = flow.comparison(index) or ""
    if comparison != "eq":
        # elements are tested for equality up to the first unequal pair, which decides the comparison
        return compared is not None and compared.operator in (comparison, _REFLECTED[comparison])
    if not raises_if:
        return True
    # if the program continues when both are equal, all elements have to be equal, and each is tested
    names = Names.of_frame(frame)
    return compared is not None and any(
        _is_one_value(flow, operand, names, compared.traced) for operand in flow.operands(index)
    )


def _is_one_value(flow: Dataflow, makers: Makers, names: Names, traced: type) -> bool:
    """Return whether an operand is known to have no elements that a comparison tests."""
    try:
        if _is_traced(flow, makers, names, traced):
            return True
        value = value_of(flow, makers, names)
    except LookupError:
        return False
    is_container = hasattr(type(value), "__iter__") or isinstance(value, (slice, SimpleNamespace))
    return isinstance(value, (str, bytes)) or not is_container


def _is_traced(flow: Dataflow, makers: Makers, names: Names, traced: type) -> bool:
    """Return whether a value is an attribute, element, or result of a method or operator of a traced one."""
    kind, operands, detail = flow.expression(makers)
    if kind == "load":
        return isinstance(names.value(detail), traced)
    if kind == "call":
        return _is_traced(flow, detail.callee, names, traced)
    sources = operands if kind == "binary" else operands[:1] if kind in ("attribute", "element", "sliced") else ()
    return any(_is_traced(flow, source, names, traced) for source in sources)


def _check(frame: FrameType, raises_if: bool, offset: int) -> Check | None:
    """Return the check that ``frame`` decides on, which raises at an offset; None if that only ends an iteration."""
    if _is_control_flow(frame, offset):
        return None
    code, line = frame.f_code, line_of(frame.f_code, frame.f_lasti)
    statement = _raising(code, line_of(code, offset))
    if statement is None:
        message = linecache.getline(code.co_filename, line).strip() or f"check in {code.co_name}, line {line}"
    else:
        message = _message_of(statement)
    return Check(raises_if, message, offset)


def _element_check(flow: Dataflow, frame: FrameType, compared: DecidingComparison) -> Check | None:
    """Return the check of a comparison of containers, or of ``value in container``, that now tests one element."""
    comparison, sides = flow.branch_on_elements(frame.f_lasti) or ("", ())
    # From Python 3.13 on, a comparison also tests the truth of its own result here, such as the result of a class's
    # `__ne__`.
    if comparison not in _OF_ELEMENTS or compared.operator != "eq":
        return None
    raising = [flow.raises(side, _let_through(frame)) for side in sides]
    if not any(raising):
        return None
    equal_raises = raising[0] is _OF_ELEMENTS[comparison]
    check = _check(frame, equal_raises, flow.raise_offset(sides[not raising[0]]))
    # If equal containers raise, all elements have to be equal, and none decides alone; else each decides.
    if check is None or comparison in ("eq", "ne"):
        return None if equal_raises else check
    options = _options(flow, frame)
    # A sequence compares each of its elements in turn, a set only those with the hash of the value.
    if equal_raises and not isinstance(options, _HASHED):
        return check
    is_known = isinstance(options, (tuple, list, *_HASHED))
    if not is_known or any(isinstance(option, compared.traced) for option in options):
        return None
    return check._replace(options=tuple(options))


def hash_of_option(frame: FrameType) -> int | None:
    """Return the hash of the first element of a set, if ``frame`` checks that a value is in the set; else None."""
    flow = dataflow(frame.f_code)
    comparison, sides = (None if flow is None else flow.branch_on_elements(frame.f_lasti)) or ("", ())
    if flow is None or comparison not in ("in", "not in"):
        return None
    options = _options(flow, frame)
    raises = any(flow.raises(side, _let_through(frame)) for side in sides)
    return hash(next(iter(options))) if raises and isinstance(options, _HASHED) and options else None


def _options(flow: Dataflow, frame: FrameType) -> Any:
    """Return the container in which ``frame`` looks for a value; None if it is not known."""
    try:
        return value_of(flow, flow.operand(flow.running(frame), 1), Names.of_frame(frame))
    except LookupError:
        return None


_HASHED = (set, frozenset, dict)
_OF_ELEMENTS = {"eq": True, "ne": False, "in": True, "not in": False}
"""Comparisons that test elements for equality, and whether they hold if these are equal."""


def leaves(frame: FrameType) -> bool:
    """Return whether an exception from the current call in ``frame`` leaves ``frame`` too."""
    flow = dataflow(frame.f_code)
    return flow is not None and flow.leaves(frame.f_lasti, _let_through(frame))


def values_of(conditions: Iterable[Condition], frame: FrameType, traced: type) -> list[tuple[Any, bool]]:
    """Return the values of conditions in ``frame``, each with the truth value that leads to the ``raise``.

    Raises:
        LookupError: they run functions of the program.
    """
    evaluator = _ConditionEvaluator(known_dataflow(frame.f_code), Names.of_frame(frame), traced)
    return [(evaluator.at(condition.place), condition.raises_if) for condition in conditions]


class _ConditionEvaluator(Evaluator):
    """Computes conditions on traced values, which record their operations, and on other values."""

    def __init__(self, flow: Dataflow, names: Names, traced: type) -> None:
        super().__init__(flow, names)
        self._traced = traced

    def at(self, place: int) -> Any:
        """Return the condition of a branch."""
        value = self.value(self.flow.operand(place, 1))
        return self.of_compare("is not", value, None) if asks_identity(self.flow.steps[place]) else value

    def of_truth(self, _: Any, value: Any) -> Any:
        return value

    def of_attribute(self, name: str, owner: Any) -> Any:
        return getattr(owner, name) if isinstance(owner, self._traced) else super().of_attribute(name, owner)

    def of_element(self, _: Any, owner: Any, key: Any) -> Any:
        return owner[key] if isinstance(owner, self._traced) else super().of_element(_, owner, key)

    def of_call(self, call: CodeCall) -> Any:
        callee, *args = map(self.value, (call.callee, *call.positional))
        if not isinstance(callee, self._traced) or call.keywords or call.is_spread:
            raise LookupError
        return callee(*args)

    def of_compare(self, name: str, left: Any, right: Any) -> Any:
        is_traced = isinstance(left, self._traced) or isinstance(right, self._traced)
        if name in ("is", "is not") and not is_traced:
            return (left is right) is (name == "is")
        if name in _REFLECTED and is_traced:
            return getattr(operator, name)(left, right)
        raise LookupError(name)


def _let_through(frame: FrameType) -> Callable[[int], bool]:
    """Return a function of a handler's offset in a frame's code: true if the ``with`` swallows no exceptions."""
    return lambda handler: lets_through(frame.f_code, handler, Names.of_frame(frame))


def _is_control_flow(frame: FrameType, offset: int) -> bool:
    """Return whether the exception raised at an offset ends an iteration, which is no error."""
    try:
        flow = known_dataflow(frame.f_code)
        makers = flow.raised(offset)
        kind, _, detail = flow.expression(makers)
        raised = value_of(flow, detail.callee if kind == "call" else makers, Names.of_frame(frame))
    except LookupError:
        return False
    return isinstance(raised, type) and issubclass(raised, (StopIteration, StopAsyncIteration))


def _raising(code: CodeType, raise_line: int) -> ast.Raise | ast.Assert | None:
    """Return the ``raise`` or ``assert`` at ``raise_line`` of ``code``; None if there is no source."""
    for statement in ast.walk(_syntax_tree(code)):
        is_raise = isinstance(statement, (ast.Assert, ast.Raise))
        if is_raise and statement.lineno <= raise_line <= (statement.end_lineno or statement.lineno):
            return statement
    return None


def _message_of(statement: ast.Raise | ast.Assert) -> str:
    """Return the message of an ``assert`` or ``raise``."""
    if isinstance(statement, ast.Assert):
        return f"assertion failed: {ast.unparse(statement.test)}" if statement.msg is None else _text(statement.msg)
    if (raised := statement.exc) is None:
        return "raised again"
    return _text(raised.args[0]) if isinstance(raised, ast.Call) and raised.args else ast.unparse(raised)


@lru_cache(maxsize=32)
def _syntax_tree(code: CodeType) -> ast.Module:
    """Return the syntax tree of the function, with the file's line numbers; empty if there is no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return ast.Module(body=[], type_ignores=[])
    return ast.increment_lineno(tree, max(first, 1) - 1)


def _text(message: ast.expr) -> str:
    """Return a message as text: constants unchanged, formatted values in braces."""
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
