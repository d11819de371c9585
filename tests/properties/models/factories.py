"""A factory for each model, by which ``--fx-model models.factories:timm__test_vit`` finds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.libraries import LIBRARIES, LibraryModel, all_models

PACKAGES = Path(__file__).parents[3] / ".venv-models"
"""The folder into which the Makefile installs the libraries; it comes last on the path."""


@cache
def by_attribute() -> dict[str, LibraryModel]:
    """The models by the names of their factories."""
    sys.path.append(str(PACKAGES))
    return {model.attribute: model for model in all_models()}


def __getattr__(name: str) -> Callable[[], tuple[nn.Module, Any]]:
    # Whoever looks for other names, as pytest does in modules that it collects, need not wait for the libraries.
    if not name.startswith(tuple(f"{library}__" for library in LIBRARIES)) or name not in by_attribute():
        raise AttributeError(name)

    def factory() -> tuple[nn.Module, Any]:
        model, inputs = by_attribute()[name].build()
        return model, _smaller(model, inputs(2))

    return factory


def _smaller(model: nn.Module, inputs: Any) -> Any:
    """Return a part of each image, 96 pixels wide, and half of the frames of each film, where the model takes that."""
    if not isinstance(inputs, tuple) or not all(
        isinstance(value, torch.Tensor) and value.ndim in (4, 5) for value in inputs
    ):
        return inputs
    parts = tuple((value[:, :, ::2] if value.ndim == 5 else value)[..., :96, :96].contiguous() for value in inputs)
    try:
        with torch.no_grad():
            model.eval()(*parts)
    except Exception:  # any error that the library raises for a size that does not fit
        return inputs
    return parts
