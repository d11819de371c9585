"""A program on its way to a backend: its canonical form, and what is known of its values without running it."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fx.analysis.dependence import Dependences
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

_KEEP_DTYPE = frozenset(
    {
        *(F.batch_norm, F.relu, F.hardtanh, F.leaky_relu, F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.elu, F.selu),
        *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.dropout, F.softmax, F.pixel_shuffle, F.pad),
        *(torch.sigmoid, torch.tanh, torch.flatten, torch.Tensor.view, torch.reshape, torch.Tensor.contiguous),
    }
)
"""Functions whose result has the dtype of their first argument, if that is floating-point."""
_KEEP_COMMON_DTYPE = frozenset({operator.add, operator.sub, operator.mul, operator.truediv})
_WRITE_FIRST = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})
_TAKE_DTYPE_OF_WEIGHT = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d})


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a canonical program, as predicates look at it."""

    node: Node
    """The node."""
    subject: Subject
    """The program that it is in."""

    @property
    def target(self) -> Any:
        """The function that it calls, or the class of the module."""
        node = self.node
        if node.op == "call_module":
            return type(self.subject.graph_module.get_submodule(str(node.target)))
        return node.target

    @property
    def arguments(self) -> Mapping[str | int, Any]:
        """Its arguments, by name, or by position where the canonical form has them so."""
        return {**dict(enumerate(self.node.args)), **self.node.kwargs}

    def metadata(self, node: Node | None = None) -> TensorMetadata | None:
        """What is recorded of the operation's own value or of another node's."""
        return self.subject.metadata(node or self.node)

    def constant(self, argument: str | int) -> torch.Tensor | None:
        """The tensor of the program that an argument is, or ``None`` if it is none, or may change in a run."""
        value = self.arguments.get(argument)
        return self.subject.constant(value) if isinstance(value, Node) else None


class Subject:
    """A canonical program, with the dtypes, shapes and constants that are known in it.

    A dtype is known where a shape is recorded, behind layers with weights, and behind functions that keep it.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph_module = graph_module
        """The program; not to be edited while this is in use."""
        self.dependences = Dependences(graph_module.graph)
        """What in it depends on what."""
        outputs = graph_module.graph.find_nodes(op="output")
        self.returned = Counter(self.dependences.memory(node) for output in outputs for node in _parts(output))
        """How many of the values that it returns are in each group of memory."""
        self._dtypes: dict[Node, torch.dtype] = {}
        self._constants: dict[Node, torch.Tensor] = {}
        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                self._note_constant(node)
            elif (dtype := self._find_dtype(node)) is not None:
                self._dtypes[node] = dtype

    def operation(self, node: Node) -> Operation:
        """One of its nodes, for predicates."""
        return Operation(node, self)

    def metadata(self, node: Node) -> TensorMetadata | None:
        """What is recorded of the value of ``node``, if it is a single tensor."""
        recorded = node.meta.get("tensor_meta") if node._meta else None
        return recorded if isinstance(recorded, TensorMetadata) else None

    def dtype(self, node: Node) -> torch.dtype | None:
        """The dtype of the value of ``node`` where it is known."""
        return self._dtypes.get(node)

    def constant(self, node: Node) -> torch.Tensor | None:
        """The tensor that ``node`` fetches, if no run of the program changes it."""
        return self._constants.get(node)

    def _note_constant(self, node: Node) -> None:
        value = fetch_attribute(self.graph_module, str(node.target))
        if isinstance(value, torch.Tensor):
            self._dtypes[node] = value.dtype
            if self.dependences.why_state_varies(node) is None:
                self._constants[node] = value

    def _find_dtype(self, node: Node) -> torch.dtype | None:
        if (recorded := self.metadata(node)) is not None:
            return recorded.dtype
        if node.op != "call_function":
            return None
        target: Any = node.target
        if target in _TAKE_DTYPE_OF_WEIGHT:
            return self._dtypes.get(node.kwargs.get("weight", node))  # type: ignore[arg-type]
        sources = node.args[:2] if target in _KEEP_COMMON_DTYPE else node.args[:1] or (node.kwargs.get("input"),)
        if target not in _KEEP_COMMON_DTYPE | _WRITE_FIRST | _KEEP_DTYPE:
            return None
        dtypes = {self._dtypes.get(one) if isinstance(one, Node) else None for one in sources if not _is_number(one)}
        first = dtypes.pop() if len(dtypes) == 1 else None
        return first if first is not None and first.is_floating_point else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _parts(container: Node) -> Iterator[Node]:
    """The values in what a node returns or puts into a named tuple."""
    for node in container.all_input_nodes:
        is_tuple = node.op == "call_function" and inspect.isclass(node.target) and issubclass(node.target, tuple)
        yield from _parts(node) if is_tuple else (node,)
