"""The instructions of a function, under each version of Python.

There is a row for each version, from its page on ``dis`` (https://docs.python.org/3.14/library/dis.html, and so on). A
version without a row is unknown: another version's row may be wrong about instructions of the same name, as that of
3.12 is about ``COMPARE_OP`` of 3.13. Needs the standard library only, so that interpreters without torch can test it.
"""

from __future__ import annotations

import bisect
import dis
import operator
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Dialect(NamedTuple):
    """What a version of Python says otherwise than others, with the same names of instructions."""

    conversion: str
    """What asks a value for its truth without branching on it; a branch may follow."""
    converting_bit: int
    """The bit of the argument of ``COMPARE_OP`` that makes it ask its result for its truth; 0 where there is none."""
    operator_shift: int
    """How many bits of the argument of ``COMPARE_OP`` stand below the number of the operator."""


_3_10 = Dialect("UNARY_NOT", converting_bit=0, operator_shift=0)
# COMPARE_OP's operator is in "the four-highest bits of oparg".
_3_12 = _3_10._replace(operator_shift=4)
# "The fifth-lowest bit of the oparg now indicates a forced conversion to bool"; TO_BOOL is new; the branches and
# UNARY_NOT "now require an exact bool operand"; LOAD_FAST_LOAD_FAST and the like, see ``steps``.
_3_13 = Dialect("TO_BOOL", converting_bit=16, operator_shift=5)

DIALECTS: dict[tuple[int, int], Dialect] = {
    (3, 10): _3_10,
    (3, 11): _3_10,
    (3, 12): _3_12,
    (3, 13): _3_13,
    (3, 14): _3_13,
}
"""The versions of Python whose byte code is known."""

CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
"""What loads a constant; Python 3.14 keeps integers from 0 to 255 in the instruction."""
JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})
"""Jumps that are always taken."""
SETS_UP = frozenset({"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"})
"""What sets up an exception handler in Python 3.10; later versions have a table of ranges."""
RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
"""What raises an exception."""
RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
"""What ends the function."""
LEAVES = RETURNS | {"RETURN_GENERATOR", "YIELD_VALUE", "YIELD_FROM", "SEND"}
"""Where the function goes on in its caller, for good or for now."""
_PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL"})
"""Instructions that do nothing but prepare the next one."""
_ON_TRUTH = re.compile("JUMP.*_IF_(TRUE|FALSE)")


def jumps_if(name: str) -> bool | None:
    """Return on which truth of a value an instruction jumps; None for all that asks for none."""
    found = _ON_TRUTH.search(name)
    return None if found is None else found[1] == "TRUE"


def is_jump(name: str) -> bool:
    """Return whether an instruction may lead elsewhere than to the next one, and its value says where."""
    return "JUMP" in name or name in ("FOR_ITER", "SEND")


def asks_identity(step: Step) -> bool:
    """Return whether an instruction compares values by identity; from Python 3.11 on ``if x is None`` is one jump."""
    return step.name == "IS_OP" or step.name.endswith(("IF_NONE", "IF_NOT_NONE"))


def dialect() -> Dialect | None:
    """The byte code of the interpreter that runs; None where it is unknown."""
    return DIALECTS.get(sys.version_info[:2]) if sys.implementation.name == "cpython" else None


def unknown_version() -> str | None:
    """Return the interpreter's name and version where its byte code is unknown, or None."""
    name = "Python" if sys.implementation.name == "cpython" else sys.implementation.name
    return None if dialect() is not None else "{} {}.{}".format(name, *sys.version_info[:2])


class Step(NamedTuple):
    """An instruction, on one variable at most."""

    offset: int
    """Where it stands, in bytes."""
    name: str
    """What it does."""
    argument: int | None
    """The number behind it, if it has one."""
    value: Any
    """What that number stands for: a name, a constant, the offset to jump to."""
    start: int = 0
    """Where it begins, with what prepares it."""


def nested(code: CodeType) -> list[CodeType]:
    """Return ``code``, and that of the functions, classes and comprehensions in it, at any depth."""
    codes = [code]
    for one in codes:
        codes += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return codes


def once_for_code(find: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Return ``find``, which looks at each piece of code once, as long as that lives.

    Code is told by its identity: equal code may stand in several files, and its hash takes longer than most answers.
    """
    known: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    @wraps(find)
    def found(code: CodeType) -> T:
        entry = known.get(id(code))
        if entry is None or entry[0]() is not code:
            key = id(code)
            entry = known[key] = (weakref.ref(code, lambda _: known.pop(key, None)), find(code))
        return entry[1]

    return found


@once_for_code
def steps(code: CodeType) -> list[Step]:
    """Return the instructions of ``code`` that do something."""
    return without_padding(_all_steps(code))


_OF_ONE_VARIABLE = re.compile("(?:LOAD|STORE)_FAST(?:_BORROW)?")


def _all_steps(code: CodeType) -> Iterator[Step]:
    """Yield the instructions of ``code``; ``LOAD_FAST_LOAD_FAST`` and the like, which Python 3.13 has, as two."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        names = _OF_ONE_VARIABLE.findall(instruction.opname) if isinstance(value, tuple) else []
        if len(names) > 1:
            halves = zip(names, cast("tuple[str, ...]", value), strict=True)
            yield from (Step(instruction.offset, name, None, variable) for name, variable in halves)
        else:
            yield Step(instruction.offset, instruction.opname, instruction.arg, value)


def without_padding(found: Iterable[Step]) -> list[Step]:
    """Return the instructions that do something, each with its start."""
    working: list[Step] = []
    start: int | None = None
    for step in found:
        if start is None:
            start = step.offset
        if step.name not in _PADDING:
            working.append(step._replace(start=start))
            start = None
    return working


def place_in(found: list[Step], offset: int) -> int:
    """Return which of some instructions runs at ``offset``: of one on two variables, its first half.

    A frame that has called Python code stands behind the call, at the last of its caches.
    """
    index = max(bisect.bisect_right(found, offset, key=_start) - 1, 0)
    return bisect.bisect_left(found, found[index].start, hi=index, key=_start)


_start = operator.attrgetter("start")


def running(frame: FrameType) -> Step:
    """The instruction that a frame is at."""
    found = steps(frame.f_code)
    return found[place_in(found, frame.f_lasti)]
