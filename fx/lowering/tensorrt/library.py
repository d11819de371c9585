"""The package that builds and runs engines: ``tensorrt`` where it is installed, ``tensorrt_rtx`` otherwise."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

import torch

from fx.errors import LoweringError

_PACKAGES = ("tensorrt", "tensorrt_rtx")
_DTYPES = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int8: "INT8",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
}
_NO_DRIVER = "CUDA driver version is insufficient"


@functools.cache
def find_library() -> Any | None:
    """The package, or ``None`` where there is none; it is imported when it is first asked for."""
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError):  # missing, or without the libraries that it loads
            continue
    return None


def library() -> Any:
    """The package.

    Raises:
        LoweringError: there is none.
    """
    found = find_library()
    if found is None:
        raise LoweringError(
            "there is no TensorRT on this machine",
            why="neither the package tensorrt nor tensorrt_rtx can be imported",
            remedy="pip install tensorrt_rtx",
        )
    return found


def library_name() -> str:
    """Package and version, as engines and reports state them.

    Raises:
        LoweringError: there is none.
    """
    found = library()
    return f"{found.__name__} {found.__version__}"


def trt_dtype(dtype: torch.dtype) -> Any:
    """TensorRT's type of elements for torch's.

    Raises:
        LoweringError: it has none.
    """
    name = _DTYPES.get(dtype)
    if name is None:
        raise LoweringError(f"TensorRT has no {str(dtype).removeprefix('torch.')}")
    return getattr(library().DataType, name)


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's type of elements for TensorRT's."""
    return next(ours for ours, name in _DTYPES.items() if name == dtype.name)


def capability_of(target: str) -> Any:
    """The compute capability that a user's text such as ``"8.6"`` or ``"SM86"`` means, for engines built ahead of time.

    Raises:
        LoweringError: the library builds for no such device, or only for the one in the machine.
    """
    kinds = getattr(library(), "ComputeCapability", None)
    if kinds is None:
        raise LoweringError(
            f"{library_name()} builds engines only for the GPU in the machine",
            value=target,
            remedy="pip install tensorrt_rtx, or leave out targets",
        )
    name = "SM" + re.sub(r"^sm_?|\.", "", target.lower())
    known = [one for one in kinds.__members__ if one.startswith("SM")]
    if name not in known:
        raise LoweringError(
            f"{library_name()} builds no engines for compute capability {target!r}",
            why=f"it knows {', '.join(known)}",
        )
    return kinds.__members__[name]


class Log:
    """What the library says while it works on one thing: warnings and errors."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """The errors, then what else was said of them."""
        self.logger = _logger_class()(self.messages)
        """The object to hand to the library; to be kept as long as what it is handed to."""

    def words(self) -> str:
        """Return what the library said, for an error; a missing driver is mentioned only if that is all."""
        without_paths = [re.sub(r"\s*(In \w+ )?at /_src/\S+", "", message).strip() for message in self.messages]
        lines = [one for one in without_paths if _NO_DRIVER not in one] or without_paths
        return "; ".join(dict.fromkeys(lines)) or "the backend gave no reason"


@functools.cache
def _logger_class() -> Any:
    """A class of loggers that append errors to a list; TensorRT's base class is there only once it is imported."""
    trt = library()
    serious = (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR)

    class Logger(trt.ILogger):
        def __init__(self, messages: list[str]) -> None:
            trt.ILogger.__init__(self)
            self.messages = messages

        def log(self, severity: Any, msg: str) -> None:
            if severity in serious:
                self.messages.append(msg)

    return Logger
