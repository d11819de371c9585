"""The package ``openvino``, which is imported on first use: only users of the backend need it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

_OPERATORS = "opset15"
"""The operator set for operations that this package adds to networks itself."""


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
    """Import and return the package.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module("openvino")


@functools.cache
def operators() -> Any:
    """Return the module with the functions that make operations.

    Raises:
        ImportError: the package is not installed, or older than the operator set.
    """
    return importlib.import_module(f"openvino.{_OPERATORS}")


@functools.cache
def decoder() -> Any:
    """Return the class through which the importer reads a program of ATen's operators.

    Raises:
        ImportError: the package is not installed, or has no such class.
    """
    return importlib.import_module("openvino.frontend.pytorch.fx_decoder").TorchFXPythonDecoder


def importer(*extensions: Any) -> Any:
    """Return the importer that converts a program of ATen's operators to a network.

    ``openvino.convert_model`` does the same, but also sends usage statistics to Intel.
    """
    frontend = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    for extension in extensions:
        frontend.add_extension(extension)
    return frontend


def extension(operator: str, build: Any) -> Any:
    """Return the extension that makes an importer build ``operator`` by the function ``build``."""
    return importlib.import_module("openvino.frontend.pytorch").ConversionExtension(operator, build)


def whole_operators() -> list[Any]:
    """Return the operators of ATen that the importer takes undecomposed."""
    return importlib.import_module("openvino.frontend.pytorch.torchdynamo.export_decompositions").ops_to_not_decompose()


@functools.cache
def core() -> Any:
    """Return the compiler of networks; one for the process, because it loads the plugin for the CPU."""
    return load().Core()


@functools.cache
def element_types() -> dict[torch.dtype, Any]:
    """Return OpenVINO's type for each dtype that engines take and return."""
    types = load().Type
    return {
        torch.float32: types.f32,
        torch.int64: types.i64,
        torch.int32: types.i32,
        torch.uint8: types.u8,
        torch.int8: types.i8,
        torch.bool: types.boolean,
    }
