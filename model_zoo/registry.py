"""Models by name, so that a command line can ask for ``resnet50``."""

from __future__ import annotations

import difflib

from .errors import ModelError
from .zoo_model import ZooModel

_models: dict[str, ZooModel] = {}


def register_model(model: ZooModel) -> ZooModel:
    """Make ``model`` known under its name and return it.

    Raises :class:`~model_zoo.errors.ModelError` if another model has the name already.
    """
    other = _models.get(model.name)
    if other is not None and other is not model:
        raise ModelError(
            f"two models are named {model.name!r}",
            value=f"one from {other.source}, one from {model.source}",
            why="a name stands for one model",
            remedy="rename one of them",
        )
    _models[model.name] = model
    return model


def get_model(name: str) -> ZooModel:
    """Return the model registered as ``name``.

    Raises :class:`~model_zoo.errors.ModelError`, which lists the nearest names, if there is none.
    """
    model = _models.get(name)
    if model is None:
        nearest = difflib.get_close_matches(name.replace("-", "_").lower(), _models, n=3, cutoff=0.5)
        raise ModelError(
            f"there is no model named {name!r} in the zoo",
            value=None if nearest else "known models: " + ", ".join(list_models()),
            remedy="did you mean " + " or ".join(repr(candidate) for candidate in nearest) + "?" if nearest else None,
        )
    return model


def list_models() -> list[str]:
    """Return the names of all registered models in alphabetical order."""
    return sorted(_models)
