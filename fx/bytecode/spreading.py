"""How many elements code unpacks a value into, and where those of a starred value go, as its byte code shows it."""

from __future__ import annotations

from types import FrameType

from fx.bytecode.dataflow import Dataflow, dataflow
from fx.bytecode.dialects import dialect, running, steps


def unpack_count(frame: FrameType) -> int | None:
    """Return how many names ``a, b = value`` unpacks into, if that is what ``frame`` is doing."""
    step = running(frame)
    return step.argument if step.name == "UNPACK_SEQUENCE" and dialect() is not None else None


def unpack_ends(frame: FrameType) -> tuple[int, int] | None:
    """Return how many names stand before and behind the star in ``a, *_, b = value``, if ``frame`` is doing that.

    None where the function reads what the starred name is.
    """
    step, code = running(frame), frame.f_code
    if step.name != "UNPACK_EX" or dialect() is None:
        return None
    before, behind = (step.argument or 0) & 0xFF, (step.argument or 0) >> 8
    found = steps(code)
    starred = found[found.index(step) + 1 + before]
    reads = any(one.value == starred.value and not one.name.startswith("STORE") for one in found)
    is_local = starred.name == "STORE_FAST" and starred.value not in code.co_cellvars
    return (before, behind) if is_local and not reads else None


def matches_sequence(frame: FrameType) -> bool:
    """Return whether ``frame`` asks for a length to compare it with a sequence pattern, as ``case a, b:`` does."""
    return running(frame).name == "GET_LEN"


# The elements of a starred value: ``f(*value, 2)``, ``f([*value, 2])``, ``a, b, c = *value, 2``.


def _spread_into(flow: Dataflow, index: int) -> int | None:
    """The instruction that makes the list to which another one adds the elements of a value; None for other ones."""
    step = flow.steps[index]
    makers = flow.container(index) if step.name == "LIST_EXTEND" and step.argument == 1 else ()
    return next(iter(makers)) if len(makers) == 1 else None


def _taker(flow: Dataflow, index: int) -> int | None:
    """The instruction that takes a list, or the tuple that is made of it; None where there are several."""
    takers = flow.takers(index)
    if len(takers) != 1:
        return None
    return _taker(flow, takers[0]) if flow.kind(takers[0]) == "converted" else takers[0]


def call_of_starred(frame: FrameType) -> tuple[int, int] | None:
    """Return where the call stands, its first and last offset, that is all that gets the elements which ``frame``
    spreads.

    None where something else gets them, or ``frame`` spreads none.
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
    """Return how many elements a starred value needs to have in ``a, b, c = *value, 2``, which ``frame`` is spreading.

    None where it spreads none, or something else decides.
    """
    flow = dataflow(frame.f_code)
    whole = None if flow is None else _spread_into(flow, flow.running(frame))
    taker = None if flow is None or whole is None else _taker(flow, whole)
    if flow is None or whole is None or taker is None or flow.steps[taker].name != "UNPACK_SEQUENCE":
        return None
    added = flow.adds_to(whole)
    # A second starred value has a number of elements of its own.
    if sum(flow.steps[one].name == "LIST_EXTEND" for one in added) != 1:
        return None
    count = (flow.steps[taker].argument or 0) - (flow.steps[whole].argument or 0) - (len(added) - 1)
    return count if count >= 0 else None
