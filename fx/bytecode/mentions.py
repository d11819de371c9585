"""Mentions in code: comparisons by identity, unpacking, assignments, uses of keywords, references."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, NoneType
from typing import NamedTuple

from fx.bytecode.dataflow import Dataflow, dataflow
from fx.bytecode.dialects import CONSTANTS, Step, asks_identity, dialect, jumps_if, once_for_code, running, steps

IDENTITIES = frozenset({"dtype", "device", "grad", "grad_fn", "layout"})
"""Attributes of tensors that programs compare by identity."""


def asks_for_class(frame: FrameType) -> bool:
    """Return whether ``frame`` is at ``value.__class__``, or at ``case Class():``."""
    return frame.f_lasti in _asking(frame.f_code)


@once_for_code
def _asking(code: CodeType) -> frozenset[int]:
    return frozenset(step.offset for step in steps(code) if step.value == "__class__" or step.name == "MATCH_CLASS")


# Comparisons by identity, for which Python calls no code of the values.

_VARIABLES = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLOSURE", "LOAD_CLASSDEREF")
_MATCHES = frozenset({"MATCH_MAPPING", "MATCH_SEQUENCE"})
_COMPARE = frozenset(
    number for name, number in dis.opmap.items() if name in _MATCHES or asks_identity(Step(0, name, None, None))
)


class Identity(NamedTuple):
    """A comparison by identity, or of a value's class with a pattern (``case {…}``, ``case [*_]``)."""

    left: frozenset[str | int]
    """The left operand: variables, and instructions that compute it; constants and globals are left out."""
    right: frozenset[str | int]
    """The right operand, likewise."""
    with_none: bool
    """True if one operand is ``None``."""
    with_truth: bool
    """True if one operand is ``True`` or ``False``."""
    offset: int
    """The offset of the comparison."""
    pattern: str = ""
    """``"mapping"`` or ``"sequence"`` for a pattern: then there is one operand, on the left."""


@once_for_code
def identities(code: CodeType) -> tuple[Identity, ...]:
    """Return the comparisons that call no code of the values. Those of inner functions are left out.

    A sequence pattern is one of them if it takes any number of elements, as otherwise Python asks for the length.
    """
    if _COMPARE.isdisjoint(code.co_code[::2]) or (flow := dataflow(code)) is None:
        return ()
    return tuple(_identity(flow, index) for index, step in enumerate(flow.steps) if _compares(flow, index, step))


def _compares(flow: Dataflow, index: int, step: Step) -> bool:
    if step.name == "MATCH_SEQUENCE":  # a branch follows, and perhaps the length
        return all(each.name != "GET_LEN" for each in flow.steps[index + 2 : index + 3])
    return step.name in _MATCHES or asks_identity(step)


def _identity(flow: Dataflow, index: int) -> Identity:
    step = flow.steps[index]
    if step.name in _MATCHES:  # they leave the value on the stack
        pattern = step.name.removeprefix("MATCH_").lower()
        return Identity(_values(flow, flow.operand(index, 1)), frozenset(), False, False, step.offset, pattern)
    operands = flow.operands(index)
    left, right = (_values(flow, makers) for makers in (*operands, ())[:2])
    with_none = len(operands) == 1 or _has_constant(flow, operands, NoneType)
    return Identity(left, right, with_none, _has_constant(flow, operands, bool), step.offset)


def _has_constant(flow: Dataflow, operands: Iterable[Iterable[int]], kind: type) -> bool:
    """Return whether an operand is a constant of a class."""
    return any(
        all(maker >= 0 and flow.kind(maker) == "constant" and type(flow.steps[maker].value) is kind for maker in makers)
        for makers in operands
    )


def _values(flow: Dataflow, makers: Iterable[int]) -> frozenset[str | int]:
    """Return the variables and instructions of an operand: see ``Identity.left``."""
    steps_of = {maker: flow.steps[maker] for maker in makers if maker >= 0 and not _is_fixed(flow, maker)}
    return frozenset(str(step.value) if step.name.startswith(_VARIABLES) else maker for maker, step in steps_of.items())


def _is_fixed(flow: Dataflow, maker: int) -> bool:
    """Return whether a value is a constant, a global, or an attribute of a global."""
    if flow.kind(maker) == "attribute":
        return all(owner >= 0 and flow.steps[owner].name == "LOAD_GLOBAL" for owner in flow.operand(maker, 1))
    return flow.kind(maker) == "constant" or flow.steps[maker].name == "LOAD_GLOBAL"


def _names_of(flow: Dataflow, index: int, element: int = 0) -> set[str | int]:
    """Return the variables that a result is stored in, and the instruction that computes it."""
    takers = flow.takers(index)
    if flow.steps[index].name == "UNPACK_SEQUENCE":
        takers = takers[element : element + 1]
    return {index, *(str(flow.steps[taker].value) for taker in takers if flow.kind(taker) == "store")}


def compared_with(code: CodeType, offset: int, element: int = 0) -> tuple[Identity, ...]:
    """Return the comparisons of the result of the instruction at ``offset``, directly or through a variable.

    Args:
        code: the code of the instruction.
        offset: its offset.
        element: for an instruction that unpacks a sequence, the number of the element.
    """
    tests = identities(code)
    flow = dataflow(code) if tests else None
    if flow is None:
        return ()
    comparisons = _compared_in(code)
    if (offset, element) not in comparisons:
        names = _names_of(flow, flow.at(offset), element)
        comparisons[offset, element] = tuple(test for test in tests if not names.isdisjoint(test.left | test.right))
    return comparisons[offset, element]


@once_for_code
def _compared_in(code: CodeType) -> dict[tuple[int, int], tuple[Identity, ...]]:
    """Return the cache for :func:`compared_with` in code: the comparisons of results, by offset and element."""
    return {}


def is_compared_by_identity(frame: FrameType) -> bool:
    """Return whether the value that ``frame`` reads or calls is compared with ``is``, perhaps from a variable."""
    return bool(compared_with(frame.f_code, frame.f_lasti))


def unpacks(code: CodeType, offset: int) -> bool:
    """Return whether the instruction at ``offset`` pushes several values, each of which may be compared."""
    flow = dataflow(code)
    return flow is not None and flow.steps[flow.at(offset)].name == "UNPACK_SEQUENCE"


_IS_OP = dis.opmap["IS_OP"]


@once_for_code
def compares_with_truth(code: CodeType) -> bool:
    """Return whether code compares with ``True`` or ``False`` by identity (``flag is True``, ``case True:``)."""
    if _IS_OP not in code.co_code[::2] or all(type(value) is not bool for value in code.co_consts):
        return False
    instructions = steps(code)
    tests = (place for place, step in enumerate(instructions) if step.name == "IS_OP")
    return any(type(step.value) is bool for place in tests for step in instructions[max(place - 2, 0) : place])


def globals_compared(codes: Iterable[CodeType]) -> set[str]:
    """Return the globals that code compares with ``is``; if it compares a computed value, all that it names."""
    compared: set[str] = set()
    for code in codes:
        for before, step in itertools.pairwise(steps(code) if _IS_OP in code.co_code[::2] else ()):
            if step.name == "IS_OP" and before.name not in CONSTANTS:
                is_global = before.name in ("LOAD_GLOBAL", "LOAD_NAME")
                compared.update([str(before.value)] if is_global else code.co_names)
    return compared


def is_called(frame: FrameType) -> bool:
    """Return whether ``frame`` reads a method, or a function in an attribute, in order to call it."""
    flow = dataflow(frame.f_code)
    if flow is None:
        return True
    index = flow.running(frame)
    calls = [call for taker in flow.takers(index) if (call := flow.call(taker)) is not None]
    return flow.steps[index].name == "LOAD_METHOD" or any(index in call.callee for call in calls)


# The number of elements that a value is unpacked into, and the use of those of a starred value: ``f(*value, 2)``,
# ``f([*value, 2])``, ``a, b, c = *value, 2``.


def unpack_count(frame: FrameType) -> int | None:
    """Return the number of names that ``a, b = value`` unpacks into, if ``frame`` is doing that."""
    step = running(frame)
    return step.argument if step.name == "UNPACK_SEQUENCE" and dialect() is not None else None


def unpack_ends(frame: FrameType) -> tuple[int, int] | None:
    """Return the numbers of names before and after the star in ``a, *_, b = value``, if ``frame`` is doing that.

    None if the function reads the starred name.
    """
    step, code = running(frame), frame.f_code
    if step.name != "UNPACK_EX" or dialect() is None:
        return None
    before, behind = (step.argument or 0) & 0xFF, (step.argument or 0) >> 8
    instructions = steps(code)
    starred = instructions[instructions.index(step) + 1 + before]
    reads = any(each.value == starred.value and not each.name.startswith("STORE") for each in instructions)
    is_local = starred.name == "STORE_FAST" and starred.value not in code.co_cellvars
    return (before, behind) if is_local and not reads else None


def matches_sequence(frame: FrameType) -> bool:
    """Return whether ``frame`` takes a length to compare it with a sequence pattern, as ``case a, b:`` does."""
    return running(frame).name == "GET_LEN"


def _spread_into(flow: Dataflow, index: int) -> int | None:
    """Return the instruction that makes the list to which another one adds the elements of a value; else None."""
    step = flow.steps[index]
    makers = flow.container(index) if step.name == "LIST_EXTEND" and step.argument == 1 else ()
    return next(iter(makers)) if len(makers) == 1 else None


def _taker(flow: Dataflow, index: int) -> int | None:
    """Return the instruction that takes a list, or the tuple made from it; None if there are several."""
    takers = flow.takers(index)
    if len(takers) != 1:
        return None
    return _taker(flow, takers[0]) if flow.kind(takers[0]) == "converted" else takers[0]


def call_of_starred(frame: FrameType) -> tuple[int, int] | None:
    """Return the first and last offset of the call that alone gets the elements which ``frame`` spreads.

    None if other code gets them, or ``frame`` spreads none.
    """
    flow = dataflow(frame.f_code)
    if flow is None:
        return None
    index: int | None = flow.running(frame)
    if (whole := _spread_into(flow, index)) is not None:
        index = _taker(flow, whole)
    elif flow.steps[index].name != "CALL_FUNCTION_EX":
        return None
    if index is None or flow.call(index) is None:
        return None
    end = flow.steps[index + 1].start if index + 1 < len(flow.steps) else flow.steps[index].offset + 2
    return flow.steps[index].start, end - 1


def count_to_unpack(frame: FrameType) -> int | None:
    """Return the length that a starred value must have in ``a, b, c = *value, 2``, while ``frame`` spreads it.

    None if it spreads none, or something else determines the number.
    """
    flow = dataflow(frame.f_code)
    if flow is None or (whole := _spread_into(flow, flow.running(frame))) is None:
        return None
    added, taker = flow.adds_to(whole), _taker(flow, whole)
    spread = [adding for adding in added if flow.steps[adding].name == "LIST_EXTEND"]
    # A second starred value has an unknown number of elements too.
    if taker is None or flow.steps[taker].name != "UNPACK_SEQUENCE" or len(spread) != 1:
        return None
    count = (flow.steps[taker].argument or 0) - (flow.steps[whole].argument or 0) - (len(added) - 1)
    return count if count >= 0 else None


# Assignments, and reads of globals.

_READ_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_STORES = frozenset({"STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF"})


def assigned(codes: Iterable[CodeType], kind: str) -> frozenset[str]:
    """Return the names that code assigns or deletes, of a kind: ``global`` or ``attr``."""
    names = [f"{action}_{kind.upper()}" for action in ("STORE", "DELETE")]
    numbers = {dis.opmap[name] for name in names}
    with_them = (code for code in codes if not numbers.isdisjoint(code.co_code[::2]))
    return frozenset(step.value for code in with_them for step in steps(code) if step.name in names)


def globals_read(codes: Iterable[CodeType]) -> frozenset[str]:
    """Return the names that code reads as globals, and not as attributes only."""
    return frozenset(step.value for code in codes for step in steps(code) if step.name in _READ_GLOBALS)


def stores(code: CodeType) -> tuple[bool, set[str]]:
    """Return whether code writes to more than its own variables, and the attributes that it sets."""
    storing = [step for step in steps(code) if step.name in _STORES]
    return bool(storing), {step.value for step in storing if step.name == "STORE_ATTR"}


# Keywords.

_HAND_ON = frozenset({"DICT_MERGE", "CALL_FUNCTION_EX"})
_ASK_KEYWORDS = _HAND_ON | {"DICT_UPDATE", "CONTAINS_OP", "GET_ITER", "TO_BOOL", "UNARY_NOT"}
_OF_DICTS = ("items", "keys", "values")


def keywords_used(code: CodeType, name: str) -> int | None:
    """Return the offset where code does more with its ``**kwargs`` than pass them on."""
    if name in code.co_cellvars:
        return 0
    return next((step.offset for step in _takers_of(code, name) if step.name not in _HAND_ON), None)


def keywords_asked_for(code: CodeType, name: str) -> int | None:
    """Return the offset where code spreads its ``**kwargs``, or queries their contents; None if it does neither."""
    for step in _takers_of(code, name):
        if step.name in _ASK_KEYWORDS or jumps_if(step.name) is not None or step.value in _OF_DICTS:
            return step.offset
    return None


def _takers_of(code: CodeType, name: str) -> list[Step]:
    """Return the instructions that take the value of a variable."""
    flow = dataflow(code)
    return [] if flow is None else [flow.steps[taker] for load in flow.loads(name) for taker in flow.takers(load)]


# References.

_REFERENCES = {
    "IMPORT_NAME": "module",
    "IMPORT_FROM": "member",
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), "attribute"),
}


def references(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the references in code, in its order, each with its kind and name.

    The kinds are ``module`` and ``member`` for imports, ``attribute``, ``name`` for loads, and ``store``.
    """
    for step in steps(code):
        if (kind := _REFERENCES.get(step.name)) is not None:
            yield kind, step.value
        elif step.name.startswith("STORE"):
            yield "store", step.value
        elif step.name.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")):
            yield "name", step.value
