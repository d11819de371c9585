"""Models by name, so that a command line can ask for ``resnet50``."""

from __future__ import annotations

from fx.registry import Registry

from .errors import ModelError
from .zoo_model import ZooModel

_models: Registry[ZooModel] = Registry("model", "models", ModelError)


def register_model(model: ZooModel) -> ZooModel:
    """Make ``model`` known under its name and return it.

    Raises :class:`~model_zoo.errors.ModelError` if another model has the name already.
    """
    _models.register(model.name, model)
    return model


def get_model(name: str) -> ZooModel:
    """Return the model registered as ``name``.

    Raises :class:`~model_zoo.errors.ModelError`, which lists the nearest names, if there is none.
    """
    return _models.get(name)


def list_models() -> list[str]:
    """Return the names of all registered models in alphabetical order."""
    return _models.names()
