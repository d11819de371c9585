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
"""Where the Makefile puts the libraries: beside those that are installed, and after them."""


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
    if not isinstance(inputs, tuple) or not all(isinstance(one, torch.Tensor) and one.ndim in (4, 5) for one in inputs):
        return inputs
    parts = tuple((one[:, :, ::2] if one.ndim == 5 else one)[..., :96, :96].contiguous() for one in inputs)
    try:
        with torch.no_grad():
            model.eval()(*parts)
    except Exception:  # of whatever kind the library raises where a size does not fit
        return inputs
    return parts
