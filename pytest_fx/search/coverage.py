"""The part of a pass's own code that random programs reach: its lines, and both outcomes of its conditions.

Code that was never reached was never judged. Python 3.12 and later report the lines and branches of single functions
(``sys.monitoring``). Earlier versions trace each instruction of these functions, if no other code traces.
"""

from __future__ import annotations

import dis
import itertools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import fx
import pytest_fx
from fx import GraphModule
from fx.bytecode.dialects import JUMPS, dialect, jumps_if
from pytest_fx.forms import unwrapped
from pytest_fx.harness.pass_run import parts_of
from pytest_fx.search.references import references_of

LONGEST_TEXT = 60
"""The most characters of a line or condition that are shown."""
MOST_SHOWN = 8
"""The most places that are listed."""
_TOOLS = (4, 3, 1, 0)
"""Numbers of ``sys.monitoring`` tools for us, the usually free ones first."""
_NOT_CONDITIONS = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "WITH_EXCEPT_START", "GET_LEN"})
"""Instructions before a jump that belongs to ``except``, ``with`` or ``match``."""
_EDITS = frozenset(
    "add_submodule call_function call_method call_module create_node delete_submodule erase_node insert_arg "
    "inserting_after inserting_before node_copy replace_all_uses_with replace_input_with replace_pattern "
    "replace_pattern_with_filters update_arg update_kwarg".split()
)
"""Names in torch.fx that only edit programs; ``append``, say, is also a method of lists."""
_FIELDS = frozenset({"op", "target", "args", "kwargs"})
"""Attributes of nodes."""
_STORES = frozenset({"STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SUBSCR"})
_MAY_EDIT = frozenset({"append", "prepend", "setattr", "delattr"})
"""Names that may be edits, as any store may."""
_STATEMENT = re.compile(r"(if|elif|while)\b")
_PADDING = frozenset({"EXTENDED_ARG", "NOT_TAKEN", "CACHE"})
"""Instructions that belong to the next one, or do nothing."""


class Point(NamedTuple):
    """A line, or one outcome of a condition."""

    file: str
    """The file."""
    line: int
    """The line."""
    function: str = ""
    """The function whose code it is: a line that contains a lambda has points of two functions."""
    condition: str = ""
    """The text of the condition; empty for a line."""
    outcome: bool | None = None
    """The truth of the condition; None for a line."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a pass's own code that was reached."""

    reached: int
    """The number of lines and outcomes of conditions that some program reached."""
    total: int
    """The number of all lines and outcomes."""
    unreached: tuple[str, ...]
    """The others, in words: neighbouring lines together, without outcomes that lead to one of these."""

    def __str__(self) -> str:
        return f"{self.reached} of {self.total} lines and branches of its code were reached"

    @property
    def listed(self) -> str:
        """The code that no program reached, a line each; empty if all was reached."""
        first = self.unreached[:MOST_SHOWN]
        more = len(self.unreached) - len(first)
        return "\n".join([*(f"no program reached {each}" for each in first), *([f"… and {more} more"] if more else [])])


Reached = tuple[Point | None, int]
"""A point, or None for an instruction without one; and the offset of the calling instruction of the pass, or 0."""


class PassCode:
    """The code of a pass, and its reached points."""

    def __init__(self, codes: Iterable[CodeType], pass_: Any = None) -> None:
        """Take the :attr:`~pytest_fx.search.references.PassReferences.codes` of a pass, with the functions inside them.

        Code of libraries, this one included, does not count, except for the modules that define ``pass_`` itself.
        """
        homes = {home_of(part) for part in parts_of(pass_)}
        own = [part for code in codes if is_own(code, homes) for part in _with_inner(code)]
        self._codes = {code: _Layout(code) for code in own}
        self.points = self._all_points()
        """All points."""
        self.only_cleans_up = not any(layout.may_edit for layout in self._codes.values())
        """True if no line is known that edits programs, beside calls of ``eliminate_dead_code``."""
        self.reached = frozenset[Point]()
        """The points that were reached."""
        self.latest = frozenset[Point]()
        """The points that were reached in the latest recording."""
        self.latest_paths = frozenset[tuple[Point, int]]()
        """These points with the calling instruction of the pass: a function may test other values in each call."""
        self.is_measured = True
        """False after other code was tracing."""

    @property
    def codes(self) -> Collection[CodeType]:
        """The code objects that count."""
        return self._codes.keys()

    @property
    def is_whole(self) -> bool:
        """True if nothing is left to reach, as far as it is known."""
        return not self.is_measured or self.points <= self.reached

    @property
    def has_unreached_edits(self) -> bool:
        """True if no program reached some line that is known to edit programs."""
        return self.is_measured and any(not layout.edits <= self.reached for layout in self._codes.values())

    @property
    def conditions(self) -> Mapping[tuple[str, int], Sequence[Point]]:
        """The outcomes of the conditions of each line, by file and line."""
        by_line: dict[tuple[str, int], list[Point]] = {}
        for point in self.points:
            if point.outcome is not None:
                by_line.setdefault((point.file, point.line), []).append(point)
        return by_line

    def leave_out_what_runs_in(self, program: GraphModule) -> None:
        """Exclude the functions and modules that the pass puts into programs: they run and are judged there."""
        modules = dict(program.named_modules(remove_duplicate=False))
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._leave_out(node.target)
            elif (module := modules.get(str(node.target))) is not None:  # a wrong pass may call a missing module
                self._leave_out(type(module))

    def _leave_out(self, target: Any) -> None:
        functions = vars(target).values() if isinstance(target, type) else (target,)
        own = [code for each in functions if (code := getattr(each, "__code__", None)) in self._codes]
        if not own:
            return
        codes = {part for code in (*own, *references_of(target).codes) for part in _with_inner(code)}
        for code in codes & self._codes.keys():
            if code in own or self.reached.isdisjoint(self._codes[code].points):  # code that the pass also calls stays
                del self._codes[code]
        self.points = self._all_points()
        self.reached &= self.points

    def _all_points(self) -> frozenset[Point]:
        return frozenset(point for layout in self._codes.values() for point in layout.points)

    @property
    def may_have_edited(self) -> bool:
        """True if a line that may edit programs was reached in the latest recording, or no such line is known."""
        layouts = self._codes.values()
        if not self.is_measured or not any(layout.edits for layout in layouts):
            return True
        return any(not self.latest.isdisjoint(layout.may_edit) for layout in layouts)

    @property
    def has_edited(self) -> bool:
        """True if a line that edits programs was reached in the latest recording."""
        return self.is_measured and any(not self.latest.isdisjoint(layout.edits) for layout in self._codes.values())

    @contextmanager
    def recording(self) -> Generator[None]:
        """Record the points that are reached inside the block."""
        self.latest, self.latest_paths = frozenset(), frozenset()
        if not self._codes:
            yield
            return
        record = _monitored if hasattr(sys, "monitoring") else _traced
        with record(self._codes) as reached:
            try:
                yield
            finally:  # also if the pass raises
                self.is_measured &= reached is not None
                if reached is not None:
                    self.latest_paths = frozenset((point, caller) for point, caller in reached() if point is not None)
                    self.latest = frozenset(point for point, _ in self.latest_paths)
                    self.reached |= self.latest

    def coverage(self) -> Coverage | None:
        """Return the coverage so far; None if the pass has no code of its own, or other code was tracing."""
        if not self.points or not self.is_measured:
            return None
        return Coverage(len(self.reached), len(self.points), tuple(self._unreached()))

    def _unreached(self) -> Iterator[str]:
        missing = self.points - self.reached
        lines = {(point.file, point.line) for point in missing if point.outcome is None}
        leads = {point: line for layout in self._codes.values() for point, line in layout.leads.items()}
        every = {(point.file, point.line) for point in self.points if point.outcome is None}
        texts: list[tuple[str, int, str]] = []
        for first, last in _runs(lines, every):
            place = f"{_shown(first[0])}:{first[1]}" + (f"-{last[1]}" if last != first else "")
            texts.append((*first, f"{place}: {_shortened(linecache.getline(*first))}"))
        for point in missing:
            here, there = (point.file, point.line), (point.file, leads.get(point, point.line))
            if point.outcome is not None and here not in lines and there not in lines:
                outcome = "true" if point.outcome else "false"
                texts.append((*here, f"{_shown(point.file)}:{point.line}: {point.condition} being {outcome}"))
        return (text for *_, text in sorted(texts))


class _Layout:
    """The places of the lines and conditions of a function in its code."""

    def __init__(self, code: CodeType) -> None:
        self._file, self._function = code.co_filename, _place_of(code)
        lines = {line for *_, line in code.co_lines() if line}
        head = code.co_firstlineno
        if code.co_name[:1] != "<" and len(lines) > 1:  # a lambda begins with its body
            lines.discard(head)
        self.lines = {line: Point(self._file, line, self._function) for line in lines}
        """The point of each line."""
        self.jumps: dict[int, tuple[int, Point | None, Point | None]] = {}
        """For the offset of each condition: the offset of its jump, the outcome if it jumps, and the other outcome."""
        self.leads: dict[Point, int] = {}
        """The line at which each outcome of a condition continues."""
        self._instructions = list(dis.get_instructions(code))
        self._line_at = {start: line for start, _, line in code.co_lines() if line}
        self._find_jumps()
        self.edits = self._lines_with(lambda name, value: value in (_FIELDS if name == "STORE_ATTR" else _EDITS))
        """Lines that edit programs."""
        self.may_edit = self.edits | self._lines_with(lambda name, value: name in _STORES or value in _MAY_EDIT)
        """Lines that edit programs, and lines that may."""

    @property
    def points(self) -> Iterator[Point]:
        """Yield all points."""
        yield from self.lines.values()
        for _, *ways in self.jumps.values():
            yield from (way for way in ways if way is not None)

    def came(self, offset: int, destination: int) -> Point | None:
        """Return the outcome of the condition at ``offset``, if the code continued at ``destination``."""
        target, jump_outcome, next_outcome = self.jumps.get(offset, (0, None, None))
        return jump_outcome if self._start(destination) == target else next_outcome

    def reached_at(self, offset: int) -> Point | None:
        """Return the line that the instruction at ``offset`` proves to be reached, if any.

        Up to Python 3.11, the jump back to a loop's head belongs to the loop's last line, even if that was not reached.
        """
        line = self.line_of(offset)
        return None if offset in self._jumping and line in self._working else self.lines.get(line)

    def line_of(self, offset: int) -> int:
        """Return the line of the instruction at ``offset``; 0 if it has none."""
        return self._lines.get(offset, 0)

    def _find_jumps(self) -> None:
        starts, lines, start, line = dict[int, int](), dict[int, int](), None, None
        for instruction in self._instructions:
            offset = instruction.offset
            start = offset if start is None else start
            line = self._line_at.get(offset, line)
            if line is not None:
                lines[offset] = line
            starts[offset] = start
            if instruction.opname not in _PADDING:
                start = None
        # an instruction with its prefixes has the offset of the first of them
        self._starts, self._lines = starts, lines
        self._jumping, self._working = set[int](), set[int]()  # offsets of jumps, and lines with other instructions
        if dialect() is None:
            return
        self._jumping = {each.offset for each in self._instructions if each.opname in JUMPS}
        others = (each for each in self._instructions if each.opname not in _PADDING)
        self._working = {self.line_of(each.offset) for each in others if each.offset not in self._jumping}
        real = [instruction for instruction in self._instructions if instruction.opname not in _PADDING]
        for before, jump, behind in zip([None, *real], real, [*real[1:], None], strict=False):
            truth = _jumps_on(jump.opname)
            if truth is None or behind is None or (before is not None and before.opname in _NOT_CONDITIONS):
                continue
            line, text = self._condition(jump, before)
            if line is None or text.startswith("assert "):  # assertions as pytest rewrites them
                continue
            if "NONE" in jump.opname:  # jumps if the value is None, or if it is not
                truth = ("NOT_NONE" in jump.opname) == ("is not None" in text)
            target = self._start(jump.argval)
            jump_outcome, next_outcome = (
                Point(self._file, line, self._function, text, outcome) for outcome in (truth, not truth)
            )
            self.leads |= {jump_outcome: lines.get(target, line), next_outcome: lines.get(behind.offset, line)}
            is_assertion = "AssertionError" in str(behind.argval) or behind.opname == "LOAD_ASSERTION_ERROR"
            self.jumps[jump.offset] = target, jump_outcome, None if is_assertion else next_outcome

    def _lines_with(self, is_wanted: Callable[[str, Any], bool]) -> frozenset[Point]:
        named = [each for each in self._instructions if "CONST" not in each.opname]  # a text constant is no name
        wanted = (each.offset for each in named if is_wanted(each.opname, each.argval))
        points = (self.lines.get(self.line_of(offset)) for offset in wanted)
        return frozenset(point for point in points if point is not None)

    def _start(self, offset: int) -> int:
        return self._starts.get(offset, offset)

    def _condition(self, jump: Any, before: Any) -> tuple[int | None, str]:
        """Return the line and the text of a condition; ``before`` is the instruction that computes the tested value.

        In ``if not (a or b): return`` Python gives the whole statement as the place of the jump on each half.
        """
        line, text = self._text(jump)
        if before is None or not _STATEMENT.match(text):
            return line, text
        line, half = self._text(before)
        return line, f"{half} is None" if "NONE" in jump.opname and half != text else half

    def _text(self, jump: Any) -> tuple[int | None, str]:
        """Return the line and the text of an instruction: the whole line if Python does not record its part of it."""
        place = getattr(jump, "positions", None)
        if place is None or None in (place.lineno, place.end_lineno, place.col_offset, place.end_col_offset):
            line = self._lines.get(jump.offset)
            return line, "" if line is None else _shortened(linecache.getline(self._file, line))
        lines = [linecache.getline(self._file, number) for number in range(place.lineno, place.end_lineno + 1)]
        encoded = [line.encode() for line in lines]  # columns count bytes
        encoded[-1] = encoded[-1][: place.end_col_offset]
        encoded[0] = encoded[0][place.col_offset :]
        return place.lineno, _shortened(" ".join(part.decode(errors="replace").strip() for part in encoded))


def _place_of(code: CodeType) -> str:
    """Return the name of a function with its line, and with its first column if Python records columns.

    Two lambdas may be in one line.
    """
    positions: Any = getattr(code, "co_positions", tuple)()
    columns = [column for line, _, column, end in positions if line and column is not None and end]
    return f"{code.co_name} at {code.co_firstlineno}:{min(columns, default=0)}"


def _jumps_on(name: str) -> bool | None:
    """Return the truth value on which an instruction jumps; None if it is not a condition."""
    return True if name.endswith(("IF_NONE", "IF_NOT_NONE")) else jumps_if(name)


@contextmanager
def _traced(codes: dict[CodeType, _Layout]) -> Generator[Callable[[], Iterator[Reached]] | None]:
    """Record reached points by tracing; yield None if other code traces."""
    if sys.gettrace() is not None:  # a debugger, or a measurement of coverage
        yield None
        return
    steps: dict[CodeType, set[tuple[int, int, int]]] = {}

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in codes:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        before = frame.f_back
        caller = before.f_lasti if before is not None and before.f_code in codes else 0
        add, last = steps.setdefault(code, set()).add, -1

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "opcode":
                add((last, last := frame.f_lasti, caller))
            return step

        return step

    def reached() -> Iterator[Reached]:
        for code, pairs in steps.items():
            layout = codes[code]
            for before, here, caller in pairs:
                yield from ((layout.reached_at(here), caller), (layout.came(before, here), caller))

    sys.settrace(enter)
    try:
        yield reached
    finally:
        sys.settrace(None)


@contextmanager
def _monitored(codes: dict[CodeType, _Layout]) -> Generator[Callable[[], Iterator[Reached]] | None]:
    """Record reached points as the interpreter reports them; yield None if all of its tool numbers are in use."""
    monitoring: Any = getattr(sys, "monitoring", None)
    events, reached = monitoring.events, set[Reached]()

    def note(point: Point | None) -> None:
        before = sys._getframe(2).f_back  # pyright: ignore[reportPrivateUsage]
        reached.add((point, before.f_lasti if before is not None and before.f_code in codes else 0))

    def line(code: CodeType, number: int) -> None:
        note(codes[code].lines.get(number))

    def start(code: CodeType, offset: int) -> None:
        note(codes[code].lines.get(code.co_firstlineno))  # a function in one line has no other event for that line

    def branch(code: CodeType, offset: int, destination: int) -> None:
        note(codes[code].came(offset, destination))

    callbacks = {events.LINE: line, events.PY_START: start, **dict.fromkeys(branch_events(), branch)}
    with monitored(codes, callbacks) as is_monitored:
        yield (lambda: iter(reached)) if is_monitored else None


def branch_events() -> list[int]:
    """Return the events of ``sys.monitoring`` for the two outcomes of a condition."""
    monitoring: Any = getattr(sys, "monitoring", None)
    events = monitoring.events
    ways = [getattr(events, name) for name in ("BRANCH_LEFT", "BRANCH_RIGHT") if hasattr(events, name)]
    return ways or [events.BRANCH]


@contextmanager
def monitored(codes: Collection[CodeType], callbacks: Mapping[int, Callable[..., object]]) -> Generator[bool]:
    """Register callbacks for events in some code; yield False if all tool numbers are in use."""
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = next((number for number in _TOOLS if monitoring.get_tool(number) is None), None)
    if tool is None:
        yield False
        return
    monitoring.use_tool_id(tool, "pytest-fx")
    try:
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        for code in codes:
            monitoring.set_local_events(tool, code, sum(callbacks))
        monitoring.restart_events()
        yield True
    finally:
        for code in codes:
            monitoring.set_local_events(tool, code, 0)
        for event in callbacks:
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        *(path for name, path in sysconfig.get_paths().items() if name.endswith("lib")),
        *(Path(package).parent for package in (fx.__file__, pytest_fx.__file__)),
    )
)


def is_own(code: CodeType, homes: Collection[str | None]) -> bool:
    """Return whether code is a pass's own: in one of the files ``homes``, or in no library."""
    file = os.path.realpath(code.co_filename)
    return file in homes or not file.startswith(_LIBRARIES)


def home_of(pass_: Any) -> str | None:
    """Return the file of the module that defines a pass."""
    inner = unwrapped(pass_)
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return None if file is None else os.path.realpath(file)


def _runs(
    lines: Collection[tuple[str, int]], every: Collection[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield the first and the last of consecutive lines, counting only lines with code."""
    for (is_missing, _), run in itertools.groupby(sorted(every), lambda place: (place in lines, place[0])):
        if is_missing:
            places = list(run)
            yield places[0], places[-1]


def _shown(file: str) -> str:
    """Return the file, relative to the working directory if it is below that."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return Path(file).name


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
