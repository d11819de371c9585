"""From what a user's factory returns, or a model of the zoo, to what is judged."""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

import model_zoo
from fx.arguments import shown
from fx.canonical.forms import FORMS
from fx.errors import FxError, add_note
from fx.provenance import defined_at
from pytest_fx.collection import ModelCase
from pytest_fx.errors import CannotLoadError, InputError
from pytest_fx.harness.capture import Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import describe
from pytest_fx.harness.subject import Subject, is_training
from pytest_fx.laws.precision import mixed_dtypes
from pytest_fx.loading import check_device, load_dtype, load_factory, zoo_model
from pytest_fx.named_objects import import_attribute, is_path, place_of, require_call
from pytest_fx.option_table import CAPTURES
from pytest_fx.tracebacks import users_line


def load_subject(case: ModelCase, tracer: Any = None, capture: str | None = None) -> Subject:
    """Return a model under test: of the zoo, or what the factory ``package.module:factory`` returns.

    A factory takes no arguments and returns a :class:`~model_zoo.ZooModel`, a module, or a pair of a module and its
    example inputs; a module, or such a pair, may stand in its place. Inputs keep their dtypes where none is asked for.
    A tuple of inputs is positional arguments, a dict keyword arguments, anything else the only argument. Raises
    ``CannotLoadError`` if it returns something else, or if its inputs cannot have as many samples as are asked for, and
    ``InputError`` if the model cannot be called with its inputs. What a factory
    raises gets a note with the user's line. ``tracer`` captures the model, in the way ``capture``; where they are not
    given, what the case has.
    """
    __tracebackhide__ = True
    name: Any = case.model
    check_device(case.device)
    factory: Any = name if callable(name) else load_factory(name) if is_path(name) else None
    if factory is not None:
        require_call(factory, f"the factory {case.label!r} cannot be called without arguments")
    model: Any = None
    try:
        model = factory() if factory is not None else zoo_model(name)
        subject = _subject(case, model)
        subject.tracing = _tracing(case, subject.shared_copy(), tracer, capture)
        if subject.has_inputs:
            require_callable(subject, subject.arguments())  # which a ZooModel makes only now
            module = model[0] if isinstance(model, tuple) else model
            if case.mode is None and isinstance(module, nn.Module) and is_training(module):
                subject.in_training = _subject(case.in_mode("train"), model)
                subject.in_training.tracing = subject.tracing
    except (Exception, SystemExit) as error:
        if not isinstance(error, (CannotLoadError, InputError)):
            # A ZooModel builds its model and its inputs after the factory has returned it.
            by_factory = model is None or isinstance(model, model_zoo.ZooModel)
            who = f"the factory of {case.label}" if by_factory else f"copying or calling the model of {case.label}"
            add_note(error, f"{who} raised it\n  where  {_users_line(error, factory)}")
        raise
    return subject


def _tracing(case: ModelCase, module: nn.Module, tracer: Any, capture: Any) -> Tracing:
    """Return how a model is captured. Raises ``CannotLoadError`` for a way, a tracer or a leaf that there is not."""
    if capture not in (None, *CAPTURES):
        remedy = f"pytest_fx_capture returns one of {', '.join(CAPTURES)}, or None"
        raise CannotLoadError(f"there is no way {capture!r} to capture {case.label}", remedy=remedy)
    made = tracer or case.tracer
    made = import_attribute(made, "tracer") if isinstance(made, str) else made
    if made is not None and not callable(made):
        raise CannotLoadError("a tracer is a class, or a function that returns one", value=repr(made)[:80])
    how = capture or case.capture
    if how == "auto" and case.form in FORMS and made is None and not case.leaves:  # which only exported programs have
        how = "export"
    tracing = Tracing(tuple(map(_leaf, case.leaves)), made, how, case.form)
    if not tracing.is_usual and tracing.how in ("guided", "export"):
        taker = "torch.export" if tracing.how == "export" else "tracing with example inputs"
        raise CannotLoadError(
            f"{taker} takes {case.label} as it is called, without --fx-leaf and --fx-tracer",
            remedy=f"leave out --fx-capture {tracing.how}: these are for symbolic tracing",
        )
    if not tracing.is_usual:
        tracing = replace(tracing, how="symbolic")
    modules = dict(module.named_modules())
    for leaf, asked in zip(tracing.leaves, case.leaves, strict=True):
        if not any(tracing.keeps(leaf, inner, path) for path, inner in modules.items()):
            names = [*modules, *{type(inner).__name__ for inner in modules.values()}]
            near = difflib.get_close_matches(str(asked), names, n=3)
            raise CannotLoadError(
                f"{case.label} has no module {asked!r} that could be a leaf",
                remedy=f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else "name the path of one, or its class",
            )
    return tracing


def _leaf(asked: Any) -> Any:
    """A class by its module and name, where there is one; else what was asked for, a path or the name of a class."""
    if not isinstance(asked, str) or "." not in asked:
        return asked
    module, _, name = asked.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception:  # a path, mostly
        return asked
    return found if isinstance(found, type) else asked


def _users_line(error: BaseException, factory: Any) -> str:
    """The line of the user's that raised, or where the factory is defined if the error comes from torch."""
    return users_line(error, or_torchs=False) or defined_at(factory) or repr(factory)


def _subject(case: ModelCase, made: Any) -> Subject:
    dtype = None if case.dtype is None else load_dtype(case.dtype)
    batch = case.batch or 1
    mode = case.mode or "eval"
    subject = partial(
        Subject,
        case.label,
        threads=case.threads,
        device=case.device,
        working_dtype=dtype,
        keeps_dtypes=dtype is None,
        mode=mode,
    )
    if isinstance(made, model_zoo.ZooModel):
        inputs = partial(_zoo_arguments, made, batch, case.seed)
        others = partial(_zoo_arguments, made, seed=case.seed, input_set=0)
        return subject(made.build(), inputs, batch=batch, other_inputs=others, inlines=not made.needs_leaves)
    if case.is_seeded:
        raise CannotLoadError(
            f"the inputs of {case.label!r} are not drawn from a seed",
            where=f"--fx-seed {case.seed}",
            why="its factory returns them itself, if any",
            remedy="leave out --fx-seed, or return a ZooModel, whose example_inputs takes a seed",
        )
    if isinstance(made, nn.Module):
        if case.batch is not None:
            raise _no_batch(case, "it has no example inputs")
        return subject(made, None)
    if isinstance(made, tuple) and len(cast("tuple[Any, ...]", made)) == 2 and isinstance(made[0], nn.Module):
        given = _as_arguments(made[1])
        if case.batch is not None:
            require_callable(subject(made[0], partial(_fixed_arguments, given)), given)
            given = _resized(case, made[0], given, case.batch)
        return subject(made[0], partial(_fixed_arguments, given), batch=case.batch)
    raise CannotLoadError(
        f"the factory {case.label!r} returned no model",
        value=repr(cast("object", made))[:80],
        why="a factory returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel",
    )


def require_callable(subject: Subject, arguments: Arguments) -> None:
    """Raise ``InputError`` if the model cannot be called with ``arguments``, its example inputs."""
    __tracebackhide__ = True
    error = subject.eager().error
    if error is None:
        return
    what = f"{subject.name} cannot be called with its own example inputs"
    forward: Any = subject.shared_copy().forward
    given = _told_arguments(arguments)
    if isinstance(error, TypeError) and (mismatch := _mismatch(forward, arguments)) is not None:
        why, remedy = mismatch
        raise InputError(what, where=place_of(forward), value=given, why=why, remedy=remedy) from None
    mixed = mixed_dtypes(subject.tensors) if "type" in str(error) else []
    others = {value.dtype for value in arguments.tensors if value.is_floating_point()} - {subject.dtype}
    remedy = _ONE_DTYPE if mixed else _OTHER_INPUTS
    if others and not mixed and "type" in str(error):
        own = str(subject.dtype).removeprefix("torch.")
        remedy = f"return inputs in {own}, the dtype of the model, or convert both with --fx-dtype {own}"
    raise InputError(
        what,
        where=users_line(error),
        value=given,
        why="\n         ".join([f"{type(error).__name__}: {str(error).strip()}", *mixed]),
        remedy=remedy,
    ) from (error if isinstance(error, FxError) else None)


_ONE_DTYPE = "convert all of the model, .half() or .float(), or let forward convert values between its parts"
_OTHER_INPUTS = (
    "return others from the factory: (module, inputs), inputs a tuple (positional), a dict (keywords) or the only "
    "argument"
)


def _mismatch(forward: Any, arguments: Arguments) -> tuple[str, str] | None:
    """Return why ``forward`` does not take arguments of these names or so many, and what to do; None if it does."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    names = [
        name for name, one in signature.parameters.items() if one.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    has_any = any(one.kind is kinds.VAR_KEYWORD for one in signature.parameters.values())
    unknown = [] if has_any else [name for name in arguments.kwargs if name not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=2, cutoff=0.5)
        why = f"forward has no parameter {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        if near:
            return why, f"did you mean {' or '.join(map(repr, near))}?"
        return why, "a dict of example inputs is keyword arguments; one that is an argument itself is written ({…},)"
    try:
        signature.bind(*arguments.args, **arguments.kwargs)
    except TypeError as error:
        return f"{error}; forward has {', '.join(names) or 'no parameters'}", _OTHER_INPUTS
    return None


def _told_arguments(arguments: Arguments) -> str:
    """Dtypes and shapes of what a model is called with, by position or name."""
    given = [*((f"[{index}]", value) for index, value in enumerate(arguments.args)), *arguments.kwargs.items()]
    return ", ".join(f"{name} {_told_value(value)}" for name, value in given) or "no arguments"


def _told_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return shown(value) if isinstance(value, (int, float, str, bool, type(None))) else describe(value)


def _resized(case: ModelCase, module: nn.Module, given: Arguments, batch: int) -> Arguments:
    """Return the user's inputs with ``batch`` samples: the first ones, or all of them again and again.

    Samples are counted along the first dimension, where all tensors with dimensions have the same size. Whether that
    is the batch, the model is asked: what it returns for a sample that comes twice is the same twice.
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
    subject = partial(
        Subject,
        case.label,
        module,
        threads=case.threads,
        device=case.device,
        input_set_count=1,
        keeps_dtypes=case.dtype is None,
    )
    runs = [subject(lambda input_set, inputs=inputs: inputs).eager() for inputs in (twice, resized)]
    error = next((run.error for run in runs if run.error is not None), None)
    if error is not None:
        why = f"with them it raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise _no_batch(case, why, given.samples)
    if not all(_halves_agree(tensor, given.samples) for tensor in Arguments((runs[0].output,)).tensors):
        why = "its output for a sample depends on the others: the first dimension of its inputs is not the batch"
        raise _no_batch(case, why, given.samples)
    return resized


def _repeated(given: Arguments, times: int) -> Arguments:
    """Each sample several times; a tensor without dimensions stays as it is."""
    return given.map(lambda tensor: torch.cat([tensor] * times) if tensor.dim() else tensor)


def _halves_agree(tensor: torch.Tensor, samples: int) -> bool:
    """Return whether an output for samples that come twice holds the same for both, up to rounding, if it holds any."""
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


def _zoo_arguments(model: model_zoo.ZooModel, batch: int, seed: int, input_set: int) -> Arguments:
    return Arguments(model.example_inputs(batch, seed=seed + input_set))


def _fixed_arguments(arguments: Arguments, input_set: int) -> Arguments:
    """Return the user's example inputs, and for later input sets others like them."""
    return arguments.shrunk(seed=input_set) if input_set else arguments


def _as_arguments(inputs: Any) -> Arguments:
    if isinstance(inputs, tuple) and not hasattr(cast("object", inputs), "_fields"):
        return Arguments(args=cast("tuple[Any, ...]", inputs))
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in cast("dict[Any, Any]", inputs)):
        return Arguments(kwargs=cast("dict[str, Any]", inputs))
    return Arguments(args=(cast("object", inputs),))
