"""The registry of models by name, for command lines."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fx.arguments import shown
from fx.errors import FxError
from fx.registry import Registry
from model_zoo.zoo_model import ExampleInputs, ZooModel


class ModelError(FxError, LookupError):
    """No model has the requested name, or two definitions have the same name."""


_models: Registry[ZooModel] = Registry("model", "models", ModelError)


def register_model(model: ZooModel) -> ZooModel:
    """Register ``model`` under its name and return it.

    Raises :class:`~model_zoo.registered_models.ModelError` if another model has the name already.
    """
    _models.register(model.name, model)
    return model


def register_sizes(
    name: str,
    source: str,
    tags: set[str],
    full: tuple[Callable[[], nn.Module], ExampleInputs],
    small: tuple[Callable[[], nn.Module], ExampleInputs],
    how: str = "",
    *,
    needs_leaves: bool = False,
) -> None:
    """Register a model, and as ``name_small`` a model of the same structure that runs in milliseconds.

    Args:
        name: the name of the model.
        source: the source of its definition.
        tags: the tags of both; ``"paper"`` is for the full model alone.
        full: functions that make the full model and its inputs.
        small: functions that make the small model and its inputs.
        how: the reduction in size, which is added to ``source`` of the small model.
        needs_leaves: as in :class:`~model_zoo.zoo_model.ZooModel`.
    """
    sibling = f"{name}_small"
    register_model(ZooModel(name, *full, source, frozenset(tags), sibling, needs_leaves))
    kinds = frozenset(tags - {"paper"} | {"small"})
    register_model(ZooModel(sibling, *small, source + how, kinds, needs_leaves=needs_leaves))


def get_model(name: str) -> ZooModel:
    """Return the model registered as ``name``.

    Raises :class:`~model_zoo.registered_models.ModelError`, which lists the nearest names, if there is none.
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

    Raises :class:`~model_zoo.registered_models.ModelError`, which lists all tags, if none does.
    """
    names = [name for name in list_models() if isinstance(tag, str) and tag in get_model(name).tags]
    if not names:
        tags = sorted({each_tag for name in list_models() for each_tag in get_model(name).tags})
        raise ModelError(f"no model has the tag {shown(tag)}", value=f"known tags: {', '.join(tags)}")
    return names
