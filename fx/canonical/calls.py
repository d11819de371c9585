"""Calls in their one spelling: which function a call is of, and its arguments by keyword."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import nn

from fx.canonical.aten import by_name_of_python, function_of, is_of_aten, is_used_as_list, packet_of, spell_slice
from fx.canonical.call_binding import (
    Binding,
    IsTensor,
    Shape,
    by_position,
    shape_of_function,
    shapes_of,
    shapes_of_method,
)
from fx.canonical.equal_spellings import FUNCTION_ALIASES, METHOD_ALIASES, Call
from fx.canonical.rows import SpellingRow, rows_by_method, rows_by_target
from fx.modules.attributes import find_attribute
from fx.node import Argument, Node
from fx.operators.overloads import get_overloads, get_python_signature
from fx.operators.sharing import attribute_kind, find_sharing

_OTHER_TYPES = (str, bytes, tuple, list, dict, int, float, complex, range, slice, torch.Size)
SHARED_METHODS = frozenset(dir(torch.Tensor)).intersection(name for kind in _OTHER_TYPES for name in dir(kind))
"""Methods that tensors have in common with values of Python."""

_TELLING: dict[str, tuple[type[Any], ...]] = {"split": (int, tuple, list)}
"""For some of them the types of a first argument that only the tensor's method takes."""

_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in (
        "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift eq ne lt le gt ge neg pos abs invert "
        "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor"
    ).split()
)
_Builtin = (types.BuiltinFunctionType, types.BuiltinMethodType)
_Arguments: TypeAlias = Mapping[str, Argument]


_Spelling: TypeAlias = Callable[[tuple[Argument, ...], dict[str, Argument], IsTensor], Call | None]


class CallSpeller:
    """Spells the calls of one program, and knows which of its values are tensors."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self.numbers: set[Node] = set()
        """Its values so far that are known to be numbers, sizes and the like."""
        self._functions: dict[int, tuple[Any, _Spelling | None]] = {}
        self._tensors: dict[Node, bool] = {}
        self._of_subclasses: set[Node] = set()

    def spell(self, node: Node) -> Call | None:
        """The canonical spelling of a call, or None where it has it already, or has no other."""
        args, kwargs, target = node._args, node._kwargs, node._target
        if self._of_subclasses and not self._of_subclasses.isdisjoint(node.all_input_nodes):
            return None  # the subclass decides which spellings of a call it takes
        if node._op == "call_method":
            if not self._is_tensor_method(node):
                return None
            spelling = _method_spelling(str(target))
        else:
            known = _of_torch.get(id(target)) or self._functions.get(id(target))
            if known is None:
                kept = _of_torch if _is_torchs(target) else self._functions
                known = kept[id(target)] = (target, _function_spelling(target))
            spelling = known[1]
        if "out" in kwargs:
            return _spell_out(target, args, kwargs) if is_of_aten(target) else None
        if spelling is None or (is_of_aten(target) and (is_used_as_list(node) or _may_be_refused(node))):
            return None
        call = spelling(args, kwargs, self.is_tensor)
        if call is None or (call.target is target and _is_same(call, args, kwargs)):
            return None
        if call.target is not target and call.target in _ARITHMETIC and self.numbers.issuperset(node.all_input_nodes):
            return None  # of numbers alone functions of torch make tensors, operators of Python do not
        return call

    def is_tensor(self, node: Node) -> bool:
        """Return whether ``node`` is known to be a tensor. Answers for calls need those for the nodes before."""
        known = self._tensors.get(node)
        return self.note(node) if known is None else known

    def note(self, node: Node) -> bool:
        """Find out whether ``node`` is a tensor; call in the order of the graph."""
        known = self._tensors[node] = self._is_tensor(node)
        if self._is_of_subclass(node):
            self._of_subclasses.add(node)
        if not known and self._is_number(node):
            self.numbers.add(node)
        return known

    def _is_of_subclass(self, node: Node) -> bool:
        """Return whether ``node`` is a tensor of a subclass with functions, or computed from such tensors alone."""
        if node._op == "get_attr":
            value = find_attribute(self._root, str(node._target))
            return isinstance(value, torch.Tensor) and _has_own_functions(type(value))
        inputs = node.all_input_nodes if self._of_subclasses else ()
        return bool(inputs) and self._of_subclasses.issuperset(inputs)

    def _is_tensor_method(self, node: Node) -> bool:
        receiver = node._args[0] if node._args else None
        if not isinstance(receiver, Node):
            return False
        name = str(node._target)
        if name not in SHARED_METHODS or self.is_tensor(receiver):
            return True
        return len(node._args) > 1 and isinstance(node._args[1], _TELLING.get(name, ()))

    def _is_tensor(self, node: Node) -> bool:
        value = node._meta.get("val", node._meta.get("tensor_meta")) if node._meta else None
        if isinstance(value, torch.Tensor) or hasattr(value, "memory_format"):
            return True
        if node._op == "placeholder":
            return isinstance(node._type, type) and issubclass(node._type, torch.Tensor)
        if node._op == "get_attr":
            return isinstance(find_attribute(self._root, str(node._target)), torch.Tensor)
        if node._op != "call_function":
            return False
        if node._target in _ARITHMETIC:
            return any(isinstance(one, Node) and self._tensors.get(one, False) for one in node._args)
        return _returns_tensor(node._target)

    def _is_number(self, node: Node) -> bool:
        """Return whether ``node`` is known to be a number, a size, or the like."""
        if node._op == "placeholder":
            default = node._args[0] if node._args else None
            return node._type in (int, float, bool) or (node._type in (None, Any) and isinstance(default, int | float))
        if node._op not in ("call_function", "call_method"):
            return False
        target, inputs = node._target, node.all_input_nodes
        if target is getattr:
            return len(node._args) > 1 and attribute_kind(node._args[1]) == "number"
        if target is operator.getitem or (target in _ARITHMETIC and inputs):
            return self.numbers.issuperset(inputs)
        return find_sharing(target).kind == "number"


def _is_same(call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> bool:
    return call.args == args and call.kwargs == kwargs and list(call.kwargs) == list(kwargs)


@lru_cache(maxsize=64)
def _has_own_functions(kind: type[torch.Tensor]) -> bool:
    """Return whether functions of torch that get such a tensor run code of its class."""
    functions = kind.__torch_function__
    usual = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
    return getattr(functions, "__func__", functions) not in usual


@lru_cache(maxsize=4096)
def _returns_tensor(target: Any) -> bool:
    """Return whether a function always returns one tensor."""
    if isinstance(target, types.MethodDescriptorType):
        overloads = get_overloads(getattr(torch.ops.aten, target.__name__, target))
    else:
        overloads = get_overloads(target)
    if overloads:
        with_tensor = [one for one in overloads if "Tensor" in str(one.schema)]
        return all([str(returned.type) for returned in one.schema.returns] == ["Tensor"] for one in with_tensor)
    if not _is_torch_function(target):
        return False
    signature = get_python_signature(target)
    return signature is not None and signature.return_annotation in (torch.Tensor, "Tensor")


def _is_torch_function(target: Any) -> bool:
    return isinstance(target, types.FunctionType) and target.__module__ in (
        "torch.nn.functional",
        "torch.functional",
        "torch._jit_internal",
    )


def _may_be_refused(node: Node) -> bool:
    """Return whether a normalization might have one value to each mean: functions of torch refuse that, operators do
    not.
    """
    name = str(packet_of(node._target).__name__)
    if name not in ("group_norm", "instance_norm"):
        return False
    source = node._args[0] if node._args else node._kwargs.get("input")
    value = source._meta.get("val") if isinstance(source, Node) and source._meta else None
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return True
    sizes: list[Any] = list(value.shape[2:])
    groups = node._args[1] if len(node._args) > 1 else None
    if name == "group_norm" and type(groups) is int:
        sizes.append(value.shape[1] // groups)
    return not any(type(size) is int and size > 1 for size in sizes)


# What a function or method is, found out once for each.

_of_torch: dict[int, tuple[Any, _Spelling | None]] = {}
"""Spellings of torch's and Python's functions, by identity. Those of the user's are kept for one program only."""


def _is_torchs(target: Any) -> bool:
    return (
        is_of_aten(target) or isinstance(target, (*_Builtin, types.MethodDescriptorType)) or _is_torch_function(target)
    )


def _function_spelling(target: Any) -> _Spelling | None:
    if id(target) in FUNCTION_ALIASES:
        target = FUNCTION_ALIASES[id(target)][1]
    if (rows := rows_by_target().get(id(target))) is not None:
        return _first(*(_by_row(row) for row in rows), _general_spelling(target))
    return _general_spelling(target)


def _general_spelling(target: Any) -> _Spelling | None:
    if is_of_aten(target):
        return _overload_spelling(target)
    if isinstance(target, types.MethodDescriptorType):
        is_method = getattr(torch.Tensor, target.__name__, None) is target
        return _method_spelling(target.__name__, rows=False) if is_method else None
    if isinstance(target, _Builtin):
        name = target.__name__
        if name.endswith("_") and getattr(torch, name, None) is target and hasattr(torch.Tensor, name):
            return _method_spelling(name)  # torch.exp_(x) is x.exp_()
        is_python = getattr(target, "__module__", None) in ("builtins", "_operator", "math")
        return None if is_python else _by_overloads(target)
    if not isinstance(target, types.FunctionType):
        return None
    is_torch = target.__module__.partition(".")[0] == "torch"
    shape = shape_of_function(target, follow=is_torch)
    return None if shape is None else _by_shapes(target, [shape])


def _overload_spelling(overload: Any) -> _Spelling | None:
    """Of an operator of ATen: as its rows say, else as the function or the method by its name."""
    if overload is torch.ops.aten.slice.Tensor:
        return _spell_slice
    packet = packet_of(overload)
    name = str(packet.__name__)
    if (rows := rows_by_target().get(id(packet))) is not None:
        spelling = _first(*map(_by_row, rows))
    elif (function := function_of(name)) is not None:
        spelling = _function_spelling(function)
    else:
        method = getattr(torch.Tensor, name, None)
        is_method = isinstance(method, types.MethodDescriptorType) and not name.startswith("_")
        spelling = _method_spelling(name) if is_method else None
    if spelling is None:
        return None

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        call = spelling(args, by_name_of_python(kwargs), is_tensor)
        if call is None or is_of_aten(call.target):
            return None
        # operators take a layout where methods, as Tensor.to, do not
        return None if call.target is torch.Tensor.to and kwargs.get("layout") is not None else call

    return spell


def _spell_out(overload: Any, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Call | None:
    """Of an operator that writes its result to ``out``: as the function that takes that, too."""
    function = function_of(str(packet_of(overload).__name__))
    return None if function is None else Call(function, args, by_name_of_python(kwargs))


def _spell_slice(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
    operands = spell_slice(args, kwargs)
    return None if operands is None else Call(operator.getitem, operands, {})


@lru_cache(maxsize=4096)
def _method_spelling(name: str, *, rows: bool = True) -> _Spelling | None:
    name = METHOD_ALIASES.get(name, name)
    method = getattr(torch.Tensor, name, None)
    if method is None or (name.startswith("__") and name not in rows_by_method()):
        return None
    found = [_by_row(row) for row in rows_by_method().get(name, ())] if rows else []
    if isinstance(method, types.MethodDescriptorType):
        found.append(_by_method(name, method))
    return _first(*found)


def _first(*spellings: _Spelling | None) -> _Spelling | None:
    """Try one after the other."""
    given = [spelling for spelling in spellings if spelling is not None]
    if len(given) <= 1:
        return given[0] if given else None

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        return next(filter(None, (spelling(args, kwargs, is_tensor) for spelling in given)), None)

    return spell


def _by_row(row: SpellingRow) -> _Spelling:
    general = _general_spelling(row.target)

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        call = row.apply(args, kwargs, is_tensor)
        if call is None:
            return None
        # the values as the signature of the canonical function has them, but no arguments that the row leaves out
        tidied = None if general is None else general(call.args, call.kwargs, is_tensor)
        if tidied is None or tidied.target is not call.target or not call.kwargs.keys() <= tidied.kwargs.keys():
            return call
        return Call(call.target, call.args, {name: tidied.kwargs[name] for name in call.kwargs})

    return spell


def _by_shapes(target: Callable[..., Any], shapes: list[Shape], positional: int = 0) -> _Spelling:
    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        if any(shape.is_unclear(args) for shape in shapes):
            return None
        bound = _agreed([one for shape in shapes if (one := shape.bind(args, kwargs, is_tensor)) is not None])
        if bound is None:
            return None
        values = tuple(bound.values())[:positional]
        return Call(target, values, dict(list(bound.items())[positional:]) if positional else bound)

    return spell


def _by_overloads(target: Callable[..., Any]) -> _Spelling | None:
    shapes = shapes_of(target)
    return _by_shapes(target, shapes, by_position(target)) if shapes else None


def _by_method(name: str, method: Any) -> _Spelling:
    """As the function of the same name, as the unbound method with keywords, as that with the arguments as they are."""
    shapes = shapes_of_method(name)
    function: Any = getattr(torch, name, None)
    of_function = _by_overloads(function) if _is_function_of_method(function, name) else None

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        found: list[Binding] = []
        receivers: set[str] = set()
        for shape, receiver in shapes:
            if (binding := shape.bind(args[1:], kwargs, is_tensor)) is not None:
                found.append(binding)
                receivers.add(receiver)
        bound = None if any(shape.is_unclear(args[1:]) for shape, _ in shapes) else _agreed(found)
        if bound is None or len(receivers) != 1:
            return Call(method, args, kwargs)
        if of_function is not None:
            call = of_function((), {receivers.pop(): args[0], **bound}, is_tensor)
            if call is not None:
                return call
        return Call(method, args[:1], bound)

    return spell


def _is_function_of_method(function: Any, name: str) -> bool:
    return isinstance(function, _Builtin) and bool(get_overloads(function)) and not name.endswith("_")


def _agreed(found: list[Binding]) -> dict[str, Argument] | None:
    """The arguments as the first overload that fits has them; None where another one calls what is given otherwise."""
    if not found:
        return None
    first = found[0]
    return first.arguments if all(one.given == first.given for one in found[1:]) else None
