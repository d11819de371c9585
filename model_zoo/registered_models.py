"""Models by name, so that a command line can ask for ``resnet50``."""

from __future__ import annotations

from fx.arguments import shown
from fx.registry import Registry
from model_zoo.errors import ModelError
from model_zoo.zoo_model import ZooModel

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


def is_small_sibling(name: str) -> bool:
    """Return whether ``name`` is the small sibling of another model."""
    return any(get_model(other).small == name for other in list_models())


def models_with_tag(tag: str) -> list[str]:
    """Return the names of the models that carry ``tag``, in alphabetical order.

    Raises :class:`~model_zoo.errors.ModelError`, which lists all tags, if none does.
    """
    found = [name for name in list_models() if isinstance(tag, str) and tag in get_model(name).tags]
    if not found:
        tags = sorted({known for name in list_models() for known in get_model(name).tags})
        raise ModelError(f"no model has the tag {shown(tag)}", value=f"known tags: {', '.join(tags)}")
    return found
