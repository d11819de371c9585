"""TensorRT: regions become engines, for the GPU in the machine or, ahead of time, for others (paper, section 6.4).

The backend works with the package ``tensorrt`` where it is installed, and with ``tensorrt_rtx`` otherwise, which also
builds on machines without a GPU::

    backend = fx.lowering.TensorRT(targets=("8.6", "8.9"), ranges={"x": {0: (1, 32)}})
    lowered = fx.lower(program, backend, example_inputs)

It needs shapes: give ``example_inputs``. The package is imported on first use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.backend import Backend, register_backend
from fx.lowering.converters import Converters, build_region
from fx.lowering.known_program import Operation
from fx.lowering.preparation import prepare_for_engine
from fx.lowering.support import has_own_memory
from fx.lowering.tensorrt import (
    activations,
    arrangement,
    attention,
    creation,
    indexing,
    loops,
    quantization,
    selection,
    statistics,
)
from fx.lowering.tensorrt import elementwise as arithmetic
from fx.lowering.tensorrt import layer_converters as layers
from fx.lowering.tensorrt.build import build_engine
from fx.lowering.tensorrt.cache import EngineCache
from fx.lowering.tensorrt.emulation import EmulatedEngine
from fx.lowering.tensorrt.engine import TensorRTEngine
from fx.lowering.tensorrt.library import (
    capability_of,
    find_library,
    for_targets,
    library_name,
    why_no_library,
)
from fx.lowering.tensorrt.module import TensorRTModule
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import STORED, converters
from fx.lowering.tensorrt.ranges import Ranges, record_ranges
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

__all__ = [
    "EmulatedEngine",
    "EngineCache",
    "TensorRT",
    "TensorRTEngine",
    "TensorRTModule",
    "activations",
    "arithmetic",
    "arrangement",
    "attention",
    "creation",
    "indexing",
    "layers",
    "loops",
    "quantization",
    "selection",
    "statistics",
]  # fmt: skip

_PRECISIONS = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@checked(LoweringError)
@dataclass(frozen=True, slots=True)
class TensorRT(Backend):
    """The backend ``tensorrt``: programs in float32, float16 or bfloat16, and symmetrically quantized ones.

    >>> TensorRT(precision="float32")
    Traceback (most recent call last):
    ...
    fx.errors.LoweringError: 'precision' of TensorRT is 'float16' or 'bfloat16' or None, not 'float32'
    ...
    """

    precision: Literal["float16", "bfloat16"] | None = None
    """The type in which engines compute where the program computes in float32; ``None`` for float32. The contract
    ``close`` does not allow another type. Inputs and results keep their types."""
    targets: tuple[str, ...] = ()
    """Compute capabilities for which an engine is built ahead of time, such as ``("8.6", "8.9")``. One engine serves
    all of them. Empty for the GPU in this machine."""
    ranges: Ranges = field(default_factory=dict[str, Any])
    """The smallest and the largest size of dimensions that vary, as a pair or as a ``torch.export.Dim``, by the name of
    the input and the dimension. Other sizes are fixed. Engines are optimized for the sizes of the example inputs."""
    cache: EngineCache | None = None
    """The cache of engines: it is searched before a build, and stores new engines."""
    workspace: int | None = None
    """The most bytes of GPU memory that a layer may use for itself; ``None`` for no limit."""
    tf32: bool = False
    """Whether float32 products may be computed with less precision, which the contract ``close`` does not allow."""
    cuda_graphs: bool = False
    """Whether the library may use CUDA graphs by itself, where it can."""
    emulate: bool = False
    """Whether PyTorch computes the networks layer by layer on the CPU, in place of engines on a GPU. It also computes
    programs in float64, to show which errors are more than rounding. With ``targets``, the engines are built, too."""

    name: ClassVar[str] = "tensorrt"
    converters: ClassVar[Converters] = converters
    min_size: ClassVar[int] = 3
    keeps_non_finite: ClassVar[bool] = False
    inlines_functions: ClassVar[bool] = True
    takes_other_sizes: ClassVar[bool] = False

    def why_unavailable(self) -> str | None:
        """Return why no engine can be built: no package, neither a GPU nor a target, or an unsupported GPU."""
        with for_targets(self.targets):
            if find_library() is None:
                return f"{why_no_library()}: pip install tensorrt_rtx"
        if self.targets or self.emulate:
            return None
        if not torch.cuda.is_available():
            return "there is no GPU here; TensorRT(targets=…) builds ahead of time"
        return self._why_unfit(*torch.cuda.get_device_capability())

    def _why_unfit(self, major: int, minor: int) -> str | None:
        """Return why no engine can be built for a GPU of this compute capability, or ``None``."""
        target = f"{major}.{minor}"
        try:
            capability_of(target)
        except LoweringError as error:
            if hasattr(find_library(), "ComputeCapability"):
                return f"the GPU here has compute capability {target}; {str(error).partition('why ')[2].strip()}"
        return None

    def emulated(self) -> TensorRT:
        """Return the backend with networks that PyTorch computes."""
        return dataclasses.replace(self, emulate=True)

    def supports(self, operation: Operation) -> str | None:
        """Refuse a value whose memory is visible or written elsewhere, because engines return new memory.

        Float64 is refused, unless it is all that an emulated program computes in.
        """
        subject, node = operation.subject, operation.node
        if not (self.emulate and subject.float_dtypes == frozenset({torch.float64})):
            for value in (*node.all_input_nodes, node):
                if subject.dtype(value) is torch.float64:
                    return f"`%{value}` is float64, which engines do not support"
        return has_own_memory(operation)

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Take attention apart, fold batch norms, and fold values computed from buffers, which an engine holds."""
        return prepare_for_engine(graph_module)

    def can_cross(self, node: Node) -> bool:
        """Return True for tensors, except for 8-bit integers, which engines store in their own way."""
        kind: Any = node.meta.get("type") if node._meta else None
        if not isinstance(kind, type):
            return True
        recorded = node.meta.get("tensor_meta")
        return isinstance(recorded, TensorMetadata) and recorded.dtype not in STORED

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Record the smallest and the largest sizes of every value."""
        record_ranges(program, example_inputs, self.ranges)

    def network(self, region: GraphModule) -> TensorRTNetwork:
        """Return the network of a region, before it is built.

        Raises:
            LoweringError: a converter failed, or TensorRT refuses a layer.
        """
        with for_targets(self.targets):
            network = TensorRTNetwork(region, _PRECISIONS[self.precision])
            build_region(region, self.converters, network)
            return network

    def build(self, region: GraphModule) -> nn.Module:
        """Return a module that runs the engine of a region, or that computes its network."""
        with for_targets(self.targets):
            network = self.network(region)
            if self.emulate and not self.targets:
                return EmulatedEngine.of_network(network)
            engine = build_engine(network, self.targets, self.workspace, self.tf32, self.cache)
            if self.emulate:
                return EmulatedEngine.of_network(network)
            return TensorRTModule(engine, cuda_graphs=self.cuda_graphs)

    def describe(self, built: nn.Module) -> str | None:
        """Return the digest, size and build time of an engine, and the package that built it."""
        if isinstance(built, EmulatedEngine):
            with for_targets(self.targets):
                return f"emulated: PyTorch computes the {len(built.layers)} layers of the network for {library_name()}"
        if not isinstance(built, TensorRTModule):
            return None
        engine = built.engine
        size = len(engine.plan) / 2**20
        return f"engine {engine.digest}, {size:.1f} MiB, built in {engine.seconds:.2f} s by {engine.built_by}"


register_backend(TensorRT())
