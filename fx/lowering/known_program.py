"""A program to be lowered: its canonical form, with dtypes, shapes and constants that are known without running it."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

import torch

from fx.analysis.dependence import Dependences
from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.operators.families import find_in_place, find_operator
from fx.operators.sharing import find_sharing
from fx.passes.tensor_metadata import TensorMetadata

_Memory: TypeAlias = "tuple[int | None, ...]"
"""A group of values that may share memory, and the place in the result of an operation with separate results."""


_NUMBERS = (int, float, str, torch.Size, torch.dtype, torch.device, torch.memory_format, NoneType)


def is_number(node: Node) -> bool:
    """Return whether the value of a node is recorded as a number, a size, a dtype or the like, without tensors."""
    kind: Any = node.meta.get("type") if node._meta else None
    return isinstance(kind, type) and issubclass(kind, _NUMBERS)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a canonical program, as predicates see it."""

    node: Node
    """The node."""
    subject: KnownProgram
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
        """Its arguments, by name, or by position where the canonical form passes them by position."""
        return {**dict(enumerate(self.node.args)), **self.node.kwargs}

    @checked(LoweringError)
    def metadata(self, node: Node | None = None) -> TensorMetadata | None:
        """Return the metadata recorded for the operation's own value, or for another node's; ``None`` if there is none.

        Raises:
            LoweringError: ``node`` is not a node.
        """
        return self.subject.metadata(self.node if node is None else node)

    @checked(LoweringError)
    def constant(self, argument: str | int) -> torch.Tensor | None:
        """Return an argument that is a tensor of the program; ``None`` if it is not, or if a run may change it.

        Raises:
            LoweringError: ``argument`` is neither a name nor a position.
        """
        value = self.arguments.get(argument)
        return self.subject.constant(value) if isinstance(value, Node) else None


class KnownProgram:
    """A canonical program, with the dtypes, shapes and constants that are known in it.

    The dtype of a value is known where its shape or the metadata of ``torch.export`` is recorded. It is inferred for
    results of layers with weights, and of operators that keep the dtype of their operands.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph_module = graph_module
        """The program, which must not be edited while this object is in use."""
        self.dependences = Dependences(graph_module.graph)
        """The dependences between its nodes."""
        outputs = graph_module.graph.find_nodes(op="output")
        self._memory: dict[Node, _Memory] = {}
        for node in graph_module.graph.nodes:
            self._memory[node] = self._find_memory(node)
        self._returned = Counter(self._memory[node] for output in outputs for node in _parts(output))
        self._dtypes: dict[Node, torch.dtype] = {}
        self._constants: dict[Node, torch.Tensor] = {}
        self._of_constants: set[Node] = set()
        for node in graph_module.graph.nodes:
            if node.op in ("get_attr", "call_function", "call_method", "call_module") and all(
                used in self._of_constants for used in node.all_input_nodes
            ):
                self._of_constants.add(node)
            if node.op == "get_attr":
                self._note_constant(node)
            elif (dtype := self._find_dtype(node)) is not None:
                self._dtypes[node] = dtype
        self.float_dtypes = frozenset(dtype for dtype in self._dtypes.values() if dtype.is_floating_point)
        """The floating-point dtypes of its values, as far as they are known."""

    def operation(self, node: Node) -> Operation:
        """Return one of its nodes as an operation, for predicates."""
        return Operation(node, self)

    def metadata(self, node: Node) -> TensorMetadata | None:
        """Return the metadata recorded for the value of ``node``, if it is a single tensor."""
        recorded = node.meta.get("tensor_meta") if node._meta else None
        return recorded if isinstance(recorded, TensorMetadata) else None

    def dtype(self, node: Node) -> torch.dtype | None:
        """Return the dtype of the value of ``node``, if it is known."""
        return self._dtypes.get(node)

    def constant(self, node: Node) -> torch.Tensor | None:
        """Return the tensor that ``node`` fetches, if no run of the program changes it."""
        return self._constants.get(node)

    def is_in_several_results(self, node: Node) -> bool:
        """Return whether the program returns several values that may share memory with ``node``, a tensor."""
        recorded = node.meta.get("tensor_meta") if node._meta else None
        if isinstance(recorded, (tuple, list)) and not isinstance(recorded, TensorMetadata):
            return False  # the caller asks for its parts one by one
        own = self._memory[node]
        return sum(count for other, count in self._returned.items() if _overlap(own, other)) > 1

    def _find_memory(self, node: Node) -> _Memory:
        """Return the memory of a value: its group, and its place in the result of an operation with several."""
        group = self.dependences.memory(node)
        sources = [used for used in node.all_input_nodes if self.dependences.memory(used) == group]
        if len(sources) != 1:
            return (group,)
        (source,) = sources
        is_part = node.target is operator.getitem and not isinstance(source.meta.get("tensor_meta"), TensorMetadata)
        if is_part and isinstance(node.args[1], int) and self._has_separate_parts(source):
            return (*self._memory[source], node.args[1])
        return self._memory[source]

    def _has_separate_parts(self, node: Node) -> bool:
        """Return whether each tensor in the result of ``node``, which may be nested, has memory of its own."""
        while node.target is operator.getitem and isinstance(node.args[0], Node):
            node = node.args[0]
        memory = self.dependences.memory
        is_known = node.op == "call_function" and find_sharing(node.target).places is not None
        return is_known and all(memory(used) != memory(node) for used in node.all_input_nodes)

    def is_of_constants(self, node: Node) -> bool:
        """Return whether ``node`` computes its value from tensors of the program alone."""
        return bool(node.all_input_nodes) and node in self._of_constants

    def _note_constant(self, node: Node) -> None:
        value = fetch_attribute(self.graph_module, str(node.target))
        if isinstance(value, torch.Tensor):
            self._dtypes[node] = value.dtype
            if self.dependences.why_state_varies(node) is None:
                self._constants[node] = value

    def _find_dtype(self, node: Node) -> torch.dtype | None:
        recorded = self.metadata(node) or (node.meta.get("val") if node._meta else None)  # its sizes may be symbols
        if isinstance(recorded, (TensorMetadata, torch.Tensor)):
            return recorded.dtype
        if node.op != "call_function":
            return None
        row, written = find_operator(node.target), find_in_place(node.target)
        if row is not None and row.family in ("linear", "convolution", "transposed convolution"):
            return self._dtypes.get(node.kwargs.get("weight", node))  # type: ignore[arg-type]
        if row is not None and row.family == "arithmetic":
            sources = node.args[:2]
        elif (written is not None and written.family == "arithmetic") or (row is not None and row.keeps_the("dtype")):
            sources = (*node.args, *node.kwargs.values())[:1]
        else:
            return None
        if _may_change_dtype(node):
            return None
        operands = [value for value in sources if not isinstance(value, (int, float))]
        dtypes = {self._dtypes.get(value) if isinstance(value, Node) else None for value in operands}
        first = dtypes.pop() if len(dtypes) == 1 else None
        return first if first is not None and first.is_floating_point else None


def _overlap(first: _Memory, second: _Memory) -> bool:
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


def _may_change_dtype(node: Node) -> bool:
    """Return whether the arguments of an operation that keeps the dtype ask for another one, or for more results."""
    values = (*node.args[1:], *node.kwargs.values())
    return bool(node.kwargs.get("return_indices")) or any(isinstance(value, torch.dtype) for value in values)


def _parts(container: Node) -> Iterator[Node]:
    """Yield the values that an output or the constructor of a named tuple holds, also nested."""
    for node in container.all_input_nodes:
        is_tuple = node.op == "call_function" and inspect.isclass(node.target) and issubclass(node.target, tuple)
        yield from _parts(node) if is_tuple else (node,)
