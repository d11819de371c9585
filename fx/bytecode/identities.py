"""Where code compares values by identity, which Python does without asking them: as byte code shows it."""

from __future__ import annotations

import dis
from types import CodeType
from typing import NamedTuple

from fx.bytecode.dialects import CONSTANTS, PADDING, Step, dialect, once_for_code, place_in, working_steps
from fx.bytecode.flow import flow_of

_ON_NONE = ("IF_NONE", "IF_NOT_NONE")
_COMPARING = frozenset(number for name, number in dis.opmap.items() if name == "IS_OP" or name.endswith(_ON_NONE))
_VARIABLES = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLOSURE")


class Identity(NamedTuple):
    """A comparison by identity."""

    one: str | int | None
    """What is compared: a variable, or where the instruction stands that computes it; None for a constant or global."""
    other: str | int | None
    """What it is compared with, likewise."""
    with_none: bool
    """Whether that is ``None``."""
    offset: int
    """Where the comparison stands."""


@once_for_code
def identities(code: CodeType) -> tuple[Identity, ...]:
    """Return the comparisons by identity in a piece of code, without those of functions in it."""
    nothing = _COMPARING.isdisjoint(code.co_code[::2]) or dialect() is None
    return () if nothing else tuple(_read(code))


def _read(code: CodeType) -> list[Identity]:
    found = working_steps(code)
    flow = flow_of(code)
    made: list[Identity] = []
    for place, step in enumerate(found):
        # From Python 3.11 on, `if x is None` is one jump without IS_OP.
        if step.name.endswith(_ON_NONE) and place:
            made.append(Identity(_operand(found, place - 1), None, True, step.offset))
        elif step.name == "IS_OP" and flow is not None:
            operands = flow.operands(step.offset)
            if operands is None:
                continue
            left, right = ([one for one in part if one.name not in PADDING] for part in operands)
            one, other = (_operand(part, len(part) - 1) for part in (left, right))
            with_none = any(_is_none(part) for part in (left, right))
            made.append(
                Identity(other if _is_none(left) else one, None if with_none else other, with_none, step.offset)
            )
    return made


def _is_none(operand: list[Step]) -> bool:
    return len(operand) == 1 and operand[0].name in CONSTANTS and operand[0].value is None


def _operand(found: list[Step], place: int) -> str | int | None:
    """Return what the instruction at ``place`` leaves: see ``Identity.one``."""
    step = found[place]
    if step.name.startswith(_VARIABLES):
        return str(step.value)
    if step.name.startswith("STORE") and place and found[place - 1].name in ("COPY", "DUP_TOP"):  # (y := f(x)) is x
        return str(step.value)
    if step.name in CONSTANTS or step.name.startswith("LOAD_GLOBAL"):
        return None
    if step.name == "LOAD_ATTR" and found[max(place - 1, 0)].name.startswith("LOAD_GLOBAL"):
        return None
    return step.offset


@once_for_code
def _compared(_: CodeType) -> dict[tuple[int, int], tuple[Identity, ...]]:
    """Return what is known of some code, by the places of instructions and elements."""
    return {}


def compared_with(code: CodeType, offset: int, element: int = 0) -> tuple[Identity, ...]:
    """Return what the result of the instruction at ``offset`` is compared with, at once or from a variable.

    Args:
        code: where the instruction stands.
        offset: where in it.
        element: of an instruction that unpacks a sequence, which of its elements.
    """
    tests = identities(code)
    if not tests:
        return ()
    results = _compared(code)
    found = results.get((offset, element))
    if found is None:
        names = _names_of_result(code, offset, element)
        found = tuple(test for test in tests if test.one in names or (test.other is not None and test.other in names))
        results[offset, element] = found
    return found


def unpacks(code: CodeType, offset: int) -> bool:
    """Return whether the instruction at ``offset`` gives several values, each of which may be compared."""
    found = working_steps(code)
    return found[place_in(found, offset)].name == "UNPACK_SEQUENCE"


def _names_of_result(code: CodeType, offset: int, element: int) -> set[str | int]:
    """The variables that a result is stored in, and where the instruction stands that computes it."""
    found = working_steps(code)
    place = place_in(found, offset)
    names: set[str | int] = {found[place].offset}
    following = place + 1
    if found[place].name == "UNPACK_SEQUENCE":
        following += element
    while following < len(found):
        step = found[following]
        if step.name in ("COPY", "DUP_TOP") and found[following + 1].name.startswith("STORE"):
            names.add(str(found[following + 1].value))
            following += 2
            continue
        if step.name.startswith(("STORE_FAST", "STORE_DEREF", "STORE_NAME")):
            names.add(str(step.value))
        break
    return names
