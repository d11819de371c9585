"""Definitions and uses of the values of a function, found in its byte code.

The program is not run. Needs the standard library only.
"""

from __future__ import annotations

import dis
import functools
import inspect
import opcode
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from fx.bytecode.dialects import (
    CONSTANTS,
    JUMPS,
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
    steps,
)
from fx.bytecode.flow import Flow, exception_entries, handlers_of

UNKNOWN = -1
"""The maker of a value that Python itself pushes, such as an exception, in place of an instruction."""
NULL = -2
"""The maker of the NULL that is pushed beside a function before its call."""
Makers = frozenset[int]
"""The instructions that may make a value."""
_Stack = tuple[Makers, ...]
_OF_PYTHON: _Stack = (frozenset({UNKNOWN}),)
_LEAVE_NOTHING = (
    *("STORE_", "POP_", "DELETE_", "RAISE_VARARGS", "RERAISE", "JUMP", "LIST_APPEND", "LIST_EXTEND", "SET_ADD"),
    *("SET_UPDATE", "MAP_ADD", "DICT_", "RETURN_VALUE", "RETURN_CONST", "RESUME", "COPY_FREE_VARS", "MAKE_CELL"),
    *("END_FOR", "KW_NAMES", "SETUP_FINALLY", "SETUP_ANNOTATIONS", "GEN_START"),
)
"""Beginnings of the names of instructions that leave no value of their own."""
_LEAVE_TWO = frozenset({"LOAD_METHOD", "BEFORE_WITH", "SETUP_WITH", "PUSH_EXC_INFO"})
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW"})
_WITH_NAMES = frozenset({"CALL_KW", "CALL_FUNCTION_KW"})
"""Calls with a tuple of the names of keyword arguments on top of the stack."""
_LIST_TO_TUPLE = 6
_ENTER = frozenset({"BEFORE_WITH", "SETUP_WITH"})
_OLD_SIGNS = {
    f"{kind}_{name}": sign
    for kind in ("BINARY", "INPLACE")
    for name, sign in {"ADD": "+", "MODULO": "%", "MULTIPLY": "*", "SUBTRACT": "-"}.items()
}
_KINDS = {
    "POP_TOP": "drop",
    "RAISE_VARARGS": "raise",
    "RETURN_VALUE": "return",
    "YIELD_VALUE": "yield",
    **dict.fromkeys(("STORE_FAST", "STORE_DEREF", "STORE_NAME"), "store"),
    **dict.fromkeys(("LIST_APPEND", "LIST_EXTEND"), "append"),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), "attribute"),
    "BINARY_SUBSCR": "element",
    "BINARY_SLICE": "sliced",
    "BUILD_SLICE": "slice",
    "BUILD_TUPLE": "tuple",
    "BUILD_LIST": "list",
    **dict.fromkeys(("BUILD_MAP", "BUILD_CONST_KEY_MAP"), "dict"),
    "LIST_TO_TUPLE": "converted",
    "BUILD_STRING": "joined",
    **dict.fromkeys(("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"), "format"),
    **dict.fromkeys(("BINARY_OP", *_OLD_SIGNS), "binary"),
    **dict.fromkeys(CONSTANTS, "constant"),
    "UNARY_NOT": "not",
    "TO_BOOL": "truth",
    **dict.fromkeys(("COMPARE_OP", "IS_OP", "CONTAINS_OP"), "compare"),
}
TEXTS = frozenset({"tuple", "list", "converted", "joined", "format", "binary"})
"""Kinds of uses that make text, or a container of text, from operands that may be text."""
_MAKE_NOTHING = frozenset({"drop", "raise", "return", "yield", "store", "append", "converted"})
"""Kinds of uses that do not compute a value."""

_SHOWING = frozenset("store binary attribute element sliced slice compare drop raise format".split())
"""Kinds of uses that call a method of the operand's class, if they do more than store or drop it."""
_CALLS_METHOD = frozenset({"UNARY_NEGATIVE", "UNARY_INVERT", "GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX"})
"""Instructions of other kinds that do."""


class CodeCall(NamedTuple):
    """A call, as byte code shows it."""

    callee: Makers
    """The instructions that load the called function."""
    positional: list[Makers]
    """The instructions that make each positional argument."""
    keywords: dict[str, Makers]
    """The instructions that make each keyword argument."""
    is_spread: bool
    """True if there are starred arguments, whose number is not known."""


class Expression(NamedTuple):
    """The computation of a value by one instruction."""

    kind: str
    """``constant``, ``load``, ``attribute``, ``element``, ``sliced``, ``slice``, ``tuple``, ``list``, ``joined``
    (text), ``format``, ``binary``, ``not``, ``truth``, ``compare`` or ``call``."""
    operands: tuple[Makers, ...]
    """The instructions that make each operand."""
    detail: Any
    """The instruction itself, a constant, the name of an attribute or comparison, a conversion, the sign of an
    operator, or a :class:`CodeCall`."""


class Dataflow(Flow):
    """The values on the stack before each instruction of a function, by the instructions that make them."""

    def __init__(self, code: CodeType, version: Dialect) -> None:
        super().__init__(steps(code), handlers_of(code), version)
        self.code = code
        self._before: list[_Stack | None] = [None] * len(self.steps)
        self._entries = exception_entries(code)
        self._adding = [index for index in range(len(self.steps)) if self.kind(index) == "append"]
        self._interpret()
        self.uses: dict[int, list[tuple[int, int]]] = {}
        """For each instruction, the instructions that take its value, with its depth on the stack: 1 for the top."""
        for index, stack in enumerate(self._before):
            if stack is not None and (popped := _counts(self.steps[index], jump=False)[0]):
                for depth, makers in enumerate(reversed(stack[-popped:]), 1):
                    for maker in makers:
                        self.uses.setdefault(maker, []).append((index, depth))

    def running(self, frame: FrameType) -> int:
        """Return the instruction that a frame of this function is at."""
        return self.at(frame.f_lasti)

    # Uses.

    def kind(self, index: int) -> str | None:
        """Return the kind of use that an instruction makes of its operands; None for any other kind.

        The kinds are those of :class:`Expression`, and ``drop``, ``raise``, ``return``, ``yield``, ``store`` (in a
        variable), ``append`` (to a list) and ``converted`` (a list, to a tuple).
        """
        step = self.steps[index]
        if step.name == "CALL_INTRINSIC_1":
            return "converted" if step.argument == _LIST_TO_TUPLE else None
        return _KINDS.get(step.name)

    def takers(self, index: int) -> list[int]:
        """Return the instructions that take the value of an instruction."""
        return [taker for taker, _ in self.uses.get(index, ())]

    def loads_of(self, variable: str) -> list[int] | None:
        """Return the instructions that load a local variable; None if it is not local, or inner functions see it."""
        if variable not in self.code.co_varnames or variable in self.code.co_cellvars:
            return None
        return self.loads(variable)

    def loads(self, name: str) -> list[int]:
        """Return the instructions that load a variable, also if inner functions see it."""
        is_cell = name in self.code.co_cellvars  # Python 3.13 loads the cell itself fast
        loads = ("LOAD_DEREF",) if is_cell else ("LOAD_FAST", "LOAD_DEREF")
        return [i for i, step in enumerate(self.steps) if step.name.startswith(loads) and step.value == name]

    def loads_of_argument(self, name: str) -> list[int]:
        """Return the instructions that may load a parameter as it was given; all loads if inner functions see it."""
        if name in self.code.co_cellvars:
            return self.loads(name)
        reached, pending = set[int](), [0]
        while pending:
            index = pending.pop()
            if index in reached or index >= len(self.steps):
                continue
            reached.add(index)
            step = self.steps[index]
            pending += self._handlers_of(step.offset)
            if not (step.name.startswith("STORE_FAST") and step.value == name):
                pending += self.successors(index)
        return [index for index in self.loads(name) if index in reached]

    def stored_in(self, makers: list[int]) -> set[str]:
        """Return the variables in which the values of these instructions are stored."""
        uses = [use for index in makers for use in self.takers(index)]
        return {str(self.steps[use].value) for use in uses if self.kind(use) == "store"}

    def variables_with(self, name: str) -> set[str]:
        """Return ``name``, and the variables that its value is stored in."""
        variables = [name]
        for variable in variables:
            variables += sorted(self.stored_in(self.loads(variable)).difference(variables))
        return set(variables)

    def uses_of_stored(self, index: int) -> list[int] | None:
        """Return the uses of the variable that is assigned at ``index``; None if inner functions see its value."""
        variables = self.variables_with(str(self.steps[index].value))
        if not variables.isdisjoint(self.code.co_cellvars):
            return None
        return [use for variable in variables for load in self.loads(variable) for use in self.takers(load)]

    def shows(self, index: int) -> bool:
        """Return whether an instruction only stores its operand in a variable, or calls a method of its class."""
        return self.kind(index) in _SHOWING or self.steps[index].name in _CALLS_METHOD

    def shows_all_uses(self, index: int) -> bool:
        """Return whether each use of an instruction's value shows, returns or tests it: see :meth:`shows`."""
        pending = self.takers(index)
        for use in pending:
            if self.kind(use) == "store":
                if (uses := self.uses_of_stored(use)) is None:
                    return False
                pending += [other for other in uses if other not in pending]
            elif self.kind(use) in ("tuple", "list"):
                if any(self.kind(other) != "return" for other in self.takers(use)):
                    return False
            elif not (self.shows(use) or self.asks_truth(use) or self.kind(use) == "return"):
                return False
        return True

    def asks_truth(self, index: int) -> bool:
        """Return whether an instruction tests the truth of its operand."""
        name = self.steps[index].name
        return jumps_if(name) is not None or name in (self._version.conversion, "UNARY_NOT")

    def asks_class(self, index: int) -> bool:
        """Return whether an instruction compares the class of its operand with a pattern (``case Class():``)."""
        return self.steps[index].name == "MATCH_CLASS"

    def asks_truth_or_identity(self, index: int) -> bool:
        """Return whether the truth or identity of an instruction's value is tested."""
        return any(self.asks_truth(taker) or asks_identity(self.steps[taker]) for taker in self.takers(index))

    def compares_elements(self, index: int) -> bool:
        """Return whether a loop or comprehension over a value tests identity or truth of its elements."""
        iterators = {use for use in self.takers(index) if self.steps[use].name == "GET_ITER"}
        loops = [i for i, step in enumerate(self.steps) if step.name == "FOR_ITER" and iterators & self.operand(i, 1)]
        for taking in (*loops, *(taker for iterator in iterators for taker in self.takers(iterator))):
            call = self.call(taking)
            inner = self.code_of(call.callee) if call is not None else None
            flow = self if inner is None else dataflow(inner)
            if flow is not None and any(map(flow.asks_truth_or_identity, flow.elements(taking, inner))):
                return True
        return False

    def elements(self, loop: int, inner: CodeType | None) -> list[int]:
        """Return the instructions that load the elements of a loop: that of a comprehension, or the one at ``loop``."""
        loops = [i for i, step in enumerate(self.steps) if step.name == "FOR_ITER"][:1] if inner is not None else [loop]
        stores = [use for start in loops for use in self.takers(start) if self.kind(use) == "store"]
        return [load for store in stores for load in self.loads_of(str(self.steps[store].value)) or ()]

    def container(self, index: int) -> Makers:
        """Return the instructions that make the list which the one at ``index`` adds to."""
        return self.operand(index, (self.steps[index].argument or 0) + 1)

    def adds_to(self, maker: int) -> list[int]:
        """Return the instructions that add to the list of an instruction while the list is being built."""
        return [index for index in self._adding if maker in self.container(index)]

    # Values.

    def operand(self, index: int, depth: int) -> Makers:
        """Return the instructions that make the value at this depth of the stack before the one at ``index``."""
        stack = self._before[index] or ()
        return stack[-depth] if 0 < depth <= len(stack) else frozenset({UNKNOWN})

    def operands(self, index: int) -> tuple[Makers, ...]:
        """Return the instructions that make the operands of the one at ``index``, the top of the stack last."""
        return tuple(self.operand(index, depth) for depth in range(_counts(self.steps[index], jump=False)[0], 0, -1))

    def expression(self, makers: Makers) -> Expression:
        """Return the computation of a value.

        Raises:
            LookupError: there are several, or it is of a kind that :class:`Expression` does not have.
        """
        if len(makers) != 1 or min(makers) < 0:
            raise LookupError
        (index,) = makers
        step = self.steps[index]
        if (call := self.call(index)) is not None:
            return Expression("call", (), call)
        if step.name == "MAKE_FUNCTION":
            operands = self.operands(index)[-2:]
            return self.expression(next(makers for makers in operands[::-1] if not self._is_text(makers)))
        kind = self.kind(index) or "load"
        if kind in _MAKE_NOTHING or (kind == "list" and self.adds_to(index)):
            raise LookupError(kind)
        return Expression(kind, () if kind == "load" else self.operands(index), self._detail(kind, index))

    def _detail(self, kind: str, index: int) -> Any:
        step = self.steps[index]
        if kind == "binary":
            return _OLD_SIGNS.get(step.name) or _signs()[step.argument or 0].rstrip("=")
        if kind == "format":
            has_conversion = step.name in ("FORMAT_VALUE", "CONVERT_VALUE")
            return ("", "s", "r", "a")[(step.argument or 0) & 3] if has_conversion else ""
        if kind == "compare":
            return self.comparison(index)
        return step if kind == "load" else step.value

    def _is_text(self, makers: Makers) -> bool:
        return all(maker >= 0 and isinstance(self.steps[maker].value, str) for maker in makers)

    def code_of(self, makers: Makers) -> CodeType | None:
        """Return the code of an inner function that is made, such as a generator expression; None for other values."""
        try:
            value = self.expression(makers).detail
        except LookupError:
            return None
        return value if isinstance(value, CodeType) else None

    def result(self) -> Makers:
        """Return the instructions that make the result of the function."""
        returning = [index for index, step in enumerate(self.steps) if step.name == "RETURN_VALUE"]
        return frozenset().union(*(self.operand(index, 1) for index in returning))

    def manager(self, handler: int) -> Makers:
        """Return the instructions that make the context manager of a ``with``, by the offset of its handler.

        Raises:
            LookupError: they are not known.
        """
        entering = {index for index, step in enumerate(self.steps) if step.name in _ENTER and step.value == handler}
        for entry in self._entries:
            if entry.target == handler and (stack := self._before[self.at(entry.start)]) is not None:
                entering |= {
                    maker for maker in stack[entry.depth - 1] if maker >= 0 and self.steps[maker].name in _ENTER
                }
        if len(entering) != 1:
            raise LookupError
        return self.operand(entering.pop(), 1)

    def raised(self, end: int) -> Makers:
        """Return the instructions that make the exception which the one at offset ``end`` raises.

        Raises:
            LookupError: it raises nothing, or only raises a handled exception again.
        """
        index = self.at(end)
        if self.steps[index].name != "RAISE_VARARGS":
            raise LookupError
        return self.operand(index, self.steps[index].argument or 0)

    def stored_between(self, start: int, end: int) -> dict[str, Makers]:
        """Return the instructions that make the value of each variable that is set between two offsets.

        There are none for a variable if several paths lead from its assignment to the end.
        """
        between = [index for index, step in enumerate(self.steps) if start < step.offset < end]
        branch = max((index for index in between if is_jump(self.steps[index].name)), default=-1)
        return {
            str(self.steps[index].value): self.operand(index, 1) if index > branch else frozenset()
            for index in between
            if self.steps[index].name.startswith("STORE_") and self.steps[index].name != "STORE_SUBSCR"
        }

    # Calls.

    def call(self, index: int) -> CodeCall | None:
        """Return the call that an instruction makes; None if it makes none."""
        step = self.steps[index]
        if step.name == "CALL_FUNCTION_EX":
            popped = _counts(step, jump=False)[0]
            return CodeCall(self._callee(index, popped, popped - 1), [], {}, True)
        if step.name not in _CALLS:
            return None
        count, top, names = step.argument or 0, 1, ()
        if step.name in _WITH_NAMES:
            (maker,) = self.operand(index, 1)
            top, names = 2, self.steps[maker].value
        elif (before := self.steps[index - 1]).name == "KW_NAMES":
            names = self.code.co_consts[before.argument or 0]
        arguments = [self.operand(index, depth) for depth in range(count + top - 1, top - 1, -1)]
        first, second = self.operand(index, count + top + 1), self.operand(index, count + top)
        if step.name in ("CALL_FUNCTION", "CALL_FUNCTION_KW"):
            callee = second
        else:
            callee = self._callee(index, count + top + 1, count + top)
            if callee == first and second != first and NULL not in second:
                arguments.insert(0, second)  # a decorator's function, or the iterator of a comprehension
        keyword = dict(zip(names, arguments[len(arguments) - len(names) :], strict=True)) if names else {}
        return CodeCall(callee, arguments[: len(arguments) - len(names)], keyword, False)

    def _callee(self, index: int, first: int, second: int) -> Makers:
        """Return the makers of the callee: it is in the first place, or in the second if NULL is in the first."""
        makers = self.operand(index, first)
        return self.operand(index, second) if NULL in makers else makers

    # Interpretation.

    def _interpret(self) -> None:
        pending: list[tuple[int, _Stack]] = [(0, ())]
        while pending:
            index, stack = pending.pop()
            if index >= len(self.steps):
                continue
            before = self._before[index]
            if before is not None:
                if len(before) != len(stack):
                    raise LookupError(self.steps[index].name)
                stack = tuple(left | right for left, right in zip(before, stack, strict=True))
                if stack == before:
                    continue
            self._before[index] = stack
            pending += self._stacks_behind(index, stack)

    def _stacks_behind(self, index: int, stack: _Stack) -> Iterator[tuple[int, _Stack]]:
        step = self.steps[index]
        for entry in self._entries:
            if entry.start <= step.offset < entry.end:
                yield self.at(entry.target), stack[: entry.depth] + _OF_PYTHON * (1 + entry.lasti)
        if is_jump(step.name) or step.name in SETS_UP:
            yield self.at(step.value), _after(step, index, stack, jump=True)
        if step.name not in JUMPS and step.name not in RAISES and step.name not in RETURNS:
            yield index + 1, _after(step, index, stack, jump=False)


@functools.cache
def _signs() -> list[str]:
    """Return the signs of the operators of ``BINARY_OP``, by their numbers."""
    return [sign for _, sign in getattr(opcode, "_nb_ops", ())]


def _after(step: Step, index: int, stack: _Stack, jump: bool) -> _Stack:
    """Return the stack after an instruction."""
    argument = step.argument or 0
    if step.name in ("COPY", "DUP_TOP"):
        return (*stack, stack[-(argument or 1)])
    if step.name == "DUP_TOP_TWO":
        return (*stack, *stack[-2:])
    if step.name in ("SWAP", "ROT_TWO"):
        depth = argument or 2
        return (*stack[:-depth], stack[-1], *stack[-depth + 1 : -1], stack[-depth])
    if step.name in ("ROT_THREE", "ROT_FOUR", "ROT_N"):
        depth = {"ROT_THREE": 3, "ROT_FOUR": 4}.get(step.name, argument)
        return (*stack[:-depth], stack[-1], *stack[-depth:-1])
    popped, pushed = _counts(step, jump)
    if step.name == "PUSH_NULL":
        return (*stack, frozenset({NULL}))
    if step.name == "LOAD_GLOBAL" and pushed == 2:
        pair = (frozenset({NULL}), frozenset({index}))
        return (*stack, *(pair if sys.version_info < (3, 13) else pair[::-1]))
    return (*stack[: len(stack) - popped], *[frozenset({index})] * pushed)


def _counts(step: Step, jump: bool) -> tuple[int, int]:
    """Return the numbers of values that an instruction pops from the stack and pushes onto it."""
    name, argument = step.name, step.argument
    if argument is None and name.startswith(("LOAD_FAST", "STORE_FAST")):  # half of an instruction on two variables
        return (0, 1) if name.startswith("LOAD") else (1, 0)
    if name == "CALL":
        return (argument or 0) + 2, 1
    if name in ("COPY", "DUP_TOP", "DUP_TOP_TWO", "SWAP") or name.startswith("ROT_"):
        return 0, 0
    effect = dis.stack_effect(dis.opmap[name], argument, jump=jump)
    if jump and name in SETS_UP:  # to a handler, with the values that Python itself pushes
        return 0, effect
    if name in ("FOR_ITER", "SEND", "LOAD_GLOBAL", "PUSH_NULL"):
        return max(-effect, 0), max(effect, 0)
    if name.startswith(_LEAVE_NOTHING):
        return (-effect, 0) if effect <= 0 else (0, effect)
    if name in _LEAVE_TWO:
        pushed = 2
    elif name.startswith(("UNPACK_", "LOAD_ATTR")):
        pushed = effect + 1
    elif name.startswith("LOAD_SUPER_ATTR"):
        pushed = effect + 3
    else:
        pushed = max(effect, 1)  # MATCH_KEYS pushes two values in Python 3.10
    return max(pushed - effect, 0), pushed


@once_for_code
def dataflow(code: CodeType) -> Dataflow | None:
    """Return the dataflow of ``code``; None if its byte code is not known."""
    version = dialect()
    try:
        return None if version is None else Dataflow(code, version)
    except (LookupError, ValueError):
        return None


def known_dataflow(code: CodeType) -> Dataflow:
    """Return the dataflow of ``code``.

    Raises:
        LookupError: its byte code is not known.
    """
    if (flow := dataflow(code)) is None:
        raise LookupError
    return flow


def named_parameters(code: CodeType) -> int:
    """Return the number of a function's parameters without ``*args`` and ``**kwargs``."""
    return code.co_argcount + code.co_kwonlyargcount


def parameters_given(code: CodeType, call: CodeCall, maker: int, bound: bool) -> Iterator[str]:
    """Yield the parameters that get a caller's value; an empty name for ``**kwargs``, and the name of ``*args``."""
    named = named_parameters(code)
    starred = code.co_varnames[named] if code.co_flags & inspect.CO_VARARGS else ""
    for place, makers in enumerate(call.positional, int(bound)):
        if maker in makers:
            yield code.co_varnames[place] if place < code.co_argcount else starred
    for name, makers in call.keywords.items():
        if maker in makers:
            yield name if name in code.co_varnames[:named] else ""
