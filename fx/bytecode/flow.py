"""Where each instruction of a function can lead: the sides of a branch, and whether all of one side raises."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from fx.bytecode.dialects import (
    JUMPS,
    LEAVES,
    RAISES,
    RETURNS,
    SETS_UP,
    Dialect,
    Step,
    asks_identity,
    dialect,
    is_jump,
    jumps_if,
    once_for_code,
    place_in,
    steps,
)

_SIGNS = dict(zip(("<", "<=", "==", "!=", ">", ">="), ("lt", "le", "eq", "ne", "gt", "ge"), strict=True))
_WITHOUT_VALUE = ("STORE_", "DELETE_", "POP_TOP", *SETS_UP, *RAISES, *LEAVES)
"""Beginnings of instructions that no condition is computed by."""


class Condition(NamedTuple):
    """A condition that leads to a ``raise``, perhaps with others."""

    place: int
    """The branch on it: on its truth, or on that it is not ``None``."""
    raises_if: bool
    """The truth value that leads to the ``raise``."""
    leads_to: int
    """The instruction where the function goes on then: to the ``raise``, or to the next condition."""


class Flow:
    """The instructions of a function, and where each of them can lead."""

    def __init__(self, found: Sequence[Step], handlers: Sequence[tuple[int, int, int]], known: Dialect) -> None:
        """``handlers`` are ranges of offsets, their start and end, and where an exception in them leads."""
        self.steps = list(found)
        self._known = known
        self._handlers = handlers

    def at(self, offset: int) -> int:
        """The instruction that runs at an offset."""
        return place_in(self.steps, offset)

    # Branches.

    def branch(self, offset: int) -> tuple[int, int] | None:
        """The instructions that follow if the value asked for at ``offset`` is true, and if it is false.

        None where no branch depends on it: the instruction may be a comparison of containers, say, whose elements are
        asked for theirs.
        """
        index = self.at(offset)
        name = self.steps[index].name
        if jumps_if(name) is not None or name == "UNARY_NOT":
            return self._sides(index)
        return self._sides(index + 1) if name == self._known.conversion or self.is_converted(index) else None

    def _sides(self, index: int) -> tuple[int, int] | None:
        """Return where the next branch from instruction ``index`` on leads, if it is true, and if it is false."""
        negated = False
        for place, step in enumerate(self.steps[index:], index):
            if step.name == "UNARY_NOT":
                negated = not negated
            elif step.name != "COPY":
                # `if x is not None` is one jump from Python 3.11 on, which asks for no truth
                if_true = step.name.endswith("IF_NOT_NONE") if asks_identity(step) else jumps_if(step.name)
                if if_true is None or not is_jump(step.name):
                    return None
                taken, passed = self.at(step.value), place + 1
                return (taken, passed) if if_true is not negated else (passed, taken)
        return None

    def branch_on_elements(self, offset: int) -> tuple[str, tuple[int, int]] | None:
        """Return what the instruction at ``offset`` compares containers by, and what follows if it holds, and if it
        does not.

        That is ``"eq"``, ``"ne"``, ``"in"`` or ``"not in"``; it asks elements whether they are equal meanwhile.
        """
        index = self.at(offset)
        operator = self.comparison(index)
        sides = None if operator is None else self._sides(index + 1)
        return None if operator is None or sides is None else (operator, sides)

    def comparison(self, index: int) -> str | None:
        """The name of the comparison that an instruction makes: ``"eq"``, ``"not in"``; None for other ones."""
        step = self.steps[index]
        if step.name in ("CONTAINS_OP", "IS_OP"):
            return {"CONTAINS_OP": ("in", "not in"), "IS_OP": ("is", "is not")}[step.name][step.argument or 0]
        if step.name != "COMPARE_OP":
            return None
        return _SIGNS.get(dis.cmp_op[(step.argument or 0) >> self._known.operator_shift])

    def is_converted(self, index: int) -> bool:
        """Return whether an instruction compares two values, and asks what comes out for its truth."""
        step = self.steps[index]
        return step.name == "COMPARE_OP" and bool((step.argument or 0) & self._known.converting_bit)

    def conditions(self, offset: int, lets_through: Callable[[int], bool]) -> list[Condition]:
        """Return the conditions that all have to hold for a ``raise``, from that of the branch at ``offset`` on.

        Between them is nothing but what computes them. Empty where both sides of the branch go on, and where no branch
        depends on the instruction.
        """
        sides = self.branch(offset)
        if sides is None:
            return []
        ways = [
            Condition(self.at(offset), raises_if, side) for raises_if, side in zip((True, False), sides, strict=True)
        ]
        for first in ways:
            if self.raises(first.leads_to, lets_through):
                return [first]
        for first, other in zip(ways, ways[::-1], strict=True):
            if rest := self._conditions_behind(first.leads_to, other.leads_to, lets_through):
                return [first, *rest]
        return []

    def _conditions_behind(self, index: int, exit_: int, lets_through: Callable[[int], bool]) -> list[Condition]:
        """The conditions from instruction ``index`` on, each of which leads to ``exit_`` where it does not hold."""
        found: list[Condition] = []
        while not found or not self.raises(index, lets_through):
            while index < len(self.steps) and not is_jump(self.steps[index].name):
                if self.steps[index].name.startswith(_WITHOUT_VALUE):
                    return []
                index += 1
            sides = self._sides(index)
            if sides is None or not any(self._is_same(side, exit_) for side in sides):
                return []
            raises_if = self._is_same(sides[1], exit_)
            found.append(Condition(index, raises_if, sides[not raises_if]))
            index = found[-1].leads_to
        return found

    def _is_same(self, one: int, other: int) -> bool:
        """Return whether the function goes on alike from two instructions; Python writes some ends several times."""
        one, other = self._behind_jumps(one), self._behind_jumps(other)
        while one != other:
            if max(one, other) >= len(self.steps):
                return False
            first, second = self.steps[one], self.steps[other]
            if first[1:4] != second[1:4] or is_jump(first.name):
                return False
            if first.name in RETURNS:
                return True
            one, other = self._behind_jumps(one + 1), self._behind_jumps(other + 1)
        return True

    def _behind_jumps(self, index: int) -> int:
        """The first instruction from ``index`` on that does more than to jump."""
        seen: set[int] = set()
        while index < len(self.steps) and self.steps[index].name in JUMPS and index not in seen:
            seen.add(index)
            index = self.at(self.steps[index].value)
        return index

    # Exceptions.

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
        if index >= len(self.steps):
            return None
        step = self.steps[index]
        if step.name in RAISES:
            return self._after_raise(step.offset, lets_through)
        if step.name in LEAVES:
            return None
        following = self.successors(index)
        if step.name in JUMPS and following[0] <= index and following[0] not in seen:
            return None
        return following

    def successors(self, index: int) -> list[int]:
        """The instructions that may run next: that to which this one jumps, and the one behind it."""
        step = self.steps[index]
        jumps = [self.at(step.value)] if is_jump(step.name) else []
        ends = step.name in JUMPS or step.name in RAISES or step.name in RETURNS
        return jumps if ends else [*jumps, index + 1]

    def _after_raise(self, offset: int, lets_through: Callable[[int], bool]) -> list[int] | None:
        """Return what follows a raise at ``offset``: an enclosing handler, or nothing."""
        handlers = self._handlers_of(offset)
        if not handlers or not self._is_with(handlers[0]):
            return handlers
        return [self._raising_again(handlers[0])] if lets_through(self.steps[handlers[0]].offset) else None

    def _raising_again(self, index: int) -> int:
        """Where the handler of a ``with`` lets the exception through."""
        return next(place for place, step in enumerate(self.steps[index:], index) if step.name == "RERAISE")

    def leaves(self, offset: int, lets_through: Callable[[int], bool]) -> bool:
        """Return whether an exception that the instruction at ``offset`` raises leaves the function."""
        following = self._after_raise(offset, lets_through)
        return following is not None and all(self.raises(index, lets_through) for index in following)

    def handles(self) -> bool:
        """Return whether the function may go on where it handles an exception, beside ``with`` blocks."""
        targets = {self.at(target) for _, _, target in self._handlers}
        return any(not self._is_with(index) and not self.raises(index, lambda _: True) for index in targets)

    def blocks(self) -> list[int]:
        """The offsets of the handlers of ``with`` blocks."""
        targets = {self.at(target) for _, _, target in self._handlers}
        return [self.steps[index].offset for index in targets if self._is_with(index)]

    def clauses(self, offset: int) -> Iterator[tuple[str, int]]:
        """Yield what may handle an exception that the instruction at ``offset`` raises, from the inside.

        That is ``with`` and where its handler stands, ``except`` and where its classes are compared, if the function
        may go on there, or ``all`` and where the function goes on after any exception.
        """
        pending, seen = self._handlers_of(offset), set[int]()
        while pending:
            index = pending.pop(0)
            if index in seen or index >= len(self.steps):
                continue
            seen.add(index)
            step, following = self.steps[index], self.steps[index + 1 : index + 2]
            if self._is_with(index):
                yield "with", step.offset
                pending += self._handlers_of(self.steps[self._raising_again(index)].offset)
            elif step.name in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"):
                sides = (index + 1, self.at(step.value)) if is_jump(step.name) else self._sides(index + 1)
                if sides is None or not self.raises(sides[0], lambda _: True):
                    yield "except", step.offset
                pending += sides[1:] if sides else ()
            elif step.name in RAISES:
                pending += self._handlers_of(step.offset)
            elif step.name in LEAVES or (step.name == "POP_EXCEPT" and all(one.name != "RERAISE" for one in following)):
                yield "all", step.offset
            else:
                pending += self.successors(index)[::-1]

    def _handlers_of(self, offset: int) -> list[int]:
        """The instruction that goes on after an exception at ``offset``; none where it leaves the function."""
        inside = [(end - start, target) for start, end, target in self._handlers if start <= offset < end]
        return [self.at(min(inside)[1])] if inside else []

    def _is_with(self, index: int) -> bool:
        """Return whether the handler of a ``with`` stands there."""
        if self.steps[index].name == "PUSH_EXC_INFO":  # from Python 3.11 on
            index += 1
        return any(step.name == "WITH_EXCEPT_START" for step in self.steps[index : index + 1])

    def raise_offset(self, index: int) -> int:
        """Return where the first ``raise`` from instruction ``index`` on stands."""
        raising = (step for step in self.steps[index:] if step.name == "RAISE_VARARGS")
        return next(raising, self.steps[index]).offset

    def yields(self) -> list[int]:
        """Return the offsets of the ``yield`` instructions of a generator."""
        return [step.offset for step in self.steps if step.name == "YIELD_VALUE"]


@once_for_code
def flow_of(code: CodeType) -> Flow | None:
    """Return where the instructions of ``code`` lead; None where this version's byte code is unknown."""
    known = dialect()
    return None if known is None else Flow(steps(code), handlers_of(code), known)


def handlers_of(code: CodeType) -> list[tuple[int, int, int]]:
    """Protected ranges: start and end offset, and the offset of the handler."""
    of_blocks = [(step.offset, step.value, step.value) for step in steps(code) if step.name in SETS_UP]
    return of_blocks or [(entry.start, entry.end, entry.target) for entry in exception_entries(code)]


def exception_entries(code: CodeType) -> list[Any]:
    """The table of ranges that handle exceptions; Python 3.10 has none."""
    bytecode: Any = dis.Bytecode(code)
    return list(getattr(bytecode, "exception_entries", ()))
