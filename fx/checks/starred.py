"""Where the elements of a starred value go, as byte code shows it: ``f(*value, 2)``, ``f([*value, 2])``."""

from __future__ import annotations

from types import CodeType, FrameType

from fx.checks.bytecode import Step, dialect, once_for_code, steps
from fx.checks.flow import stack_effect

_CALLS = ("CALL", "PRECALL")
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP"})
_ADDS = frozenset({"LIST_EXTEND", "LIST_APPEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1", "KW_NAMES"})


def call_of_starred(frame: FrameType) -> tuple[int, int] | None:
    """Return where the call stands, its first and last offset, that is all that gets the elements which ``frame``
    spreads.

    None where something else gets them, or ``frame`` spreads none.
    """
    if dialect() is None:
        return None
    found = _read(frame.f_code)
    place = max((index for index, step in enumerate(found) if step.offset <= frame.f_lasti), default=0)
    if found[place].name == "LIST_EXTEND" and found[place].argument == 1:
        return _consumer(found, place + 1)
    return _range(found, place) if found[place].name == "CALL_FUNCTION_EX" else None


@once_for_code
def _read(code: CodeType) -> list[Step]:
    return [step for step in steps(code) if step.name not in _SKIPPED]


def _consumer(found: list[Step], place: int) -> tuple[int, int] | None:
    """The call that takes the list on top of the stack."""
    depth = 1
    for index in range(place, len(found)):
        step = found[index]
        if "JUMP" in step.name or step.name == "FOR_ITER":
            return None
        depth += stack_effect(step)
        if depth < 1:
            if step.name == "PRECALL":
                index += 1
            return _range(found, index) if step.name.startswith(_CALLS) else None
        if depth == 1 and step.name not in _ADDS and stack_effect(step) < 1:
            return None  # it took the list, and left something else
    return None


def _range(found: list[Step], index: int) -> tuple[int, int]:
    end = found[index + 1].offset if index + 1 < len(found) else found[index].offset + 2
    return found[index].offset, end - 1
