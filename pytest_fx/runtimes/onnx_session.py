"""ONNX models, run by ONNX Runtime on the CPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_fx.errors import ConversionError
from pytest_fx.runtimes.runtime import Runtime, needs_package, unreadable
from pytest_fx.runtimes.session import InnerValue, Port, Session, as_array, as_tensor

NAME = "ONNX Runtime"
_FATAL_ONLY = 4
"""The severity from which on messages are printed: an error is raised, and printed as well at level 3."""
_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(int16)": torch.int16,
    "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


class ONNXSession(Session):
    """An inference session of ONNX Runtime."""

    runtime = NAME

    def __init__(self, session: Any, name: str, contents: Path | bytes | None) -> None:
        """Take a session, its name, and the model that it was made of, if known."""
        self.name = name
        self._session = session
        self._contents = contents
        self.inputs = tuple(map(_port, session.get_inputs()))
        self.outputs = tuple(map(_port, session.get_outputs()))
        self.returned = tuple(port.name for port in self.outputs)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the session on copies of ``inputs``."""
        arrays = {port.name: as_array(tensor, NAME) for port, tensor in zip(self.inputs, inputs, strict=True)}
        return list(map(as_tensor, self._session.run(None, arrays)))

    def inner_values(self) -> list[InnerValue]:
        """Return the results of all operations of the graph, without those inside of branches and loops."""
        model = self._model()
        if model is None:
            return []
        return [
            InnerValue(output, node.op_type, tuple(filter(None, node.input)))
            for node in model.graph.node
            for output in node.output
            if output
        ]

    def with_outputs(self, names: Sequence[str]) -> Session:
        """Return a session of the model with further outputs; ONNX Runtime infers their dtypes."""
        model = self._model()
        if model is None:
            return super().with_outputs(names)
        onnx = importlib.import_module("onnx")
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        return _session_of(model.SerializeToString(), self.name)

    def _model(self) -> Any:
        """Return a new copy of the model as the package ``onnx`` reads it; None without the package or the model."""
        if self._contents is None:
            return None
        try:
            onnx = importlib.import_module("onnx")
        except ImportError:
            return None
        if isinstance(self._contents, Path):
            return onnx.load(self._contents)
        return onnx.load_from_string(self._contents)


def _port(value: Any) -> Port:
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    return Port((value.name,), _DTYPES.get(value.type), sizes)


def _session_of(contents: Path | bytes, name: str) -> ONNXSession:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise needs_package(NAME, "onnxruntime", error) from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _FATAL_ONLY
    source = os.fspath(contents) if isinstance(contents, Path) else contents
    try:
        session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise unreadable(name, NAME, error) from None
    return ONNXSession(session, name, contents)


def _load(value: Any, name: str) -> Session:
    """Make a session of a file, bytes, a model of ``onnx``, a program of ``torch.onnx``, or an inference session."""
    if isinstance(value, (Path, bytes)):
        return _session_of(value, name)
    if hasattr(value, "get_inputs"):  # a session, which knows its model by private attributes alone
        path, contents = getattr(value, "_model_path", None), getattr(value, "_model_bytes", None)
        return ONNXSession(value, Path(path).name if path else name, Path(path) if path else contents)
    model = getattr(value, "model_proto", value)
    try:
        return _session_of(model.SerializeToString(), name)
    except ValueError as error:  # more than 2 GiB
        raise ConversionError(
            f"{name} is too large to be run from memory", why=str(error), remedy="save it, and give the path"
        ) from None


ONNX_RUNTIME = Runtime(
    NAME,
    "an .onnx file, its bytes, an onnx.ModelProto, what torch.onnx.export returns, or an InferenceSession",
    (
        "onnxruntime.capi.onnxruntime_inference_collection:InferenceSession",
        "onnx.onnx_ml_pb2:ModelProto",
        "torch.onnx:ONNXProgram",
        "builtins:bytes",
    ),
    (".onnx",),
    _load,
)
"""ONNX models."""
