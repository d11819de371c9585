"""A network under construction: what converters add layers to, and what is built into an engine."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fx.errors import LoweringError
from fx.graph_module import GraphModule, expect_program
from fx.lowering.tensorrt.library import Log, library, torch_dtype, trt_dtype
from fx.lowering.tensorrt.ranges import sizes_of
from fx.naming.printing import describe
from fx.node import Node

VARIES = -1
"""What TensorRT writes in the place of a size that varies from run to run."""


@dataclass(frozen=True, slots=True)
class EngineBinding:
    """A tensor that an engine is given or returns."""

    name: str
    """What the engine calls it."""
    dtype: torch.dtype
    """Type of its elements."""
    least: tuple[int, ...]
    """The smallest size of each dimension."""
    typical: tuple[int, ...]
    """The size that the engine is made for in the first place."""
    most: tuple[int, ...]
    """The largest size of each dimension."""

    @property
    def varies(self) -> bool:
        """Return whether any size varies from run to run."""
        return self.least != self.most


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """An integer that depends on the sizes of inputs, and is known only when the engine runs."""

    tensor: Any
    """The number in the network, a tensor with one element; ``None`` as long as nothing needs it."""
    source: Any = None
    """The value of which it is the size of a dimension, if it is one."""
    dimension: int = 0
    """Of which dimension."""


Number: TypeAlias = "int | Size"


class TensorRTNetwork:
    """The network of TensorRT's converters.

    Converters add layers with :meth:`add`, which checks what TensorRT answers. Constants are tensors of torch until a
    layer needs them.
    """

    def __init__(self, region: GraphModule, precision: torch.dtype | None) -> None:
        """A network for a region.

        Args:
            region: the program, with recorded shapes; it is only read.
            precision: what to compute in wherever the program computes in float32; ``None`` for just that.
        """
        expect_program(region, "TensorRT.build takes a GraphModule", error=LoweringError)
        trt = library()
        self.log = Log()
        """What TensorRT says of the network."""
        self.builder = trt.Builder(self.log.logger)
        """What made the network, and builds it."""
        self.definition = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        """The network itself. Layers that are added to it directly are not seen by the cache, which then stays out."""
        self.inputs: list[EngineBinding] = []
        """What it is given."""
        self.outputs: list[EngineBinding] = []
        """What it returns."""
        self.is_single = True
        """Whether the region returns a tensor rather than a tuple."""
        self._precision = precision
        returned: Any = region.graph.output_node().args[0]
        self._results: list[Node] = [returned] if isinstance(returned, Node) else list(returned)
        self._node: Node | None = None
        self._nodes: dict[str, Node] = {}
        self._kept: list[Any] = []  # memory that TensorRT reads when it builds
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._packed: dict[tuple[Any, ...], Any] = {}
        self._digests: dict[int, str] = {}
        self._shapes: dict[str, Any] = {}
        self._recipe = hashlib.sha256(repr(precision).encode())
        self._layers = 0

    # What every network has.

    def begin(self, node: Node) -> None:
        """Note which operation is built next; called before each operation."""
        self._node = node

    def add_input(self, node: Node) -> Any:
        """An input of the region; in the working precision."""
        self._node = node
        least, typical, most = sizes_of(node)
        dtype: torch.dtype = node.meta["tensor_meta"].dtype
        shape = tuple(VARIES if low != high else low for low, high in zip(least, most, strict=True))
        self._recipe.update(repr((node.name, dtype, least, typical, most)).encode())
        tensor = self.definition.add_input(node.name, trt_dtype(dtype), shape)
        if tensor is None:
            what = f"TensorRT refuses the input `%{node}`"
            raise LoweringError(what, where=node.source, value=describe(node), why=self.log.words())
        self.inputs.append(EngineBinding(node.name, dtype, least, typical, most))
        return self.cast(tensor, self.working(dtype))

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        """Let the engine return ``outputs``, in the types that the program has."""
        self.is_single = is_single
        taken = {one.name for one in self.inputs}
        for number, (value, node) in enumerate(zip(outputs, self._results, strict=True)):
            self._node = node
            if isinstance(value, Size) or not isinstance(value, (Tensor, library().ITensor)):
                raise LoweringError(f"`%{node}` is not a tensor that an engine could return", where=node.source)
            least, typical, most = sizes_of(node)
            dtype: torch.dtype = node.meta["tensor_meta"].dtype
            tensor = self.tensor(value)
            if tensor.dtype.name == "INT8":
                raise LoweringError(f"`%{node}` is stored in another way inside the engine", where=node.source)
            tensor = self.cast(tensor, dtype)
            if tensor.name in taken:
                tensor = self.add("identity", tensor)
            name = f"output_{number}"
            while name in taken:
                name += "_"
            tensor.name = name
            taken.add(name)
            self._recipe.update(repr((name, dtype)).encode())
            self.definition.mark_output(tensor)
            self.outputs.append(EngineBinding(name, dtype, least, typical, most))

    # What converters add.

    def add(self, kind: str, *args: Any, inputs: Mapping[int, Any] | None = None, **settings: Any) -> Any:
        """Add a layer and return its result.

        Args:
            kind: the layer, as in TensorRT's ``add_convolution_nd`` without the ``add_``.
            args: what that is called with.
            inputs: tensors for the layer's later inputs, by their number.
            settings: attributes of the layer to set.

        Raises:
            RuntimeError: TensorRT refuses it; the text is what TensorRT says.
        """
        layer = getattr(self.definition, f"add_{kind}")(*args)
        if layer is None:
            raise RuntimeError(f"add_{kind} refuses it: {self.log.words()}")
        for name, value in settings.items():
            setattr(layer, name, value)
        for number, tensor in (inputs or {}).items():
            layer.set_input(number, tensor)
        more = {number: self._describe(one) for number, one in (inputs or {}).items()}
        given, options = [self._describe(one) for one in args], {name: str(one) for name, one in settings.items()}
        self._recipe.update(repr((kind, given, more, options)).encode())
        layer.name = self._layer_name()
        self._layers += 1
        result = layer.get_output(0)
        self.shape(result)
        return result

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The sizes of a tensor of the network; -1 for those that vary.

        Raises:
            RuntimeError: it has none, as the layer that returns it cannot be; the text is what TensorRT says.
        """
        try:
            shape = tuple(tensor.shape)
        except (RuntimeError, ValueError):
            raise RuntimeError(self.log.words()) from None
        return shape

    def rank(self, value: Any) -> int:
        """Return how many dimensions a value has."""
        return value.dim() if isinstance(value, Tensor) else len(self.shape(value))

    def tensor(self, value: Any, dtype: torch.dtype | None = None, rank: int = 0) -> Any:
        """A value as a tensor of the network: constants become layers, once each.

        Args:
            value: a tensor of the network, a constant, or a number.
            dtype: the type to have it in; by default its own.
            rank: dimensions that it must have; missing ones are put before the others.
        """
        if isinstance(value, Size):
            value = self.add("shuffle", self.size_tensor(value), reshape_dims=())
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, dtype=dtype)
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
        """A tensor of the network in another type of elements."""
        wanted = trt_dtype(dtype)
        return tensor if tensor.dtype == wanted else self.add("cast", tensor, wanted)

    def working(self, dtype: torch.dtype) -> torch.dtype:
        """The type that stands for ``dtype`` in the network."""
        return self._precision if self._precision is not None and dtype is torch.float32 else dtype

    def dtype(self, value: Any) -> torch.dtype:
        """The type of the elements of a value in the network."""
        if isinstance(value, Tensor):
            return self.working(value.dtype)
        return torch_dtype(value.dtype)

    def common(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
        """Values as tensors of one type and one number of dimensions, as arithmetic on them needs.

        Args:
            values: tensors of the network, constants, and numbers.
            dtype: the type; by default the one that torch would compute in.
        """
        ranks = [0 if isinstance(one, (int, float, Size)) else self.rank(one) for one in values]
        if dtype is None:
            dtype = self.common_dtype(values)
        return [self.tensor(one, dtype, max(ranks)) for one in values]

    def common_dtype(self, values: Sequence[Any]) -> torch.dtype:
        """The type that torch computes in for these operands."""
        if len(values) != 2:
            dtypes = [self.dtype(one) for one in values]
            return functools.reduce(torch.promote_types, dtypes)
        stand_ins = [1 if isinstance(one, Size) else self._stand_in(one) for one in values]
        return self.working(torch.result_type(*stand_ins))

    def _stand_in(self, value: Any) -> Any:
        if isinstance(value, (int, float)):
            return value
        return torch.empty((1,) * self.rank(value), dtype=self.dtype(value), device="meta")

    def weights(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
        """The numbers of a constant, as arguments of layers; they stay in memory as long as the network."""
        wanted = self.working(tensor.dtype) if dtype is None else dtype
        key = _key(tensor, wanted)
        if key in self._packed:
            return self._packed[key]
        kept = tensor.detach().to("cpu", wanted).contiguous()
        made = self._packed[key] = library().Weights(trt_dtype(kept.dtype), kept.data_ptr(), kept.numel())
        self._kept += (tensor, kept, made)  # the first one so that its address stays its own
        memory = kept.reshape(-1).view(torch.uint8).numpy()
        self._digests[id(made)] = f"{kept.dtype} {tuple(kept.shape)} {hashlib.sha256(memory.data).hexdigest()}"
        return made

    def no_weights(self, dtype: torch.dtype) -> Any:
        """The argument of a layer that has none of these weights."""
        made = library().Weights(trt_dtype(dtype))
        self._kept.append(made)
        self._digests[id(made)] = "none"
        return made

    # Sizes.

    def sizes(self, value: Any) -> list[Number]:
        """The size of each dimension of a value."""
        if isinstance(value, Tensor):
            return list(value.shape)
        shape = self.shape(value)
        return [size if size != VARIES else Size(None, value, number) for number, size in enumerate(shape)]

    def size_tensor(self, size: Number) -> Any:
        """A size as a tensor of the network with one dimension and one element."""
        if not isinstance(size, Size):
            return self.tensor(torch.tensor([size]))
        if size.tensor is not None:
            return size.tensor
        name = size.source.name
        if name not in self._shapes:
            self._shapes[name] = self.cast(self.add("shape", size.source), torch.int64)
        return self.add("slice", self._shapes[name], (size.dimension,), (1,), (1,))

    def vector(self, sizes: Sequence[Number]) -> Any:
        """Sizes as a tensor of the network with one dimension."""
        if not any(isinstance(size, Size) for size in sizes):
            return self.tensor(torch.tensor(list(sizes)))
        return self.add("concatenation", [self.size_tensor(size) for size in sizes], axis=0)

    def compute(self, operation: str, left: Number, right: Number) -> Number:
        """Arithmetic on sizes; ``operation`` is one of TensorRT's for two operands."""
        made = getattr(library().ElementWiseOperation, operation)
        return Size(self.add("elementwise", self.size_tensor(left), self.size_tensor(right), made))

    def reshape(self, tensor: Any, sizes: Sequence[Number]) -> Any:
        """A tensor of the network in other sizes, of which one may be -1, whatever is left."""
        places = [self._place(tensor, number, size) for number, size in enumerate(sizes)]
        unknown = [number for number, place in enumerate(places) if isinstance(place, Size)]
        if len(unknown) == 1 and -1 not in places:
            places[unknown[0]] = -1  # whatever is left
        if all(isinstance(place, int) for place in places):
            return self.add("shuffle", tensor, reshape_dims=tuple(places))
        return self.add("shuffle", tensor, inputs={1: self.vector(sizes)}, zero_is_placeholder=False)

    def _place(self, tensor: Any, number: int, size: Number) -> Number:
        """A size for the layer that reshapes: 0 for that of the same dimension before."""
        if not isinstance(size, Size) or size.source is None:
            return size
        return 0 if size.source.name == tensor.name and size.dimension == number else size

    # What becomes of it.

    @property
    def digest(self) -> str | None:
        """Return what tells the network from others, or ``None`` if layers were added in ways that are not seen."""
        return self._recipe.hexdigest() if self._layers == self.definition.num_layers else None

    def node_of(self, words: str) -> Node | None:
        """The operation of which a layer is mentioned in what TensorRT says."""
        found = [name for name in self._nodes if name in words]
        return self._nodes[max(found, key=len)] if found else None

    def _constant(self, value: Tensor, dtype: torch.dtype) -> Any:
        key = _key(value, dtype)
        if key not in self._constants:
            self._constants[key] = self.add("constant", tuple(value.shape), self.weights(value, dtype))
        return self._constants[key]

    def _describe(self, value: Any) -> str:
        if (digest := self._digests.get(id(value))) is not None:
            return digest
        if isinstance(value, (tuple, list)):
            return str([self._describe(one) for one in value])
        return str(value.name) if isinstance(value, library().ITensor) else str(value)

    def _layer_name(self) -> str:
        """A name that leads back to the operation."""
        node = self._node
        assert node is not None
        name, number = f"<{node.name}>", 1
        while name in self._nodes:
            number += 1
            name = f"<{node.name}:{number}>"
        self._nodes[name] = node
        return name


def _key(tensor: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return what tells constants, in a type of elements, from others as long as they live."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), dtype)
