"""The canonical spelling of calls: the function, and its arguments by keyword."""

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
from fx.tensor_type import TensorType

_OTHER_TYPES = (str, bytes, tuple, list, dict, int, float, complex, range, slice, torch.Size)
SHARED_METHODS = frozenset(dir(torch.Tensor)).intersection(name for kind in _OTHER_TYPES for name in dir(kind))
"""Methods that tensors share with values of Python."""

_TENSOR_ARGUMENTS: dict[str, tuple[type[Any], ...]] = {"split": (int, tuple, list)}
"""For some of these methods, the types of a first argument that only the tensor's method takes."""

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
    """The speller of the calls of one program, which tracks the values that are tensors."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self.numbers: set[Node] = set()
        """The values so far that are known to be numbers, sizes and the like."""
        self._functions: dict[int, tuple[Any, _Spelling | None]] = {}
        self._tensors: dict[Node, bool] = {}
        self._of_subclasses: set[Node] = set()

    def spell(self, node: Node) -> Call | None:
        """Return the canonical spelling of a call, or None if it has that already, or if there is no other."""
        args, kwargs, target = node._args, node._kwargs, node._target
        if self._of_subclasses and not self._of_subclasses.isdisjoint(node.all_input_nodes):
            return None  # the subclass decides which spellings of a call it takes
        if node._op == "call_method":
            if not self._is_tensor_method(node):
                return None
            spelling = _method_spelling(str(target))
        else:
            entry = _of_torch.get(id(target)) or self._functions.get(id(target))
            if entry is None:
                cache = _of_torch if _is_torchs(target) else self._functions
                entry = cache[id(target)] = (target, _function_spelling(target))
            spelling = entry[1]
        if "out" in kwargs:
            return _spell_out(target, args, kwargs) if is_of_aten(target) else None
        if spelling is None or (is_of_aten(target) and (is_used_as_list(node) or _may_be_refused(node))):
            return None
        call = spelling(args, kwargs, self.is_tensor)
        if call is None or (call.target is target and _is_same(call, args, kwargs)):
            return None
        if call.target is not target and call.target in _ARITHMETIC and self.numbers.issuperset(node.all_input_nodes):
            return None  # from numbers alone, functions of torch make tensors, operators of Python do not
        return call

    def is_tensor(self, node: Node) -> bool:
        """Return whether ``node`` is known to be a tensor; for a call, the nodes before it must be noted."""
        cached = self._tensors.get(node)
        return self.note(node) if cached is None else cached

    def note(self, node: Node) -> bool:
        """Determine whether ``node`` is a tensor; call this in the order of the graph."""
        is_tensor = self._tensors[node] = self._is_tensor(node)
        if self._is_of_subclass(node):
            self._of_subclasses.add(node)
        if not is_tensor and self._is_number(node):
            self.numbers.add(node)
        return is_tensor

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
        return len(node._args) > 1 and isinstance(node._args[1], _TENSOR_ARGUMENTS.get(name, ()))

    def _is_tensor(self, node: Node) -> bool:
        value = node._meta.get("val", node._meta.get("tensor_meta")) if node._meta else None
        if isinstance(value, torch.Tensor) or hasattr(value, "memory_format"):
            return True
        if node._op == "placeholder":
            kind = node._type
            return isinstance(kind, TensorType) or (isinstance(kind, type) and issubclass(kind, torch.Tensor))
        if node._op == "get_attr":
            return isinstance(find_attribute(self._root, str(node._target)), torch.Tensor)
        if node._op != "call_function":
            return False
        if node._target in _ARITHMETIC:
            return any(isinstance(operand, Node) and self._tensors.get(operand, False) for operand in node._args)
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
    """Return whether functions of torch run code of the class for such a tensor."""
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
        with_tensor = [overload for overload in overloads if "Tensor" in str(overload.schema)]
        return all(
            [str(returned.type) for returned in overload.schema.returns] == ["Tensor"] for overload in with_tensor
        )
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
    """Return whether each mean of a normalization may be of one value: functions of torch refuse that."""
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


# The spelling of each function and method, computed once.

_of_torch: dict[int, tuple[Any, _Spelling | None]] = {}
"""Spellings of torch's and Python's functions, by identity. Spellings of the user's are cached for one program only."""


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
    """Return the spelling of an operator of ATen: from its rows, else as the function or the method by its name."""
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
        # operators take a layout, methods such as Tensor.to do not
        return None if call.target is torch.Tensor.to and kwargs.get("layout") is not None else call

    return spell


def _spell_out(overload: Any, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Call | None:
    """Spell an operator that writes its result to ``out`` as the function that takes ``out``, too."""
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
    spellings = [_by_row(row) for row in rows_by_method().get(name, ())] if rows else []
    if isinstance(method, types.MethodDescriptorType):
        spellings.append(_by_method(name, method))
    return _first(*spellings)


def _first(*spellings: _Spelling | None) -> _Spelling | None:
    """Return a spelling that tries these one after the other."""
    present = [spelling for spelling in spellings if spelling is not None]
    if len(present) <= 1:
        return present[0] if present else None

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        return next(filter(None, (spelling(args, kwargs, is_tensor) for spelling in present)), None)

    return spell


def _by_row(row: SpellingRow) -> _Spelling:
    general = _general_spelling(row.target)

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        call = row.apply(args, kwargs, is_tensor)
        if call is None:
            return None
        # values in the form of the canonical function's signature, without arguments that the row omits
        tidied = None if general is None else general(call.args, call.kwargs, is_tensor)
        if tidied is None or tidied.target is not call.target or not call.kwargs.keys() <= tidied.kwargs.keys():
            return call
        return Call(call.target, call.args, {name: tidied.kwargs[name] for name in call.kwargs})

    return spell


def _by_shapes(target: Callable[..., Any], shapes: list[Shape], positional: int = 0) -> _Spelling:
    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        if any(shape.is_unclear(args) for shape in shapes):
            return None
        bindings = (shape.bind(args, kwargs, is_tensor) for shape in shapes)
        bound = _agreed([binding for binding in bindings if binding is not None])
        if bound is None:
            return None
        values = tuple(bound.values())[:positional]
        return Call(target, values, dict(list(bound.items())[positional:]) if positional else bound)

    return spell


def _by_overloads(target: Callable[..., Any]) -> _Spelling | None:
    shapes = shapes_of(target)
    return _by_shapes(target, shapes, by_position(target)) if shapes else None


def _by_method(name: str, method: Any) -> _Spelling:
    """Spell a method as the function of its name, else as the unbound method, with keywords if possible."""
    shapes = shapes_of_method(name)
    function: Any = getattr(torch, name, None)
    of_function = _by_overloads(function) if _is_function_of_method(function, name) else None

    def spell(args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        bindings: list[Binding] = []
        receivers: set[str] = set()
        for shape, receiver in shapes:
            if (binding := shape.bind(args[1:], kwargs, is_tensor)) is not None:
                bindings.append(binding)
                receivers.add(receiver)
        bound = None if any(shape.is_unclear(args[1:]) for shape, _ in shapes) else _agreed(bindings)
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


def _agreed(bindings: list[Binding]) -> dict[str, Argument] | None:
    """Return the arguments of the first fitting overload; None if another names the passed arguments differently."""
    if not bindings:
        return None
    first = bindings[0]
    return first.arguments if all(binding.passed == first.passed for binding in bindings[1:]) else None
