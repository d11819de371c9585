"""The values of a program that depend on no input, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fx.analysis.dependence import Dependences
from fx.errors import type_in_words
from fx.graph_module import GraphModule
from fx.modules.attributes import MISSING, find_attribute
from fx.modules.gradients import without_gradients
from fx.modules.storages import NUMBERS
from fx.node import Node, map_arg
from fx.operators.tensor_queries import names_of

_AUTOGRAD = names_of("autograd") | {"grad", "grad_fn"}
"""Attributes of tensors that depend on how they were computed, not on their values."""
_MODES: frozenset[Any] = frozenset({torch.is_grad_enabled, torch.is_autocast_enabled, torch.initial_seed})
"""Functions that read a setting at run time."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The reason why an operation has no constant value."""

    reason: str


class Constants:
    """The values of operations whose operands are all constant, and the reasons why some of them are not folded.

    A constant is a tensor that the program fetches and does not write to, or the result of a pure operation on
    constants and literals. Operations run on meta tensors first, so that too large a result is never allocated.

    >>> import torch, fx
    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> three = graph.call_function(torch.full, ((2,), 3))
    >>> output = graph.output(graph.call_function(torch.mul, (x, three)))
    >>> Constants(fx.GraphModule({}, graph), freeze=False, max_bytes=100).foldable
    [(full, tensor([3, 3]))]
    """

    def __init__(self, graph_module: GraphModule, freeze: bool, max_bytes: int) -> None:
        self.foldable: list[tuple[Node, Any]] = []
        """The operations to replace, in order, each with its value: a tensor or an immediate value."""
        self.refused: dict[Node, str] = {}
        """The operations with constant operands that are not replaced, each with the reason."""
        self._graph_module = graph_module
        self._freeze = freeze
        self._max_bytes = max_bytes
        self._dependences = Dependences(graph_module.graph)
        self._values: dict[Node, Any] = {}
        self._justified: dict[Node, int] = {}  # bytes of each value that come from tensors of the module
        # The path of a parameter that requires gradients, for each node that depends on its elements.
        self._trained: dict[Node, str] = {}
        # Not torch.inference_mode: its exit is a Python function, in which a signal handler could raise.
        with torch._C._InferenceMode(False):
            without_gradients(self._visit_all)
        self._choose()

    def _visit_all(self) -> None:
        for node in self._graph_module.graph.nodes:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        """Compute and record the value of one operation, if it is constant."""
        values = self._values
        if node.op == "get_attr":
            if self._dependences.why_state_varies(node) is None:
                value = find_attribute(self._graph_module, str(node.target), MISSING)
                if isinstance(value, (torch.Tensor, *NUMBERS)):
                    values[node] = value
                    self._justified[node] = size_in_bytes(value)
                    if isinstance(value, torch.Tensor) and value.requires_grad:
                        self._trained[node] = str(node.target)
        elif node.op.startswith("call") and all(used in values for used in node.all_input_nodes):
            value = self._compute(node)
            if isinstance(value, _Refusal):
                self.refused[node] = value.reason
            else:
                values[node] = value

    def _compute(self, node: Node) -> Any:
        """Return the value of an operation on constants, or the reason why it is not constant."""
        dependences = self._dependences
        if (reason := dependences.why_not_constant(node)) is not None:
            return _Refusal(reason)
        if node.target in _MODES or (node.target is getattr and node.args[1] in _AUTOGRAD):
            return _Refusal(f"`%{node}` reads gradients, modes or seeds, which are known only when the program runs")
        args, kwargs = (map_arg(part, self._values.__getitem__) for part in (node.args, node.kwargs))
        justified = sum(self._justified.get(used, 0) for used in node.all_input_nodes)
        call = _callable(self._graph_module, node)
        trained = self._trained_parameter(node)
        try:
            if trained is not None or dependences.memory(node) is not None:
                empty = _tried_without_memory(call, args, kwargs)
                if (grown := size_in_bytes(empty) - justified) > self._max_bytes:
                    return _Refusal(f"`%{node}` would add {grown} bytes, more than max_bytes={self._max_bytes}")
                if trained is not None and (empty is ... or size_in_bytes(empty)):
                    self._trained[node] = trained
            value = call(*_thawed(args), **kwargs)
        except Exception as error:  # whatever it raises is raised again when the program runs
            return _Refusal(f"computing `%{node}` raises {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        self._justified[node] = min(size_in_bytes(value), justified)
        return value

    def _trained_parameter(self, node: Node) -> str | None:
        """Return the path of a parameter that requires gradients, if the operands or the module of ``node`` use one."""
        path = next((self._trained[used] for used in node.all_input_nodes if used in self._trained), None)
        if path is None and node.op == "call_module":
            parameters = self._graph_module.get_submodule(str(node.target)).named_parameters()
            path = next((f"{node.target}.{name}" for name, parameter in parameters if parameter.requires_grad), None)
        return path

    def _choose(self) -> None:
        """Choose, from last to first, the constant values that operations which stay need."""
        erasable: set[Node] = set()
        for node in reversed(self._values):
            if node.op == "get_attr" or erasable.issuperset(node.users):
                erasable.add(node)
                continue
            reason = self._why_not_replace(node, self._values[node])
            if reason is None:
                erasable.add(node)
                self.foldable.append((node, self._values[node]))
            else:
                self.refused[node] = reason
        self.foldable.reverse()

    def _why_not_replace(self, node: Node, value: Any) -> str | None:
        """Return why a constant value cannot replace its operation, or None if it can."""
        if node in self._trained and not self._freeze:
            return f"`%{node}` depends on the parameter `{self._trained[node]}`, which is trained unless freeze=True"
        if _is_immediate(value):
            return None
        if not isinstance(value, torch.Tensor):
            return f"`%{node}` is {type_in_words(value)}, which is neither a tensor nor an immediate value"
        if self._dependences.may_be_returned(node):
            return f"`%{node}` may be returned or kept, and the constant could be written to from outside"
        return None


def size_in_bytes(value: Any) -> int:
    """Return the bytes that the tensors in ``value`` span in memory, gaps between their elements included."""
    return sum(_span(leaf) * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def own_copy(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``value`` that keeps its strides."""
    value = value.detach()
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg() or value.is_meta:
        return value.clone()
    memory = value.as_strided((_span(value),), (1,)).clone()
    return memory.as_strided(value.shape, value.stride(), 0)


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first to the last one in memory."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor.numel()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((length - 1) * stride for length, stride in steps)


def _is_immediate(value: Any) -> bool:
    """Return whether ``value`` can be an immediate argument: a number, a name, a size or a tuple of them."""
    if type(value) is tuple:
        return all(map(_is_immediate, value))
    return isinstance(value, NUMBERS)


def _callable(graph_module: GraphModule, node: Node) -> Callable[..., Any]:
    """Return a function of the arguments of ``node`` that makes its call."""
    if node.op == "call_module":
        return graph_module.get_submodule(str(node.target))
    target: Any = node.target
    return (
        target if node.op == "call_function" else lambda receiver, *args, **kw: getattr(receiver, target)(*args, **kw)
    )


def _thawed(args: Any) -> tuple[Any, ...]:
    """Return positional arguments with plain lists in place of frozen ones."""
    return tuple([list(arg) if isinstance(arg, list) else arg for arg in args])


def _tried_without_memory(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result of ``call`` on meta tensors, or an ellipsis if it cannot run on them."""

    def to_meta(leaf: Any) -> Any:
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf

    try:
        with torch.device("meta"):
            kwargs = {**tree_map(to_meta, dict(kwargs)), **({"device": "meta"} if "device" in kwargs else {})}
            return call(*tree_map(to_meta, _thawed(args)), **kwargs)
    except Exception:  # no such kernel, or it asks for elements
        return ...
