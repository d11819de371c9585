"""Where each instruction of a function can lead: the sides of a branch, and whether all of one side raises."""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from fx.bytecode.dialects import CONSTANTS, Dialect, Step, dialect, steps

_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The comparison that Python asks the right operand for where the left one knows no answer."""
_SIGNS = dict(zip(("<", "<=", "==", "!=", ">", ">="), ("lt", "le", "eq", "ne", "gt", "ge"), strict=True))


class Comparison(NamedTuple):
    """Where the value came from that is asked for its truth."""

    operator: str
    """The name of the operation that gave it: ``"eq"``, ``"lt"``, …; only those of comparisons matter."""
    traced: type
    """The class of traced values: what they are asked for gives traced values again."""


class Flow:
    """The instructions of a function, and where each of them can lead."""

    def __init__(self, instructions: Sequence[Step], handlers: Sequence[tuple[int, int, int]], known: Dialect) -> None:
        """``handlers`` are ranges of offsets, their start and end, and where an exception in them leads."""
        self._known = known
        self._steps = instructions
        self._at = {step.offset: index for index, step in reversed(list(enumerate(instructions)))}
        self._handlers = handlers

    def branch(self, offset: int) -> tuple[int, int] | None:
        """Indices of the instructions that follow if the value asked for at ``offset`` is true, and if it is false.

        None where no branch hangs on it: the instruction may be a comparison of containers, say, whose elements are
        asked for theirs.
        """
        index = self._running(offset)
        step = self._steps[index]
        if step.name in self._known.branches or step.name == "UNARY_NOT":
            return self._sides(index)
        return self._sides(index + 1) if step.name in self._known.conversions or self._compares(step) else None

    def _sides(self, index: int) -> tuple[int, int] | None:
        """Return where the next branch from instruction ``index`` on leads, if it is true, and if it is false."""
        negated = False
        for place, step in enumerate(self._steps[index:], index):
            if step.name == "UNARY_NOT":
                negated = not negated
            elif (jumps_if := self._known.branches.get(step.name)) is not None:
                taken, passed = self._at[step.value], place + 1
                return (taken, passed) if jumps_if is not negated else (passed, taken)
            elif step.name not in self._known.between:
                return None
        return None

    def branch_on_elements(self, offset: int) -> tuple[str, tuple[int, int]] | None:
        """Return what the instruction at ``offset`` compares containers by, and what follows if it holds, and if it
        does not.

        That is ``"eq"``, ``"ne"``, ``"in"`` or ``"not in"``; it asks elements whether they are equal meanwhile.
        """
        index = self._running(offset)
        step = self._steps[index]
        if step.name == "CONTAINS_OP":
            operator = "not in" if step.argument else "in"
        elif step.name == "COMPARE_OP":
            operator = _SIGNS[dis.cmp_op[(step.argument or 0) >> self._known.operator_shift]]
        else:
            return None
        sides = self._sides(index + 1)
        return None if sides is None else (operator, sides)

    def branches(self) -> list[int]:
        """Offsets of all branches but those of loops over elements, in the order of the code."""
        named = {*self._known.branches, *self._known.other_branches} - {"FOR_ITER", "JUMP_IF_NOT_EXC_MATCH"}
        return [step.offset for step in self._steps if step.name in named]

    def _running(self, offset: int) -> int:
        """Index of the instruction that runs at ``offset``, which may be that of what extends its argument."""
        index = self._at[offset]
        while self._steps[index].name == "EXTENDED_ARG":
            index += 1
        return index

    def _compares(self, step: Step) -> bool:
        """Return whether an instruction compares two values, and asks what comes out for its truth."""
        return step.name == "COMPARE_OP" and bool((step.argument or 0) & self._known.converting_bit)

    def hangs_on(self, frame: FrameType, compared: Comparison | None, raises_if: bool) -> bool:
        """Return whether a value that is asked for its truth is all that the branch in ``frame`` hangs on.

        A comparison that converts its result asks for two truths in one place: that of what it compares, and before it
        those of elements, if it compares containers. ``(x.size(0), n) == (3, 4)`` asks ``x.size(0) == 3``.

        Args:
            frame: a frame that asks, at an instruction for which ``branch`` gives two sides.
            compared: what gave the value, or None where that is not known.
            raises_if: the truth value that leads to a ``raise``.
        """
        index = self._running(frame.f_lasti)
        step = self._steps[index]
        if not self._compares(step):
            return True
        sign = dis.cmp_op[(step.argument or 0) >> self._known.operator_shift]
        operator = _SIGNS[sign]
        if operator == "eq":
            # where equal is what lets the program go on, all elements have to be, each of which is asked
            return not raises_if or (compared is not None and self._compares_no_containers(index, frame, compared))
        # elements are asked whether they are equal, until the first that are not; these answer for all
        return compared is not None and compared.operator in (operator, _REFLECTED[operator])

    def _compares_no_containers(self, index: int, frame: FrameType, compared: Comparison) -> bool:
        """Return whether one operand of the comparison at ``index`` is known to have no elements."""
        right = self._operand(index)
        left = self._operand(right[0]) if right is not None else None
        operands = [self._steps[operand[0] : operand[1]] for operand in (right, left) if operand is not None]
        return any(_is_one_value(operand, frame, compared.traced) for operand in operands)

    def _operand(self, end: int) -> tuple[int, int] | None:
        """Return where the instructions start and end that leave one more value for the one at ``end``; None behind a
        jump.
        """
        depth = 0
        for index in range(end - 1, -1, -1):
            step = self._steps[index]
            if step.name in self._known.branches or step.name in self._known.other_branches:
                return None
            depth += stack_effect(step)
            if depth >= 1:
                return (index, end) if depth == 1 else None
        return None

    def operands(self, offset: int) -> tuple[Sequence[Step], Sequence[Step]] | None:
        """The instructions that leave the two operands of the one at ``offset``; None where that is not known."""
        index = self._running(offset)
        right = self._operand(index)
        left = self._operand(right[0]) if right is not None else None
        if left is None or right is None:
            return None
        return self._steps[left[0] : left[1]], self._steps[right[0] : right[1]]

    def raises(self, index: int, lets_through: Callable[[int], bool]) -> bool:
        """Return whether every path from instruction ``index`` raises, and nothing in the function swallows it.

        Args:
            index: the first instruction of the paths.
            lets_through: whether the ``with`` blocks around an offset let exceptions through.
        """
        pending, seen = [index], {index}
        while pending:
            following = self._following(pending.pop(), seen, lets_through)
            if following is None:
                return False
            pending.extend(i for i in following if i not in seen)
            seen.update(following)
        return True

    def _following(self, index: int, seen: set[int], lets_through: Callable[[int], bool]) -> list[int] | None:
        """The next instructions; none where this one raises for good; None where a path goes on.

        ``seen`` are those of the paths so far. Paths pass the start of a loop that is theirs, such as that of a list
        in a message, before its end.
        """
        if index >= len(self._steps):
            return None
        step, known = self._steps[index], self._known
        if step.name in known.raises:
            return self._after_raise(step.offset, lets_through)
        if step.name in known.ends:
            return None
        if step.name in known.jumps:
            target = self._at[step.value]
            return None if target <= index and target not in seen else [target]
        if step.name in known.branches or step.name in known.other_branches:
            return [self._at[step.value], index + 1]
        return [index + 1]

    def _after_raise(self, offset: int, lets_through: Callable[[int], bool]) -> list[int] | None:
        """Return what follows a raise at ``offset``: an enclosing handler, or nothing."""
        handlers = self._handlers_of(offset)
        if not handlers or not self._is_with(handlers[0]):
            return handlers
        if not lets_through(self._steps[handlers[0]].offset):
            return None
        following = enumerate(self._steps[handlers[0] :], handlers[0])
        return [next(index for index, step in following if step.name == "RERAISE")]

    def leaves(self, offset: int, lets_through: Callable[[int], bool]) -> bool:
        """Return whether an exception that the instruction at ``offset`` raises leaves the function."""
        following = self._after_raise(offset, lets_through)
        return following is not None and all(self.raises(index, lets_through) for index in following)

    def handles(self) -> bool:
        """Return whether the function may go on where it handles an exception, beside ``with`` blocks."""
        targets = {self._at[target] for _, _, target in self._handlers}
        return any(not self._is_with(index) and not self.raises(index, lambda _: False) for index in targets)

    def clauses(self, offset: int) -> Iterator[tuple[str, int]]:
        """Yield what may handle an exception that the instruction at ``offset`` raises, from the inside.

        That is ``with`` and where its handler stands, ``except`` and where its classes are compared, if the function
        may go on there, or ``all`` and where the function goes on after any exception.
        """
        pending, seen = self._handlers_of(offset), set[int]()
        while pending:
            index = pending.pop(0)
            if index in seen or index >= len(self._steps):
                continue
            seen.add(index)
            step, following = self._steps[index], self._steps[index + 1 : index + 2]
            if self._is_with(index):
                yield "with", step.offset
                rest = enumerate(self._steps[index:], index)
                again = next(place for place, one in rest if one.name == "RERAISE")
                pending += self._handlers_of(self._steps[again].offset)
            elif step.name in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"):
                sides = (index + 1, self._at[step.value]) if step.name.startswith("JUMP") else self._sides(index + 1)
                if sides is None or not self.raises(sides[0], lambda _: False):
                    yield "except", step.offset
                pending += sides[1:] if sides else ()
            elif step.name in self._known.raises:
                pending += self._handlers_of(step.offset)
            elif step.name in self._known.ends or (
                step.name == "POP_EXCEPT" and all(one.name != "RERAISE" for one in following)
            ):
                yield "all", step.offset
            elif step.name in self._known.jumps:
                pending.append(self._at[step.value])
            else:
                branches = step.name in self._known.branches or step.name in self._known.other_branches
                pending += [index + 1, *([self._at[step.value]] if branches else [])]

    def _handlers_of(self, offset: int) -> list[int]:
        """The instruction that goes on after an exception at ``offset``; none where it leaves the function."""
        inside = [(end - start, target) for start, end, target in self._handlers if start <= offset < end]
        return [self._at[min(inside)[1]]] if inside else []

    def _is_with(self, index: int) -> bool:
        """Return whether the handler of a ``with`` stands there."""
        return any(step.name == "WITH_EXCEPT_START" for step in self._steps[index : index + 3])

    def raise_offset(self, index: int) -> int:
        """Return where the first ``raise`` from instruction ``index`` on stands."""
        raising = (step for step in self._steps[index:] if step.name == "RAISE_VARARGS")
        return next(raising, self._steps[index]).offset

    def raise_within(self, offset: int, is_there: Callable[[int], bool]) -> int | None:
        """Return the offset of the first ``raise`` after an offset for which ``is_there`` holds; None without one."""
        raising = (step.offset for step in self._steps if step.name == "RAISE_VARARGS" and step.offset > offset)
        return next(filter(is_there, raising), None)

    def yields(self) -> list[int]:
        """Return the offsets of the ``yield`` instructions of a generator."""
        return [step.offset for step in self._steps if step.name == "YIELD_VALUE"]


@lru_cache(maxsize=32)  # with the code, of which programs that come and go have ever new ones
def _flow(code: CodeType, known: Dialect) -> Flow:
    instructions = list(steps(code))
    return Flow(instructions, _handlers(code, instructions, known), known)


def flow_of(code: CodeType) -> Flow | None:
    """Return where the instructions of ``code`` lead; None where this version's byte code is unknown."""
    known = dialect()
    return None if known is None else _flow(code, known)


def _handlers(code: CodeType, instructions: list[Step], known: Dialect) -> list[tuple[int, int, int]]:
    """Protected ranges: start and end offset, and the offset of the handler."""
    if known.set_up:
        return [(step.offset, step.value, step.value) for step in instructions if step.name in known.set_up]
    entries: Any = dis.Bytecode(code)
    return [(entry.start, entry.end, entry.target) for entry in entries.exception_entries]


def stack_effect(step: Step) -> int:
    """Return how many values more there are on the stack behind an instruction."""
    if step.argument is None and step.name.startswith(("LOAD_FAST", "STORE_FAST")):  # half of one on two variables
        return 1 if step.name.startswith("LOAD") else -1
    return dis.stack_effect(dis.opmap[step.name], step.argument, jump=False)


def _is_one_value(operand: Sequence[Step], frame: FrameType, traced: type) -> bool:
    """Return whether what the instructions of an expression leave is known to have no elements that a comparison
    asks.
    """
    value, depth = _loaded(operand[0], frame), stack_effect(operand[0])
    for step in operand[1:]:
        depth += stack_effect(step)
        if isinstance(value, traced):
            if step.name.startswith("BUILD") and depth == 1:  # of the value itself, not of an argument or index
                return False
        elif step.name == "LOAD_ATTR" and isinstance(known := getattr(value, "__dict__", None), dict):
            value = known.get(step.value, ())  # read so, it runs nothing of the user's
        else:
            return False
    if isinstance(value, (str, bytes, traced)):
        return True
    return not (hasattr(type(value), "__iter__") or isinstance(value, (slice, types.SimpleNamespace)))


def _loaded(step: Step, frame: FrameType) -> Any:
    """Return what an instruction loads; a container where that is not known."""
    if step.name in CONSTANTS:
        return step.value
    if step.name.startswith("LOAD_FAST") or step.name == "LOAD_DEREF":
        return frame.f_locals.get(step.value, ())
    if step.name in ("LOAD_GLOBAL", "LOAD_NAME"):
        return frame.f_globals.get(step.value, getattr(builtins, step.value, ()))
    return ()
