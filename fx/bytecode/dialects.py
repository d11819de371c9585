"""The byte code of each version of Python, as far as it says where a truth value leads.

A row for each version, from its page on ``dis`` (https://docs.python.org/3.14/library/dis.html, and so on). A version
without a row is unknown: another version's row may be wrong about instructions of the same name, as that of 3.12 is
about ``COMPARE_OP`` of 3.13. Needs the standard library only, so that interpreters without torch can test it.
"""

from __future__ import annotations

import dis
import re
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)  # a row is equal to itself, and hashable so
class Dialect:
    """The instructions of a version of Python that decide where a function goes on."""

    branches: Mapping[str, bool]
    """Jumps on the truth of a value, which they ask for unless something before them has; on which truth they jump."""
    conversions: frozenset[str]
    """What else asks a value for its truth; a branch may follow."""
    converting_bit: int
    """The bit of the argument of ``COMPARE_OP`` that makes it ask its result for its truth; 0 where there is none."""
    operator_shift: int
    """How many bits of the argument of ``COMPARE_OP`` stand below the number of the operator."""
    between: frozenset[str]
    """What may stand between a conversion and its branch, beside ``UNARY_NOT``, and does nothing to the value."""
    other_branches: frozenset[str]
    """Jumps on something else, for which nothing is asked for its truth."""
    jumps: frozenset[str]
    """Jumps that are always taken."""
    ends: frozenset[str]
    """Where the function goes on in its caller."""
    raises: frozenset[str] = frozenset({"RAISE_VARARGS", "RERAISE"})
    """What raises an exception."""
    set_up: frozenset[str] = frozenset()
    """What sets up an exception handler, where instructions do it and not a table of ranges."""


_3_10 = Dialect(
    branches={
        "POP_JUMP_IF_TRUE": True,
        "POP_JUMP_IF_FALSE": False,
        "JUMP_IF_TRUE_OR_POP": True,
        "JUMP_IF_FALSE_OR_POP": False,
    },
    conversions=frozenset({"UNARY_NOT"}),
    converting_bit=0,
    operator_shift=0,
    between=frozenset({"EXTENDED_ARG", "NOP"}),
    other_branches=frozenset({"JUMP_IF_NOT_EXC_MATCH", "FOR_ITER"}),
    jumps=frozenset({"JUMP_FORWARD", "JUMP_ABSOLUTE"}),
    ends=frozenset({"RETURN_VALUE", "YIELD_VALUE", "YIELD_FROM"}),
    set_up=frozenset({"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"}),
)
# "The oparg is now a relative delta"; jumps come in two directions; ranges in a table set handlers up; caches.
_3_11 = replace(
    _3_10,
    branches={
        "POP_JUMP_FORWARD_IF_TRUE": True,
        "POP_JUMP_FORWARD_IF_FALSE": False,
        "POP_JUMP_BACKWARD_IF_TRUE": True,
        "POP_JUMP_BACKWARD_IF_FALSE": False,
        "JUMP_IF_TRUE_OR_POP": True,
        "JUMP_IF_FALSE_OR_POP": False,
    },
    between=frozenset({"EXTENDED_ARG", "NOP", "CACHE", "COPY"}),
    other_branches=frozenset(
        {f"POP_JUMP_{direction}_IF_{what}" for direction in ("FORWARD", "BACKWARD") for what in ("NONE", "NOT_NONE")}
        | {"FOR_ITER"}
    ),
    jumps=frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}),
    ends=frozenset({"RETURN_VALUE", "RETURN_GENERATOR", "YIELD_VALUE", "SEND"}),
    set_up=frozenset(),
)
# "This is no longer a pseudo-instruction": one direction again; COMPARE_OP's operator is in "the four-highest bits of
# oparg"; JUMP_IF_…_OR_POP is gone; RETURN_CONST is new.
_3_12 = replace(
    _3_11,
    branches={"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False},
    operator_shift=4,
    other_branches=frozenset({"POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "FOR_ITER"}),
    ends=_3_11.ends | {"RETURN_CONST"},
)
# "The fifth-lowest bit of the oparg now indicates a forced conversion to bool"; TO_BOOL is new; the branches and
# UNARY_NOT "now require an exact bool operand"; LOAD_FAST_LOAD_FAST and the like, see ``steps``.
_3_13 = replace(
    _3_12,
    conversions=frozenset({"TO_BOOL"}),
    converting_bit=16,
    operator_shift=5,
)
# NOT_TAKEN: "Do nothing code"; RETURN_CONST is gone; LOAD_SMALL_INT, LOAD_FAST_BORROW and LOAD_COMMON_CONSTANT (the
# AssertionError of an assert) are new, and load as the others do.
_3_14 = replace(
    _3_13,
    between=_3_13.between | {"NOT_TAKEN"},
    ends=_3_13.ends - {"RETURN_CONST"},
)

DIALECTS: dict[tuple[int, int], Dialect] = {
    (3, 10): _3_10,
    (3, 11): _3_11,
    (3, 12): _3_12,
    (3, 13): _3_13,
    (3, 14): _3_14,
}
"""The versions of Python whose byte code is known."""


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


def nested(code: CodeType) -> list[CodeType]:
    """Return ``code``, and that of the functions, classes and comprehensions in it, at any depth."""
    codes = [code]
    for one in codes:
        codes += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return codes


CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
"""What loads a constant; Python 3.14 keeps integers from 0 to 255 in the instruction."""

_OF_ONE_VARIABLE = re.compile("(?:LOAD|STORE)_FAST(?:_BORROW)?")


def steps(code: CodeType) -> Iterator[Step]:
    """Yield the instructions of ``code``; ``LOAD_FAST_LOAD_FAST`` and the like, which Python 3.13 has, as two."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        names = _OF_ONE_VARIABLE.findall(instruction.opname) if isinstance(value, tuple) else []
        if len(names) > 1:
            halves = zip(names, cast("tuple[str, ...]", value), strict=True)
            yield from (Step(instruction.offset, name, None, variable) for name, variable in halves)
        else:
            yield Step(instruction.offset, instruction.opname, instruction.arg, value)


PADDING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN"})
"""Instructions that do nothing themselves."""


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
def working_steps(code: CodeType) -> list[Step]:
    """Return the instructions of ``code`` that do something."""
    return [step for step in steps(code) if step.name not in PADDING]


def place_in(found: list[Step], offset: int) -> int:
    """Return which of some instructions runs at ``offset``.

    A frame that has called Python code stands behind the call, at the last of its caches.
    """
    return max(bisect_right(found, offset, key=attrgetter("offset")) - 1, 0)


def unpack_count(frame: FrameType) -> int | None:
    """Return how many names ``a, b = value`` unpacks into, if that is what ``frame`` is doing."""
    found = _unpacking(frame)
    return found[1] if found is not None and found[0] == "UNPACK_SEQUENCE" else None


def unpack_ends(frame: FrameType) -> tuple[int, int] | None:
    """Return how many names stand before and behind the star in ``a, *_, b = value``, if ``frame`` is doing that.

    None where the function reads what the starred name is.
    """
    found = _unpacking(frame)
    if found is None or found[0] != "UNPACK_EX":
        return None
    before, behind = found[1] & 0xFF, found[1] >> 8
    all_steps = working_steps(frame.f_code)
    place = next(index for index, step in enumerate(all_steps) if step.offset >= frame.f_lasti)
    starred = all_steps[place + 1 + before]
    reads = any(step.value == starred.value and not step.name.startswith("STORE") for step in all_steps)
    is_local = starred.name == "STORE_FAST" and starred.value not in frame.f_code.co_cellvars
    return (before, behind) if is_local and not reads else None


def _unpacking(frame: FrameType) -> tuple[str, int] | None:
    """The instruction by which ``frame`` unpacks a value into names, and its argument."""
    code, offset = frame.f_code.co_code, frame.f_lasti
    while dis.opname[code[offset]] == "EXTENDED_ARG":  # Python 3.10 runs both in one place
        offset += 2
    name = dis.opname[code[offset]]
    if name not in ("UNPACK_SEQUENCE", "UNPACK_EX") or dialect() is None:
        return None
    count, shift = code[offset + 1], 8
    while offset >= 2 and dis.opname[code[offset - 2]] == "EXTENDED_ARG":
        offset -= 2
        count |= code[offset + 1] << shift
        shift += 8
    return name, count


def matches_sequence(frame: FrameType) -> bool:
    """Return whether ``frame`` asks for a length to compare it with a sequence pattern, as ``case a, b:`` does."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "GET_LEN"
