"""``TensorRTModule``: an engine as a module, which runs on torch's current stream."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fx.errors import LoweringError
from fx.lowering.tensorrt.engine import TensorRTEngine, check_inputs
from fx.lowering.tensorrt.library import Log, for_targets, library, library_name

_DEVICE = "cuda"


class TensorRTModule(nn.Module):
    """A module that runs an engine on CUDA tensors.

    A call enqueues the work on the current stream of the inputs' device and returns without waiting for the device.
    Inputs are checked against the sizes and types for which the engine was built. The engine is loaded in the first
    run, once for each device. Each thread has its own execution context, since only one thread at a time may use one.
    Calls can be captured in a ``torch.cuda.graph`` after a run in the same thread.

    The weights are inside the engine, so the module has no parameters. It can be copied, pickled, saved and loaded.
    """

    _is_impure: ClassVar[bool | None] = False
    _leaf_reason: ClassVar[str] = "it runs an engine of TensorRT"

    def __init__(self, engine: TensorRTEngine, *, cuda_graphs: bool = False) -> None:
        """Make a module for an engine.

        Args:
            engine: the engine.
            cuda_graphs: let the library, where it can, record an engine's kernel launches and replay them as a whole.
        """
        super().__init__()
        self.engine = engine
        """The engine."""
        self.cuda_graphs = cuda_graphs
        """Whether the library may use CUDA graphs by itself."""
        self._loaded = _Loaded()

    def forward(self, *inputs: Tensor) -> Any:
        """Run the engine.

        Raises:
            LoweringError: an input does not fit or requires gradients. There is no GPU, the engine was not built for
                it, or it has too little memory. The engine was built by another version of the library.
        """
        self._check(inputs)
        with torch.cuda.device(inputs[0].device):
            context = self._context()
            return self._run(context, [tensor.detach().contiguous() for tensor in inputs])

    def _run(self, context: _Context, inputs: list[Tensor]) -> Any:
        device = inputs[0].device
        execution = context.execution
        for binding, tensor in zip(self.engine.inputs, inputs, strict=True):
            if not (execution.set_input_shape(binding.name, tuple(tensor.shape))):
                raise self._failure("does not take inputs of this size", context.log.words(), tuple(tensor.shape))
            execution.set_tensor_address(binding.name, tensor.data_ptr())
        try:
            outputs = tuple(
                torch.empty(tuple(execution.get_tensor_shape(binding.name)), dtype=binding.dtype, device=device)
                for binding in self.engine.outputs
            )
        except torch.cuda.OutOfMemoryError as error:
            raise self._failure("has no memory for its results", str(error)) from error
        for binding, tensor in zip(self.engine.outputs, outputs, strict=True):
            execution.set_tensor_address(binding.name, tensor.data_ptr())
        stream = torch.cuda.current_stream(device)
        context.follow(stream)
        if not execution.execute_async_v3(stream.cuda_stream):
            raise self._failure("failed", context.log.words())
        context.leave(stream)
        return outputs[0] if self.engine.is_single else outputs

    # Checks of the inputs.

    def _check(self, inputs: tuple[Any, ...]) -> None:
        check_inputs(self.engine.inputs, inputs)
        if not torch.cuda.is_available():
            raise LoweringError(
                "there is no GPU here to run the engine on",
                why=f"it was built ahead of time for {', '.join(self.engine.targets) or 'another machine'}",
                remedy="save the program, and load it on a machine with such a GPU",
            )
        devices = {tensor.device for tensor in inputs}
        if len(devices) > 1 or next(iter(devices)).type != _DEVICE:
            raise LoweringError(
                "the inputs of an engine are on one CUDA device", value=", ".join(sorted(map(str, devices)))
            )

    # Loading.

    def _context(self) -> _Context:
        """Return the calling thread's execution context on the current device."""
        contexts = self._loaded.contexts()
        device = torch.cuda.current_device()
        if device not in contexts:
            contexts[device] = self._create_context(device)
        return contexts[device]

    def _create_context(self, device: int) -> _Context:
        with self._loaded.lock, for_targets(self.engine.targets):
            if device not in self._loaded.engines:
                self._loaded.engines[device] = self._load(device)
            _, runnable, log = self._loaded.engines[device]
            execution = self._create_execution(runnable)
        if execution is None:
            raise self._failure("cannot be prepared for running", log.words())
        return _Context(execution, log)

    def _create_execution(self, runnable: Any) -> Any:
        strategies = getattr(library(), "CudaGraphStrategy", None)
        if not self.cuda_graphs or strategies is None:
            return runnable.create_execution_context()
        configuration = runnable.create_runtime_config()
        configuration.cuda_graph_strategy = strategies.WHOLE_GRAPH_CAPTURE
        return runnable.create_execution_context(configuration)

    def _load(self, device: int) -> tuple[Any, Any, Log]:
        """Return TensorRT's runtime, the engine on a device, and the log that both write to."""
        if library_name() != self.engine.built_by:
            raise self._failure(
                f"was built by {self.engine.built_by}", f"this is {library_name()}, which reads no other versions"
            )
        log = Log()
        runtime = library().Runtime(log.logger)
        runnable = runtime.deserialize_cuda_engine(self.engine.plan)
        if runnable is None:
            major, minor = torch.cuda.get_device_capability(device)
            raise self._failure(
                f"cannot be loaded on {torch.cuda.get_device_name(device)}",
                f"{log.words()} (compute capability {major}.{minor})",
            )
        return runtime, runnable, log

    def _failure(self, what: str, why: str, value: object | None = None) -> LoweringError:
        engine = self.engine
        targets = f", for {', '.join(engine.targets)}" if engine.targets else ""
        return LoweringError(
            f"the engine {engine.digest} {what}",
            value=value,
            why=why,
            remedy=f"lower the program here; this engine is of {engine.built_by}{targets}",
        )

    # Files and copies.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the engine to a file of its own."""
        self.engine.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, cuda_graphs: bool = False) -> TensorRTModule:
        """Return the module for an engine file, which needs no GPU.

        Raises:
            LoweringError: it is not an engine file, or it is damaged.
        """
        return cls(TensorRTEngine.load(path), cuda_graphs=cuda_graphs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_loaded": _Loaded()})

    def extra_repr(self) -> str:
        """Return a description of the engine, for printing."""
        engine = self.engine
        targets = f" for {', '.join(engine.targets)}" if engine.targets else ""
        return f"{engine.digest}, {len(engine.plan):,} bytes{targets}"


class _Loaded:
    """An engine as it is loaded in a process: once on each device, with a context for each thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engines: dict[int, tuple[Any, Any, Log]] = {}
        self._local = threading.local()

    def contexts(self) -> dict[int, _Context]:
        """Return the contexts of the calling thread, by device."""
        contexts: dict[int, _Context] | None = getattr(self._local, "contexts", None)
        if contexts is None:
            contexts = self._local.contexts = {}
        return contexts


class _Context:
    """An execution context and its last run, which a run on another stream must wait for."""

    def __init__(self, execution: Any, log: Log) -> None:
        self.execution = execution
        self.log = log
        self._last: tuple[int, torch.cuda.Event] | None = None

    def follow(self, stream: torch.cuda.Stream) -> None:
        """Make the work on ``stream`` wait, on the device, for the last run."""
        last = self._last
        if last is not None and last[0] != stream.cuda_stream and not torch.cuda.is_current_stream_capturing():
            stream.wait_event(last[1])

    def leave(self, stream: torch.cuda.Stream) -> None:
        """Record the end of the run on ``stream``."""
        if not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event()
            event.record(stream)
            self._last = (stream.cuda_stream, event)
