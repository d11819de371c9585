"""Variations of the arguments of calls, by the signatures and schemas of their functions."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import nn

from fx.operators.overloads import get_overloads
from pytest_fx.generation.productions import spell
from pytest_fx.search.observed import Observed, Variation, called_by
from pytest_fx.search.simplifications import tensors_in
from pytest_fx.search.syntax import Edits, edited, expression, index_of

_INTEGERS = (0, 1, 2, 3, -1, -2)
_FLOATS = (0.5, 2.0, 0.0, -1.0, float("-inf"))
_DTYPES = (torch.float64, torch.float16, torch.float32, torch.int64, torch.bool)
_FORMATS = (torch.channels_last, torch.contiguous_format)
TYPE = "type of a number"
"""The property of a call with an equal number of another type, which has another promotion."""
_MOST_WORDS = 12
"""The number of words of a docstring that are tried for a text argument."""
_ELSEWHERE = frozenset({"device", "generator", "layout", "pin_memory", "names", "requires_grad"})
"""Arguments for the place of values, not for the values themselves."""
_MOST_OF_OVERLOAD = 4
"""The number of calls of another overload that are tried."""
FEW_NUMBERS = 3
"""The number of numbers up to which all their orders are tried."""
_WORD = re.compile(r"""(?:'|"|``)([a-z_]{2,20})(?:'|"|``)""")


def argument_variations(observed: Observed) -> Iterator[Variation]:
    """Yield each call with one argument varied: another value, omitted, added, by keyword or by position.

    A parameter that several calls share is also varied in all of them together.
    """
    alike: dict[tuple[str, str], Edits] = {}
    several: set[tuple[str, str]] = set()
    for place in (*observed.lines, observed.returned, observed.init):
        for part in ast.walk(place):
            for variation in variations_of(observed, part):
                yield replace(variation, call=part)
                if key := variation.parameter and (variation.parameter, variation.passed):
                    several |= {key} & alike.keys()
                    alike[key] = {**alike.get(key, {}), **variation.edits}
    for parameter, passed in sorted(several):
        name, edits = f"argument {parameter} of several calls", alike[parameter, passed]
        yield Variation(name, edits, callee="several calls", parameter=parameter)


def variations_of(observed: Observed, part: ast.AST) -> Iterator[Variation]:
    """Yield a call or an operator with one argument varied; nothing for other parts of a program."""
    if isinstance(part, ast.Call):
        yield from _of_call(observed, part)
    elif isinstance(part, ast.BinOp):
        yield from _of_operator(observed, part)
    elif isinstance(part, ast.List | ast.Tuple) and all(
        isinstance(observed.value_of(each), torch.Tensor) for each in part.elts
    ):
        yield from (Variation("order of a list", edits) for edits in _of_list(part))
    elif isinstance(part, ast.Subscript) and isinstance(observed.value_of(part.value), torch.Tensor | tuple | list):
        for edits in _of_index(part.slice):
            passed = ast.unparse(edited(part.slice, edits))
            yield Variation("argument index of getitem", edits, callee="getitem", parameter="index", passed=passed)


def _of_list(values: ast.List | ast.Tuple) -> Iterator[Edits]:
    """Yield a list of values in another order, without one of them, or with one of them twice."""
    elements = values.elts
    orders = [elements[::-1], [*elements[1:], *elements[:1]], elements[:-1], elements[1:], [*elements[:1], *elements]]
    for order in orders if len(elements) > 1 else ():
        yield {values: [type(values)(list(order), ast.Load())]}


def _of_index(index: ast.expr) -> Iterator[Edits]:
    """Yield an index with one of its parts varied, without it, or with a further one."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for part in parts:
        text = ast.unparse(part)
        match part:
            case ast.Slice(lower=lower, upper=upper, step=step):
                start, stop, stride = (ast.unparse(each) if each else "" for each in (lower, upper, step))
                others = [f"{each}:{stop}:{stride}" for each in ("", "1", "-1", "-2")]
                others += [f"{start}:{each}:{stride}" for each in ("", "1", "2", "-1", "99")]
                others += [f"{start}:{stop}:{each}" for each in ("", "2", "3")] + ["0", "-1"]
            case ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())):
                others = ["0", "1", "2", "-1", "-2", ":", "1:", ":1", "[0]"]
            case ast.Constant():  # None, or an ellipsis
                others = [":", "0"]
            case ast.List():
                others = [spell(each) for each in _like(_literal(part), None, None)]
            case _:
                continue
        yield from ({part: [index_of(other)]} for other in others if other != text)
    if len(parts) > 1:
        yield from ({part: []} for part in parts)
    for others in ([*parts, index_of(":1")], [ast.Constant(None), *parts], [ast.Constant(...), *parts], parts[::-1]):
        yield {index: [ast.Tuple(list(others), ast.Load())]}


def _of_operator(observed: Observed, operation: ast.BinOp) -> Iterator[Variation]:
    """Yield an operator as a call of torch's function and method, and those with further arguments."""
    name = _FUNCTIONS.get(type(operation.op))
    if name is None or not isinstance(observed.value_of(operation.left), torch.Tensor):
        return
    operands = [operation.left, operation.right]
    function = ast.Call(expression(f"torch.{name}"), operands, [])
    method = ast.Call(ast.Attribute(operation.left, name, ast.Load()), [operation.right], [])
    yield Variation("spelling", {operation: [function]})
    yield Variation("spelling", {operation: [method]})
    for variation in _of_call(observed, function):
        edits = {operation if part is function else part: other for part, other in variation.edits.items()}
        yield replace(variation, edits=edits)


_FUNCTIONS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
    ast.FloorDiv: "floor_divide", ast.Mod: "remainder",
}  # fmt: skip


def _of_call(observed: Observed, call: ast.Call) -> Iterator[Variation]:
    called = called_by(observed, call)
    receiver = _receiver_of(observed, call)
    signature = None if called is None else _signature_of(observed, call, called, receiver)
    if signature is None:
        if receiver and len(call.args) > 1 and len(_numbers_in(call.args)) == len(call.args):
            yield from _of_numbers_in_a_row(observed, call)
        return
    callee = _callee(called)
    bound = signature.bind(*receiver, *call.args, **{each.arg: each for each in call.keywords if each.arg})
    for name, parameter in signature.parameters.items():
        if name in _ELSEWHERE or name[0] == "_" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        argument = bound.arguments.get(name)
        if argument is None:
            others = _added(observed, call, called, parameter)
        else:
            others = _otherwise(observed, call, called, parameter, argument) if argument not in receiver else ()
        for passed, edits in others:
            property_ = f"argument {name} of {callee}{_change(argument, passed)}"
            yield Variation(property_, edits, callee=callee, parameter=name, passed=passed)
        if argument is not None:
            yield from _of_another_type(observed, argument)
    yield from _of_numbers(observed, callee, [*call.args, *(each.value for each in call.keywords)])
    if not isinstance(called, type):
        yield from _of_overloads(call, called, bound, receiver)
        yield from _by_keyword(call, signature, len(receiver))
        name = ast.unparse(call.func).rpartition(".")[2]
        if receiver and hasattr(torch, name):
            yield Variation(
                "spelling", {call: [ast.Call(expression(f"torch.{name}"), [*receiver, *call.args], call.keywords)]}
            )


def _change(argument: Any, passed: str) -> str:
    """Return the end of a property's name, for a change that other values of the argument do not show."""
    if not passed:
        return " left out"
    if argument is None:
        return ""
    before = _literal(argument.value if isinstance(argument, ast.keyword) else argument)
    numbers = [type(part.value) for part in ast.walk(expression(passed)) if isinstance(part, ast.Constant)]
    return " as a fraction" if float in numbers and type(before) is not float else ""


def _of_numbers_in_a_row(observed: Observed, call: ast.Call) -> Iterator[Variation]:
    """Yield variations of a method call whose numbers form one list, such as ``x.permute(0, 2, 1)``."""
    listed = ast.Call(call.func, [ast.Tuple(list(call.args), ast.Load())], call.keywords)
    inside = set(ast.walk(listed))
    for variation in _of_call(observed, listed):
        changed = edited(listed, variation.edits)
        match changed:
            case ast.Call(func=function, args=[ast.Tuple(elts=numbers)], keywords=keywords):
                changed = ast.Call(function, list(numbers), keywords)
            case _:
                pass
        others = {part: change for part, change in variation.edits.items() if part not in inside}
        yield replace(variation, edits={call: [changed], **others})


def inputs_in(observed: Observed, dtype: torch.dtype) -> Edits:
    """Return edits that change the dtype of floating-point inputs."""
    floats = [(part, recipe) for part, recipe in tensors_in(observed.call.inputs) if recipe.dtype.is_floating_point]
    return {part: [expression(replace(recipe, dtype=dtype).text)] for part, recipe in floats}


def _callee(called: Any) -> str:
    """Return the name of a function, or of a module's class."""
    return type(called).__name__ if isinstance(called, nn.Module) else called.__name__


def _receiver_of(observed: Observed, call: ast.Call) -> list[ast.expr]:
    """Return the tensor whose method is called, as the first argument of its schema; none for other calls."""
    is_method = isinstance(call.func, ast.Attribute) and isinstance(observed.value_of(call.func.value), torch.Tensor)
    return [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else []


def _signature_of(
    observed: Observed, call: ast.Call, called: Any, receiver: list[ast.expr]
) -> inspect.Signature | None:
    """Return the signature that accepts the arguments of a call; None if there is none."""
    for signature in signatures_of(called):
        try:
            bound = signature.bind(
                *receiver, *call.args, **{each.arg: each.value for each in call.keywords if each.arg}
            )
        except TypeError:
            continue
        if all(_fits(observed, signature.parameters[name], value) for name, value in bound.arguments.items()):
            return signature
    return None


def _fits(observed: Observed, parameter: inspect.Parameter, argument: Any) -> bool:
    """Return whether an argument is a tensor exactly if the parameter is one."""
    if parameter.annotation is parameter.empty or not isinstance(argument, ast.expr):
        return True
    text = type_of(parameter)
    return (
        ("Tensor" in text) == isinstance(observed.value_of(argument), torch.Tensor) or "List" in text or "Any" in text
    )


def type_of(parameter: inspect.Parameter) -> str:
    """Return the annotation of a parameter as text."""
    annotation = parameter.annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


@functools.cache
def signatures_of(called: Any) -> tuple[inspect.Signature, ...]:
    """Return the signatures of a function, one for each overload, of a class, or of a module's ``forward``."""
    if isinstance(called, nn.Module):
        called = type(called).forward
        signature = inspect.signature(called)
        return (signature.replace(parameters=list(signature.parameters.values())[1:]),)
    if isinstance(called, type):
        return (_signature_of_class(called),) if issubclass(called, nn.Module) else ()
    name = getattr(called, "__name__", "")
    if inspect.isfunction(called) and "_jit_internal" not in called.__module__:
        return (inspect.signature(called),)
    for function in (called, getattr(torch, name, None), getattr(torch.ops.aten, name, None)):
        if callable(function) and (overloads := get_overloads(function)):
            return tuple(each.signature for each in overloads if not each.written or name.endswith("_"))
    return ()


def _signature_of_class(kind: type) -> inspect.Signature:
    """Return the signature of a class, with the keywords that it passes on to its base class."""
    signature = inspect.signature(kind)
    parameters = dict(signature.parameters)
    passed_on = [name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD]
    for base in kind.__mro__[1:-1] if passed_on else ():
        if "__init__" in vars(base) and issubclass(base, nn.Module) and base is not nn.Module:
            for name, each in inspect.signature(base).parameters.items():
                if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is not each.empty:
                    parameters.setdefault(name, each.replace(kind=each.KEYWORD_ONLY))
            break
    for name in passed_on:
        del parameters[name]
    return signature.replace(parameters=list(parameters.values()))


def _otherwise(
    observed: Observed, call: ast.Call, called: Any, parameter: inspect.Parameter, argument: Any
) -> Iterator[tuple[str, Edits]]:
    """Yield edits that give a present argument another value or omit it, each with the argument's text."""
    value = argument.value if isinstance(argument, ast.keyword) else argument
    if not isinstance(value, ast.expr):  # the arguments behind a star
        return
    if isinstance(value, ast.Constant) and value.value is None:
        others = [
            each if isinstance(each, str) else spell(each[0]) for each in _values(observed, call, called, parameter)
        ]
    else:
        others = [*_computed(observed, value, parameter), *map(spell, _others(observed, value, parameter, called))]
    yield from ((other, {value: [expression(other)]}) for other in others)
    if parameter.default is not parameter.empty:
        is_last = isinstance(argument, ast.keyword) or argument is call.args[-1]
        yield "", {argument: []} if is_last else {value: [expression(spell(parameter.default))]}


def _of_another_type(observed: Observed, argument: Any) -> Iterator[Variation]:
    """Yield an equal number of another type, also on integers, since types of numbers affect promotion."""
    value = argument.value if isinstance(argument, ast.keyword) else argument
    match getattr(value, "value", None):
        case int(number) if type(number) is int:
            others: list[Any] = [float(number), *([bool(number)] if number in (0, 1) else [])]
        case float(number) if number.is_integer():
            others = [int(number)]
        case _:
            return
    for other in others:
        edits: Edits = {value: [expression(spell(other))]}
        yield Variation(TYPE, edits)
        yield Variation(TYPE, {**edits, **inputs_in(observed, torch.int64)})


def _computed(observed: Observed, value: ast.expr, parameter: inspect.Parameter) -> list[str]:
    """Return other numbers that the program computes from a number, such as a size."""
    if not isinstance(value, ast.Name) or type(observed.value_of(value)) not in (int, float):
        return []
    factors = ["* 0.5"] if _takes_fractions(parameter) else []
    return [f"{value.id} {step}" for step in ("+ 1", "- 1", "* 2", *factors)]


def _takes_fractions(parameter: inspect.Parameter) -> bool:
    return re.search("float|Number", type_of(parameter)) is not None


def _others(observed: Observed, value: ast.expr, parameter: inspect.Parameter, called: Any) -> Iterable[Any]:
    """Return other values of the type of a constant, or of a number that the program computes."""
    constant, computed = _literal(value), observed.value_of(value)
    if constant is None and type(computed) in (int, float):
        constant = computed
    others = _DTYPES if parameter.name == "dtype" else _like(constant, parameter, called)
    return [each for each in others if spell(each) not in (spell(constant), ast.unparse(value))]


def _literal(part: ast.expr) -> Any:
    """Return the value of an expression without names; None for other expressions."""
    try:
        return ast.literal_eval(part)
    except ValueError:
        return None


def _like(constant: Any, parameter: inspect.Parameter | None, called: Any) -> Iterable[Any]:
    match constant:
        case bool():
            return [not constant]
        case int():
            near = (constant + 1, constant - 1, -constant, *_INTEGERS, 2 * constant)
            kind = "" if parameter is None else type_of(parameter)
            near = (*near, constant + 0.5, constant * 0.7) if parameter and _takes_fractions(parameter) else near
            pair = [(constant, constant + 1)] if re.search(r"[Tt]uple|List|Sequence", kind) else []
            return [*dict.fromkeys(near), *pair]
        case float():
            return dict.fromkeys((2 * constant, -constant, *_FLOATS))
        case str() if parameter is not None:
            return _words(called, parameter)
        case tuple() | list() if constant and all(type(each) is int for each in constant):
            kind = type(constant)
            changed = (kind((*constant[:at], each + 1, *constant[at + 1 :])) for at, each in enumerate(constant))
            from_the_end = kind(each - max(constant) - 1 for each in constant)
            equal = kind(constant[:1] * len(constant))
            return [*map(kind, _orders(constant)), from_the_end, *changed, kind(constant[1:]), equal]
        case _:
            return []


def _added(
    observed: Observed, call: ast.Call, called: Any, parameter: inspect.Parameter
) -> Iterator[tuple[str, Edits]]:
    """Yield a call with an argument that it leaves at its default, each with the argument's text."""
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return
    for value in _values(observed, call, called, parameter):
        text = value if isinstance(value, str) else spell(value[0])
        more = ast.keyword(parameter.name, expression(text))
        yield text, {call: [ast.Call(call.func, call.args, [*call.keywords, more])]}


def _values(
    observed: Observed, call: ast.Call, called: Any, parameter: inspect.Parameter
) -> Iterator[str | tuple[Any]]:
    """Yield values for an omitted argument: an expression, or a constant in a tuple."""
    kind, default = type_of(parameter), parameter.default
    if parameter.name == "dtype":
        yield from ((dtype,) for dtype in _DTYPES)
    elif parameter.name == "memory_format":
        yield from ((each,) for each in _FORMATS)
    elif "Tensor" in kind:
        yield from _tensors(observed, call)
    elif "bool" in kind or isinstance(default, bool):
        yield from ((each,) for each in (True, False) if each is not default)
    elif isinstance(default, (int, float, list, tuple)):
        yield from ((each,) for each in _like(default, parameter, called) if each != default)
    elif isinstance(default, str):
        yield from ((each,) for each in _words(called, parameter) if each != default)
    else:
        if "int" in kind or "Number" in kind or kind == "_empty":
            yield from ((each,) for each in (1, 2, 0, 3))
        if "float" in kind or "Number" in kind:
            yield from ((each,) for each in (0.5, 2.0, -0.25))
        if "str" in kind:
            yield from ((each,) for each in _words(called, parameter))


def _tensors(observed: Observed, call: ast.Call) -> Iterator[str]:
    """Yield expressions of tensors whose shapes fit those of the other operands."""
    arguments = [*call.args, *(part.value for part in call.keywords)]
    arguments = [call.func.value, *arguments] if isinstance(call.func, ast.Attribute) else arguments
    first = next((value for part in arguments if isinstance(value := observed.value_of(part), torch.Tensor)), None)
    if first is None or isinstance(called_by(observed, call), type):
        return
    second = [value for part in arguments if isinstance(value := observed.value_of(part), torch.Tensor)][1:2]
    shape = tuple(first.shape)
    shapes = dict.fromkeys(
        (shape, shape[-1:], shape[1:2], (*shape[:-1], shape[-2]) if len(shape) > 1 else shape, shape[-2:-1] * 2, ())
    )
    shapes |= dict.fromkeys(tuple(each.shape)[:1] for each in second)
    for each in shapes:
        count = torch.Size(each).numel()
        dtype = first.dtype if first.is_floating_point() else torch.float32
        yield f"torch.arange({count}, dtype={dtype}).add(1).sin().reshape({each})"
        yield f"torch.arange({count}).remainder(3).bool().reshape({each})"


def _words(called: Any, parameter: inspect.Parameter) -> list[str]:
    """Return texts that an argument may be: those in its annotation, otherwise those quoted in the documentation."""
    listed = [each for each in get_args(parameter.annotation) if isinstance(each, str)]
    if listed:
        return listed
    document = inspect.getdoc(called) or ""
    code = getattr(called, "__code__", None)
    constants = [each for each in (code.co_consts if code else ()) if isinstance(each, str) and each.isidentifier()]
    near = document[max(0, document.find(parameter.name)) :]
    return list(dict.fromkeys([*_WORD.findall(near), *constants]))[:_MOST_WORDS]


def _of_numbers(observed: Observed, callee: str, values: list[ast.expr]) -> Iterator[Variation]:
    """Yield all numbers of a call changed together, such as a range that moves, or moves beyond all other numbers."""
    numbers = _numbers_in(values)
    if len(numbers) < 2:
        return
    for order in _orders(list(numbers.values())):
        edits = {part: [expression(spell(each))] for part, each in zip(numbers, order, strict=True)}
        yield Variation(f"order of numbers of {callee}", edits, callee=callee, parameter="order of numbers")
    others = [*numbers.values(), *_numbers_in(part for line in observed.lines for part in ast.walk(line)).values()]
    span = math.ceil(max(others) - min(others)) + 1 if all(map(math.isfinite, others)) else 1
    for name, moves in (
        ("numbers of a call", (lambda number: number + 5, lambda number: number - 5, lambda number: 2 * number)),
        ("numbers of a call beyond others", (lambda number: number + span, lambda number: number - span)),
    ):
        for move in moves:
            yield Variation(name, {value: [expression(spell(move(number)))] for value, number in numbers.items()})


def _orders(numbers: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield numbers in other orders: all orders of few numbers; of more, neighbours exchanged or all rotated."""
    count = len(numbers)
    if count <= FEW_NUMBERS:
        yield from itertools.islice(itertools.permutations(numbers), 1, None)
        return
    for start in range(1, count):
        yield [*numbers[start:], *numbers[:start]]
        yield [*numbers[: start - 1], numbers[start], numbers[start - 1], *numbers[start + 1 :]]


def _numbers_in(parts: Iterable[ast.AST]) -> dict[ast.AST, Any]:
    """Return the numbers among some expressions."""
    numbers = {part: _literal(part) for part in parts if isinstance(part, ast.Constant | ast.UnaryOp)}
    return {part: number for part, number in numbers.items() if type(number) in (int, float)}


def _of_overloads(
    call: ast.Call, called: Any, bound: inspect.BoundArguments, receiver: list[ast.expr]
) -> Iterator[Variation]:
    """Yield calls of other overloads: a view in another dtype, or a range that starts elsewhere.

    An argument that both overloads name stays as it is.
    """
    values = {name: each.value if isinstance(each, ast.keyword) else each for name, each in bound.arguments.items()}
    values = {name: value for name, value in values.items() if isinstance(value, ast.expr)}
    for signature in signatures_of(called):
        required = [each for each in signature.parameters.values() if each.default is each.empty]
        new = [each for each in required if each.name not in values]
        if not 0 < len(new) < len(required) or any("Tensor" in type_of(each) for each in new):
            continue
        for constants in itertools.islice(itertools.product(*map(_needed, new)), _MOST_OF_OVERLOAD):
            added = {each.name: expression(spell(constant)) for each, constant in zip(new, constants, strict=True)}
            arguments = [(each, (values | added)[each.name]) for each in required]
            arguments = [(each, value) for each, value in arguments if value not in receiver]
            positional = [value for each, value in arguments if each.kind is not each.KEYWORD_ONLY]
            keywords = [ast.keyword(each.name, value) for each, value in arguments if each.kind is each.KEYWORD_ONLY]
            edits = {call: [ast.Call(call.func, positional, keywords)]}
            yield Variation(f"another overload of {_callee(called)}", edits, callee=_callee(called))


def _needed(parameter: inspect.Parameter) -> tuple[Any, ...]:
    kind = type_of(parameter)
    if parameter.name == "dtype":
        return (torch.int32, torch.float16, torch.float64)
    if "List" in kind:
        return ((-1,), (1,), (0, 1))
    if "Number" in kind:
        return (1, 0.5, 0, -1)
    return (True, False) if "bool" in kind else (1, 0, -1, 2) if "int" in kind else (0.5,)


def _by_keyword(call: ast.Call, signature: inspect.Signature, receivers: int) -> Iterator[Variation]:
    """Yield the last positional arguments by keyword, and the first keyword arguments by position."""
    names: Mapping[str, inspect.Parameter] = signature.parameters
    positional = [name for name, each in names.items() if each.kind is each.POSITIONAL_OR_KEYWORD][receivers:]
    is_plain = not any(isinstance(part, ast.Starred) for part in call.args) and len(call.args) <= len(positional)
    for start in range(len(call.args) if is_plain else 0):
        named = [ast.keyword(name, value) for name, value in zip(positional[start:], call.args[start:], strict=False)]
        edits = {call: [ast.Call(call.func, call.args[:start], [*named, *call.keywords])]}
        yield Variation("by keyword", edits)
    count = len(call.args)
    keywords = {each.arg: each for each in call.keywords}
    moved = [keywords[name] for name in positional[count : count + len(keywords)] if name in keywords]
    if moved and [each.arg for each in moved] == positional[count : count + len(moved)]:
        rest = [each for each in call.keywords if each not in moved]
        args = [*call.args, *(each.value for each in moved)]
        yield Variation("by position", {call: [ast.Call(call.func, args, rest)]})
