"""A network under construction: converters add layers to it, and the builder makes an engine from it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.tensorrt.library import Log, library, torch_dtype, trt_dtype
from fx.lowering.tensorrt.ranges import sizes_of
from fx.naming.printing import describe
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

VARIES = -1
"""TensorRT's placeholder for a size that varies from run to run."""


@dataclass(frozen=True, slots=True)
class EngineBinding:
    """An input or a result of an engine."""

    name: str
    """Its name in the engine."""
    dtype: torch.dtype
    """The type of its elements."""
    least: tuple[int, ...]
    """The smallest size of each dimension."""
    typical: tuple[int, ...]
    """The size of each dimension for which the engine is optimized."""
    most: tuple[int, ...]
    """The largest size of each dimension."""

    @property
    def varies(self) -> bool:
        """True if any size varies from run to run."""
        return self.least != self.most


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """An integer that depends on the sizes of inputs, and is known only when the engine runs."""

    tensor: Any
    """The number in the network, a tensor with one element; ``None`` as long as nothing needs it."""
    source: Any = None
    """The value with a dimension of this size; ``None`` for a computed number."""
    dimension: int = 0
    """The number of that dimension."""


Number: TypeAlias = "int | Size"


class TensorRTNetwork:
    """The network of TensorRT's converters.

    Converters add layers with :meth:`add`, which raises an error if TensorRT refuses one. Constants are tensors of
    torch until a layer needs them.
    """

    @checked(LoweringError)
    def __init__(self, region: GraphModule, precision: torch.dtype | None) -> None:
        """Make a network for a region.

        Args:
            region: the program, with recorded shapes; it is only read.
            precision: the type to compute in wherever the program computes in float32; ``None`` for float32.
        """
        trt = library()
        self.log = Log()
        """TensorRT's errors about the network."""
        self.builder = trt.Builder(self.log.logger)
        """The builder that made the network, and makes the engine."""
        self.definition = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        """The network itself. Its engine is not cached if layers are added to it directly."""
        self.inputs: list[EngineBinding] = []
        """The inputs of the engine, in order."""
        self.outputs: list[EngineBinding] = []
        """The results of the engine, in order."""
        self.is_single = True
        """Whether the region returns a tensor rather than a tuple."""
        self.is_wide = any(_is_float64(node) for node in region.graph.nodes)
        """Whether the program computes in float64, in whose place the network has float32."""
        self.weights_of: dict[str, tuple[tuple[Tensor, Tensor] | None, ...]] = {}
        """The weights of each layer that has some, by its name, as the program has them and in the layer's type;
        ``None`` for weights that are left out."""
        self._precision = precision
        returned: Any = region.graph.output_node().args[0]
        self._results: list[Node] = [returned] if isinstance(returned, Node) else list(returned)
        self._node: Node | None = None
        self._nodes: dict[str, Node] = {}
        self._kept: list[Any] = []  # memory that TensorRT reads when it builds
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._packed: dict[tuple[Any, ...], Any] = {}
        self._digests: dict[int, str] = {}
        self._given: dict[int, tuple[Tensor, Tensor] | None] = {}
        self._shapes: dict[str, Any] = {}
        self._layer_of: dict[str, Any] = {}
        self._recipe = hashlib.sha256(repr(precision).encode())
        self._layers = 0

    # The methods of every network.

    def begin(self, node: Node) -> None:
        """Record the operation that is built next; called before each one."""
        self._node = node

    def add_input(self, node: Node) -> Any:
        """Add an input of the region, and return it in the working precision."""
        self._node = node
        least, typical, most = sizes_of(node)
        dtype: torch.dtype = node.meta["tensor_meta"].dtype
        shape = tuple(VARIES if low != high else low for low, high in zip(least, most, strict=True))
        self._recipe.update(repr((node.name, dtype, least, typical, most)).encode())
        tensor = self.definition.add_input(node.name, trt_dtype(_stored(dtype)), shape)
        if tensor is None:
            what = f"TensorRT refuses the input `%{node}`"
            raise LoweringError(what, where=node.source, value=describe(node), why=self.log.words())
        self.inputs.append(EngineBinding(node.name, dtype, least, typical, most))
        return self.cast(tensor, self.working(dtype))

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Return ``outputs`` from the engine, in the types of the program."""
        self.is_single = is_single
        names = {binding.name for binding in self.inputs}
        for number, (value, node) in enumerate(zip(outputs, self._results, strict=True)):
            self._node = node
            if isinstance(value, Size) or not isinstance(value, (Tensor, library().ITensor)):
                raise LoweringError(f"`%{node}` is not a tensor, so no engine can return it", where=node.source)
            least, typical, most = sizes_of(node)
            dtype: torch.dtype = node.meta["tensor_meta"].dtype
            tensor = self.tensor(value)
            if tensor.dtype.name == "INT8":
                raise LoweringError(f"`%{node}` is stored differently inside the engine", where=node.source)
            tensor = self.cast(tensor, _stored(dtype))
            if tensor.name in names:
                tensor = self.add("identity", tensor)
            name = f"output_{number}"
            while name in names:
                name += "_"
            tensor.name = name
            names.add(name)
            self._recipe.update(repr((name, dtype)).encode())
            self.definition.mark_output(tensor)
            self.outputs.append(EngineBinding(name, dtype, least, typical, most))

    # Methods for converters.

    def add(
        self, kind: str, *args: Any, inputs: Mapping[int, Any] | None = None, loop: Any = None, **settings: Any
    ) -> Any:
        """Add a layer and return its result, or a tuple of several.

        Args:
            kind: the layer, as in TensorRT's ``add_convolution_nd`` without the ``add_``.
            args: the arguments of that method.
            inputs: tensors for the layer's later inputs, by their number.
            loop: the loop whose boundary the layer is on.
            settings: attributes of the layer to set.

        Raises:
            RuntimeError: TensorRT refuses the layer; the message is TensorRT's.
        """
        count_before = self.definition.num_layers
        layer = getattr(self.definition if loop is None else loop, f"add_{kind}")(*args)
        if layer is None:
            raise RuntimeError(f"add_{kind} refuses it: {self.log.words()}")
        for name, value in settings.items():
            setattr(layer, name, value)
        for number, tensor in (inputs or {}).items():
            layer.set_input(number, tensor)
        more = {number: self._describe(tensor) for number, tensor in (inputs or {}).items()}
        first = [self._describe(value) for value in args]
        options = {name: self._describe(value) for name, value in settings.items()}
        self._recipe.update(repr((kind, first, more, options)).encode())
        layer.name = self._layer_name()
        if loop is not None:
            loop.name = loop.name or layer.name
            self._recipe.update(loop.name.encode())
        if any(id(value) in self._given for value in args):
            self.weights_of[layer.name] = tuple(self._given[id(value)] for value in args if id(value) in self._given)
        self._layers += self.definition.num_layers - count_before  # attention has two
        results = tuple(layer.get_output(number) for number in range(layer.num_outputs))
        for result in results:
            self.shape(result)
            self._layer_of[result.name] = layer
        return results[0] if len(results) == 1 else results

    def close_loop(self, before: Any, after: Any) -> None:
        """Make ``after`` the value of ``before``, the result of a layer for recurrence, in the next run of a loop."""
        self._layer_of[before.name].set_input(1, after)
        self._recipe.update(repr((before.name, after.name)).encode())

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Return the sizes of a tensor of the network; -1 for those that vary.

        Raises:
            RuntimeError: it has no shape, because its layer is invalid; the message is TensorRT's.
        """
        try:
            shape = tuple(tensor.shape)
        except (RuntimeError, ValueError):
            raise RuntimeError(self.log.words()) from None
        return shape

    def rank(self, value: Any) -> int:
        """Return the number of dimensions of a value."""
        return value.dim() if isinstance(value, Tensor) else len(self.shape(value))

    def tensor(self, value: Any, dtype: torch.dtype | None = None, rank: int = 0) -> Any:
        """Return a value as a tensor of the network; each constant becomes one layer.

        Args:
            value: a tensor of the network, a constant, or a number.
            dtype: the type to convert it to; by default its own.
            rank: the least number of dimensions; missing ones are inserted in front.
        """
        if isinstance(value, Size):
            value = self.add("shuffle", self.size_tensor(value), reshape_dims=())
        if isinstance(value, (bool, int, float)):
            dtype = self.working(torch.tensor(value).dtype) if dtype is None else dtype
            value = torch.tensor(value, dtype=torch.float64 if dtype.is_floating_point else dtype)
        if isinstance(value, Tensor):
            value = value.detach()
            wanted = self.working(value.dtype) if dtype is None else dtype
            return self._constant(value.reshape((1,) * (rank - value.dim()) + tuple(value.shape)), wanted)
        if dtype is not None:
            value = self.cast(value, dtype)
        missing = rank - len(self.shape(value))
        if missing > 0:
            value = self.reshape(value, [1] * missing + list(self.sizes(value)))
        return value

    def cast(self, tensor: Any, dtype: torch.dtype) -> Any:
        """Convert a tensor of the network to another type of elements."""
        wanted = trt_dtype(dtype)
        return tensor if tensor.dtype == wanted else self.add("cast", tensor, wanted)

    def working(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which the network computes with values of ``dtype``."""
        stored = _stored(dtype)
        return self._precision if self._precision is not None and stored is torch.float32 else stored

    def dtype(self, value: Any) -> torch.dtype:
        """Return the type of the elements of a value in the network."""
        if isinstance(value, Tensor):
            return self.working(value.dtype)
        return torch_dtype(value.dtype)

    def common(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
        """Return values as tensors of the same type and number of dimensions, as arithmetic on them needs.

        Args:
            values: tensors of the network, constants, and numbers.
            dtype: the type; by default the one in which torch would compute.
        """
        ranks = [0 if isinstance(value, (int, float, Size)) else self.rank(value) for value in values]
        if dtype is None:
            dtype = self.common_dtype(values)
        return [self.tensor(value, dtype, max(ranks)) for value in values]

    def common_dtype(self, values: Sequence[Any]) -> torch.dtype:
        """Return the type in which torch computes with these operands."""
        if len(values) != 2:
            dtypes = [self.dtype(value) for value in values]
            return functools.reduce(torch.promote_types, dtypes)
        operands = [1 if isinstance(value, Size) else self._meta_operand(value) for value in values]
        return self.working(torch.result_type(*operands))

    def _meta_operand(self, value: Any) -> Any:
        if isinstance(value, (int, float)):
            return value
        return torch.empty((1,) * self.rank(value), dtype=self.dtype(value), device="meta")

    def weights(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
        """Return the numbers of a constant as an argument of layers; they stay in memory as long as the network."""
        wanted = self.working(tensor.dtype) if dtype is None else dtype
        key = _key(tensor, wanted)
        if key in self._packed:
            return self._packed[key]
        values = tensor.detach().to("cpu", wanted).contiguous()
        weights = self._packed[key] = library().Weights(trt_dtype(values.dtype), values.data_ptr(), values.numel())
        self._kept += (tensor, values, weights)  # the first one so that no other tensor gets its address
        self._given[id(weights)] = tensor.detach(), values
        memory = values.reshape(-1).view(torch.uint8).numpy()
        self._digests[id(weights)] = f"{values.dtype} {tuple(values.shape)} {hashlib.sha256(memory.data).hexdigest()}"
        return weights

    def no_weights(self, dtype: torch.dtype) -> Any:
        """Return the argument for a layer without these weights."""
        weights = library().Weights(trt_dtype(dtype))
        self._kept.append(weights)
        self._given[id(weights)] = None
        self._digests[id(weights)] = "none"
        return weights

    # Sizes.

    def sizes(self, value: Any) -> list[Number]:
        """Return the size of each dimension of a value."""
        if isinstance(value, Tensor):
            return list(value.shape)
        shape = self.shape(value)
        return [size if size != VARIES else Size(None, value, number) for number, size in enumerate(shape)]

    def size_tensor(self, size: Number) -> Any:
        """Return a size as a tensor of the network with one dimension and one element."""
        if not isinstance(size, Size):
            return self.tensor(torch.tensor([size]))
        if size.tensor is not None:
            return size.tensor
        name = size.source.name
        if name not in self._shapes:
            self._shapes[name] = self.cast(self.add("shape", size.source), torch.int64)
        return self.add("slice", self._shapes[name], (size.dimension,), (1,), (1,))

    def vector(self, sizes: Sequence[Number]) -> Any:
        """Return sizes as a tensor of the network with one dimension."""
        if not any(isinstance(size, Size) for size in sizes):
            return self.tensor(torch.tensor(list(sizes)))
        return self.add("concatenation", [self.size_tensor(size) for size in sizes], axis=0)

    def compute(self, operation: str, left: Number, right: Number) -> Number:
        """Compute with sizes; ``operation`` is the name of one of TensorRT's operations on two operands."""
        kind = getattr(library().ElementWiseOperation, operation)
        return Size(self.add("elementwise", self.size_tensor(left), self.size_tensor(right), kind))

    def reshape(self, tensor: Any, sizes: Sequence[Number]) -> Any:
        """Reshape a tensor of the network; one of ``sizes`` may be -1, which is inferred from the others."""
        places = [self._place(tensor, number, size) for number, size in enumerate(sizes)]
        unknown = [number for number, place in enumerate(places) if isinstance(place, Size)]
        if len(unknown) == 1 and -1 not in places:
            places[unknown[0]] = -1  # inferred from the others
        if all(isinstance(place, int) for place in places):
            return self.add("shuffle", tensor, reshape_dims=tuple(places))
        return self.add("shuffle", tensor, inputs={1: self.vector(sizes)}, zero_is_placeholder=False)

    def _place(self, tensor: Any, number: int, size: Number) -> Number:
        """Return a size in the form that the reshaping layer takes: 0 keeps the size of the same dimension."""
        if not isinstance(size, Size) or size.source is None:
            return size
        return 0 if size.source.name == tensor.name and size.dimension == number else size

    # The finished network.

    @property
    def digest(self) -> str | None:
        """A hash that identifies the network; ``None`` if layers were added to ``definition`` directly."""
        return self._recipe.hexdigest() if self._layers == self.definition.num_layers else None

    def node_of(self, words: str) -> Node | None:
        """Return the operation with a layer that TensorRT's message ``words`` names, if any."""
        names = [name for name in self._nodes if name in words]
        return self._nodes[max(names, key=len)] if names else None

    def _constant(self, value: Tensor, dtype: torch.dtype) -> Any:
        key = _key(value, dtype)
        if key not in self._constants:
            self._constants[key] = self.add("constant", tuple(value.shape), self.weights(value, dtype))
        return self._constants[key]

    def _describe(self, value: Any) -> str:
        if (digest := self._digests.get(id(value))) is not None:
            return digest
        if isinstance(value, (tuple, list)):
            return str([self._describe(part) for part in value])
        return str(value.name) if isinstance(value, library().ITensor) else str(value)

    def _layer_name(self) -> str:
        """Return a unique name for a layer, by which :meth:`node_of` finds the operation."""
        node = self._node
        assert node is not None
        name, number = f"<{node.name}>", 1
        while name in self._nodes:
            number += 1
            name = f"<{node.name}:{number}>"
        self._nodes[name] = node
        return name


def _key(tensor: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return a key that identifies a constant in a type of elements, as long as it lives."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), dtype)


def _stored(dtype: torch.dtype) -> torch.dtype:
    """Return the type of an engine's inputs and results for those of a program; engines have no float64."""
    return torch.float32 if dtype is torch.float64 else dtype


def _is_float64(node: Node) -> bool:
    recorded = node.meta.get("tensor_meta") if node._meta else None
    return isinstance(recorded, TensorMetadata) and recorded.dtype is torch.float64
