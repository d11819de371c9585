"""The table of runtimes, and the module that runs a converted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from pytest_fx.errors import ConversionError
from pytest_fx.runtimes.converted_program import ConvertedProgram
from pytest_fx.runtimes.exported_file import EXPORTED_FILE
from pytest_fx.runtimes.onnx_session import ONNX_RUNTIME
from pytest_fx.runtimes.openvino_session import OPENVINO_RUNTIME
from pytest_fx.runtimes.runtime import Runtime
from pytest_fx.runtimes.scripted_file import SCRIPTED_FILE
from pytest_fx.runtimes.session import Session
from pytest_fx.runtimes.tensorrt_session import TENSORRT_RUNTIME

TABLE: tuple[Runtime, ...] = (ONNX_RUNTIME, OPENVINO_RUNTIME, TENSORRT_RUNTIME, EXPORTED_FILE, SCRIPTED_FILE)
"""All runtimes of converted models. A module, compiled and scripted ones included, needs none: it is called."""


def runtime_of(value: Any) -> Runtime | None:
    """Return the runtime of a converted model, an object or the path of a file; None for anything else.

    >>> runtime_of("net.onnx").name, runtime_of("fuse-conv-bn")
    ('ONNX Runtime', None)
    """
    if isinstance(value, nn.Module):
        return None
    return next((runtime for runtime in TABLE if runtime.recognizes(value)), None)


def loaded(value: Any) -> nn.Module:
    """Return a module that runs a converted model.

    Raises:
        ConversionError: no runtime takes it, its runtime is not installed, or the file cannot be read.
    """
    runtime = runtime_of(value)
    if runtime is None:
        kinds = "; ".join(runtime.takes for runtime in TABLE)
        raise ConversionError(f"no runtime takes {value!r}", remedy=f"give a torch.nn.Module, or {kinds}")
    name = type(value).__name__
    if isinstance(value, (str, Path)):
        value = Path(value)
        name = value.name
        if not value.is_file():
            raise ConversionError(
                f"there is no file {value}", why=f"a name with {value.suffix} is that of a file for {runtime.name}"
            )
    session = runtime.load(value, name)
    return ConvertedProgram(session) if isinstance(session, Session) else session
