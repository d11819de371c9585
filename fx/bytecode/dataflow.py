"""Definitions and uses of the values of a function, found in its byte code.

The program does not run for it. Needs the standard library only.
"""

from __future__ import annotations

import bisect
import builtins
import dis
import functools
import inspect
import logging
import opcode
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from fx.bytecode.dialects import CONSTANTS, Dialect, Step, dialect, once_for_code, place_in, working_steps

UNKNOWN = -1
"""The instruction that makes a value which Python itself puts onto the stack, such as an exception."""
NULL = -2
"""The place of an instruction that pushes NULL beside a function before it is called."""
_Stack = tuple[frozenset[int], ...]
_OF_PYTHON: _Stack = (frozenset({UNKNOWN}),)
_LEAVE_NOTHING = (
    *("STORE_", "POP_", "DELETE_", "RAISE_VARARGS", "RERAISE", "JUMP", "LIST_APPEND", "LIST_EXTEND", "SET_ADD"),
    *("SET_UPDATE", "MAP_ADD", "DICT_", "RETURN_VALUE", "RETURN_CONST", "RESUME", "COPY_FREE_VARS", "MAKE_CELL"),
    *("END_FOR", "KW_NAMES", "PRECALL", "SETUP_FINALLY", "SETUP_ANNOTATIONS", "GEN_START"),
)
"""Beginnings of instructions that leave no value of their own."""
_LEAVE_TWO = frozenset({"LOAD_METHOD", "BEFORE_WITH", "SETUP_WITH", "PUSH_EXC_INFO"})
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW"})
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JOINS = frozenset({"+", "%", "*", "+=", "%=", "*="})
_LIST_TO_TUPLE = 6
_USES = {
    "POP_TOP": "drop",
    "RAISE_VARARGS": "raise",
    "RETURN_VALUE": "return",
    "YIELD_VALUE": "yield",
    "STORE_FAST": "store",
    **dict.fromkeys(("LIST_APPEND", "LIST_EXTEND"), "append"),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), "attribute"),
    "BINARY_SUBSCR": "element",
    **dict.fromkeys(("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "BUILD_STRING"), "text"),
    **dict.fromkeys(("BUILD_TUPLE", "BUILD_LIST", "LIST_TO_TUPLE"), "text"),
    **{f"{kind}_{name}": "text" for kind in ("BINARY", "INPLACE") for name in ("ADD", "MODULO", "MULTIPLY")},
}
_OLD_SIGNS = {"BINARY_ADD": "+", "BINARY_MODULO": "%", "BINARY_MULTIPLY": "*", "BINARY_SUBTRACT": "-"}
_EXPRESSIONS = {
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), "attribute"),
    "BINARY_SUBSCR": "element",
    "BINARY_SLICE": "sliced",
    "BUILD_SLICE": "slice",
    "BUILD_TUPLE": "tuple",
    "BUILD_LIST": "list",
    "BUILD_STRING": "joined",
}
_COMPARING = frozenset({"COMPARE_OP", "IS_OP", "CONTAINS_OP"})
_ENTER = frozenset({"BEFORE_WITH", "SETUP_WITH"})
_IDENTITY = frozenset(name for name in dis.opmap if name == "IS_OP" or name.endswith(("IF_NONE", "IF_NOT_NONE")))
_JUMPING = frozenset(dis.opname[number] for number in (*dis.hasjrel, *dis.hasjabs))


class Call(NamedTuple):
    """A call, as byte code shows it."""

    callee: frozenset[int]
    """The instructions that load what is called."""
    positional: list[frozenset[int]]
    """Those that make each positional argument."""
    keywords: dict[str, frozenset[int]]
    """Those that make each keyword argument."""
    is_spread: bool
    """Whether there are starred arguments, whose number is not known."""


class Expression(NamedTuple):
    """The computation of a value by one instruction."""

    kind: str
    """``load``, ``attribute``, ``element``, ``sliced``, ``slice``, ``tuple``, ``list``, ``joined`` (text), ``format``,
    ``binary`` or ``call``."""
    operands: tuple[frozenset[int], ...]
    """The instructions that make each operand."""
    detail: Any
    """The instruction itself, the name of an attribute, a conversion, the sign of an operator, or a :class:`Call`."""


class Dataflow:
    """The values on the stack before each instruction of a function, by the instructions that make them."""

    def __init__(self, code: CodeType, known: Dialect) -> None:
        self.code = code
        self.steps = working_steps(code)
        self._known = known
        self._offsets = [step.offset for step in self.steps]
        self._before: list[_Stack | None] = [None] * len(self.steps)
        self._handlers: list[Any] = [] if known.set_up else list(_bytecode(code).exception_entries)
        self._interpret()
        self.uses: dict[int, list[tuple[int, int]]] = {}
        """Of each instruction, which ones take what it makes, and how deep it lies then: 1 on top of the stack."""
        for index, stack in enumerate(self._before):
            if stack is not None and (taken := _counts(self.steps[index], jump=False)[0]):
                for depth, makers in enumerate(reversed(stack[-taken:]), 1):
                    for maker in makers:
                        self.uses.setdefault(maker, []).append((index, depth))

    def running(self, frame: FrameType) -> int:
        """The instruction that a frame of this function is at."""
        index = place_in(self.steps, frame.f_lasti)
        return index + 1 if self.steps[index].name == "PRECALL" else index  # Python 3.11 calls in either

    def use(self, index: int) -> str | None:
        """Return the kind of use that an instruction makes of its operand; None for any other kind.

        The kinds are ``drop``, ``raise``, ``return``, ``yield``, ``store`` (in a variable of the function's own),
        ``append`` (to a list), ``attribute``, ``element``, and ``text`` (for text or a container of it).
        """
        step = self.steps[index]
        if step.name == "BINARY_OP":
            return "text" if _signs()[step.argument or 0] in _JOINS else None
        if step.name == "CALL_INTRINSIC_1":
            return "text" if step.argument == _LIST_TO_TUPLE else None
        if step.name == "STORE_FAST" and step.value in self.code.co_cellvars:
            return None
        return _USES.get(step.name)

    def loads_of(self, variable: str) -> list[int] | None:
        """The instructions that load a variable of the function's own; None if it has no such, or others see it."""
        if variable not in self.code.co_varnames or variable in self.code.co_cellvars:
            return None
        loading = enumerate(self.steps)
        return [index for index, step in loading if step.name.startswith("LOAD_FAST") and step.value == variable]

    def asks_truth(self, index: int) -> bool:
        """Return whether an instruction asks what it takes for its truth."""
        name = self.steps[index].name
        return name in self._known.branches or name in self._known.conversions or name == "UNARY_NOT"

    def compares_elements(self, index: int) -> bool:
        """Return whether what an instruction makes is gone through by an expression that asks elements for their
        identity or truth.
        """
        for use, _ in self.uses.get(index, ()):
            inner: CodeType | None = None
            if self.steps[use].name == "GET_ITER":
                for taking, _ in self.uses.get(use, ()):
                    call = self.call(taking)
                    inner = self.code_of(call.callee) if call is not None else None
                    flow = self if inner is None else dataflow(inner)
                    if flow is not None and any(map(flow.asks_truth_or_identity, flow.elements(taking, inner))):
                        return True
        return False

    def code_of(self, makers: frozenset[int]) -> CodeType | None:
        """The code of a function that the function makes, such as a generator expression; None for other values."""
        try:
            value = self.expression(makers).detail
        except LookupError:
            return None
        return value if isinstance(value, CodeType) else None

    def elements(self, loop: int, inner: CodeType | None) -> list[int]:
        """The instructions that load the elements of a loop: that of a comprehension, or the one at ``loop``."""
        loops = [i for i, step in enumerate(self.steps) if step.name == "FOR_ITER"][:1] if inner is not None else [loop]
        stores = [use for one in loops for use, _ in self.uses.get(one, ()) if self.use(use) == "store"]
        return [one for store in stores for one in self.loads_of(str(self.steps[store].value)) or ()]

    def asks_truth_or_identity(self, index: int) -> bool:
        """Return whether the truth or identity of what an instruction makes is asked for."""
        asking = (use for use, _ in self.uses.get(index, ()))
        return any(self.asks_truth(one) or self.steps[one].name in _IDENTITY for one in asking)

    def loads(self, name: str) -> list[int]:
        """The instructions that load a variable, also where inner functions see it."""
        loading = enumerate(self.steps)
        return [i for i, step in loading if step.name.startswith(("LOAD_FAST", "LOAD_DEREF")) and step.value == name]

    def container(self, index: int) -> frozenset[int]:
        """The instructions that make the list which the one at ``index`` adds to."""
        return self.operand(index, (self.steps[index].argument or 0) + 1)

    def method_name(self, index: int) -> str | None:
        """The name of the attribute that an instruction loads; None if it loads none."""
        return str(self.steps[index].value) if index >= 0 and _USES.get(self.steps[index].name) == "attribute" else None

    def operand(self, index: int, depth: int) -> frozenset[int]:
        """The instructions that make what lies so deep on the stack before the one at ``index``."""
        stack = self._before[index] or ()
        return stack[-depth] if 0 < depth <= len(stack) else frozenset({UNKNOWN})

    def expression(self, makers: frozenset[int]) -> Expression:
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
        if step.name == "BINARY_OP":
            return Expression("binary", self._operands(index, 2), _signs()[step.argument or 0].rstrip("="))
        if (sign := _OLD_SIGNS.get(step.name)) is not None:
            return Expression("binary", self._operands(index, 2), sign)
        if (kind := _EXPRESSIONS.get(step.name)) is not None:
            return Expression(kind, self._operands(index, _counts(step, jump=False)[0]), step.value)
        if step.name in ("FORMAT_VALUE", "CONVERT_VALUE"):
            conversion = "" if step.argument is None else ("", "s", "r", "a")[step.argument & 3]
            return Expression("format", self._operands(index, _counts(step, jump=False)[0]), conversion)
        if step.name in ("FORMAT_SIMPLE", "FORMAT_WITH_SPEC"):
            return Expression("format", self._operands(index, _counts(step, jump=False)[0]), "")
        if step.name == "MAKE_FUNCTION":
            makers = next(one for one in self._operands(index, 2)[::-1] if not self._is_text(one))
            return self.expression(makers)
        if step.name in CONSTANTS:
            return Expression("constant", (), step.value)
        if step.name == "UNARY_NOT":
            return Expression("not", self._operands(index, 1), None)
        if step.name in _COMPARING:
            return Expression("compare", self._operands(index, 2), _comparison(step, self._known))
        return Expression("load", (), step)

    def result(self) -> frozenset[int]:
        """The instructions that make what the function returns."""
        returning = [index for index, step in enumerate(self.steps) if step.name == "RETURN_VALUE"]
        return frozenset().union(*(self.operand(index, 1) for index in returning))

    def manager(self, handler: int) -> frozenset[int]:
        """The instructions that make the context manager of the ``with`` whose handler stands at an offset.

        Raises:
            LookupError: that is not known.
        """
        entering = [index for index, step in enumerate(self.steps) if step.name in _ENTER and step.value == handler]
        for entry in self._handlers:
            if entry.target == handler and (stack := self._before[self._at(entry.start)]) is not None:
                entering += [one for one in stack[entry.depth - 1] if one >= 0 and self.steps[one].name in _ENTER]
        if len(set(entering)) != 1:
            raise LookupError
        return self.operand(entering[0], 1)

    def _operands(self, index: int, count: int) -> tuple[frozenset[int], ...]:
        return tuple(self.operand(index, depth) for depth in range(count, 0, -1))

    def _is_text(self, makers: frozenset[int]) -> bool:
        return all(maker >= 0 and isinstance(self.steps[maker].value, str) for maker in makers)

    def raised(self, end: int) -> frozenset[int]:
        """The instructions that make what the one at offset ``end`` raises."""
        index = self._at(end)
        if self.steps[index].name != "RAISE_VARARGS":
            raise LookupError
        return self.operand(index, self.steps[index].argument or 0)

    def stored_between(self, start: int, end: int) -> dict[str, frozenset[int]]:
        """Of each variable that is set between two offsets, the instructions that make its value; none where there are
        several ways from there to the end.
        """
        between = [index for index, step in enumerate(self.steps) if start < step.offset < end]
        branch = max((index for index in between if self.steps[index].name in _JUMPING), default=-1)
        return {
            str(self.steps[index].value): self.operand(index, 1) if index > branch else frozenset()
            for index in between
            if self.steps[index].name.startswith("STORE_") and self.steps[index].name != "STORE_SUBSCR"
        }

    def operand_at(self, offset: int) -> frozenset[int]:
        """The instructions that make what lies on top of the stack at an offset."""
        return self.operand(self._at(offset), 1)

    def call(self, index: int) -> Call | None:
        """The call that an instruction makes; None where it makes none."""
        step = self.steps[index]
        if step.name == "CALL_FUNCTION_EX":
            taken = _counts(step, jump=False)[0]
            return Call(self._callee(index, taken, taken - 1), [], {}, True)
        if step.name not in _CALLS:
            return None
        count, names = step.argument or 0, ()
        top = 1
        if step.name in ("CALL_KW", "CALL_FUNCTION_KW"):
            names = self._constant(self.operand(index, 1))
            top = 2
        else:
            before = self.steps[index - 2 if self.steps[index - 1].name == "PRECALL" else index - 1]
            names = self.code.co_consts[before.argument or 0] if before.name == "KW_NAMES" else ()
        given = [self.operand(index, depth) for depth in range(count + top - 1, top - 1, -1)]
        first, second = self.operand(index, count + top + 1), self.operand(index, count + top)
        if step.name in ("CALL_FUNCTION", "CALL_FUNCTION_KW"):
            callee = second
        else:
            callee = self._callee(index, count + top + 1, count + top)
            if callee == first and second != first and NULL not in second:
                given.insert(0, second)  # a decorator's function, or what a comprehension goes through
        keyword = dict(zip(names, given[len(given) - len(names) :], strict=True)) if names else {}
        return Call(callee, given[: len(given) - len(names)], keyword, False)

    def _callee(self, index: int, first: int, second: int) -> frozenset[int]:
        """Return the makers of the callee: it is in the first place, or in the second if NULL is in the first."""
        found = self.operand(index, first)
        return self.operand(index, second) if NULL in found else found

    def _constant(self, makers: frozenset[int]) -> Any:
        (maker,) = makers
        return self.steps[maker].value

    # Interpretation.

    def _interpret(self) -> None:
        pending: list[tuple[int, _Stack]] = [(0, ())]
        while pending:
            index, stack = pending.pop()
            if index >= len(self.steps):
                continue
            known = self._before[index]
            if known is not None:
                if len(known) != len(stack):
                    raise LookupError(self.steps[index].name)
                stack = tuple(one | other for one, other in zip(known, stack, strict=True))
                if stack == known:
                    continue
            self._before[index] = stack
            pending += self._following(index, stack)

    def _following(self, index: int, stack: _Stack) -> Iterator[tuple[int, _Stack]]:
        step = self.steps[index]
        for entry in self._handlers:
            if entry.start <= step.offset < entry.end:
                yield self._at(entry.target), stack[: entry.depth] + _OF_PYTHON * (1 + entry.lasti)
        if step.name in _JUMPING and type(step.value) is int:
            yield self._at(step.value), _after(step, index, stack, jump=True)
        if step.name not in _ENDS and step.name not in self._known.jumps:
            yield index + 1, _after(step, index, stack, jump=False)

    def _at(self, offset: int) -> int:
        return bisect.bisect_left(self._offsets, offset)


def _comparison(step: Step, known: Dialect) -> str:
    if step.name == "COMPARE_OP":
        return dis.cmp_op[(step.argument or 0) >> known.operator_shift]
    return step.name  # by identity, or in a container: nobody asks for these


@functools.cache
def _signs() -> list[str]:
    """The signs of the operators of ``BINARY_OP``, by their numbers."""
    return [sign for _, sign in getattr(opcode, "_nb_ops", ())]


def _bytecode(code: CodeType) -> Any:
    return dis.Bytecode(code)


def _after(step: Step, index: int, stack: _Stack, jump: bool) -> _Stack:
    """The stack behind an instruction."""
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
    taken, left = _counts(step, jump)
    if step.name == "PUSH_NULL":
        return (*stack, frozenset({NULL}))
    if step.name == "LOAD_GLOBAL" and left == 2:
        pair = (frozenset({NULL}), frozenset({index}))
        return (*stack, *(pair if sys.version_info < (3, 13) else pair[::-1]))
    return (*stack[: len(stack) - taken], *[frozenset({index})] * left)


def _counts(step: Step, jump: bool) -> tuple[int, int]:
    """Return the numbers of values that an instruction pops from the stack and pushes onto it."""
    name, argument = step.name, step.argument
    if argument is None and name.startswith(("LOAD_FAST", "STORE_FAST")):  # half of one on two variables
        return (0, 1) if name.startswith("LOAD") else (1, 0)
    if name == "CALL":
        return (argument or 0) + 2, 1
    if name == "PRECALL":
        return 0, 0
    if name in ("COPY", "DUP_TOP", "DUP_TOP_TWO", "SWAP") or name.startswith("ROT_"):
        return 0, 0
    effect = dis.stack_effect(dis.opmap[name], argument, jump=jump)
    if jump and name.startswith("SETUP_"):  # to a handler, with what Python itself puts there
        return 0, effect
    if name in ("FOR_ITER", "SEND", "LOAD_GLOBAL", "PUSH_NULL"):
        return max(-effect, 0), max(effect, 0)
    if name.startswith(_LEAVE_NOTHING):
        return (-effect, 0) if effect <= 0 else (0, effect)
    if name in _LEAVE_TWO:
        left = 2
    elif name.startswith(("UNPACK_", "LOAD_ATTR")):
        left = effect + 1
    elif name.startswith("LOAD_SUPER_ATTR"):
        left = effect + 3
    else:
        left = 1
    return max(left - effect, 0), left


@once_for_code
def dataflow(code: CodeType) -> Dataflow | None:
    """Return which instruction of ``code`` makes what; None where its byte code is not known."""
    known = dialect()
    try:
        return None if known is None else Dataflow(code, known)
    except (LookupError, ValueError):
        return None


def may_return_truth(code: CodeType) -> bool:
    """Return whether a function may return something else than the constants ``None`` and ``False``."""
    found = working_steps(code)
    for before, step in zip([None, *found], found, strict=False):
        if step.name == "RETURN_CONST" and step.value:
            return True
        if step.name == "RETURN_VALUE" and (before is None or before.name not in CONSTANTS or before.value):
            return True
    return False


# Values.


class Names(NamedTuple):
    """The values of the names in a function."""

    local: Mapping[str, Any]
    """Its variables, and those of outer functions, as far as they are known."""
    namespace: Mapping[str, Any]
    """Its globals."""

    @classmethod
    def of_frame(cls, frame: FrameType) -> Names:
        """Those of a frame, now."""
        return cls(frame.f_locals, frame.f_globals)

    @classmethod
    def of_function(cls, function: FunctionType) -> Names:
        """Those of a function that is not running: its parameters and variables are not known."""
        known: dict[str, Any] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing yet
                known[name] = cell.cell_contents
        return cls(known, function.__globals__)

    def value(self, step: Step) -> Any:
        """Return the value that an instruction loads by its name.

        Raises:
            LookupError: it loads none, or the value is not known.
        """
        if step.name in CONSTANTS:
            return step.value
        if step.name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            return self.local[step.value]
        if step.name in ("LOAD_GLOBAL", "LOAD_NAME"):
            known = (self.local, self.namespace) if step.name == "LOAD_NAME" else (self.namespace,)
            for names in (*known, vars(builtins)):
                if step.value in names:
                    return names[step.value]
        if step.name == "LOAD_ASSERTION_ERROR":
            return AssertionError
        raise LookupError(step.name)


class Method(NamedTuple):
    """A method, as the class of its object has it, which nobody has bound."""

    owner: Any
    """The object."""
    function: Any
    """The function."""


_METHODS = (FunctionType, type(str.join), type(str.__len__))
_MISSING = object()


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute of an object if reading it runs nothing of the program's; a :class:`Method` for a method.

    Raises:
        LookupError: it does not have it by itself, or a property or the like gives it.
    """
    if isinstance(owner, ModuleType):
        return vars(owner)[name]
    value = inspect.getattr_static(owner, name, _MISSING)
    if value is _MISSING:  # of a module of torch, its parameters, buffers and modules
        held = (vars(owner).get(kind, ()) for kind in ("_parameters", "_buffers", "_modules") if _has_entries(owner))
        value = next((entries[name] for entries in held if name in entries), _MISSING)
    if isinstance(value, staticmethod):
        return value.__func__
    if isinstance(value, classmethod):
        return Method(owner, value.__func__)
    if isinstance(value, _METHODS) and not (isinstance(owner, type) or name in getattr(owner, "__dict__", ())):
        return Method(owner, value)
    is_plain = isinstance(owner, type) or isinstance(value, _METHODS) or not hasattr(type(value), "__get__")
    if value is _MISSING or not is_plain:
        raise LookupError(name)
    return value


def _has_entries(owner: Any) -> bool:
    return not isinstance(owner, type) and isinstance(getattr(owner, "__dict__", None), dict)


def element_of(owner: Any, key: Any) -> Any:
    """Return an element of one of Python's containers.

    Raises:
        LookupError: it has none, or is of another class.
    """
    if type(owner) in (list, tuple, dict) and type(key) in (int, str, slice):
        with suppress(TypeError):
            return owner[key]
    raise LookupError(key)


def value_of(flow: Dataflow, makers: frozenset[int], names: Names, traced: type | tuple[()] = ()) -> Any:
    """Return a value that only loads, attributes, elements and tuples make, without running anything.

    With the class of traced values, these give attributes, are called and are compared, too.

    Raises:
        LookupError: something else makes it, or it is not known.
    """
    kind, operands, detail = flow.expression(makers)
    if kind in ("constant", "load"):
        return detail if kind == "constant" else names.value(detail)
    if kind == "call":
        parts = [value_of(flow, one, names, traced) for one in (detail.callee, *detail.positional)]
        if isinstance(parts[0], traced) and not detail.keywords and not detail.is_spread:
            return parts[0](*parts[1:])
        raise LookupError(kind)
    parts = [value_of(flow, one, names, traced) for one in operands]
    if kind == "attribute":
        return getattr(parts[0], detail) if isinstance(parts[0], traced) else attribute_of(parts[0], str(detail))
    if kind == "element":
        return parts[0][parts[1]] if isinstance(parts[0], traced) else element_of(*parts)
    if kind in ("tuple", "list"):
        return tuple(parts)
    if kind == "not" and type(parts[0]) is bool:
        return not parts[0]
    if kind == "compare" and detail in _COMPARED and any(isinstance(part, traced) for part in parts):
        return _COMPARED[detail](*parts)
    raise LookupError(kind)


_COMPARED = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
             ">=": operator.ge}  # fmt: skip


# Calls.


def callee_of(flow: Dataflow, call: Call, names: Names) -> Any:
    """The function or class that is called; None where that is not known."""
    try:
        value = value_of(flow, call.callee, names)
    except LookupError:
        return _method_of_result(flow, call, names)
    if isinstance(value, Method):
        value = value.function
    return behind(value.__func__ if type(value) is MethodType else value)


def _method_of_result(flow: Dataflow, call: Call, names: Names) -> Any:
    """The method that is called of a constant text, or of ``logging.getLogger(…)``."""
    for index in call.callee:
        if (name := flow.method_name(index)) is not None:
            for maker in flow.operand(index, 1):
                made_by = flow.call(maker) if maker >= 0 else None
                if made_by is not None and callee_of(flow, made_by, names) is logging.getLogger:
                    return getattr(logging.getLoggerClass(), name, None)
    return None


def behind(value: Any) -> Any:
    """Return the original of a function that replaces one during a capture; other values are themselves."""
    held = getattr(value, "__dict__", None)
    return held["_stands_for"] if isinstance(held, dict) and "_stands_for" in held else value


def parameters_given(code: CodeType, call: Call, maker: int, bound: bool) -> Iterator[str]:
    """The parameters by which a function is given what an instruction of its caller makes; empty for starred ones."""
    named = code.co_argcount + code.co_kwonlyargcount
    starred = code.co_varnames[named] if code.co_flags & inspect.CO_VARARGS else ""
    for place, makers in enumerate(call.positional, int(bound)):
        if maker in makers:
            yield code.co_varnames[place] if place < code.co_argcount else starred
    for name, makers in call.keywords.items():
        if maker in makers:
            yield name if name in code.co_varnames[:named] else ""


def is_calling(frame: FrameType, function: Any) -> bool:
    """Return whether a frame calls a function, by whatever name: a variable, an attribute or an entry of a dict."""
    flow = dataflow(frame.f_code)
    call = None if flow is None else flow.call(flow.running(frame))
    return flow is not None and call is not None and callee_of(flow, call, Names.of_frame(frame)) is function
