"""From names on the command line to models and passes."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import model_zoo
from fx.arguments import shown
from fx.errors import FxError, add_note
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
from fx.passes.option_text import PassText, parse_text, refuse
from fx.passes.pass_options import make_pass
from fx.passes.pipeline import PassPipeline
from fx.passes.registered_passes import pass_as_written
from pytest_fx.collection import ModelCase
from pytest_fx.errors import CannotLoadError
from pytest_fx.harness.application import parts_of
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject
from pytest_fx.options import OPTIONS, Options
from pytest_fx.tracebacks import users_line

REGISTERED = pytest.StashKey[bool]()
"""Whether hooks were asked for models and passes."""
CHECKED = pytest.StashKey[list[Options]]()
"""The options that :func:`check_options` found to make sense."""
_CONTRACTS = "exact, close or approximate(DECIBELS), e.g. approximate(30)"


def check_names(config: pytest.Config) -> None:
    """Raise :class:`pytest.UsageError` for a device that there is not here, and as :func:`check_options` does."""
    check_options(config, config.stash[OPTIONS])
    try:
        _check_device(config.stash[OPTIONS].device)
    except FxError as error:
        raise pytest.UsageError(str(error)) from None


def check_options(config: pytest.Config, options: Options, where: str | None = None) -> None:
    """Raise :class:`pytest.UsageError`, which names ``where``, for a model, pass, dtype or contract that there is not.

    Names of the form ``package.module:attribute`` are looked up from the folder that pytest runs in as well.
    """
    checked = config.stash.setdefault(CHECKED, [])
    if any(options is known for known in checked):
        return
    try:
        register(config)
        for name in expand(options, config.invocation_params.dir):
            if not callable(name):
                _import_attribute(name, "factory") if _is_path(name) else model_zoo.get_model(str(name))
        for name in (*options.passes, *options.checks):
            load_pass(name)
        if options.dtype is not None:
            load_dtype(options.dtype)
        chosen_contract(options, close)
    except FxError as error:
        raise pytest.UsageError(f"{where}: {error}" if where else str(error)) from None
    checked.append(options)


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
    if any(map(_is_path, names)):
        _import_from(folder)
    named: list[Any] = []
    for model in options.models:
        if model == "all":
            named += [name for name in model_zoo.list_models() if not model_zoo.is_small_sibling(name)]
        elif isinstance(model, str) and model.startswith("tag:"):
            named += model_zoo.models_with_tag(model.removeprefix("tag:"))
        else:
            named.append(_with_small_sibling(model) if options.size == "small" else model)
    if options.size == "small":
        named = [model_zoo.get_model(model).small or model if is_name(model) else model for model in named]
    return list(dict.fromkeys(named))


def is_name(model: Any) -> bool:
    """Whether ``model`` is a name of the zoo, and neither a path to a factory nor a factory."""
    return isinstance(model, str) and not _is_path(model)


def _with_small_sibling(model: Any) -> Any:
    """Return ``model`` if it is small or has a small sibling; raise ``CannotLoadError`` if not."""
    made = model_zoo.get_model(model) if is_name(model) else None
    if made is None or (made.small is None and "small" not in made.tags):
        name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
        raise CannotLoadError(
            f"there is no small {name}",
            why="only models of the zoo have small siblings",
            remedy="name a factory that makes a small model, or leave out --fx-size small",
        )
    return model


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def load_subject(case: ModelCase) -> Subject:
    """Return a model under test: of the zoo, or what the factory ``package.module:factory`` returns.

    A factory takes no arguments and returns a :class:`~model_zoo.ZooModel`, a module, or a pair of a module and its
    example inputs. A tuple of inputs is positional arguments, a dict keyword arguments, anything else the only
    argument. Raises ``CannotLoadError`` if it returns something else, or if its inputs cannot have as
    many samples as are asked for. What a factory raises gets a note with the user's line.
    """
    __tracebackhide__ = True
    name: Any = case.model
    _check_device(case.device)
    factory: Any = name if callable(name) else _import_attribute(name, "factory") if _is_path(name) else None
    try:
        made: Any = factory() if factory is not None else model_zoo.get_model(str(name))
        subject = _subject(case, made)
        if subject.has_inputs:
            subject.arguments()  # which a ZooModel makes only now
    except Exception as error:
        if not isinstance(error, CannotLoadError):
            add_note(error, f"the factory of {case.label} raised it\n  where  {_users_line(error, factory)}")
        raise
    return subject


def _users_line(error: BaseException, factory: Any) -> str:
    """The line of the user's that raised, or where the factory is defined if the error comes from torch."""
    code = getattr(factory, "__code__", None)
    defined = repr(factory) if code is None else f"{code.co_filename}:{code.co_firstlineno}, {factory.__name__}"
    return users_line(error, or_torchs=False) or defined


def _subject(case: ModelCase, made: Any) -> Subject:
    dtype = None if case.dtype is None else load_dtype(case.dtype)
    batch = case.batch or 1
    subject = partial(Subject, case.label, threads=case.threads, device=case.device, working_dtype=dtype)
    if isinstance(made, model_zoo.ZooModel):
        inputs = partial(_zoo_arguments, made, batch, case.seed)
        others = partial(_zoo_arguments, made, seed=case.seed, draw=0)
        return subject(made.build(), inputs, batch=batch, other_inputs=others, inlines=not made.needs_leaves)
    if isinstance(made, nn.Module):
        if case.batch is not None:
            raise _no_batch(case, "it has no example inputs")
        return subject(made, None)
    if isinstance(made, tuple) and len(cast("tuple[Any, ...]", made)) == 2 and isinstance(made[0], nn.Module):
        given = _as_arguments(made[1])
        if case.batch is not None:
            given = _resized(case, made[0], given, case.batch)
        return subject(made[0], partial(_fixed_arguments, given), batch=case.batch)
    raise CannotLoadError(
        f"the factory {case.label!r} returned no model",
        value=repr(cast("object", made))[:80],
        why="a factory returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel",
    )


def _resized(case: ModelCase, module: nn.Module, given: Arguments, batch: int) -> Arguments:
    """Return the user's inputs with ``batch`` samples: the first ones, or all of them again and again.

    Samples are counted along the first dimension, where all tensors with dimensions have the same size. Whether that
    is the batch, the model is asked: what it answers for a sample that comes twice is the same twice.
    """
    if given.samples == batch:
        return given
    if not given.samples:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given.tensors) or "none"
        raise _no_batch(case, f"its input tensors share no first size: {shapes}")
    times = -(-batch // given.samples)
    resized, twice = (
        _repeated(given, times).map(lambda tensor: tensor[:batch] if tensor.dim() else tensor),
        _repeated(given, 2),
    )
    subject = partial(Subject, case.label, module, threads=case.threads, device=case.device, draws=1)
    runs = [subject(lambda draw, inputs=inputs: inputs).eager() for inputs in (twice, resized)]
    error = next((run.error for run in runs if run.error is not None), None)
    if error is not None:
        why = f"with them it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise _no_batch(case, why, given.samples)
    if not all(_halves_agree(tensor, given.samples) for tensor in Arguments((runs[0].answer,)).tensors):
        why = "its answer for a sample depends on the others: the first dimension of its inputs is not the batch"
        raise _no_batch(case, why, given.samples)
    return resized


def _repeated(given: Arguments, times: int) -> Arguments:
    """Each sample several times; a tensor without dimensions stays as it is."""
    return given.map(lambda tensor: torch.cat([tensor] * times) if tensor.dim() else tensor)


def _halves_agree(tensor: torch.Tensor, samples: int) -> bool:
    """Whether an answer for samples that come twice holds the same for both, up to rounding, if it holds any."""
    if not tensor.dim() or tensor.shape[0] != 2 * samples or not tensor.is_floating_point():
        return True
    first, second = tensor.double().split(samples)
    scale = float(first.abs().nan_to_num().max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=1e-2, atol=1e-2 * scale, equal_nan=True)


def _no_batch(case: ModelCase, why: str, samples: int | None = None) -> CannotLoadError:
    others = "leave out --fx-batch to use them as they are" + (
        f", or give {samples}, which they have" if samples else ""
    )
    return CannotLoadError(
        f"the inputs of {case.label!r} cannot have {case.batch} sample(s)",
        where=f"--fx-batch {case.batch}",
        why=why,
        remedy=f"return a ZooModel, whose example_inputs takes a batch; or {others}",
    )


def why_unavailable(pass_: Any) -> str | None:
    """Why a pass, or one of a pipeline, can do nothing on this machine, if it says so (by a method of that name)."""
    for part in parts_of(pass_):
        ask: Any = None if isinstance(part, type) else getattr(part, "why_unavailable", None)
        if ask is not None and (why := ask()):
            return f"{pass_name(part)}: {why}"
    return None


def load_pass(name: Any) -> Pass:
    """Return the pass called ``name``: registered, ``package.module:callable``, or several such as ``"a,m:b{n=2}"``.

    A pass itself is returned, a class is called without arguments for an instance, and what is written for
    ``torch.fx`` is adapted, also in a pipeline. Raises :class:`~fx.errors.FxError`, which lists the nearest names, if
    there is none.
    """
    if not isinstance(name, str):
        return _runnable(name)
    passes = [_runnable(_asked_for(written)) for written in parse_text(name)]
    pipeline = PassPipeline(passes)  # which looks at what each of them says of itself
    return passes[0] if len(passes) == 1 else PassPipeline(passes, name=str(pipeline))


def modules_in(name: str) -> list[str]:
    """Return the modules that a text for :func:`load_pass` names."""
    return [written.name.partition(":")[0] for written in parse_text(name) if _is_path(written.name)]


def _asked_for(written: PassText) -> Any:
    """What one part of a text names, with its options."""
    if not _is_path(written.name):
        return pass_as_written(written)
    found: Any = _import_attribute(written.name, "pass")
    if not written.options:
        return found
    if isinstance(found, type):
        return make_pass(found, written)
    what = f"pass {written.name!r} takes no options"
    refuse(written.text, written.options[0].start, what, why="it is no class of passes but one pass")


def _runnable(given: Any) -> Pass:
    """What is to be applied: an instance of a class, and what is written for ``torch.fx`` adapted."""
    made: Any = _made(given) if isinstance(given, type) else given
    if isinstance(made, PassPipeline):
        passes = tuple(map(_runnable, made.passes))
        return made if passes == made.passes else PassPipeline(passes, made.listeners, made.name)
    if not callable(made):
        raise CannotLoadError(
            f"a {type(made).__name__} is no pass",
            value=shown(made),
            remedy="give a function or an object that takes a program, a registered name, or package.module:callable",
        )
    chosen: Any = adapt(made) if is_for_torch(made) else made
    return chosen


def _made(definition: type) -> Any:
    try:
        return definition()
    except Exception as error:
        raise CannotLoadError(
            f"the pass class {definition.__qualname__} cannot be called without arguments",
            where=_users_line(error, definition),
            why=f"{type(error).__name__}: {error}",
            remedy="give its options defaults, or name a function that makes the pass's instance",
        ) from error


def chosen_pass(config: pytest.Config, pass_: Any) -> Pass:
    """Return what :func:`load_pass` returns for ``pass_`` in a test, which is skipped where the pass is unavailable."""
    register(config)
    if _is_path(pass_):
        _import_from(config.invocation_params.dir)
    loaded = load_pass(pass_)
    if (why := why_unavailable(loaded)) is not None:
        pytest.skip(why)
    return loaded


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
        return _same_pass(load_pass(name), pass_)
    except Exception:  # whatever a module of the user raises when it is imported, or a pass when it is compared
        return False


def _same_pass(found: Any, pass_: Any) -> bool:
    """Whether two passes do the same: they are one, are equal, or have the same class and nothing to set."""
    if isinstance(found, AdaptedPass) and isinstance(pass_, AdaptedPass):
        return _same_pass(found.pass_, pass_.pass_)
    if isinstance(found, PassPipeline) and isinstance(pass_, PassPipeline):
        return len(found.passes) == len(pass_.passes) and all(map(_same_pass, found.passes, pass_.passes))
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


def load_dtype(name: Any) -> torch.dtype:
    """Return the floating-point dtype called ``name``; raises ``CannotLoadError`` if there is none."""
    if not isinstance(name, (str, torch.dtype)):
        raise CannotLoadError(f"a {type(name).__name__} names no dtype", value=shown(name), remedy="dtype='float32'")
    name = str(name)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        known = ("float32", "float64", "bfloat16", "float16")
        nearest = difflib.get_close_matches(name, known, n=2, cutoff=0.4) or known
        raise CannotLoadError(
            f"there is no floating-point dtype named {name!r}",
            remedy=f"did you mean {' or '.join(map(repr, nearest))}?",
        )
    return found


def chosen_contract(options: Options, own: Contract) -> Contract:
    """Return the contract to hold a pass to: what was asked for, or else its own, with the tolerances asked for.

    Raises ``CannotLoadError`` for a text that names no contract.
    """
    contract = own if options.contract is None else load_contract(options.contract)
    if isinstance(contract, Close):
        given = {"rtol": options.rtol, "atol": options.atol}
        contract = dataclasses.replace(contract, **{key: value for key, value in given.items() if value is not None})
    return contract


def load_contract(text: Any) -> Contract:
    """Return the contract that ``text`` writes; a contract itself is returned. ``CannotLoadError`` for others."""
    if isinstance(text, Contract):
        return text
    named = {"exact": exact, "close": close}
    if not isinstance(text, str):
        raise CannotLoadError(f"a {type(text).__name__} is no contract", value=shown(text), remedy=f"use {_CONTRACTS}")
    if text in named:
        return named[text]
    tolerances = re.fullmatch(r"close\(rtol=([-+.\de]+), atol=([-+.\de]+)\)", str(text))
    if tolerances is not None:
        return Close(float(tolerances[1]), float(tolerances[2]))
    match = re.fullmatch(r"approximate\((?:sqnr_db=)?([-+.\d]+)\)", str(text))
    if match is None:
        raise CannotLoadError(f"there is no contract {text!r}", remedy=f"use {_CONTRACTS}")
    return Approximate(float(match[1]))


def _check_device(device: str) -> None:
    # is_available() would start CUDA in this process, and in no child that is forked from it CUDA could start again.
    if device == "cuda" and not torch.cuda.device_count():
        raise CannotLoadError("there is no CUDA device to run on", why=f"torch {torch.__version__} finds none")


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
        nearest = list(_nearest_modules(module_name)) if isinstance(error, ModuleNotFoundError) else []
        raise CannotLoadError(
            f"cannot import the module of the {kind} {name!r}",
            why=f"{type(error).__name__}: {error}",
            remedy=f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else None,
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            nearest = difflib.get_close_matches(part, [key for key in dir(found) if key[:1] != "_"], n=3, cutoff=0.5)
            raise CannotLoadError(
                f"there is no {kind} named {name!r}",
                why=f"{module_name} has no attribute {part!r}",
                remedy="did you mean " + " or ".join(f"'{module_name}:{near}'" for near in nearest) + "?"
                if nearest
                else None,
            )
        found = getattr(found, part)
    if not callable(found):
        raise CannotLoadError(f"the {kind} {name!r} cannot be called", value=repr(found)[:80])
    return found


def _nearest_modules(name: str) -> Iterator[str]:
    """The modules that ``name`` may be meant to be: right as far as it goes, then the nearest that are there."""
    parts = re.split(r"[./\\]", name.removesuffix(".py"))
    folders = sys.path
    for position, part in enumerate(parts):
        there = _modules_in(folders)
        if part not in there:
            for near in difflib.get_close_matches(part, there, n=3, cutoff=0.6):
                yield ".".join((*parts[:position], near, *parts[position + 1 :]))
            return
        folders = [str(Path(folder, part)) for folder in folders]
    if ".".join(parts) != name:  # a path, where a module is wanted
        yield ".".join(parts)


def _modules_in(folders: Iterable[str]) -> list[str]:
    """The names of modules and packages in ``folders``, those of the first folder first."""
    found = [child for folder in folders if (path := Path(folder)).is_dir() for child in sorted(path.iterdir())]
    names = [child.name.partition(".")[0] for child in found if child.suffix in ("", ".py", ".so", ".pyd")]
    return [name for name in dict.fromkeys(names) if name.isidentifier()]
