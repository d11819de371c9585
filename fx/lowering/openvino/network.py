"""A region as a network of OpenVINO, under construction: what its converters add to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fx.graph_module import GraphModule
from fx.lowering.openvino.package import element_types, load, operators
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata


@dataclass(frozen=True, slots=True)
class Result:
    """One result of an engine, in the place where the region returns it."""

    index: int
    """Which of the engine's results."""
    dtype: torch.dtype
    """What its elements are."""
    is_alone: bool = True
    """Whether its memory is no other result's and no input's, so that the engine can be given where to write it."""
    is_number: bool = False
    """Whether it is an integer of Python, which engines have as a tensor without dimensions."""
    order: tuple[int, ...] | None = None
    """From the slowest dimension in memory to the fastest in eager Python, if that is not their own order. The engine
    returns them in this order."""


_VIEWS = frozenset(
    {"Reshape", "Squeeze", "Unsqueeze", "Convert", "Transpose", "Slice", "Split", "VariadicSplit", "Concat"}
)
"""Operations that OpenVINO may do by looking at the memory of their operand in another way."""


class OpenVINONetwork:
    """The network that takes the place of a region.

    A value of the region is an output of an operation of OpenVINO; a tensor constant of the program; or a plain value
    of Python, such as a size that is known or a dtype. Sizes that are not known are tensors without dimensions. Nothing
    is taken from the shapes that were recorded in the program but their number of dimensions, so that the same
    converters build for fixed and for free sizes.
    """

    def __init__(self, region: GraphModule, shapes: Sequence[Sequence[int] | None]) -> None:
        """A network for ``region``.

        Args:
            region: a canonical program, with recorded shapes; it is only read.
            shapes: by input the size of each dimension, -1 where it is free; ``None`` for an integer.
        """
        self.region = region
        """The program."""
        self.op = operators()
        """The functions that make operations."""
        self.node: Node
        """The operation of the region that is built now."""
        self.structure: Any = None
        """What the region returns, with a :class:`Result` in the place of each value that the engine computes."""
        self.results: list[Result] = []
        """The values that the engine computes, in their order."""
        self._shapes = iter(shapes)
        self._parameters: list[Any] = []
        self._outputs: list[Any] = []
        self._roots: set[Any] = set()
        self._constants: dict[int, tuple[Tensor, Any]] = {}
        self.memory: list[Any] = []
        """What constants share, to be kept as long as the network is in use."""

    # What every network has.

    def begin(self, node: Node) -> None:
        """Note which operation is built next; called before each operation."""
        self.node = node

    def add_input(self, node: Node) -> Any:
        """An input of the region: a tensor, or an integer."""
        shape = next(self._shapes)
        recorded: Any = node.meta.get("tensor_meta")
        dtype = torch.int64 if shape is None else recorded.dtype
        parameter = self.op.parameter(list(shape or ()), element_types()[dtype], name=node.name)
        self._parameters.append(parameter)
        return parameter.output(0)

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Let the network return ``outputs``."""
        returned: Any = self.region.graph.output_node().args[0]
        nodes: tuple[Node, ...] = (returned,) if is_single else returned
        recorded = [node.meta.get("tensor_meta") for node in nodes]
        results = tuple(self._return(*one) for one in zip(outputs, recorded, strict=True))
        self.structure = results[0] if is_single else results

    def model(self) -> Any:
        """The network as OpenVINO has it, after ``finish``; None where all that is returned is known by now."""
        results = [self.op.result(output) for output in self._outputs]
        return load().Model(results, self._parameters, "region") if results else None

    # What converters ask and add.

    def add(self, kind: str, *operands: Any, **settings: Any) -> Any:
        """Add what the function of ``op`` that is called ``kind`` makes, and return its only output."""
        return getattr(self.op, kind)(*operands, **settings).output(0)

    def value(self, given: Any, dtype: torch.dtype | None = None) -> Any:
        """An operand as an output of an operation, in ``dtype`` if that is given."""
        if isinstance(given, Tensor):
            given = self.constant(given)
        elif isinstance(given, (bool, int, float)):
            return self.constant(torch.tensor(given, dtype=dtype))
        if dtype is not None and given.get_element_type() != element_types()[dtype]:
            given = self.add("convert", given, element_types()[dtype])
        return given

    def constant(self, tensor: Tensor) -> Any:
        """A tensor of the program; its memory is shared where it is contiguous."""
        known = self._constants.get(id(tensor))
        if known is None or known[0] is not tensor:
            array = tensor.detach().contiguous().numpy()
            self.memory.append(array)
            made = self.add("constant", array, shared_memory=array.size > 1)
            known = self._constants[id(tensor)] = (tensor, made)
        return known[1]

    def numbers(self, values: Iterable[Any]) -> Any:
        """Integers, known or not, as a tensor of one dimension."""
        listed = list(values)
        if all(isinstance(one, int) for one in listed):
            return self.add("constant", np.asarray(listed, dtype=np.int64))
        axis = self.numbers([0])
        return self.add(
            "concat",
            [self.numbers([one]) if isinstance(one, int) else self.add("unsqueeze", one, axis) for one in listed],
            0,
        )

    def size(self, value: Any, dim: int) -> Any:
        """The size of a dimension: a number where it is known, else a tensor without dimensions."""
        dim %= max(1, self.rank(value))
        known = self.value(value).get_partial_shape()[dim]
        if known.is_static:
            return known.get_length()
        place, axis = (self.add("constant", np.asarray(one, dtype=np.int64)) for one in (dim, 0))
        return self.add("gather", self.add("shape_of", value, "i64"), place, axis)

    def sizes(self, value: Any) -> tuple[Any, ...]:
        """The sizes of all dimensions."""
        return tuple(self.size(value, dim) for dim in range(self.rank(value)))

    def rank(self, value: Any) -> int:
        """Return how many dimensions a value has."""
        return self.value(value).get_partial_shape().rank.get_length()

    def dtype(self, value: Any) -> torch.dtype:
        """The dtype of a value."""
        found = self.value(value).get_element_type()
        return next(dtype for dtype, kind in element_types().items() if kind == found)

    @property
    def result_dtype(self) -> torch.dtype | None:
        """The dtype of what the operation returns in the program, or ``None`` if that is not a tensor."""
        recorded = self.node.meta.get("tensor_meta")
        return recorded.dtype if isinstance(recorded, TensorMetadata) else None

    # How.

    def _return(self, value: Any, recorded: Any) -> Any:
        """Return what stands for one value of the region in ``structure``."""
        if isinstance(value, tuple):
            parts = recorded if isinstance(recorded, tuple) else (None,) * len(value)
            return tuple(self._return(*one) for one in zip(value, parts, strict=True))
        if not isinstance(value, (Tensor, load().Output)):
            return value
        output, order = self.value(value), None
        if isinstance(recorded, TensorMetadata):
            order = _order(recorded)
            output = self.value(output, recorded.dtype)
            if order is not None:
                output = self.add("transpose", output, self.numbers(order))
        self._outputs.append(output)
        alone, place = self._is_alone(output), len(self._outputs) - 1
        self.results.append(Result(place, self.dtype(output), alone, recorded is None, order))
        return self.results[-1]

    def _is_alone(self, output: Any) -> bool:
        """Return whether OpenVINO computes an output for this result alone, as far as is known; it merges equals."""
        node = output.get_node()
        while node.get_type_name() in _VIEWS and node.get_input_size():
            output = node.input_value(0)
            node = output.get_node()
        root = (node.get_friendly_name(), output.get_index())
        is_first = root not in self._roots
        self._roots.add(root)
        return is_first and node.get_type_name() not in ("Parameter", "Constant")


def _order(recorded: TensorMetadata) -> tuple[int, ...] | None:
    """From the slowest dimension in memory to the fastest, if that is not their own order."""
    if recorded.memory_format is torch.contiguous_format or 0 in recorded.stride:
        return None
    order = tuple(sorted(range(len(recorded.stride)), key=lambda dim: -recorded.stride[dim]))
    return order if order != tuple(range(len(order))) else None
