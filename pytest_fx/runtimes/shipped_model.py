"""A converted model in the place of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A pass whose result is known already: for any module it returns the converted model.

    >>> ShippedModel("models/net.onnx").name
    'net.onnx'
    """

    model: Any
    """The path of a file, or an object that a runtime takes."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return Path(self.model).name if isinstance(self.model, (str, Path)) else type(self.model).__name__

    def __call__(self, module: nn.Module) -> Any:
        """Return the converted model."""
        return self.model
