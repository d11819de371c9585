"""Where the elements of a starred value go, as byte code shows it: ``f(*value, 2)``, ``f([*value, 2])``."""

from __future__ import annotations

from types import FrameType

from fx.bytecode.dialects import Step, dialect, place_in, working_steps
from fx.bytecode.flow import stack_effect

_CALLS = ("CALL", "PRECALL")
_ADDS = frozenset({"LIST_EXTEND", "LIST_APPEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1", "KW_NAMES"})


def call_of_starred(frame: FrameType) -> tuple[int, int] | None:
    """Return where the call stands, its first and last offset, that is all that gets the elements which ``frame``
    spreads.

    None where something else gets them, or ``frame`` spreads none.
    """
    if dialect() is None:
        return None
    found = working_steps(frame.f_code)
    place = place_in(found, frame.f_lasti)
    if found[place].name == "LIST_EXTEND" and found[place].argument == 1:
        return _consumer(found, place + 1)
    return _range(found, place) if found[place].name == "CALL_FUNCTION_EX" else None


def count_to_unpack(frame: FrameType) -> int | None:
    """Return how many elements a starred value needs to have in ``a, b, c = *value, 2``, which ``frame`` is spreading.

    None where it spreads none, or something else decides.
    """
    if dialect() is None:
        return None
    found = working_steps(frame.f_code)
    place = place_in(found, frame.f_lasti)
    if found[place].name != "LIST_EXTEND" or found[place].argument != 1:
        return None
    before, behind = _length_before(found, place), _left_to_unpack(found, place + 1)
    return None if before is None or behind is None or behind < before else behind - before


def _length_before(found: list[Step], place: int) -> int | None:
    """Return how many elements a list has that the step at ``place`` extends."""
    length, height = 0, 2
    for step in reversed(found[:place]):
        if "JUMP" in step.name or step.name == "FOR_ITER":
            return None
        if height == 1 and step.name == "LIST_APPEND":
            length += 1
        elif height == 1 and step.name.startswith(("BUILD", "LIST_EXTEND")):
            return length + (step.argument or 0) if step.name == "BUILD_LIST" else None
        height -= stack_effect(step)
    return None


def _left_to_unpack(found: list[Step], place: int) -> int | None:
    """The number of names that the list on top of the stack is unpacked into, without what is added to it before."""
    height, added = 1, 0
    for step in found[place:]:
        if "JUMP" in step.name or step.name == "FOR_ITER":
            return None
        height += stack_effect(step)
        if step.name == "UNPACK_SEQUENCE" and height - (step.argument or 0) == 0:
            return (step.argument or 0) - added
        # A second starred value has a number of elements of its own.
        if height < 1 or (height == 1 and step.name == "LIST_EXTEND"):
            return None
        if height == 1 and step.name == "LIST_APPEND":
            added += 1
        elif height == 1 and step.name not in _ADDS and stack_effect(step) < 1:
            return None
    return None


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
