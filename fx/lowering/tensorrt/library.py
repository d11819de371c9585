"""The package that builds and runs engines: ``tensorrt`` where it is installed, ``tensorrt_rtx`` otherwise."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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


_OLDEST = 10
"""The oldest major version: networks are strongly typed, as they are from TensorRT 10 on."""


_is_ahead: ContextVar[bool] = ContextVar("_is_ahead", default=False)


@contextmanager
def for_targets(targets: Sequence[str]) -> Generator[None]:
    """Prefer a package that builds ahead of time within the block, if there are ``targets`` for which to build."""
    token = _is_ahead.set(bool(targets))
    try:
        yield
    finally:
        _is_ahead.reset(token)


def find_library() -> Any | None:
    """Return the package, or ``None`` if there is none; it is imported on first use.

    For targets, and without a GPU, a package that builds ahead of time is preferred to one that builds for the GPU in
    the machine alone.
    """
    return _find(_is_ahead.get() or not torch.cuda.is_available())


@functools.cache
def _find(ahead: bool) -> Any | None:
    packages = [package for package in map(_imported, _PACKAGES) if package is not None and _is_recent(package)]
    if ahead:
        packages.sort(key=lambda package: not hasattr(package, "ComputeCapability"))
    return packages[0] if packages else None


def _imported(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # missing, or without the libraries that it loads
        return None


def _is_recent(package: Any) -> bool:
    # TensorRT for RTX has versions of its own, which begin with 1
    return hasattr(package, "ComputeCapability") or int(str(package.__version__).partition(".")[0]) >= _OLDEST


def why_no_library() -> str:
    """Return why there is no package to work with, for messages."""
    old = [package for package in map(_imported, _PACKAGES) if package is not None and not _is_recent(package)]
    if old:
        return f"{old[0].__name__} {old[0].__version__} is too old, TensorRT {_OLDEST} is needed"
    return "neither the package tensorrt nor tensorrt_rtx can be imported"


def library() -> Any:
    """Return the package.

    Raises:
        LoweringError: there is none.
    """
    package = find_library()
    if package is None:
        raise LoweringError(
            "there is no TensorRT on this machine",
            why=why_no_library(),
            remedy="pip install tensorrt_rtx",
        )
    return package


def library_name() -> str:
    """Return the package and its version, as engines and reports state them.

    Raises:
        LoweringError: there is no package.
    """
    package = library()
    return f"{package.__name__} {package.__version__}"


def trt_dtype(dtype: torch.dtype) -> Any:
    """Return TensorRT's type for a dtype of torch.

    Raises:
        LoweringError: TensorRT has no such type.
    """
    name = _DTYPES.get(dtype)
    if name is None:
        raise LoweringError(f"TensorRT has no {str(dtype).removeprefix('torch.')}")
    return getattr(library().DataType, name)


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's dtype for a type of TensorRT."""
    return next(ours for ours, name in _DTYPES.items() if name == dtype.name)


def capability_of(target: str) -> Any:
    """Return the compute capability for a user's text such as ``"8.6"`` or ``"SM86"``, for builds ahead of time.

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
    supported = [member for member in kinds.__members__ if member.startswith("SM")]
    if name not in supported:
        raise LoweringError(
            f"{library_name()} builds no engines for compute capability {target!r}",
            why=f"it knows {', '.join(supported)}",
        )
    return kinds.__members__[name]


class Log:
    """The errors that the library reports during one task, such as the build of an engine."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """The messages of the errors, in order."""
        self.logger = _logger_class()(self.messages)
        """The object to pass to the library, which must live as long as the objects that it is passed to."""

    def words(self) -> str:
        """Return the library's messages as a reason; a missing driver is mentioned only if there is no other."""
        without_paths = [re.sub(r"\s*(In \w+ )?at /_src/\S+", "", message).strip() for message in self.messages]
        lines = [message for message in without_paths if _NO_DRIVER not in message] or without_paths
        return "; ".join(dict.fromkeys(lines)) or "the backend gave no reason"


@functools.cache
def _logger_class() -> Any:
    """Return a class of loggers that append errors to a list; its base class exists only once TensorRT is imported."""
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
