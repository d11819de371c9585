"""From names on the command line to models and passes."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from torch import nn

import model_zoo
from fx.errors import FxError
from fx.passes import Pass, get_pass

from .errors import LoadError
from .evaluation import Arguments
from .options import OPTIONS
from .subject import Subject


def check_names(config: pytest.Config) -> None:
    """Raise :class:`pytest.UsageError`, which lists the nearest names, for a model or a pass that cannot be loaded.

    Names of the form ``package.module:attribute`` are looked up from the folder that pytest runs in as well.
    """
    options = config.stash[OPTIONS]
    folder = str(config.invocation_params.dir)
    if any(":" in name for name in (*options.models, *options.passes)) and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        for name in options.models:
            _import_attribute(name, "factory") if ":" in name else model_zoo.get_model(name)
        for name in options.passes:
            load_pass(name)
    except FxError as error:
        raise pytest.UsageError(str(error)) from None


def load_subject(name: str, batch: int = 1, threads: int | None = None) -> Subject:
    """Return the model called ``name``: of the zoo, or what the factory ``package.module:factory`` returns.

    A factory takes no arguments and returns a :class:`~model_zoo.ZooModel`, a module, or a pair of a module and its
    example inputs. A tuple of inputs is positional arguments, a dict keyword arguments, anything else the only
    argument. Raises :class:`~pytest_fx.errors.LoadError` if it returns something else.
    """
    made: Any = _import_attribute(name, "factory")() if ":" in name else model_zoo.get_model(name)
    if isinstance(made, model_zoo.ZooModel):
        return Subject(name, made.build(), partial(_zoo_arguments, made, batch), batch, threads)
    if isinstance(made, nn.Module):
        return Subject(name, made, None, threads=threads)
    if isinstance(made, tuple) and len(cast("tuple[Any, ...]", made)) == 2 and isinstance(made[0], nn.Module):
        return Subject(name, made[0], partial(_fixed_arguments, _as_arguments(made[1])), threads=threads)
    raise LoadError(
        f"the factory {name!r} returned no model",
        value=repr(cast("object", made))[:80],
        why="a factory returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel",
    )


def load_pass(name: str) -> Pass:
    """Return the pass called ``name``: a registered one, or ``package.module:callable``.

    A class is called without arguments for an instance. Raises :class:`~fx.errors.FxError`, which lists the nearest
    names, if there is none.
    """
    if ":" not in name:
        return get_pass(name)
    found = _import_attribute(name, "pass")
    return found() if isinstance(found, type) else found


def _zoo_arguments(model: model_zoo.ZooModel, batch: int, draw: int) -> Arguments:
    return Arguments(model.example_inputs(batch, seed=draw))


def _fixed_arguments(arguments: Arguments, draw: int) -> Arguments:
    """Return the user's example inputs, and on later draws others like them."""
    return arguments.shrunk(seed=draw) if draw else arguments


def _as_arguments(inputs: Any) -> Arguments:
    if isinstance(inputs, tuple) and not hasattr(cast("object", inputs), "_fields"):
        return Arguments(args=cast("tuple[Any, ...]", inputs))
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in cast("dict[Any, Any]", inputs)):
        return Arguments(kwargs=cast("dict[str, Any]", inputs))
    return Arguments(args=(cast("object", inputs),))


def _import_attribute(name: str, kind: str) -> Callable[..., Any]:
    """Return what ``package.module:attribute`` names, which must be callable."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        # Whatever a user's module raises is the user's to read, in one line and without our frames.
        raise LoadError(
            f"cannot import the module of the {kind} {name!r}", why=f"{type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            nearest = difflib.get_close_matches(part, [key for key in dir(found) if key[:1] != "_"], n=3, cutoff=0.5)
            raise LoadError(
                f"there is no {kind} named {name!r}",
                why=f"{module_name} has no attribute {part!r}",
                remedy="did you mean " + " or ".join(f"'{module_name}:{near}'" for near in nearest) + "?"
                if nearest
                else None,
            )
        found = getattr(found, part)
    if not callable(found):
        raise LoadError(f"the {kind} {name!r} cannot be called", value=repr(found)[:80])
    return found
