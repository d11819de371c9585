"""The comparisons that a pass makes: an attribute of a node, and the value that the pass compares it with.

``node.target is torch.relu`` on a call of ``torch.sigmoid`` suggests the next program to try. When the pass reaches the
line of a comparison, both sides are evaluated again, if they have no effects.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple, get_args

import torch.fx
from torch import nn

import fx
from pytest_fx.search.coverage import branch_events, monitored
from pytest_fx.search.references import name_of
from pytest_fx.search.syntax import expression

MOST_WANTED = 40
"""The most elements of a container in which a pass looks a value up."""
_FUNCTIONS = frozenset(
    {"len", "type", "isinstance", "getattr", "slice", "tuple", "list", "set", "int", "float", "str", "bool"}
)
"""Functions without effects, which may be called again."""
_METHODS = frozenset(
    "get get_submodule keys values items dim size numel is_floating_point is_complex startswith endswith isdisjoint "
    "issubset issuperset count".split()
)
"""Methods without effects, which may be called again."""
_CALLS = ("call_function", "call_method", "call_module")
"""The kinds of nodes with arguments."""
_IMPURE = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)
_POSITIVE: dict[type, type] = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}
_LINE = re.compile(r'File "<program \d+>", line (\d+)')
NODES = (fx.Node, torch.fx.Node)
"""Classes of nodes."""
_PROGRAMS = (fx.GraphModule, torch.fx.GraphModule)


@dataclass(frozen=True, slots=True)
class Place:
    """The place in a program that computes a value."""

    line: int
    """The line of its text; 0 for an input."""
    name: str
    """The name of the node."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value of a program that differs from the value that the pass compares it with."""

    comparison: tuple[str, int, int]
    """The file, line and column of the comparison."""
    condition: tuple[str, int, int]
    """The file and line of its condition, and the instruction of the pass that called the function, or 0."""
    places: tuple[Place, ...]
    """The nodes that the pass inspects."""
    aspect: str
    """The attribute of a node or module that is compared; empty for another value."""
    value: Any
    """The value of the program: a constant, a class of modules, or the place of another value."""
    wanted: Any
    """The value that the pass compares it with."""
    is_type: bool
    """True if the value should be an instance of what is wanted."""
    words: tuple[str, ...]
    """The texts and attributes in the comparison, which may be names of parameters."""


class _Side(NamedTuple):
    """One side of a comparison."""

    value: CodeType
    """The expression."""
    parts: tuple[CodeType, ...]
    """The expression and its parts, from the outside in."""
    measured: CodeType | None
    """The sequence if its length is compared, and the shape if a number of dimensions is."""
    collected: CodeType | None
    """The sequence if it is compared as a set or as another container."""
    aspect: str
    """See :class:`Mismatch`."""
    words: tuple[str, ...]
    """See :class:`Mismatch`."""


class _Comparison(NamedTuple):
    """A comparison in the code of a pass."""

    place: tuple[str, int, int]
    """Its file, line and column."""
    operator: type
    """``ast.Eq``, ``ast.In``, ``ast.Lt``, ``ast.Call`` for ``isinstance``, and ``ast.Not`` for the truth of a side."""
    left: _Side
    """The left side."""
    right: _Side
    """The right side."""
    guards: tuple[_Guard, ...]
    """The parts of its condition that are evaluated before it."""


class _Guard(NamedTuple):
    """A part of a condition that decides whether a later part is evaluated."""

    part: CodeType
    """The part."""
    truth: bool
    """Its truth if the later part is evaluated."""


class PassComparisons:
    """The comparisons in the code of a pass, recorded while it runs."""

    def __init__(self, codes: Collection[CodeType]) -> None:
        """Take the code objects of the pass."""
        self._codes = frozenset(codes)
        self._by_file: dict[str, Mapping[int, list[_Comparison]]] = {
            file: _comparisons_in(file) for file in {code.co_filename for code in codes}
        }
        self._unequal: set[tuple[str, int, int]] = set()
        self.latest: dict[Any, Mismatch] = {}
        """The mismatches of the latest recording."""

    @contextmanager
    def recording(self) -> Generator[None]:
        """Record the comparisons that the pass makes inside the block."""
        self.latest = {}
        record = _monitored if hasattr(sys, "monitoring") else _traced
        with record(self._codes, self._note):
            yield

    def _note(self, frame: FrameType, line: int) -> None:
        for comparison in self._by_file[frame.f_code.co_filename].get(line, ()):
            with contextlib.suppress(Exception):  # a part of a condition may raise anything by itself
                self._compare(comparison, frame, line)

    def _compare(self, comparison: _Comparison, frame: FrameType, line: int) -> None:
        names = frame.f_locals
        if any(bool(eval(guard.part, frame.f_globals, names)) != guard.truth for guard in comparison.guards):
            return
        left_value, right_value = (
            eval(side.value, frame.f_globals, names) for side in (comparison.left, comparison.right)
        )
        wanted = list(_wanted(comparison.operator, left_value, right_value))
        if wanted:
            self._unequal.add(comparison.place)
        elif comparison.place not in self._unequal and type(left_value) is int and type(right_value) is int:
            wanted = [right_value + 1, right_value - 1]
        if not wanted:
            return
        side, value = comparison.left, left_value
        nodes = list(_nodes_in(side, value, frame))
        if not nodes and comparison.operator in (ast.Eq, ast.Is):
            nodes = list(_nodes_in(comparison.right, right_value, frame))
            if nodes:
                # of a tensor that the program holds, so that either side may change
                if isinstance(left_value, torch.Size | torch.dtype):
                    self._note_side(comparison, frame, line, side, value, wanted, nodes)
                side, value, wanted = comparison.right, right_value, [left_value]
        self._note_side(comparison, frame, line, side, value, wanted, nodes)

    def _note_side(
        self,
        comparison: _Comparison,
        frame: FrameType,
        line: int,
        side: _Side,
        value: Any,
        others: list[Any],
        nodes: list[Place],
    ) -> None:
        """Note that one side of a comparison should have another value, at the nodes that it inspects."""
        if side.measured is not None and side.aspect != "users":
            whole = eval(side.measured, frame.f_globals, frame.f_locals)
            others = [other for each in others if type(each) is int for other in _of_length(whole, each)]
            value = whole
        elif side.collected is not None:
            value = tuple(eval(side.collected, frame.f_globals, frame.f_locals))
            others = [tuple(other) for other in others if isinstance(other, set | frozenset | tuple | list)]
        places = tuple(nodes or self._around(frame, value))
        caller = frame.f_back.f_lasti if frame.f_back is not None and frame.f_back.f_code in self._codes else 0
        for other in others[:MOST_WANTED]:
            mismatch = Mismatch(
                comparison.place,
                (frame.f_code.co_filename, line, caller),
                places,
                "target" if isinstance(value, nn.Module) else "op" if other in _CALLS else side.aspect,
                _plain(value),
                _plain(other),
                comparison.operator is ast.Call,
                side.words,
            )
            self.latest.setdefault(repr(mismatch), mismatch)

    def _around(self, frame: FrameType | None, value: Any) -> list[Place]:
        """Return the nodes in local variables, up the stack, that have a value among their arguments.

        If there are none, return those of the nearest function with some: the value may come from an argument.
        """
        nodes: list[Any] = []
        nearest: list[Any] = []
        while frame is not None and frame.f_code in self._codes:
            nodes_here = [node for node in frame.f_locals.values() if isinstance(node, NODES)]
            nodes += (node for node in nodes_here if _has(node, value))
            nearest = nearest or nodes_here
            frame = frame.f_back
        return list(map(_place, nodes or nearest))


def _has(node: Any, value: Any) -> bool:
    """Return whether a value is an argument of a node or the tail of its arguments; True for None, a missing one."""
    tails = [tuple(node.args[start:]) for start in range(len(node.args))]
    arguments = (*node.args, *node.kwargs.values())
    inner = [each for argument in arguments if isinstance(argument, tuple | list) for each in argument]
    ends = (
        end for each in (*arguments, *inner) if isinstance(each, slice) for end in (each.start, each.stop, each.step)
    )
    return value in (*arguments, *inner, *ends, *tails, None)


def _wanted(operator: type, left: Any, right: Any) -> Iterator[Any]:
    """Yield values of the left side that would change a comparison's result; nothing if both sides are equal."""
    if operator is ast.Call:
        several = right if isinstance(right, tuple | list | set | frozenset) else (right,)
        kinds = [kind for each in several for kind in get_args(each) or (each,)]
        if not isinstance(left, tuple(kinds)):
            yield from kinds
    elif operator is ast.In:
        if left not in right:
            yield from (sorted(right, key=name_of) if isinstance(right, set | frozenset) else list(right))[:MOST_WANTED]
    elif operator is ast.Not:
        if type(left) is bool:
            yield not left
        elif left == ():  # of a node without arguments, which no operation computes
            yield from _CALLS
    elif operator in (ast.Eq, ast.Is):
        if left is not right and not bool(left == right):
            yield right
    elif type(left) is int and type(right) is int:
        yield from (each for each in (right, right + 1, right - 1) if each != left)


def _of_length(whole: Any, length: int) -> Iterator[Any]:
    """Yield a sequence of another length: its first elements, its last ones, or all with the last one repeated."""
    kind = list if isinstance(whole, list) else tuple
    yield kind((*whole[:length], *(whole[-1:] * max(0, length - len(whole)))))
    if 0 < length < len(whole):
        yield kind(whole[-length:])


def _nodes_in(side: _Side, value: Any, frame: FrameType) -> Iterator[Place]:
    """Yield the nodes that a side of a comparison inspects: those in it, or those that call a module in it."""
    for part in side.parts:
        with contextlib.suppress(Exception):
            operand = eval(part, frame.f_globals, frame.f_locals)
            if isinstance(operand, NODES) and operand is not value:
                yield _place(operand)
                return
            if isinstance(operand, nn.Module) and not isinstance(operand, _PROGRAMS):
                yield from _calls_of(operand, frame)
                return
    if isinstance(value, NODES):
        yield _place(value)


def _calls_of(module: nn.Module, frame: FrameType | None) -> Iterator[Place]:
    """Yield the nodes that call a module, in the nearest program in a local variable up the stack."""
    while frame is not None:
        for program in frame.f_locals.values():
            if isinstance(program, _PROGRAMS):
                modules = dict(program.named_modules(remove_duplicate=False))
                for node in program.graph.nodes:
                    if node.op == "call_module" and modules.get(str(node.target)) is module:
                        yield _place(node)
                return
        frame = frame.f_back


def _place(node: Any) -> Place:
    line = _LINE.search(node.stack_trace or "")
    return Place(int(line[1]) if line else 0, node.name)


def _plain(value: Any) -> Any:
    """Return a value without nodes and modules in it."""
    if isinstance(value, NODES):
        return _place(value)
    if isinstance(value, nn.Module):
        return type(value)
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value


@functools.cache
def _comparisons_in(file: str) -> dict[int, list[_Comparison]]:
    """Return the comparisons in a file, by line."""
    by_line: dict[int, list[_Comparison]] = {}
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return by_line
    for part, guards in _with_guards(tree, ()):
        for left_part, kind, right_part in _compared_in(part):
            if _is_pure(left_part) and _is_pure(right_part):
                place = file, right_part.lineno, right_part.col_offset
                compared = _Comparison(place, kind, _side(left_part), _side(right_part), guards)
                by_line.setdefault(left_part.lineno, []).append(compared)
    return by_line


def _with_guards(part: ast.AST, guards: tuple[_Guard, ...]) -> Iterator[tuple[ast.AST, tuple[_Guard, ...]]]:
    """Yield the parts of a program, each with the guards in its condition."""
    yield part, guards
    before: dict[ast.AST, tuple[_Guard, ...]] = {}
    match part:
        case ast.BoolOp(op=operator, values=values):
            truth = isinstance(operator, ast.And)
            conditions = [_Guard(_compiled(value), truth) if _is_pure(value) else None for value in values]
            before = {value: tuple(filter(None, conditions[:place])) for place, value in enumerate(values)}
        case ast.IfExp(test=test, body=body, orelse=other) if _is_pure(test):
            before = {body: (_Guard(_compiled(test), True),), other: (_Guard(_compiled(test), False),)}
        case _:
            pass
    for child in ast.iter_child_nodes(part):
        inner = () if isinstance(child, ast.stmt) else (*guards, *before.get(child, ()))
        yield from _with_guards(child, inner)


def _compared_in(part: ast.AST) -> Iterator[tuple[ast.expr, type, ast.expr]]:
    """Yield the comparisons of a part of a program: the left side, the operator, the right side."""
    match part:
        case ast.Compare(left=ast.Call(func=ast.Name("type"), args=[left]), ops=[_], comparators=[right]):
            yield left, ast.Call, right
        case ast.Compare(left=left, ops=operators, comparators=others):
            for first, operator, second in zip((left, *others), operators, others, strict=False):
                sides = (second, first) if isinstance(first, ast.Constant) else (first, second)
                yield sides[0], _POSITIVE.get(type(operator), type(operator)), sides[1]
        case ast.Call(func=ast.Name("isinstance"), args=[left, right]):
            yield left, ast.Call, right
        case ast.Match(subject=subject, cases=cases):
            for case in cases:
                yield from _matched(subject, case.pattern)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from _as_truth(test)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _as_truth(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _as_truth(operand)
        case _:
            pass


def _as_truth(test: ast.expr) -> Iterator[tuple[ast.expr, type, ast.expr]]:
    """Yield an expression whose truth is tested, as a comparison."""
    match test:
        case ast.Call(func=ast.Name("isinstance")):
            pass
        case ast.Attribute() | ast.Name() | ast.Subscript() | ast.Call():
            yield test, ast.Not, test
        case _:
            pass


def _matched(subject: ast.expr, pattern: ast.pattern) -> Iterator[tuple[ast.expr, type, ast.expr]]:
    """Yield the comparisons by which a pattern matches an expression."""

    def at(name: str) -> ast.expr:
        return ast.copy_location(expression(f"({ast.unparse(subject)}){name}"), subject)

    match pattern:
        case ast.MatchValue(value=value):
            yield subject, ast.Eq, value
        case ast.MatchSingleton(value=value):
            yield subject, ast.Is, ast.copy_location(ast.Constant(value), pattern)
        case ast.MatchOr(patterns=patterns):
            for each in patterns:
                yield from _matched(subject, each)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            yield from _matched(subject, inner)
        case ast.MatchSequence(patterns=patterns):
            for place, each in enumerate(patterns):
                if isinstance(each, ast.MatchStar):
                    break
                yield from _matched(at(f"[{place}]"), each)
        case ast.MatchClass(cls=kind, kwd_attrs=names, kwd_patterns=patterns):
            yield subject, ast.Call, kind
            for name, each in zip(names, patterns, strict=True):
                yield from _matched(at(f".{name}"), each)
        case _:
            pass


def _is_pure(expression: ast.expr) -> bool:
    """Return whether an expression may be evaluated again."""
    for part in ast.walk(expression):
        if isinstance(part, _IMPURE):
            return False
        match part:
            case ast.Call(func=ast.Name(name)) if name in _FUNCTIONS:
                pass
            case ast.Call(func=ast.Attribute(attr=name)) if name in _METHODS:
                pass
            case ast.Call():
                return False
            case _:
                pass
    return True


def _side(expression: ast.expr) -> _Side:
    kinds = (ast.Name, ast.Attribute, ast.Subscript)
    parts = [part for part in ast.walk(expression) if isinstance(part, kinds) and isinstance(part.ctx, ast.Load)]
    names = [part.attr for part in parts if isinstance(part, ast.Attribute)]
    texts = [part.value for part in ast.walk(expression) if isinstance(part, ast.Constant)]
    measured = collected = None
    match expression:
        case ast.Call(func=ast.Name("len"), args=[inner]):
            measured = _compiled(inner)
        case ast.Call(func=ast.Attribute(inner, "dim"), args=[]) | ast.Attribute(inner, "ndim"):
            measured = _compiled(ast.copy_location(ast.Attribute(inner, "shape", ast.Load()), inner))
        case ast.Call(func=ast.Name("set" | "frozenset" | "list" | "tuple"), args=[inner]):
            collected = _compiled(inner)
        case _:
            pass
    aspect = "target" if "target" in names else names[0] if names else ""
    words = (*names, *(text for text in texts if isinstance(text, str)))
    return _Side(_compiled(expression), tuple(map(_compiled, parts)), measured, collected, aspect, words)


def _compiled(expression: ast.expr) -> CodeType:
    return compile(ast.Expression(expression), "<comparison>", "eval")


@contextmanager
def _traced(codes: Collection[CodeType], note: Callable[[FrameType, int], None]) -> Generator[None]:
    """Report each reached line, by tracing, unless other code traces."""
    if sys.gettrace() is not None:
        yield
        return

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event in ("line", "return"):
            note(frame, frame.f_lineno)
        return step

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return step if frame.f_code in codes else None

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def _monitored(codes: Collection[CodeType], note: Callable[[FrameType, int], None]) -> Generator[None]:
    """Report each reached line, through ``sys.monitoring``."""
    monitoring: Any = getattr(sys, "monitoring", None)
    events = monitoring.events

    def line(code: CodeType, number: int) -> None:
        note(sys._getframe(1), number)  # pyright: ignore[reportPrivateUsage]

    def leave(code: CodeType, offset: int, value: Any) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        note(frame, frame.f_lineno)

    # a comprehension has one event for its line, before its first element
    callbacks = {events.LINE: line, **dict.fromkeys((events.PY_RETURN, events.PY_YIELD, *branch_events()), leave)}
    with monitored(codes, callbacks):
        yield
