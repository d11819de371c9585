"""Models of OpenVINO, run on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_fx.runtimes.runtime import Runtime, needs_package, unreadable
from pytest_fx.runtimes.session import InnerValue, Port, Session, as_array, as_tensor

NAME = "OpenVINO"
_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "boolean": torch.bool,
}
_WITHOUT_VALUE = ("Parameter", "Result", "Constant")


class OpenVINOSession(Session):
    """A compiled model of OpenVINO."""

    runtime = NAME

    def __init__(self, compiled: Any, name: str, model: Any = None) -> None:
        """Take a compiled model, its name, and the model that it was compiled from, if known."""
        self.name = name
        self._compiled, self._model = compiled, model
        self.inputs = tuple(map(_port, compiled.inputs))
        self.outputs = tuple(map(_port, compiled.outputs))
        results = [] if model is None else model.get_results()
        self.returned = tuple(result.input_value(0).get_node().get_friendly_name() for result in results)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the model in a request of its own."""
        arrays = [as_array(tensor, NAME) for tensor in inputs]
        results = self._compiled.create_infer_request().infer(arrays)
        return [as_tensor(results[index]) for index in range(len(self.outputs))]

    def inner_values(self) -> list[InnerValue]:
        """Return the first result of each operation; none if only the compiled model is known."""
        operations = [] if self._model is None else self._model.get_ordered_ops()
        return [
            InnerValue(
                operation.get_friendly_name(),
                operation.get_type_name(),
                tuple(value.get_node().get_friendly_name() for value in operation.input_values()),
            )
            for operation in operations
            if operation.get_type_name() not in _WITHOUT_VALUE
        ]

    def with_outputs(self, names: Sequence[str]) -> Session:
        """Compile a copy of the model with further outputs."""
        if self._model is None:
            return super().with_outputs(names)
        model = self._model.clone()
        model.add_outputs([(name, 0) for name in names])
        return OpenVINOSession(_compiled(model), self.name, model)


def _port(value: Any) -> Port:
    partial = value.get_partial_shape()
    sizes = (
        None
        if partial.rank.is_dynamic
        else tuple(None if size.is_dynamic else int(size.get_length()) for size in partial)
    )
    names = tuple(sorted(value.get_names())) or (value.get_node().get_friendly_name(),)
    return Port(names, _DTYPES.get(value.get_element_type().get_type_name()), sizes)


def _compiled(model: Any) -> Any:
    """Compile a model for the CPU, in the precision of its own tensors."""
    openvino = importlib.import_module("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    return openvino.Core().compile_model(model, "CPU", settings)


def _load(value: Any, name: str) -> Session:
    """Make a session of a file, a model, or a compiled model."""
    if hasattr(value, "create_infer_request"):
        return OpenVINOSession(value, name)
    try:
        openvino = importlib.import_module("openvino")
    except ImportError as error:
        raise needs_package(NAME, "openvino", error) from None
    try:
        model = openvino.Core().read_model(value) if isinstance(value, Path) else value
        return OpenVINOSession(_compiled(model), name, model)
    except Exception as error:
        raise unreadable(name, NAME, error) from None


OPENVINO_RUNTIME = Runtime(
    NAME,
    "an .xml file with its .bin, an openvino.Model, or a compiled model",
    ("openvino._ov_api:Model", "openvino._ov_api:CompiledModel", "openvino:Model", "openvino:CompiledModel"),
    (".xml",),
    _load,
)
"""Models of OpenVINO."""
