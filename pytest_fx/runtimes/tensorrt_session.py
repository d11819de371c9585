"""Engines of TensorRT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fx.lowering.tensorrt.library import Log, find_library, torch_dtype
from pytest_fx.errors import ConversionError
from pytest_fx.runtimes.runtime import Runtime, unreadable
from pytest_fx.runtimes.session import Port, Session

NAME = "TensorRT"


class TensorRTSession(Session):
    """An engine of TensorRT on torch's current CUDA device."""

    runtime = NAME

    def __init__(self, engine: Any, name: str, dtype_of: Any, keeps: Sequence[Any] = ()) -> None:
        """Take an engine.

        Args:
            engine: an ``ICudaEngine``.
            name: its name.
            dtype_of: returns torch's dtype for one of TensorRT.
            keeps: objects that must live as long as the engine.
        """
        self.name = name
        self._context, self._keeps = engine.create_execution_context(), (engine, *keeps)
        ports: dict[str, list[Port]] = {"INPUT": [], "OUTPUT": []}
        for index in range(engine.num_io_tensors):
            tensor = engine.get_tensor_name(index)
            sizes = tuple(None if size < 0 else int(size) for size in engine.get_tensor_shape(tensor))
            ports[engine.get_tensor_mode(tensor).name].append(
                Port((tensor,), dtype_of(engine.get_tensor_dtype(tensor)), sizes)
            )
        self.inputs, self.outputs = tuple(ports["INPUT"]), tuple(ports["OUTPUT"])
        self.returned = tuple(port.name for port in self.outputs)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine on the current stream, and wait for it."""
        context, tensors = self._context, [tensor.detach().cuda().contiguous() for tensor in inputs]
        for port, tensor in zip(self.inputs, tensors, strict=True):
            if not context.set_input_shape(port.name, tuple(tensor.shape)):
                raise ConversionError(f"{self.name} takes no {port.name} of shape {tuple(tensor.shape)}")
            context.set_tensor_address(port.name, tensor.data_ptr())
        outputs: list[torch.Tensor] = []
        for port in self.outputs:
            shape = tuple(context.get_tensor_shape(port.name))
            outputs.append(torch.empty(shape, dtype=port.dtype, device="cuda"))
            context.set_tensor_address(port.name, outputs[-1].data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise ConversionError(f"{NAME} could not run {self.name}")
        stream.synchronize()
        return outputs


def _load(value: Any, name: str) -> Session:
    """Make a session of a serialized engine, or of an engine."""
    package = find_library()
    if package is None:
        raise ConversionError(
            f"{NAME} cannot be used here",
            why="neither the package tensorrt nor tensorrt_rtx can be imported",
            remedy="judge the engine on the machine that it is built for, with pip install tensorrt",
        )
    if not torch.cuda.is_available():
        raise ConversionError(
            f"{NAME} cannot run {name} here",
            why="torch finds no CUDA device",
            remedy="judge the engine on the machine that it is built for",
        )
    if not isinstance(value, Path):
        return TensorRTSession(value, name, torch_dtype)
    log = Log()
    runtime = package.Runtime(log.logger)
    engine = runtime.deserialize_cuda_engine(value.read_bytes())
    if engine is None:
        raise unreadable(name, NAME, RuntimeError(log.words()))
    return TensorRTSession(engine, name, torch_dtype, (runtime, log))


TENSORRT_RUNTIME = Runtime(
    NAME,
    "a serialized engine (.engine, .plan or .trt), or an ICudaEngine",
    ("tensorrt_bindings.tensorrt:ICudaEngine", "tensorrt:ICudaEngine", "tensorrt_rtx:ICudaEngine"),
    (".engine", ".plan", ".trt"),
    _load,
)
"""Engines of TensorRT."""
