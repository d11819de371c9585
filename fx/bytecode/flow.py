"""The successors of each instruction of a function: the sides of a branch, and whether all paths of one side raise."""

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
"""Beginnings of the names of instructions that do not compute a condition."""


class Condition(NamedTuple):
    """A condition that leads to a ``raise``, perhaps with others."""

    place: int
    """The branch on it: on its truth, or on its not being ``None``."""
    raises_if: bool
    """The truth value that leads to the ``raise``."""
    leads_to: int
    """The instruction that follows then: the ``raise``, or the next condition."""


class Flow:
    """The instructions of a function, and the successors of each."""

    def __init__(
        self, instructions: Sequence[Step], handlers: Sequence[tuple[int, int, int]], version: Dialect
    ) -> None:
        """Create the flow of some instructions.

        Args:
            instructions: the instructions.
            handlers: ranges of offsets, each with start, end, and the offset of the handler.
            version: the byte code of this version of Python.
        """
        self.steps = list(instructions)
        self._version = version
        self._handlers = handlers

    def at(self, offset: int) -> int:
        """Return the index of the instruction that runs at an offset."""
        return place_in(self.steps, offset)

    # Branches.

    def branch(self, offset: int) -> tuple[int, int] | None:
        """Return the instructions that follow if the value tested at ``offset`` is true, and if it is false.

        None if no branch depends on the test. It may be part of a comparison of containers, which tests their elements.
        """
        index = self.at(offset)
        name = self.steps[index].name
        if jumps_if(name) is not None or name == "UNARY_NOT":
            return self._sides(index)
        return self._sides(index + 1) if name == self._version.conversion or self.is_converted(index) else None

    def _sides(self, index: int) -> tuple[int, int] | None:
        """Return the targets of the next branch from instruction ``index`` on, if it is true, and if it is false."""
        negated = False
        for place, step in enumerate(self.steps[index:], index):
            if step.name == "UNARY_NOT":
                negated = not negated
            elif step.name != "COPY":
                # `if x is not None` is one jump from Python 3.11 on, which tests no truth
                if_true = step.name.endswith("IF_NOT_NONE") if asks_identity(step) else jumps_if(step.name)
                if if_true is None or not is_jump(step.name):
                    return None
                target, following = self.at(step.value), place + 1
                return (target, following) if if_true is not negated else (following, target)
        return None

    def branch_on_elements(self, offset: int) -> tuple[str, tuple[int, int]] | None:
        """Return the comparison of containers at ``offset``, and the instructions that follow if it holds, and if not.

        The comparison is ``"eq"``, ``"ne"``, ``"in"`` or ``"not in"``. It tests elements for equality meanwhile.
        """
        index = self.at(offset)
        operator, sides = self.comparison(index), self._sides(index + 1)
        return None if operator is None or sides is None else (operator, sides)

    def comparison(self, index: int) -> str | None:
        """Return the name of an instruction's comparison: ``"eq"``, ``"not in"``; None if it makes none."""
        step = self.steps[index]
        if step.name in ("CONTAINS_OP", "IS_OP"):
            return {"CONTAINS_OP": ("in", "not in"), "IS_OP": ("is", "is not")}[step.name][step.argument or 0]
        if step.name != "COMPARE_OP":
            return None
        return _SIGNS.get(dis.cmp_op[(step.argument or 0) >> self._version.operator_shift])

    def is_converted(self, index: int) -> bool:
        """Return whether an instruction compares two values, and converts the result to a bool."""
        step = self.steps[index]
        return step.name == "COMPARE_OP" and bool((step.argument or 0) & self._version.converting_bit)

    def conditions(self, offset: int, lets_through: Callable[[int], bool]) -> list[Condition]:
        """Return the conditions that must all hold for a ``raise``, from that of the branch at ``offset`` on.

        Only the computation of conditions lies between them. Empty if both sides of the branch continue, or if no
        branch depends on the instruction.
        """
        sides = self.branch(offset)
        ways = [] if sides is None else [(True, *sides), (False, *sides[::-1])]
        for raises_if, leads_to, exit_ in ways:
            conditions = [Condition(self.at(offset), raises_if, leads_to)]
            while not self.raises(conditions[-1].leads_to, lets_through):
                if (following := self._next_condition(conditions[-1].leads_to, exit_)) is None:
                    break
                conditions.append(following)
            else:
                return conditions
        return []

    def _next_condition(self, index: int, exit_: int) -> Condition | None:
        """Return the condition computed from instruction ``index`` on, which leads to ``exit_`` if it does not hold."""
        while index < len(self.steps) and not is_jump(self.steps[index].name):
            if self.steps[index].name.startswith(_WITHOUT_VALUE):
                return None
            index += 1
        sides = self._sides(index)
        if sides is None or not any(self._is_same(side, exit_) for side in sides):
            return None
        raises_if = self._is_same(sides[1], exit_)
        return Condition(index, raises_if, sides[not raises_if])

    def _is_same(self, left: int, right: int) -> bool:
        """Return whether the function continues alike from two instructions; Python writes some ends several times."""
        left, right = self._behind_jumps(left), self._behind_jumps(right)
        while left != right:
            if max(left, right) >= len(self.steps):
                return False
            first, second = self.steps[left], self.steps[right]
            if first[1:4] != second[1:4] or is_jump(first.name):
                return False
            if first.name in RETURNS:
                return True
            left, right = self._behind_jumps(left + 1), self._behind_jumps(right + 1)
        return True

    def _behind_jumps(self, index: int) -> int:
        """Return the first instruction from ``index`` on that does more than jump."""
        visited: set[int] = set()
        while index < len(self.steps) and self.steps[index].name in JUMPS and index not in visited:
            visited.add(index)
            index = self.at(self.steps[index].value)
        return index

    # Exceptions.

    def raises(self, index: int, lets_through: Callable[[int], bool]) -> bool:
        """Return whether every path from instruction ``index`` raises, and the function swallows nothing.

        Args:
            index: the first instruction of the paths.
            lets_through: returns whether the ``with`` blocks around an offset let exceptions through.
        """
        pending, visited = [index], {index}
        while pending:
            following = self._following(pending.pop(), visited, lets_through)
            if following is None:
                return False
            pending.extend(i for i in following if i not in visited)
            visited.update(following)
        return True

    def _following(self, index: int, visited: set[int], lets_through: Callable[[int], bool]) -> list[int] | None:
        """Return the next instructions; none if this one raises for good; None if a path continues.

        ``visited`` are those of the paths so far. A path passes the start of its own loop, such as the loop that makes
        a list in a message, before the end.
        """
        if index >= len(self.steps):
            return None
        step = self.steps[index]
        if step.name in RAISES:
            return self._after_raise(step.offset, lets_through)
        if step.name in LEAVES:
            return None
        following = self.successors(index)
        if step.name in JUMPS and following[0] <= index and following[0] not in visited:
            return None
        return following

    def successors(self, index: int) -> list[int]:
        """Return the instructions that may run next: the target of a jump, and the following instruction."""
        step = self.steps[index]
        jumps = [self.at(step.value)] if is_jump(step.name) else []
        ends = step.name in JUMPS or step.name in RAISES or step.name in RETURNS
        return jumps if ends else [*jumps, index + 1]

    def _after_raise(self, offset: int, lets_through: Callable[[int], bool]) -> list[int] | None:
        """Return the instructions after a raise at ``offset``: an enclosing handler, or none."""
        handlers = self._handlers_of(offset)
        if not handlers or not self._is_with(handlers[0]):
            return handlers
        return [self._raising_again(handlers[0])] if lets_through(self.steps[handlers[0]].offset) else None

    def _raising_again(self, index: int) -> int:
        """Return the instruction at which the handler of a ``with`` lets the exception through."""
        return next(place for place, step in enumerate(self.steps[index:], index) if step.name == "RERAISE")

    def leaves(self, offset: int, lets_through: Callable[[int], bool]) -> bool:
        """Return whether an exception that the instruction at ``offset`` raises leaves the function."""
        following = self._after_raise(offset, lets_through)
        return following is not None and all(self.raises(index, lets_through) for index in following)

    def may_handle(self, lets_through: Callable[[int], bool]) -> bool:
        """Return whether the function may continue after an exception; ``lets_through`` is as in :meth:`raises`."""
        for index in {self.at(target) for *_, target in self._handlers}:
            is_with = self._is_with(index)
            leaves = lets_through(self.steps[index].offset) if is_with else self.raises(index, lambda _: True)
            if not leaves:
                return True
        return False

    def clauses(self, offset: int) -> Iterator[tuple[str, int]]:
        """Yield the clauses that may handle an exception that the instruction at ``offset`` raises, innermost first.

        Each is a kind and an offset:

        - ``with``, and the offset of its handler.
        - ``except``, and the offset that compares its classes, if the function may continue there.
        - ``all``, and the offset at which the function continues after any exception.
        """
        pending, visited = self._handlers_of(offset), set[int]()
        while pending:
            index = pending.pop(0)
            if index in visited or index >= len(self.steps):
                continue
            visited.add(index)
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
            elif step.name in LEAVES or (
                step.name == "POP_EXCEPT" and all(next_step.name != "RERAISE" for next_step in following)
            ):
                yield "all", step.offset
            else:
                pending += self.successors(index)[::-1]

    def _handlers_of(self, offset: int) -> list[int]:
        """Return the instruction that runs after an exception at ``offset``; none if it leaves the function."""
        inside = [(end - start, target) for start, end, target in self._handlers if start <= offset < end]
        return [self.at(min(inside)[1])] if inside else []

    def _is_with(self, index: int) -> bool:
        """Return whether the instruction is the handler of a ``with``."""
        if self.steps[index].name == "PUSH_EXC_INFO":  # from Python 3.11 on
            index += 1
        return any(step.name == "WITH_EXCEPT_START" for step in self.steps[index : index + 1])

    def raise_offset(self, index: int) -> int:
        """Return the offset of the first ``raise`` from instruction ``index`` on."""
        raising = (step for step in self.steps[index:] if step.name == "RAISE_VARARGS")
        return next(raising, self.steps[index]).offset

    def yields(self) -> list[int]:
        """Return the offsets of the ``yield`` instructions of a generator."""
        return [step.offset for step in self.steps if step.name == "YIELD_VALUE"]


@once_for_code
def flow_of(code: CodeType) -> Flow | None:
    """Return the flow of ``code``; None if this version's byte code is unknown."""
    version = dialect()
    return None if version is None else Flow(steps(code), handlers_of(code), version)


def handlers_of(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the protected ranges: start and end offset, and the offset of the handler."""
    of_blocks = [(step.offset, step.value, step.value) for step in steps(code) if step.name in SETS_UP]
    return of_blocks or [(entry.start, entry.end, entry.target) for entry in exception_entries(code)]


def exception_entries(code: CodeType) -> list[Any]:
    """Return the table of ranges that handle exceptions; Python 3.10 has none."""
    bytecode: Any = dis.Bytecode(code)
    return list(getattr(bytecode, "exception_entries", ()))
