"""What code mentions: comparisons by identity, what it assigns, keywords that it asks for, and what it refers to."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

from fx.bytecode.dialects import CONSTANTS, Step, once_for_code, steps, working_steps

IDENTITIES = frozenset({"dtype", "device", "grad", "grad_fn", "layout"})
"""Attributes of tensors that programs compare by identity."""


def asks_for_class(frame: FrameType) -> bool:
    """Return whether ``frame`` is at ``value.__class__``, or at ``case Class():``."""
    return frame.f_lasti in _asking(frame.f_code)


@once_for_code
def _asking(code: CodeType) -> frozenset[int]:
    return frozenset(step.offset for step in steps(code) if step.value == "__class__" or step.name == "MATCH_CLASS")


def is_compared_by_identity(frame: FrameType) -> bool:
    """Return whether the attribute that ``frame`` is reading is compared with ``is``, at once or from a variable.

    So is what it is calling, which may be ``getattr``.
    """
    return frame.f_lasti in _compared(frame.f_code)


@once_for_code
def _compared(code: CodeType) -> frozenset[int]:
    return frozenset(_reads_compared([step for step in working_steps(code) if step.name != "PRECALL"]))


def _reads_compared(found: list[Step]) -> Iterable[int]:
    variables = {
        step.value for place, step in enumerate(found) if step.name.startswith("LOAD_FAST") and _is_tested(found, place)
    }
    for place, step in enumerate(found):
        if (step.name == "LOAD_ATTR" and step.value in IDENTITIES) or step.name in ("CALL", "CALL_FUNCTION"):
            after = found[place + 1]
            stored = after.name.startswith("STORE_FAST") and after.value in variables
            if stored or _is_tested(found, place):
                yield from range(step.offset, after.offset, 2)  # of a call, Python may be at its caches


def _is_tested(found: list[Step], place: int) -> bool:
    """Return whether what the step at ``place`` loads is compared by identity with what is loaded next."""
    loads = 0
    for step in found[place + 1 : place + 6]:
        if step.name == "IS_OP" or step.name.endswith(("IF_NONE", "IF_NOT_NONE")):
            return True
        if step.name.startswith(("LOAD_GLOBAL", "LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")):
            loads += 1
        elif step.name != "LOAD_ATTR":
            return False
        if loads > 1 or (loads == 0 and step.name == "LOAD_ATTR"):
            return False
    return False


_IS_OP = dis.opmap["IS_OP"]


@once_for_code
def compares_with_truth(code: CodeType) -> bool:
    """Return whether some code compares with ``True`` or ``False`` by identity (``flag is True``, ``case True:``)."""
    if _IS_OP not in code.co_code[::2] or all(type(value) is not bool for value in code.co_consts):
        return False
    found = working_steps(code)
    tests = (place for place, step in enumerate(found) if step.name == "IS_OP")
    return any(type(step.value) is bool for place in tests for step in found[max(place - 2, 0) : place])


_COMPARE = dis.opmap["IS_OP"]


def globals_compared(codes: Iterable[CodeType]) -> set[str]:
    """Globals that some code compares with ``is``; all that it names, where it compares what it has computed."""
    compared: set[str] = set()
    for code in codes:
        for before, step in itertools.pairwise(working_steps(code) if _COMPARE in code.co_code[::2] else ()):
            if step.name == "IS_OP" and before.name not in CONSTANTS:
                is_global = before.name in ("LOAD_GLOBAL", "LOAD_NAME")
                compared.update([str(before.value)] if is_global else code.co_names)
    return compared


# What is assigned.

_ASSIGN = {
    kind: frozenset(dis.opmap[f"{action}_{kind.upper()}"] for action in ("STORE", "DELETE"))
    for kind in ("global", "attr")
}


def assigned(codes: Iterable[CodeType], kind: str) -> frozenset[str]:
    """The names that some code assigns or deletes, of a kind: ``global`` or ``attr``."""
    instructions = _ASSIGN[kind]
    with_them = [one for one in codes if not instructions.isdisjoint(one.co_code[::2])]
    found = (step for one in with_them for step in dis.get_instructions(one))
    return frozenset(step.argval for step in found if step.opcode in instructions)


def stores(code: CodeType) -> tuple[bool, set[str]]:
    """Return whether some code writes to more than its own variables, and the attributes that it sets."""
    found = [step for step in steps(code) if step.name in _STORES]
    return bool(found), {step.value for step in found if step.name == "STORE_ATTR"}


_STORES = frozenset({"STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF"})


def enters_contexts(code: CodeType) -> bool:
    """Return whether there is a ``with`` in some code."""
    return _WITH in code.co_code[::2]


_WITH = dis.opmap["WITH_EXCEPT_START"]


# Keywords.


def keywords_used(code: CodeType, name: str) -> int | None:
    """Return where some code does anything with its ``**kwargs`` but hand them on."""
    if name in code.co_cellvars:
        return 0
    for step, following in itertools.pairwise(working_steps(code)):
        if step.value == name and following.name not in ("DICT_MERGE", "CALL_FUNCTION_EX"):
            return step.offset
    return None


def keywords_asked_for(code: CodeType, name: str) -> int | None:
    """Return where some code spreads its ``**kwargs``, or asks what is in them; None where it does neither."""
    for step, following in itertools.pairwise(working_steps(code)):
        if step.name.startswith("LOAD_FAST") and step.value == name:
            spread = following.name in _SPREADING or "JUMP_IF" in following.name
            if spread or (following.name.startswith("LOAD") and following.value in _OF_DICTS):
                return following.offset
    return None


_SPREADING = frozenset({"DICT_MERGE", "DICT_UPDATE", "CALL_FUNCTION_EX", "CONTAINS_OP", "GET_ITER", "TO_BOOL"})
_OF_DICTS = frozenset({"items", "keys", "values"})


# References.

_REFERENCES = {
    "IMPORT_NAME": "module",
    "IMPORT_FROM": "member",
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), "attribute"),
}


def references(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield what some code refers to, in its order: ``module`` or ``member`` that it imports, ``attribute``, ``name``
    that it loads, or ``store``; each with how it is called.
    """
    for step in steps(code):
        if (kind := _REFERENCES.get(step.name)) is not None:
            yield kind, step.value
        elif step.name.startswith("STORE"):
            yield "store", step.value
        elif step.name.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")):
            yield "name", step.value
