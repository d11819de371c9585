"""The values of a program that depend on no input, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fx.analysis.dependence import Dependences
from fx.gradients import without_gradients
from fx.graph_module import GraphModule
from fx.modules.attributes import MISSING, find_attribute
from fx.modules.storages import NUMBERS
from fx.node import Node, map_arg
from fx.operators.tensor_queries import names_of

_AUTOGRAD = names_of("autograd") | {"grad", "grad_fn"}
"""Attributes of tensors that tell how they were computed, not what they are."""
_MODES: frozenset[Any] = frozenset({torch.is_grad_enabled, torch.is_autocast_enabled, torch.initial_seed})
"""Functions that tell what is set when the program runs."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why an operation has no constant value."""

    reason: str


class Constants:
    """What those operations compute that have constant operands only, and why some of them stay as they are.

    A constant is a tensor that the program fetches and does not write to, or what a pure operation makes of constants
    and literals. Operations are tried on tensors without memory first, so that what is too large is never made.

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
        """The operations to replace by their values, and these: tensors and immediate values, in order."""
        self.refused: dict[Node, str] = {}
        """The operations with constant operands that stay, and why."""
        self._graph_module = graph_module
        self._freeze = freeze
        self._max_bytes = max_bytes
        self._dependences = Dependences(graph_module.graph)
        self._values: dict[Node, Any] = {}
        self._justified: dict[Node, int] = {}  # bytes of each value that come from tensors of the module
        self._trained: dict[Node, str] = {}  # what depends on elements of parameters that require gradients: on which
        # Not torch.inference_mode, which a Python function leaves: an exception of a signal's handler can be raised
        # there.
        with torch._C._InferenceMode(False):
            without_gradients(self._visit_all)
        self._choose()

    def _visit_all(self) -> None:
        for node in self._graph_module.graph.nodes:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        """Find the value of one operation, if it is constant."""
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
        """The value of an operation on constants, or why it is none."""
        dependences = self._dependences
        if (reason := dependences.why_not_constant(node)) is not None:
            return _Refusal(reason)
        if node.target in _MODES or (node.target is getattr and node.args[1] in _AUTOGRAD):
            return _Refusal(f"`%{node}` tells what gradients, modes or seeds are when the program runs")
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
        """The path of a parameter that is trained, if the operands of ``node`` depend on one, or its module has one."""
        found = next((self._trained[used] for used in node.all_input_nodes if used in self._trained), None)
        if found is None and node.op == "call_module":
            named = self._graph_module.get_submodule(str(node.target)).named_parameters()
            found = next((f"{node.target}.{name}" for name, parameter in named if parameter.requires_grad), None)
        return found

    def _choose(self) -> None:
        """Of the operations with constant values, find those that others need, last to first."""
        gone: set[Node] = set()
        for node in reversed(self._values):
            if node.op == "get_attr" or gone.issuperset(node.users):
                gone.add(node)
                continue
            reason = self._why_not_replace(node, self._values[node])
            if reason is None:
                gone.add(node)
                self.foldable.append((node, self._values[node]))
            else:
                self.refused[node] = reason
        self.foldable.reverse()

    def _why_not_replace(self, node: Node, value: Any) -> str | None:
        """Return why a constant value cannot take the place of its operation."""
        if node in self._trained and not self._freeze:
            return f"`%{node}` depends on the parameter `{self._trained[node]}`, which is trained unless freeze=True"
        if _is_immediate(value):
            return None
        if not isinstance(value, torch.Tensor):
            return f"`%{node}` is a {type(value).__name__}, which is neither a tensor nor an immediate value"
        if self._dependences.may_be_returned(node):
            return f"`%{node}` may be returned or kept, and the constant could be written to from outside"
        return None


def size_in_bytes(value: Any) -> int:
    """Return how much memory the tensors in ``value`` span, gaps between their elements included."""
    return sum(_span(leaf) * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def own_copy(value: torch.Tensor) -> torch.Tensor:
    """``value`` in memory of its own, with the strides that it has."""
    value = value.detach()
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg() or value.is_meta:
        return value.clone()
    memory = value.as_strided((_span(value),), (1,)).clone()
    return memory.as_strided(value.shape, value.stride(), 0)


def _span(tensor: torch.Tensor) -> int:
    """The number of elements from the first to the last one in memory."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor.numel()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((length - 1) * stride for length, stride in steps)


def _is_immediate(value: Any) -> bool:
    """Return whether ``value`` can be an argument as it is: numbers, names, sizes and tuples of them."""
    if type(value) is tuple:
        return all(map(_is_immediate, value))
    return isinstance(value, NUMBERS)


def _callable(graph_module: GraphModule, node: Node) -> Callable[..., Any]:
    """Return what ``node`` calls, as a function of its arguments."""
    if node.op == "call_module":
        return graph_module.get_submodule(str(node.target))
    target: Any = node.target
    return (
        target if node.op == "call_function" else lambda receiver, *args, **kw: getattr(receiver, target)(*args, **kw)
    )


def _thawed(args: Any) -> tuple[Any, ...]:
    """Positional arguments with plain lists."""
    return tuple([list(arg) if isinstance(arg, list) else arg for arg in args])


def _tried_without_memory(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what ``call`` returns for tensors without memory; an ellipsis where it needs their elements."""

    def emptied(leaf: Any) -> Any:
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf

    try:
        with torch.device("meta"):
            kwargs = {**tree_map(emptied, dict(kwargs)), **({"device": "meta"} if "device" in kwargs else {})}
            return call(*tree_map(emptied, _thawed(args)), **kwargs)
    except Exception:  # no such kernel, or it asks for elements
        return ...
