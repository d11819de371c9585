"""The package ``openvino``, which is imported when it is first needed: who does not lower to it need not have it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

_OPERATORS = "opset15"
"""The operator set that is added to networks by hand."""


@functools.cache
def why_missing() -> str | None:
    """Return why the package cannot be used here, or ``None`` if it can."""
    try:
        load()
        operators()
        decoder()
    except ImportError as error:
        return f"{error}: pip install 'pytest-fx[openvino]'"
    return None


def load() -> Any:
    """The package.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module("openvino")


@functools.cache
def operators() -> Any:
    """The module with the functions that make operations.

    Raises:
        ImportError: the package is not installed, or older than the operator set.
    """
    return importlib.import_module(f"openvino.{_OPERATORS}")


@functools.cache
def decoder() -> Any:
    """The class through which the importer reads a program of ATen's operators.

    Raises:
        ImportError: the package is not installed, or has none.
    """
    return importlib.import_module("openvino.frontend.pytorch.fx_decoder").TorchFXPythonDecoder


def importer(*extensions: Any) -> Any:
    """Return what makes a network of a program of ATen's operators.

    ``openvino.convert_model`` goes the same way, and sends statistics of its use to Intel besides.
    """
    frontend = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    for extension in extensions:
        frontend.add_extension(extension)
    return frontend


def extension(operator: str, build: Any) -> Any:
    """Return what lets an importer build an operator by a function."""
    return importlib.import_module("openvino.frontend.pytorch").ConversionExtension(operator, build)


def whole_operators() -> list[Any]:
    """The operators of ATen that the importer wants as they are, not as what PyTorch makes of them."""
    return importlib.import_module("openvino.frontend.pytorch.torchdynamo.export_decompositions").ops_to_not_decompose()


@functools.cache
def core() -> Any:
    """Return what compiles networks; one for the process, because it loads the plugin for the CPU."""
    return load().Core()


@functools.cache
def element_types() -> dict[torch.dtype, Any]:
    """OpenVINO's name of each dtype that engines take and return."""
    types = load().Type
    return {
        torch.float32: types.f32,
        torch.int64: types.i64,
        torch.int32: types.i32,
        torch.uint8: types.u8,
        torch.int8: types.i8,
        torch.bool: types.boolean,
    }
