"""Programs in functions and methods of torch, or in operators of ATen: the same calls, node by node.

Symbolic tracing gives the first form, ``torch.export`` the second. A node has the same name, line and metadata in both.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch

from fx.argument_types import checked
from fx.canonical.aten import arguments_for, candidates, is_of_aten, overloads_of
from fx.canonical.call_binding import Shape, shape_of_function, shapes_of, shapes_of_method
from fx.canonical.calls import CallSpeller
from fx.canonical.equal_spellings import Call
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.node import Argument, Node

Form: TypeAlias = Literal["functional", "aten"]
"""The form of an exported program: functions and methods of torch, or operators of ATen."""
FORMS: tuple[Form, ...] = ("functional", "aten")
"""Every form."""
FIXED = "form_is_fixed"
"""The entry of a program's ``meta`` by which adapted passes get its present form, whatever their code mentions."""
OVERLOAD = "aten_overload"
"""The entry of a call's ``meta`` with its former overload of ATen, as ``add.Tensor``."""
_BY_KEYWORD = frozenset({"inplace", "ceil_mode", "return_indices"})
"""Settings that are passed by name if they are not the defaults."""
Written: TypeAlias = tuple[Any, Any, tuple[Argument, ...], dict[str, Argument]]
"""The opcode, target and arguments of a call."""


@checked(PassError)
def to_functional(graph_module: GraphModule) -> GraphModule:
    """Replace operators of ATen by functions and methods of torch, as symbolic tracing records; return the program.

    A call is replaced only if the new call gives the same bits for all inputs. Operators without such a counterpart
    stay, and so do names of nodes, lines and metadata.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.ops.aten.add.Tensor(torch.ops.aten.relu.default(x), 1))
    >>> print(to_functional(program).code.strip())
    def forward(self, x):
        relu_default = torch.nn.functional.relu(x);  x = None
        add_tensor = relu_default + 1;  relu_default = None
        return add_tensor
    """
    speller = CallSpeller(graph_module)
    for node in graph_module.graph.nodes:
        target: Any = node.target
        if node.op == "call_function" and is_of_aten(target) and (call := speller.spell(node)) is not None:
            node.meta[OVERLOAD] = _name_of(target)
            _write_as_traced(node, call, speller)
        speller.note(node)
    graph_module.recompile()
    return graph_module


@checked(PassError)
def to_aten(graph_module: GraphModule) -> GraphModule:
    """Replace functions and methods of torch by operators of ATen, the inverse of :func:`to_functional`; return it.

    If several overloads have the same meaning, the call's former overload is used, or else the one that Python's call
    of the function uses. Calls of modules stay as they are; ``canonicalize`` turns them into functions. Calls that no
    single operator computes stay as well.

    >>> import torch, fx
    >>> print(to_aten(fx.symbolic_trace(lambda x: torch.relu(x).add(1))).code.strip())
    def forward(self, x):
        relu = torch.ops.aten.relu.default(x);  x = None
        add = torch.ops.aten.add.Tensor(relu, 1);  relu = None
        return add
    """
    speller = CallSpeller(graph_module)
    for node in graph_module.graph.nodes:
        speller.note(node)
    for node in graph_module.graph.nodes:
        if node.op in ("call_function", "call_method") and not is_of_aten(node.target):
            _write_as_aten(node, speller)
    graph_module.recompile()
    return graph_module


def is_written_in_aten(graph_module: GraphModule) -> bool:
    """Return whether a program calls operators of ATen for which there are functions."""
    speller = CallSpeller(graph_module)
    return any(is_of_aten(node.target) and speller.spell(node) is not None for node in graph_module.graph.nodes)


def _write(node: Node, op: Any, target: Any, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> None:
    node.op, node.target = op, target
    node._update(args, dict(kwargs))


def _is_call(node: Node, call: Call, speller: CallSpeller) -> bool:
    """Return whether ``call`` is the canonical spelling of ``node``."""
    canonical = speller.spell(node)
    if canonical is None:
        return node.op == "call_function" and node.target is call.target and _are_same(node.args, node.kwargs, call)
    return canonical.target is call.target and _are_same(canonical.args, canonical.kwargs, call)


def _are_same(args: tuple[Argument, ...], kwargs: Mapping[str, Argument], call: Call) -> bool:
    return args == call.args and kwargs == call.kwargs


# The form of symbolic tracing: methods are methods, and arguments are positional where possible.


def _write_as_traced(node: Node, call: Call, speller: CallSpeller) -> None:
    shapes = [shape for shape in _shapes(call.target) if call.kwargs.keys() <= set(shape.names)]
    passed = {name for name, value in call.kwargs.items() if value is not None}
    for shape in sorted(shapes, key=lambda shape: -len(passed & set(shape.positional))):
        for leaves_none in (True, False):
            _write(node, *_abbreviated(call, shape, leaves_none))
            if _is_call(node, call, speller):
                return
    _write(node, "call_function", call.target, call.args, call.kwargs)


def _abbreviated(call: Call, shape: Shape, leaves_none: bool) -> Written:
    """Return a call by position without defaults, and with ``leaves_none`` without arguments that are None."""
    is_method = isinstance(call.target, types.MethodDescriptorType)
    args, kwargs = list(call.args), dict(call.kwargs)
    omitted = {name for name, value in kwargs.items() if _is_omitted(shape, name, value, leaves_none)}
    for place, name in enumerate(shape.positional):
        if place < len(args) - is_method:
            continue
        if name not in kwargs or name in _BY_KEYWORD or omitted.issuperset(kwargs.keys() & set(shape.positional)):
            break
        args.append(kwargs.pop(name))
    kwargs = {name: value for name, value in kwargs.items() if name not in omitted}
    if is_method:
        return "call_method", call.target.__name__, tuple(args), kwargs
    return "call_function", call.target, tuple(args), kwargs


def _is_omitted(shape: Shape, name: str, value: Argument, leaves_none: bool) -> bool:
    if leaves_none and value is None:
        return True
    default = shape.defaults.get(name, ...)
    return type(value) is type(default) and value == default


@lru_cache(maxsize=4096)
def _shapes(target: Callable[..., Any]) -> tuple[Shape, ...]:
    if target is torch.Tensor.to:
        settings = ("device", "dtype", "non_blocking", "copy", "memory_format")
        defaults = {"non_blocking": False, "copy": False}
        return tuple(Shape(positional, settings, defaults, {}, {}) for positional in (("dtype",), ("device", "dtype")))
    if isinstance(target, types.MethodDescriptorType):
        shapes = [shape for shape, _ in shapes_of_method(target.__name__)]
    elif isinstance(target, types.FunctionType):
        shape = shape_of_function(target, follow=True)
        return () if shape is None else (shape,)
    else:
        shapes = shapes_of(target)
    # TorchScript has its own overloads, with positional arguments that are keyword-only in Python.
    by_name = {name for shape in shapes for name in shape.names[len(shape.positional) :]}
    return tuple(shape for shape in shapes if by_name.isdisjoint(shape.positional)) or tuple(shapes)


# The form of ATen's operators.


def _write_as_aten(node: Node, speller: CallSpeller) -> None:
    call = speller.spell(node)
    if call is None and node.op == "call_method":
        return
    if call is None:
        call = Call(node.target, node.args, dict(node.kwargs))
    before: Written = (node.op, node.target, node.args, dict(node.kwargs))
    noted = node.meta.get(OVERLOAD) if node.meta else None
    calls = sorted(_aten_calls(call, speller), key=lambda written: _name_of(written[1]) != noted)
    for written in calls:
        _write(node, *written)
        if _is_call(node, call, speller):
            node.meta.pop(OVERLOAD, None)
            return
    if calls:
        _write(node, *before)


def _aten_calls(call: Call, speller: CallSpeller) -> Iterator[Written]:
    """Yield calls of ATen that may be ``call``, the likeliest first."""
    for candidate in candidates(call.target, call.args, call.kwargs):
        for overload, described in overloads_of(candidate.operation):
            arguments = arguments_for(described, candidate, speller.is_tensor, speller.numbers.__contains__)
            if arguments is not None:
                yield "call_function", overload, *arguments


def _name_of(overload: Any) -> str:
    return str(overload).removeprefix("aten.")
