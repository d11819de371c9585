"""The package ``openvino``, which is imported when it is first needed: who does not lower to it need not have it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

OPERATORS = "opset15"
"""The operator set that networks are made of."""


@functools.cache
def why_missing() -> str | None:
    """Return why the package cannot be used here, or ``None`` if it can."""
    try:
        load()
        operators()
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
    return importlib.import_module(f"openvino.{OPERATORS}")


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
