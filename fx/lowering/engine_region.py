"""``EngineRegion``: the module that replaces a region, with an engine of a runtime for each kind of input it meets."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export import export as torch_export

from fx.argument_types import checked
from fx.canonical.inlining import copy_graph
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.passes.tensor_metadata import TensorMetadata

Sizes: TypeAlias = "tuple[tuple[int | None, ...], ...]"
"""For each input the size of each dimension, or the value of an integer. ``None`` is a free size, which may be any
number but 0 and 1, since PyTorch specializes on these."""

_building = threading.RLock()
"""Held while an engine is built. ``torch.export`` takes one thread at a time, and the waiting ones may need the same
engine."""
_MOST_NUMBERS = 2
"""The most numbers of threads for which engines are kept, since each engine has packed copies of all weights."""


class Engine(Protocol):
    """A network that a runtime has compiled."""

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Return whether the sizes of these inputs meet the assumptions of a network with free sizes."""
        ...

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Return the results of the region for ``inputs``, contiguous tensors of the right dtypes.

        Raises:
            RuntimeError: the runtime refuses them, or is out of memory.
        """
        ...


class _Weight(NamedTuple):
    """A tensor of the program in the version with which the engines were built."""

    holder: dict[str, Any]
    name: str
    tensor: Tensor
    version: int | None

    @property
    def is_current(self) -> bool:
        tensor = self.tensor
        return self.holder.get(self.name) is tensor and (self.version is None or tensor._version == self.version)


class EngineRegion(nn.Module):
    """A part of a program as engines of a runtime, with the original program for inputs that no engine takes.

    The engine for the example inputs is built when the program is lowered. Inputs of other sizes get an engine with
    free sizes where they differ, except for sizes of 1, since PyTorch specializes on these. An engine uses as many
    threads as PyTorch does in the call; engines for the last two numbers of threads are kept.

    The original program runs on inputs of another dtype or number of dimensions, without elements, or that require
    gradients. It also runs under autocast and on sizes that violate the assumptions of ``torch.export``. It runs on all
    inputs once a weight has another dtype or shape.

    Engines have packed copies of the weights. They are built again after a weight is written to or replaced, and are
    not part of the state: copies and loaded modules build their own.
    """

    _is_impure: ClassVar[bool | None] = False
    _leaf_reason: ClassVar[str] = "it runs an engine of another runtime"
    _runtime: ClassVar[str]
    """The name of the runtime in messages."""

    @checked(LoweringError)
    def __init__(self, region: GraphModule, precision: str) -> None:
        """Build the engine for the sizes that are recorded in ``region``.

        Args:
            region: a canonical program with recorded shapes.
            precision: the type in which engines compute, by the runtime's name.

        Raises:
            LoweringError: the importer does not take the region; the message has its reason.
            RuntimeError: the runtime cannot compile the network.
        """
        super().__init__()
        self.program = _own(region)
        """The region in eager Python; its buffers are the weights."""
        self.precision = precision
        """The type in which engines compute, by the runtime's name."""
        inputs = region.graph.find_nodes(op="placeholder")
        for node in inputs:
            if node.meta.keys().isdisjoint(("tensor_meta", "example_value")):
                remedy = "record the shapes: ShapeProp(region).propagate(*inputs)"
                raise LoweringError(
                    f"the shape of the input `%{node}` is not recorded", where=node.source, remedy=remedy
                )
        recorded = [node.meta.get("tensor_meta") for node in inputs]
        self._dtypes = [metadata.dtype if isinstance(metadata, TensorMetadata) else None for metadata in recorded]
        self._example: Sizes = tuple(
            tuple(metadata.shape) if isinstance(metadata, TensorMetadata) else (node.meta["example_value"],)
            for node, metadata in zip(inputs, recorded, strict=True)
        )
        self._general = self._example  # the sizes that all calls share; those that differed are free
        self._reset()
        self._kinds = [(weight.tensor.dtype, weight.tensor.shape) for weight in self._weights or ()]
        self._recent = (torch.get_num_threads(),)
        self._engines[torch.get_num_threads(), self._example] = self._build(self._example, self._example)

    def forward(self, *inputs: Any) -> Any:
        """Return the results of the region."""
        engine = None if (prepared := self._prepared(inputs)) is None else self._engine(inputs)
        if engine is None or prepared is None:
            return self.program(*inputs)
        try:
            return engine(prepared)
        except RuntimeError as error:
            result = self.program(*inputs)  # if the inputs are wrong, PyTorch's error is the better one
            self._refuse(engine, error)
            return result

    # The choice of an engine.

    def _prepared(self, inputs: Sequence[Any]) -> list[Tensor] | None:
        """Return the inputs in the form that engines take, or ``None`` if no engine takes them."""
        if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or _is_traced_by_jit():
            return None
        prepared: list[Tensor] = []
        needs_gradients = torch.is_grad_enabled()
        for value, dtype, sizes in zip(inputs, self._dtypes, self._example, strict=True):
            if dtype is None:
                if type(value) is not int:
                    return None
                value = torch.tensor(value)
            elif not (
                type(value) is Tensor
                and value.dtype is dtype
                and value.is_cpu
                and value.layout is torch.strided
                and value.dim() == len(sizes)
                and value.numel() > 0
                and _has_memory(value)
                and not (needs_gradients and value.requires_grad)
            ):
                return None
            prepared.append(value.detach().contiguous())
        return prepared

    def _engine(self, inputs: Sequence[Any]) -> Engine | None:
        """Return the engine for inputs of these sizes, or ``None`` if there can be none."""
        weights: list[_Weight] | None = self.__dict__["_weights"]  # none in a copy
        is_edited = self._revision != self.program.graph.revision  # loading a state may replace scales, too
        if weights is None or is_edited or not all(weight.is_current for weight in weights):
            weights = self._reset()
        if not self._is_usable:
            return None
        threads = torch.get_num_threads()
        current = tuple([tuple(value.shape) if isinstance(value, Tensor) else (value,) for value in inputs])
        if self._recent[:1] != (threads,):
            self._recent = (threads, *(number for number in self._recent if number != threads))[:_MOST_NUMBERS]
        if (threads, current) in (engines := self._engines):
            return engines[threads, current]
        sizes = current
        if current != self._example:
            self._general = _generalized(self._general, current)
            sizes = _with_ones(self._general, current)
        if (threads, sizes) not in engines:
            self._add_engine(threads, sizes, current)
        engine = self._engines.get((threads, sizes))
        return engine if engine is not None and engine.takes(inputs) else None

    def _add_engine(self, threads: int, sizes: Sizes, current: Sizes) -> None:
        """Build the engine for ``sizes``, if possible, and drop engines for numbers of threads no longer used."""
        with _building:
            if (threads, sizes) in (engines := self._engines):
                return
            try:
                engine = self._build(sizes, current)
            except (LoweringError, RuntimeError):
                if sizes == self._example:
                    raise
                engine = None
            engines[threads, sizes] = engine
            for number, other in list(engines):
                if number not in self._recent:
                    engines.pop((number, other), None)

    def _build(self, sizes: Sizes, current: Sizes) -> Engine | None:
        if self.program.graph.output_node().args[0] == ():
            return None  # no result is used, and there are no networks without results
        return self._compile(sizes, current)

    @abstractmethod
    def _compile(self, sizes: Sizes, current: Sizes) -> Engine:
        """Return an engine for ``sizes``, which takes the ``current`` sizes, with PyTorch's number of threads.

        Raises:
            LoweringError: the importer does not take the region; the message has its reason.
            RuntimeError: the runtime cannot compile the network.
        """

    def _refuse(self, engine: Engine, error: RuntimeError) -> None:
        """Give up an engine that failed, so that the program runs in its place.

        Raises:
            LoweringError: the engine was built for the example inputs.
        """
        for (threads, sizes), other in list(self._engines.items()):
            if other is engine and sizes != self._example:
                self._engines[threads, sizes] = None
                return
        first = next(iter(self.program.graph.find_nodes(op="call_function")), None)
        raise LoweringError(
            f"an engine of {self._runtime} failed where eager Python does not",
            where=None if first is None else first.source,
            why=f"{type(error).__name__}: {error}",
            remedy="exclude operations with veto=…",
        ) from error

    # Weights.

    def _reset(self) -> list[_Weight]:
        """Record the current weights, and drop the engines that were built for others."""
        weights = self._weights = list(_weights_of(self.program))
        self._revision = self.program.graph.revision
        self._engines: dict[tuple[int, Any], Engine | None] = {}
        self._recent: tuple[int, ...] = ()  # the last numbers of threads, the latest first
        kinds = self.__dict__.get("_kinds")
        self._is_usable = kinds is None or kinds == [(weight.tensor.dtype, weight.tensor.shape) for weight in weights]
        return weights

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engines": {}, "_weights": None}

    def extra_repr(self) -> str:
        """Return the precision and the sizes, for printing."""
        return f"precision={self.precision}, sizes={self._example}"


def _is_traced_by_jit() -> bool:
    jit: Any = torch.jit
    return bool(jit.is_tracing())


def _own(region: GraphModule) -> GraphModule:
    """Return a copy of the region in which parameters are buffers that share their memory."""
    program = GraphModule.of_capture(region, copy_graph(region.graph), "GraphModule")
    for holder in program.modules():
        for name, parameter in list(holder._parameters.items()):
            if parameter is not None:
                del holder._parameters[name]
                holder.register_buffer(name, parameter.detach())
    return program


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has memory, unlike the wrappers of ``torch.func``'s function transforms."""
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _weights_of(program: GraphModule) -> Iterator[_Weight]:
    for path in dict.fromkeys(str(node.target) for node in program.graph.find_nodes(op="get_attr")):
        prefix, _, name = path.rpartition(".")
        yield _weight(program.get_submodule(prefix), name)


def _weight(holder: nn.Module, name: str) -> _Weight:
    places = (holder._buffers, holder._parameters, holder.__dict__)
    place: dict[str, Any] = next(values for values in places if name in values)
    tensor: Tensor = place[name]
    return _Weight(place, name, tensor, None if tensor.is_inference() else tensor._version)


def _generalized(sizes: Sizes, current: Sizes) -> Sizes:
    """Return ``sizes`` with those free that differ in ``current``."""
    inputs = (zip(*both, strict=True) for both in zip(sizes, current, strict=True))
    return tuple([tuple([size if size == now else None for size, now in pairs]) for pairs in inputs])


def _with_ones(sizes: Sizes, current: Sizes) -> Sizes:
    """Return ``sizes`` with 0 and 1 fixed where ``current`` has them: broadcasting and squeezing depend on these."""
    inputs = (zip(*both, strict=True) for both in zip(sizes, current, strict=True))
    return tuple([tuple([now if now in (0, 1) else size for size, now in pairs]) for pairs in inputs])


def exported(program: GraphModule, sizes: Sizes, current: Sizes) -> ExportedProgram:
    """Export a region, whose inputs have recorded shapes, with the free sizes of ``sizes``."""
    kinds = [node.meta.get("tensor_meta") for node in program.graph.find_nodes(op="placeholder")]
    return torch_export(
        program,
        tuple(map(_example_of, kinds, current)),
        dynamic_shapes=tuple(map(_free_dimensions, kinds, sizes)),
        strict=False,
    )


def check_of(program: ExportedProgram, sizes: Sizes) -> Callable[..., object] | None:
    """Return the function that refuses inputs of other sizes than the export assumes; ``None`` if all are fixed."""
    module: Any = program.module() if any(None in size for size in sizes) else None
    return None if module is None else module._guards_fn


def _example_of(kind: TensorMetadata | None, size: Sequence[Any]) -> Any:
    """Return an input for ``torch.export``, which reads only the sizes and dtypes of tensors."""
    return size[0] if kind is None else torch.empty(tuple(size), dtype=kind.dtype, device="cpu")


def _free_dimensions(kind: TensorMetadata | None, size: Sequence[int | None]) -> Any:
    """Return the free dimensions of an input, in the form that ``torch.export`` takes."""
    dims = {dim: Dim.DYNAMIC for dim, length in enumerate(size) if length is None}
    return dims.get(0) if kind is None else dims


def order_in_memory(recorded: TensorMetadata) -> tuple[int, ...] | None:
    """Return the dimensions from the slowest in memory to the fastest; ``None`` if they are in their own order."""
    if recorded.memory_format is torch.contiguous_format or 0 in recorded.stride:
        return None
    order = tuple(sorted(range(len(recorded.stride)), key=lambda dim: -recorded.stride[dim]))
    return order if order != tuple(range(len(order))) else None
