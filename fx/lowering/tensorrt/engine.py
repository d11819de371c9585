"""``TensorRTEngine``: an engine built by TensorRT and its description, as one file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fx.argument_types import checked
from fx.errors import LoweringError, type_in_words
from fx.lowering.support import dtype_name
from fx.lowering.tensorrt.network import EngineBinding

_MAGIC = b"fx-engine-1\n"
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorRTEngine:
    """A built engine."""

    plan: bytes
    """The serialized engine. It runs with the version of ``built_by``, on the GPUs of ``targets``, or else on GPUs like
    the one of the build."""
    inputs: tuple[EngineBinding, ...]
    """Its inputs, in order."""
    outputs: tuple[EngineBinding, ...]
    """Its results, in order."""
    is_single: bool
    """Whether it returns one tensor and not a tuple."""
    built_by: str
    """Package and version, such as ``"tensorrt_rtx 1.7.1.116"``."""
    targets: tuple[str, ...]
    """The compute capabilities of a build ahead of time; empty for a build for the GPU of the machine."""
    seconds: float
    """The build time in seconds."""

    @property
    def digest(self) -> str:
        """The first digits of a checksum of ``plan``."""
        return hashlib.sha256(self.plan).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """Return the content of an engine file: a magic number, a description as JSON, and the plan."""
        data: dict[str, Any] = {name: getattr(self, name) for name in ("is_single", "built_by", "targets", "seconds")}
        for name in ("inputs", "outputs"):
            data[name] = [{**dataclasses.asdict(tensor), "dtype": str(tensor.dtype)} for tensor in getattr(self, name)]
        data["checksum"] = hashlib.sha256(self.plan).hexdigest()
        header = json.dumps(data).encode()
        return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, self.plan))

    @classmethod
    @checked(LoweringError)
    def from_bytes(cls, content: bytes, origin: object = None) -> TensorRTEngine:
        """Read the engine from the content of an engine file.

        Args:
            content: the result of :meth:`to_bytes`.
            origin: the place of the content, for messages.

        Raises:
            LoweringError: it is not an engine file, or it is damaged.
        """
        start = len(_MAGIC) + _LENGTH.size
        if not content.startswith(_MAGIC):
            raise LoweringError("this is not an engine file", where=origin, why="it does not start like one")
        try:
            (length,) = _LENGTH.unpack(content[len(_MAGIC) : start])
            data = json.loads(content[start : start + length])
            plan = content[start + length :]
            if hashlib.sha256(plan).hexdigest() != data.pop("checksum"):
                raise ValueError("its checksum does not match its content")
            bindings = {name: tuple(map(_binding, data.pop(name))) for name in ("inputs", "outputs")}
            engine = cls(plan, targets=tuple(data.pop("targets")), **bindings, **data)
            if not (
                isinstance(engine.is_single, bool)
                and all(isinstance(text, str) for text in (engine.built_by, *engine.targets))
                and isinstance(engine.seconds, (int, float))
                and 0 <= engine.seconds < math.inf
            ):
                raise ValueError("its description has values of wrong types")
            return engine
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise LoweringError(
                "this engine file is damaged",
                where=origin,
                why=f"{type(error).__name__}: {error}",
                remedy="build the engine again; a file that is copied has to be copied whole",
            ) from error

    @checked(LoweringError)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the engine to a file atomically."""
        write_atomically(Path(path), self.to_bytes())

    @classmethod
    @checked(LoweringError)
    def load(cls, path: str | os.PathLike[str]) -> TensorRTEngine:
        """Read an engine file.

        Raises:
            LoweringError: it is not an engine file, or it is damaged.
            OSError: it cannot be read.
        """
        return cls.from_bytes(Path(path).read_bytes(), path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _binding(data: dict[str, Any]) -> EngineBinding:
    name, dtype = data.pop("name"), getattr(torch, data.pop("dtype").removeprefix("torch."))
    sizes = {name: tuple(data.pop(name)) for name in ("least", "typical", "most")}
    if not isinstance(name, str) or not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no name or no dtype")
    if not all(type(size) is int and size >= 0 for shape in sizes.values() for size in shape):
        raise ValueError(f"{name} has sizes that are not integers of at least 0")
    return EngineBinding(name, dtype, **sizes)


def check_inputs(bindings: Sequence[EngineBinding], inputs: Sequence[Any]) -> None:
    """Check that an engine takes these values.

    Raises:
        LoweringError: there is not one tensor for each input, or one has another type or size, or requires gradients.
    """
    if len(inputs) != len(bindings):
        raise LoweringError(
            f"the engine takes {len(bindings)} input{'s' if len(bindings) != 1 else ''}, not {len(inputs)}",
            value=", ".join(binding.name for binding in bindings),
        )
    for binding, tensor in zip(bindings, inputs, strict=True):
        if (why := _why_unfit(binding, tensor)) is not None:
            raise LoweringError(
                f"the input {binding.name!r} of the engine {why}",
                remedy="lower the program for such inputs: with example_inputs like these, or with ranges",
            )
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        pairs = zip(bindings, inputs, strict=True)
        raise LoweringError(
            "an engine computes no gradients, but an input requires one",
            value=", ".join(binding.name for binding, tensor in pairs if tensor.requires_grad),
            remedy="run the program under torch.no_grad()",
        )


def _why_unfit(binding: EngineBinding, tensor: Any) -> str | None:
    if not isinstance(tensor, Tensor):
        return f"is a tensor, not {type_in_words(tensor)}"
    if tensor.dtype is not binding.dtype:
        return f"is {dtype_name(binding.dtype)}, not {dtype_name(tensor.dtype)}"
    shape = tuple(tensor.shape)
    ends = [*zip(binding.least, binding.most, strict=True)]
    if len(shape) == len(ends) and all(least <= size <= most for size, (least, most) in zip(shape, ends, strict=True)):
        return None
    sizes = (str(least) if least == most else f"{least} to {most}" for least, most in ends)
    return f"is of shape ({', '.join(sizes)}), not {shape}"
