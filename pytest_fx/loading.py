"""Load models, passes and contracts by their names on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import model_zoo
from fx.arguments import shown
from fx.errors import FxError, type_in_words
from fx.interop import AdaptedPass, adapt, is_for_torch
from fx.interop.pass_library import is_for_ours
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
from fx.pipelines.option_text import PassText, parse_text, refuse
from fx.pipelines.pass_options import make_pass
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.registered_passes import pass_as_written
from pytest_fx.compilers import compiler_called
from pytest_fx.errors import CannotLoadError
from pytest_fx.forms import MODULE, FormedPass, form_called, form_names, recognized
from pytest_fx.harness.output_contracts import flipped, per_output
from pytest_fx.harness.pass_run import parts_of
from pytest_fx.named_objects import (
    by_module,
    import_attribute,
    import_from,
    is_nearly_path,
    is_path,
    refuse_without_colon,
    require_call,
)
from pytest_fx.option_table import TABLE, as_factory
from pytest_fx.options import OPTIONS, Options, origin_of
from pytest_fx.processes.child import Channel, Child, ChildEnded, Limits, unavailable
from pytest_fx.revisions.base_code import find_base
from pytest_fx.runtimes import ShippedModel, runtime_of
from pytest_fx.tracebacks import users_line

REGISTERED = pytest.StashKey[bool]()
"""True once models and passes of hooks are registered."""
CHECKED = pytest.StashKey[list[Options]]()
"""The options that :func:`check_options` has already accepted."""
_CONTRACTS = "exact, close, approximate(DECIBELS), flipped(SHARE), or package.module:attribute"


def check_names(config: pytest.Config) -> None:
    """Raise :class:`pytest.UsageError` for an unavailable device, or for options that :func:`check_options` refuses."""
    check_options(config, config.stash[OPTIONS])
    try:
        check_device(config.stash[OPTIONS].device)
    except FxError as error:
        raise pytest.UsageError(str(error)) from None


def check_options(config: pytest.Config, options: Options, marked: str | None = None) -> None:
    """Raise :class:`pytest.UsageError` for an unknown model, pass, tracer, dtype or contract.

    The message names the source of the value: the ini file, or a marker of the test ``marked``. Names of the form
    ``package.module:attribute`` are also looked up from the folder that pytest runs in.
    """
    checked = config.stash.setdefault(CHECKED, [])
    if any(options is earlier for earlier in checked):
        return
    register(config)
    run_options = config.stash[OPTIONS]
    for option in TABLE:
        check = _CHECKS.get(option.name)
        if check is None:
            continue
        try:
            check(config, options)
        except FxError as error:
            by_run = getattr(options, option.name) == getattr(run_options, option.name)
            where = origin_of(config, option.setting) if by_run else marked
            raise pytest.UsageError(f"{where}: {error}" if where else str(error)) from None
    checked.append(options)


def _check_models(config: pytest.Config, options: Options) -> None:
    for name in expand(options, config.invocation_params.dir):
        if not callable(name):
            load_factory(name) if is_path(name) else zoo_model(name)


def _check_candidates(config: pytest.Config, options: Options) -> None:
    if not options.candidates:
        return
    if options.reference is None or options.inputs is None:
        raise CannotLoadError(
            "--fx-candidate needs a reference and inputs",
            remedy="--fx-reference package.module:attribute --fx-inputs package.module:attribute",
        )
    import_from(config.invocation_params.dir)
    named = [("reference", options.reference), *(("candidate", candidate) for candidate in options.candidates)]
    for kind, subject in named:
        if isinstance(subject, str):
            require_importable(subject, kind)
    load_inputs(options.inputs)


def load_inputs(inputs: Any) -> Any:
    """Return the inputs of a reference, an example or a function of a seed, which may be named.

    Raises ``CannotLoadError`` for a name that leads to neither.
    """
    if not isinstance(inputs, str):
        return inputs
    return import_attribute(by_module(inputs, "set of inputs"), "set of inputs", lambda _: True)


def require_importable(name: str, kind: str) -> None:
    """Raise ``CannotLoadError`` as :func:`import_attribute` does, which is called in a child process.

    So this process does not import a candidate, which may patch what it imports.
    """
    module = by_module(name, kind)
    if unavailable() is not None:
        return

    def answer(channel: Channel) -> None:
        try:
            import_attribute(module, kind)
        except CannotLoadError as error:
            channel.send(str(error).encode())
        else:
            channel.send(b"")

    with Child(answer) as child:
        try:
            message = child.receive(Limits()).decode()
        except ChildEnded as ended:
            message = f"the {kind} {name!r} cannot be imported: it {ended.ending.cause}"
    if message:
        raise CannotLoadError(message)


_CHECKS: dict[str, Callable[[pytest.Config, Options], object]] = {
    "models": _check_models,
    "passes": lambda config, options: list(map(load_pass, options.passes)),
    "checks": lambda config, options: list(map(load_pass, options.checks)),
    "hunts": lambda config, options: list(map(load_pass, options.hunts)),
    "mutate": lambda config, options: options.mutated is None or load_pass(options.mutated),
    "candidates": _check_candidates,
    "against": lambda config, options: options.against and find_base(options.against, config.invocation_params.dir),
    "tracer": lambda config, options: isinstance(options.tracer, str) and import_attribute(options.tracer, "tracer"),
    "dtype": lambda config, options: options.dtype is None or load_dtype(options.dtype),
    "contract": lambda config, options: chosen_contract(options, close),
}
"""Functions that check the names in a field of the options. ``models`` comes first: it extends the import path."""


def register(config: pytest.Config) -> None:
    """Register the models and passes of hooks, once for each run of pytest."""
    if REGISTERED in config.stash:
        return
    config.stash[REGISTERED] = True
    for offered in config.hook.pytest_fx_register(config=config):
        for model_or_pass in offered:
            is_model = isinstance(model_or_pass, model_zoo.ZooModel)
            model_zoo.register_model(model_or_pass) if is_model else register_pass(model_or_pass)


def expand(options: Options, folder: Path) -> list[Any]:
    """Return the selected models, with ``all`` and ``tag:…`` expanded, and zoo models at the selected size.

    Names of the form ``package.module:attribute`` are also looked up from ``folder``. Raises
    :class:`~fx.errors.FxError` for a tag of no model.
    """
    names = (*options.models, *options.passes, *options.checks, *options.hunts, options.mutated, options.tracer)
    if any(map(is_nearly_path, names)):
        import_from(folder)
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


def load_factory(name: str) -> Any:
    """Return the factory ``package.module:attribute``; a model of that name is wrapped as a factory.

    Raises ``CannotLoadError`` if the attribute is neither.
    """
    return as_factory(import_attribute(name, "factory", lambda value: callable(as_factory(value))))


def zoo_model(name: Any) -> model_zoo.ZooModel:
    """Return the zoo model called ``name``; raises :class:`~fx.errors.FxError` with suggestions."""
    if is_nearly_path(name) and name not in model_zoo.list_models():
        refuse_without_colon(name, "model", model_zoo.list_models())
    return model_zoo.get_model(str(name))


def is_name(model: Any) -> bool:
    """Return whether ``model`` is the name of a zoo model, and neither a path to a factory nor a factory."""
    return isinstance(model, str) and not is_path(model)


def _with_small_sibling(model: Any) -> Any:
    """Return ``model`` if it is small or has a small sibling; raise ``CannotLoadError`` if not."""
    entry = model_zoo.get_model(model) if is_name(model) else None
    if entry is None or (entry.small is None and "small" not in entry.tags):
        name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
        raise CannotLoadError(
            f"there is no small {name}",
            why="only models of the zoo have small siblings",
            remedy="name a factory that makes a small model, or leave out --fx-size small",
        )
    return model


def why_unavailable(pass_: Any) -> str | None:
    """Return the reason why a pass, or a pass of a pipeline, is unavailable on this machine; None if it is available.

    A pass gives the reason by its own method ``why_unavailable``.
    """
    for part in parts_of(pass_):
        ask: Any = None if isinstance(part, type) else getattr(part, "why_unavailable", None)
        if ask is not None and (why := ask()):
            return f"{pass_name(part)}: {why}"
    return None


def load_pass(name: Any, form: str = "auto") -> Pass:
    """Return the pass called ``name``: registered, ``package.module:callable``, or several such as ``"a,m:b{n=2}"``.

    ``name`` may be a pass itself, or a class, which is called without arguments. A pass written for ``torch.fx`` is
    adapted, also in a pipeline. Outside of a pipeline, a pass gets programs in its own form (:mod:`pytest_fx.forms`),
    or in ``form``. A converted model, or the path of one, is a pass that returns it.

    Raises :class:`~fx.errors.FxError`, which lists the nearest names, if the pass does not exist.
    """
    if (runtime := runtime_of(name)) is not None:
        if isinstance(name, (str, Path)) and not Path(name).is_file():
            raise CannotLoadError(f"there is no file {name}", why=f"{Path(name).suffix} is a suffix of {runtime.name}")
        return FormedPass(ShippedModel(name), MODULE)
    if not isinstance(name, str):
        return in_form(name, form)
    written = parse_text(name)
    if len(written) == 1:
        loaded = in_form(_named_pass(written[0]), form)
        if isinstance(loaded, FormedPass):
            loaded.text = name
        return loaded
    passes = [_runnable(_named_pass(part)) for part in written]
    pipeline = PassPipeline(passes)  # checks the declarations of the passes
    return passes[0] if len(passes) == 1 else PassPipeline(passes, name=str(pipeline))


def in_form(pass_: Any, form: str = "auto") -> Pass:
    """Return the pass to apply: in ``form``, or for ``"auto"`` in the form that is recognized from the pass.

    ``pass_`` may be loaded already. Raises ``CannotLoadError`` for an unknown form.
    """
    is_class = isinstance(pass_, type)
    if is_class:
        pass_ = _instance(pass_)
    if form == "auto" and isinstance(pass_, (AdaptedPass, FormedPass)):
        return pass_
    own: Any = pass_.pass_ if isinstance(pass_, (AdaptedPass, FormedPass)) else pass_
    if form not in ("auto", *form_names()):
        raise CannotLoadError(f"there is no form {form!r} of passes", remedy=f"use one of {', '.join(form_names())}")
    if isinstance(own, PassPipeline) or type(own).__module__.partition(".")[0] == "fx":
        return _runnable(own)  # ours, in every form
    if form == "fx" or (form == "aten" and is_for_ours(own)):
        return own
    if form == "torch.fx":
        return adapt(own)
    chosen = recognized(own) if form == "auto" else form_called(form)
    return _runnable(own) if chosen is None else FormedPass(own, chosen, is_made_of_class=is_class)


def modules_in(name: str) -> list[str]:
    """Return the modules in a text for :func:`load_pass`."""
    return [written.name.partition(":")[0] for written in parse_text(name) if is_path(written.name)]


def _named_pass(written: PassText) -> Any:
    """Return the pass or class that a part of a text names; a class is called if the text has options."""
    compiler = compiler_called(written.name)
    if compiler is not None:
        return make_pass(compiler, written)
    if not is_path(written.name):
        if is_nearly_path(written.name) and written.name not in list_passes():
            refuse_without_colon(written.name, "pass", list_passes())
        return pass_as_written(written)
    is_pass: Callable[[Any], bool] = lambda value: callable(value) or recognized(value) is not None  # noqa: E731
    definition: Any = import_attribute(written.name, "pass", is_pass)
    if not written.options:
        return definition
    if isinstance(definition, type):
        return make_pass(definition, written)
    what = f"pass {written.name!r} takes no options"
    refuse(written.text, written.options[0].start, what, why="it is not a class of passes but one pass")


def _runnable(pass_: Any) -> Pass:
    """Return the pass to apply: a class is instantiated, and a pass written for ``torch.fx`` is adapted."""
    instance: Any = _instance(pass_) if isinstance(pass_, type) else pass_
    if isinstance(instance, PassPipeline):
        passes = tuple(map(_runnable, instance.passes))
        return instance if passes == instance.passes else PassPipeline(passes, instance.listeners, instance.name)
    if not callable(instance):
        raise CannotLoadError(
            f"{type_in_words(instance)} is not a pass",
            value=shown(instance),
            remedy="give a function or an object that takes a program, a registered name, or package.module:callable",
        )
    if not hasattr(instance, "with_data"):
        require_call(instance, f"the pass {pass_name(instance)!r} cannot be called with a program alone", None)
    chosen: Any = adapt(instance) if is_for_torch(instance) else instance
    return chosen


def _instance(definition: type) -> Any:
    try:
        return definition()
    except Exception as error:
        raise CannotLoadError(
            f"the pass class {definition.__qualname__} cannot be called without arguments",
            where=users_line(error, or_torchs=False) or repr(definition),
            why=f"{type(error).__name__}: {error}",
            remedy="give its options defaults, or name a function that makes the pass's instance",
        ) from error


def chosen_pass(config: pytest.Config, pass_: Any, form: str = "auto") -> Pass:
    """Load ``pass_`` by :func:`load_pass` for a test; skip the test if the pass is unavailable."""
    register(config)
    if is_nearly_path(pass_):
        import_from(config.invocation_params.dir)
    loaded = load_pass(pass_, form)
    if (why := why_unavailable(loaded)) is not None:
        pytest.skip(why)
    return loaded


def default_passes() -> tuple[str, ...]:
    """Return the names of the passes to try by default: all registered passes that are not approximate."""
    return tuple(name for name in list_passes() if not isinstance(contract_of(get_pass(name)), Approximate))


def importable_name(pass_: Any, asked: Iterable[Any] = ()) -> str | None:
    """Return a name under which :func:`load_pass` finds ``pass_``; None if there is none.

    ``asked`` are the passes of the run as they were requested, some of them by name. These names are tried first.
    """
    inner = pass_.pass_ if isinstance(pass_, (AdaptedPass, FormedPass)) else pass_
    own = str(pass_) if isinstance(pass_, PassPipeline) else pass_name(inner)
    candidates = [*asked, *([pass_.text] if isinstance(pass_, FormedPass) else []), own, path_of(pass_)]
    return next((name for name in candidates if isinstance(name, str) and _leads_to(name, pass_)), None)


def name_without_hooks(name: str, pass_: Pass) -> str:
    """Return ``name``, the name of ``pass_``, with an import path in place of each name registered by others.

    A hook in a ``conftest.py`` may have registered a name, and does not run for a test in another folder.
    """
    path, written = name, parse_text(name)
    if len(written) != len(parts_of(pass_)):
        return name
    for text, part in reversed(list(zip(written, parts_of(pass_), strict=True))):
        own = path_of(part)
        if not is_path(text.name) and not own.startswith("fx."):
            path = path[: text.start] + own + path[text.start + len(text.name) :]
    return path if path == name or _leads_to(path, pass_) else name


def path_of(pass_: Any) -> str:
    """Return the path ``package.module:attribute`` of a pass's definition."""
    inner = pass_.pass_ if isinstance(pass_, (AdaptedPass, FormedPass)) else pass_
    definition = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{definition.__module__}:{definition.__qualname__}"


def _leads_to(name: str, pass_: Any) -> bool:
    try:
        return _same_pass(load_pass(name, pass_.form.name if isinstance(pass_, FormedPass) else "auto"), pass_)
    except Exception:  # the import of a user's module, or the comparison of a pass, may raise anything
        return False


def _same_pass(other: Any, pass_: Any) -> bool:
    """Return whether two passes are the same: identical, equal, or of one class with equal attributes."""
    if isinstance(pass_, FormedPass):
        if not isinstance(other, FormedPass) or other.form is not pass_.form:
            return False
        if pass_.is_made_of_class and other.is_made_of_class:  # the attributes of the other are those before any run
            return type(other.pass_) is type(pass_.pass_)
        return _same_pass(other.pass_, pass_.pass_)
    if isinstance(other, AdaptedPass) and isinstance(pass_, AdaptedPass):
        return _same_pass(other.pass_, pass_.pass_)
    if isinstance(other, PassPipeline) and isinstance(pass_, PassPipeline):
        return len(other.passes) == len(pass_.passes) and all(map(_same_pass, other.passes, pass_.passes))
    return (
        other is pass_
        or other == pass_
        or (
            type(other) is type(pass_)
            and not hasattr(pass_, "__qualname__")
            and not dataclasses.is_dataclass(pass_)  # a dataclass has its own equality, and may have slots
            and getattr(other, "__dict__", None) == getattr(pass_, "__dict__", None)
        )
    )


def load_dtype(name: Any) -> torch.dtype:
    """Return the floating-point dtype called ``name``; raises ``CannotLoadError`` if there is none."""
    if not isinstance(name, (str, torch.dtype)):
        raise CannotLoadError(f"{type_in_words(name)} names no dtype", value=shown(name), remedy="dtype='float32'")
    name = str(name)
    torch_dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        dtypes = ("float32", "float64", "bfloat16", "float16")
        nearest = difflib.get_close_matches(name, dtypes, n=2, cutoff=0.4) or dtypes
        raise CannotLoadError(
            f"there is no floating-point dtype named {name!r}",
            remedy=f"did you mean {' or '.join(map(repr, nearest))}?",
        )
    return torch_dtype


def chosen_contract(options: Options, own: Contract) -> Contract:
    """Return the contract of a pass: that of the options, or else its own, with the tolerances of the options.

    Raises ``CannotLoadError`` for a text that is not a contract.
    """
    return with_tolerances(options, own if options.contract is None else load_contract(options.contract))


def contract_for(options: Options, pass_: Any) -> Contract:
    """Return the contract of ``pass_`` under ``options``, without the hook ``pytest_fx_contract``."""
    return chosen_contract(options, contract_of(pass_))


def with_tolerances(options: Options, contract: Contract) -> Contract:
    """Return ``contract`` with the tolerances of the options, if it is a ``close`` contract."""
    if not isinstance(contract, Close):
        return contract
    tolerances = {"rtol": options.rtol, "atol": options.atol, "error_factor": options.error_factor}
    return dataclasses.replace(contract, **{key: value for key, value in tolerances.items() if value is not None})


def load_contract(text: Any) -> Contract:
    """Return the contract of a text; a contract itself is returned, and a dict is the contracts of single outputs.

    ``package.module:attribute`` names a contract, a dict, or a function that returns one.

    Raises ``CannotLoadError`` for anything else.
    """
    if isinstance(text, Contract):
        return text
    if isinstance(text, Mapping):
        return per_output(cast("Mapping[Any, Any]", text), load_contract)
    if not isinstance(text, str):
        raise CannotLoadError(f"{type_in_words(text)} is not a contract", value=shown(text), remedy=f"use {_CONTRACTS}")
    if is_path(text):
        value = import_attribute(text, "contract", lambda _: True)
        return load_contract(value() if callable(value) else value)
    contract = _contract_of_text(text)
    if contract is None:
        raise CannotLoadError(f"there is no contract {text!r}", remedy=f"use {_CONTRACTS}")
    return contract


def has_text(contract: Contract) -> bool:
    """Return whether the text of a contract is one that :func:`load_contract` takes."""
    return _contract_of_text(str(contract)) == contract


def _contract_of_text(text: str) -> Contract | None:
    named = {"exact": exact, "close": close}
    if text in named:
        return named[text]
    number = r"([-+.\de]+)"
    tolerances = re.fullmatch(rf"close\(rtol={number}, atol={number}(?:, error_factor={number})?\)", text)
    if tolerances is not None:
        return Close(*(float(each) for each in tolerances.groups() if each is not None))
    match = re.fullmatch(r"(approximate|flipped)\((?:sqnr_db=)?([-+]?\d*\.?\d+(?:e[-+]?\d+)?)\)", text)
    if match is None:
        return None
    return Approximate(float(match[2])) if match[1] == "approximate" else flipped(float(match[2]))


def check_device(device: str) -> None:
    """Raise ``CannotLoadError`` for an unavailable device."""
    # is_available() would initialize CUDA in this process, and then CUDA could not start in a forked child.
    if device == "cuda" and not torch.cuda.device_count():
        why, remedy = f"torch {torch.__version__} finds none", "leave out --fx-device, or install a torch for this GPU"
        raise CannotLoadError("there is no CUDA device to run on", why=why, remedy=remedy)
