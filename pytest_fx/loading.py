"""From names on the command line to models and passes."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import model_zoo
from fx.errors import FxError
from fx.interop import AdaptedPass, adapt, is_for_torch
from fx.passes import (
    Approximate,
    Close,
    Contract,
    Pass,
    close,
    contract_of,
    exact,
    get_pass,
    list_passes,
    pass_name,
    register_pass,
)
from fx.passes.pipeline import PassPipeline

from .collection import ModelCase
from .comparison.evaluation import Arguments
from .comparison.subject import Subject
from .errors import LoadError
from .options import OPTIONS, Options

REGISTERED = pytest.StashKey[bool]()
"""Whether hooks were asked for models and passes."""
_CONTRACTS = "exact, close or approximate(DECIBELS), e.g. approximate(30)"


def check_names(config: pytest.Config) -> None:
    """Raise :class:`pytest.UsageError` for a model, pass, dtype, device or contract that there is not here.

    Names of the form ``package.module:attribute`` are looked up from the folder that pytest runs in as well.
    """
    options = config.stash[OPTIONS]
    try:
        register(config)
        for name in expand(options, config.invocation_params.dir):
            _import_attribute(name, "factory") if _is_path(name) else model_zoo.get_model(name)
        for name in (*options.passes, *options.checks):
            load_pass(name)
        if options.dtype is not None:
            load_dtype(options.dtype)
        chosen_contract(options, close)
        _check_device(options.device)
    except FxError as error:
        raise pytest.UsageError(str(error)) from None


def register(config: pytest.Config) -> None:
    """Make the models and passes known that hooks offer, once for each run of pytest."""
    if REGISTERED in config.stash:
        return
    config.stash[REGISTERED] = True
    for offered in config.hook.pytest_fx_register(config=config):
        for made in offered:
            model_zoo.register_model(made) if isinstance(made, model_zoo.ZooModel) else register_pass(made)


def expand(options: Options, folder: Path) -> list[Any]:
    """Return the models that were asked for, ``all`` and ``tag:…`` written out, zoo models at the size asked for.

    Names of the form ``package.module:attribute`` are looked up from ``folder`` as well. Raises
    :class:`~fx.errors.FxError` for a tag that no model has.
    """
    names = (*options.models, *options.passes, *options.checks)
    if any(map(_is_path, names)) and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    named: list[Any] = []
    for model in options.models:
        if model == "all":
            named += [name for name in model_zoo.list_models() if not model_zoo.is_small_sibling(name)]
        elif isinstance(model, str) and model.startswith("tag:"):
            named += model_zoo.models_with_tag(model.removeprefix("tag:"))
        else:
            named.append(model)
    if options.size == "small":
        named = [_small(model) for model in named]
    return list(dict.fromkeys(named))


def _small(model: Any) -> Any:
    """The small sibling of a zoo model, or else the model itself."""
    if not isinstance(model, str) or _is_path(model):
        return model
    return model_zoo.get_model(model).small or model


def load_subject(case: ModelCase) -> Subject:
    """Return a model under test: of the zoo, or what the factory ``package.module:factory`` returns.

    A factory takes no arguments and returns a :class:`~model_zoo.ZooModel`, a module, or a pair of a module and its
    example inputs. A tuple of inputs is positional arguments, a dict keyword arguments, anything else the only
    argument. Raises :class:`~pytest_fx.errors.LoadError` if it returns something else.
    """
    name: Any = case.model
    if not isinstance(name, str):
        made: Any = name()
    else:
        made = _import_attribute(name, "factory")() if _is_path(name) else model_zoo.get_model(name)
    dtype = None if case.dtype is None else load_dtype(case.dtype)
    subject = partial(Subject, case.label, threads=case.threads, device=case.device, working_dtype=dtype)
    if isinstance(made, model_zoo.ZooModel):
        inputs, others = (
            partial(_zoo_arguments, made, size, case.seed) for size in (case.batch, 2 if case.batch != 2 else 3)
        )
        return subject(made.build(), inputs, batch=case.batch, other_inputs=others)
    if isinstance(made, nn.Module):
        return subject(made, None)
    if isinstance(made, tuple) and len(cast("tuple[Any, ...]", made)) == 2 and isinstance(made[0], nn.Module):
        given = _as_arguments(made[1])
        others = partial(_fixed_arguments, given.repeated()) if given.samples else None
        return subject(made[0], partial(_fixed_arguments, given), other_inputs=others)
    raise LoadError(
        f"the factory {case.label!r} returned no model",
        value=repr(cast("object", made))[:80],
        why="a factory returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel",
    )


def why_unavailable(pass_: Any) -> str | None:
    """Why a pass, or one of a pipeline, can do nothing on this machine, if it says so (by a method of that name)."""
    parts: tuple[Any, ...] = tuple(pass_.passes) if isinstance(pass_, PassPipeline) else (pass_,)
    for part in parts:
        ask: Any = None if isinstance(part, type) else getattr(part, "why_unavailable", None)
        if ask is not None and (why := ask()):
            return f"{pass_name(part)}: {why}"
    return None


def load_pass(name: Any) -> Pass:
    """Return the pass called ``name``: registered, ``package.module:callable``, or a pipeline such as ``"a,b{n=2}"``.

    A pass itself is returned, a class is called without arguments for an instance, and what is written for
    ``torch.fx`` is adapted. Raises :class:`~fx.errors.FxError`, which lists the nearest names, if there is none.
    """
    if isinstance(name, str) and not _is_path(name):
        pipeline = PassPipeline(name)
        return pipeline.passes[0] if len(pipeline.passes) == 1 else PassPipeline(name, name=str(pipeline))
    found = _import_attribute(name, "pass") if isinstance(name, str) else name
    made = found() if isinstance(found, type) else found
    return adapt(made) if is_for_torch(made) else made


def default_passes() -> tuple[str, ...]:
    """Return the names of the passes that are tried where none is named: those that mean to keep the answers."""
    return tuple(name for name in list_passes() if not isinstance(contract_of(get_pass(name)), Approximate))


def importable_name(pass_: Any, asked: Iterable[Any] = ()) -> str | None:
    """Return the name under which :func:`load_pass` finds ``pass_``, or None if there is none.

    ``asked`` are names, among others, under which passes were asked for: one of them may be that of ``pass_``.
    """
    inner = pass_.pass_ if isinstance(pass_, AdaptedPass) else pass_
    definition = inner if hasattr(inner, "__qualname__") else type(inner)
    own = f"{definition.__module__}:{definition.__qualname__}"
    candidates = [*asked, str(pass_) if isinstance(pass_, PassPipeline) else pass_name(inner), own]
    return next((name for name in candidates if isinstance(name, str) and _leads_to(name, pass_)), None)


def _leads_to(name: str, pass_: Any) -> bool:
    try:
        found = load_pass(name)
        return isinstance(found, AdaptedPass) == isinstance(pass_, AdaptedPass) and _same_pass(found, pass_)
    except Exception:  # whatever a module of the user raises when it is imported, or a pass when it is compared
        return False


def _same_pass(found: Any, pass_: Any) -> bool:
    """Whether two passes do the same: they are one, are equal, or have the same class and nothing to set."""
    if isinstance(found, AdaptedPass):
        found, pass_ = found.pass_, pass_.pass_
    return (
        found is pass_
        or found == pass_
        or (
            type(found) is type(pass_)
            and not hasattr(pass_, "__qualname__")
            and not dataclasses.is_dataclass(pass_)  # which would be equal, and may have slots
            and getattr(found, "__dict__", None) == getattr(pass_, "__dict__", None)
        )
    )


def load_dtype(name: str) -> torch.dtype:
    """Return the floating-point dtype called ``name``; raises :class:`~pytest_fx.errors.LoadError` if there is none."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        known = ("float32", "float64", "bfloat16", "float16")
        nearest = difflib.get_close_matches(name, known, n=2, cutoff=0.4) or known
        raise LoadError(
            f"there is no floating-point dtype named {name!r}",
            remedy=f"did you mean {' or '.join(map(repr, nearest))}?",
        )
    return found


def chosen_contract(options: Options, own: Contract) -> Contract:
    """Return the contract to hold a pass to: what was asked for, or else its own, with the tolerances asked for.

    Raises :class:`~pytest_fx.errors.LoadError` for a text that names no contract.
    """
    contract = own if options.contract is None else load_contract(options.contract)
    if isinstance(contract, Close):
        given = {"rtol": options.rtol, "atol": options.atol}
        contract = dataclasses.replace(contract, **{key: value for key, value in given.items() if value is not None})
    return contract


def load_contract(text: Any) -> Contract:
    """Return the contract that ``text`` writes; a contract itself is returned. Raises :class:`LoadError` for others."""
    if isinstance(text, Contract):
        return text
    named = {"exact": exact, "close": close}
    if text in named:
        return named[text]
    tolerances = re.fullmatch(r"close\(rtol=([-+.\de]+), atol=([-+.\de]+)\)", str(text))
    if tolerances is not None:
        return Close(float(tolerances[1]), float(tolerances[2]))
    match = re.fullmatch(r"approximate\((?:sqnr_db=)?([-+.\d]+)\)", str(text))
    if match is None:
        raise LoadError(f"there is no contract {text!r}", remedy=f"use {_CONTRACTS}")
    return Approximate(float(match[1]))


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise LoadError("there is no CUDA device to run on", why=f"torch {torch.__version__} finds none")


def _is_path(name: Any) -> bool:
    """Whether ``name`` is of the form ``package.module:attribute``."""
    return isinstance(name, str) and ":" in name and not name.startswith("tag:")


def _zoo_arguments(model: model_zoo.ZooModel, batch: int, seed: int, draw: int) -> Arguments:
    return Arguments(model.example_inputs(batch, seed=seed + draw))


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
