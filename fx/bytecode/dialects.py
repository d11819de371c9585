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
    """The differences of a Python version from others that have instructions of the same names."""

    conversion: str
    """The instruction that converts a value to its truth without branching on it; a branch may follow."""
    converting_bit: int
    """The bit of ``COMPARE_OP``'s argument that makes it convert its result to a bool; 0 if there is none."""
    operator_shift: int
    """The number of bits below the operator's number in the argument of ``COMPARE_OP``."""


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
"""Instructions that load a constant; Python 3.14 keeps integers from 0 to 255 in the instruction."""
JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"})
"""Jumps that are always taken."""
SETS_UP = frozenset({"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"})
"""Instructions that set up an exception handler in Python 3.10; later versions have a table of ranges."""
RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
"""Instructions that raise an exception."""
RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
"""Instructions that end the function."""
LEAVES = RETURNS | {"RETURN_GENERATOR", "YIELD_VALUE", "YIELD_FROM", "SEND"}
"""Instructions after which the caller continues, for good or for now."""
_PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL"})
"""Instructions that only prepare the next one, or do nothing."""
_ON_TRUTH = re.compile("JUMP.*_IF_(TRUE|FALSE)")


def jumps_if(name: str) -> bool | None:
    """Return the truth value on which an instruction jumps; None for instructions that test no truth."""
    match = _ON_TRUTH.search(name)
    return None if match is None else match[1] == "TRUE"


def is_jump(name: str) -> bool:
    """Return whether an instruction may lead elsewhere than to the next one, and its value is the target."""
    return "JUMP" in name or name in ("FOR_ITER", "SEND")


def asks_identity(step: Step) -> bool:
    """Return whether an instruction compares values by identity; from Python 3.11 on ``if x is None`` is one jump."""
    return step.name == "IS_OP" or step.name.endswith(("IF_NONE", "IF_NOT_NONE"))


def dialect() -> Dialect | None:
    """Return the byte code of the running interpreter; None if it is unknown."""
    return DIALECTS.get(sys.version_info[:2]) if sys.implementation.name == "cpython" else None


def unknown_version() -> str | None:
    """Return the interpreter's name and version if its byte code is unknown, else None."""
    name = "Python" if sys.implementation.name == "cpython" else sys.implementation.name
    return None if dialect() is not None else "{} {}.{}".format(name, *sys.version_info[:2])


class Step(NamedTuple):
    """An instruction on one variable at most."""

    offset: int
    """Its offset, in bytes."""
    name: str
    """The name of its operation."""
    argument: int | None
    """Its numeric argument, if it has one."""
    value: Any
    """The meaning of that argument: a name, a constant, or the offset of a jump's target."""
    start: int = 0
    """The offset at which it begins, with the instructions that prepare it."""


def nested(code: CodeType) -> list[CodeType]:
    """Return ``code``, and the code of the functions, classes and comprehensions in it, at any depth."""
    codes = [code]
    for current in codes:
        codes += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
    return codes


def once_for_code(find: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Cache ``find`` for each code object as long as that lives.

    Code is identified by identity: equal code may occur in several files, and its hash takes longer than most answers.
    """
    cache: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    @wraps(find)
    def cached(code: CodeType) -> T:
        entry = cache.get(id(code))
        if entry is None or entry[0]() is not code:
            key = id(code)
            entry = cache[key] = (weakref.ref(code, lambda _: cache.pop(key, None)), find(code))
        return entry[1]

    return cached


@once_for_code
def steps(code: CodeType) -> list[Step]:
    """Return the instructions of ``code`` that do something."""
    return without_padding(_all_steps(code))


_OF_ONE_VARIABLE = re.compile("(?:LOAD|STORE)_FAST(?:_BORROW)?")


def _all_steps(code: CodeType) -> Iterator[Step]:
    """Yield the instructions of ``code``; ``LOAD_FAST_LOAD_FAST`` and the like, since Python 3.13, become two."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        names = _OF_ONE_VARIABLE.findall(instruction.opname) if isinstance(value, tuple) else []
        if len(names) > 1:
            halves = zip(names, cast("tuple[str, ...]", value), strict=True)
            yield from (Step(instruction.offset, name, None, variable) for name, variable in halves)
        else:
            yield Step(instruction.offset, instruction.opname, instruction.arg, value)


def without_padding(instructions: Iterable[Step]) -> list[Step]:
    """Return the instructions that do something, each with its start."""
    working: list[Step] = []
    start: int | None = None
    for step in instructions:
        if start is None:
            start = step.offset
        if step.name not in _PADDING:
            working.append(step._replace(start=start))
            start = None
    return working


def place_in(instructions: list[Step], offset: int) -> int:
    """Return the index of the instruction that runs at ``offset``: for one on two variables, its first half.

    A frame that has called Python code is at the last of the caches after the call.
    """
    index = max(bisect.bisect_right(instructions, offset, key=_start) - 1, 0)
    return bisect.bisect_left(instructions, instructions[index].start, hi=index, key=_start)


_start = operator.attrgetter("start")


def running(frame: FrameType) -> Step:
    """Return the instruction that a frame is at."""
    instructions = steps(frame.f_code)
    return instructions[place_in(instructions, frame.f_lasti)]
