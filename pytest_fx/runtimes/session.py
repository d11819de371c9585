"""A converted model as its runtime presents it: named inputs and outputs, a call, and values inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pytest_fx.errors import ConversionError


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a converted model."""

    names: tuple[str, ...]
    """Its names; the first is shown."""
    dtype: torch.dtype | None
    """The dtype of its elements; None if torch has none like it."""
    shape: tuple[int | None, ...] | None
    """Its sizes, None for a size that is free; None as a whole if even their number is free."""

    @property
    def name(self) -> str:
        """The name to show."""
        return self.names[0] if self.names else "without a name"

    def __str__(self) -> str:
        return f"{self.name} {describe_kind(self.dtype, self.shape)}"

    def why_unfit(self, tensor: torch.Tensor) -> str | None:
        """Return the reason why a tensor does not fit; None if it fits."""
        sizes = self.shape
        fits = sizes is None or (
            len(sizes) == tensor.dim()
            and all(size in (None, own) for size, own in zip(sizes, tensor.shape, strict=True))
        )
        if fits and self.dtype in (None, tensor.dtype):
            return None
        return f"it takes {self}, and the model is called with {describe_kind(tensor.dtype, tuple(tensor.shape))}"


@dataclass(frozen=True, slots=True)
class InnerValue:
    """A value that a converted model computes on the way to its outputs."""

    name: str
    """Its name in the converted model."""
    operation: str
    """The operation that computes it, by the runtime's name."""
    inputs: tuple[str, ...]
    """The names of the values that the operation reads."""


class Session(ABC):
    """A converted model that takes a flat list of tensors and returns one, as most runtimes do."""

    runtime: str
    """The name of the runtime, for messages."""
    name: str
    """The name of the model: that of its file, if it has one."""
    inputs: tuple[Port, ...]
    """The inputs, in the order of the model."""
    outputs: tuple[Port, ...]
    """The outputs, in the order of the model."""
    returned: tuple[str, ...]
    """The names of the values inside that are its outputs, in the same order."""

    @abstractmethod
    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs for ``inputs``, in the order of both. Errors of the runtime propagate."""

    def inner_values(self) -> list[InnerValue]:
        """Return all computed values, in the order of their computation; none if the runtime does not show them."""
        return []

    def with_outputs(self, names: Sequence[str]) -> Session:
        """Return the same model with the values called ``names`` as further outputs, behind its own."""
        raise ConversionError(f"{self.runtime} shows no values inside of {self.name}")


def describe_kind(dtype: torch.dtype | None, shape: Sequence[int | None] | None) -> str:
    """Return a dtype and a shape in words; free sizes are question marks.

    >>> describe_kind(torch.float32, (None, 3))
    'float32 [?, 3]'
    """
    kind = "of another dtype" if dtype is None else str(dtype).removeprefix("torch.")
    if shape is None:
        return kind
    return f"{kind} [{', '.join('?' if size is None else str(size) for size in shape)}]"


def as_array(tensor: torch.Tensor, runtime: str) -> np.ndarray[Any, Any]:
    """Return a tensor as a contiguous array of NumPy.

    Raises:
        ConversionError: NumPy has no such dtype.
    """
    try:
        return tensor.detach().cpu().resolve_conj().contiguous().numpy()
    except TypeError:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ConversionError(
            f"{runtime} is called with arrays of NumPy here, which has no {dtype}",
            remedy="wrap the session in a torch.nn.Module that converts its inputs, and give that",
        ) from None


def as_tensor(array: Any) -> torch.Tensor:
    """Return an array of NumPy as a tensor with memory of its own."""
    return torch.from_numpy(np.array(array))  # a copy: runtimes reuse their memory
