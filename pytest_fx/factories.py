"""Load models under test: call the user's factories, or take models of the zoo."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
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
from pytest_fx.errors import CannotLoadError, InputError, in_a_line
from pytest_fx.harness.capture import Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.input_sets import InputSets, as_arguments
from pytest_fx.harness.steps import Steps
from pytest_fx.harness.structure import describe, dtype_name
from pytest_fx.harness.subject import Subject, devices_of, is_training
from pytest_fx.laws.precision import mixed_dtypes
from pytest_fx.loading import check_device, load_dtype, load_factory, zoo_model
from pytest_fx.named_objects import import_attribute, is_path, place_of, require_call
from pytest_fx.option_table import CAPTURES
from pytest_fx.tracebacks import users_line


def load_subject(case: ModelCase, tracer: Any = None, capture: str | None = None) -> Subject:
    """Return a model under test: a model of the zoo, or the result of the factory ``package.module:factory``.

    A factory takes no arguments and returns a :class:`~model_zoo.ZooModel`, a module, or a pair of a module and its
    example inputs; a module, or such a pair, may replace the factory. A tuple of inputs is positional arguments, a dict
    keyword arguments, and anything else the only argument. :class:`~pytest_fx.InputSets` are several inputs with their
    domain, and :class:`~pytest_fx.Steps` those of calls in a row. Inputs keep their dtypes unless the case has a dtype.
    An error of the factory gets a note with the user's line.

    Args:
        case: the model and its settings.
        tracer: tracer that captures the model; None for the case's own.
        capture: capture method, as ``--fx-capture`` takes it; None for the case's own.

    Raises:
        CannotLoadError: the factory returns something else, or its inputs cannot have the requested batch size.
        InputError: the model cannot be called with its inputs.
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
        if subject.is_placed and case.device != "cpu":
            devices = ", ".join(map(str, devices_of(subject.shared_copy())))
            raise CannotLoadError(
                f"{case.label} is not moved to one device",
                where=f"--fx-device {case.device}",
                why=f"its factory has put its parts on {devices}",
                remedy="leave out --fx-device: the model and its inputs stay where they are",
            )
        subject.tracing = _tracing(case, subject.shared_copy(), tracer, capture)
        if subject.has_inputs:
            require_callable(subject, subject.arguments())  # a ZooModel makes its inputs only now
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
    """Return the settings of a capture. Raises ``CannotLoadError`` for an unknown method, tracer or leaf."""
    if capture not in (None, *CAPTURES):
        remedy = f"pytest_fx_capture returns one of {', '.join(CAPTURES)}, or None"
        raise CannotLoadError(f"there is no way {capture!r} to capture {case.label}", remedy=remedy)
    tracer = tracer or case.tracer
    tracer = import_attribute(tracer, "tracer") if isinstance(tracer, str) else tracer
    if tracer is not None and not callable(tracer):
        raise CannotLoadError("a tracer is a class, or a function that returns one", value=repr(tracer)[:80])
    how = capture or case.capture
    if how == "auto" and case.form in FORMS and tracer is None and not case.leaves:  # only exported programs have FORMS
        how = "export"
    tracing = Tracing(tuple(map(_leaf, case.leaves)), tracer, how, case.form)
    if not tracing.is_usual and tracing.how in ("guided", "export"):
        taker = "torch.export" if tracing.how == "export" else "tracing with example inputs"
        raise CannotLoadError(
            f"{taker} takes {case.label} as it is called, without --fx-leaf and --fx-tracer",
            remedy=f"leave out --fx-capture {tracing.how}: these are for symbolic tracing",
        )
    if not tracing.is_usual:
        tracing = replace(tracing, how="symbolic")
    modules = dict(module.named_modules())
    for leaf, requested in zip(tracing.leaves, case.leaves, strict=True):
        if not any(tracing.keeps(leaf, inner, path) for path, inner in modules.items()):
            names = [*modules, *{type(inner).__name__ for inner in modules.values()}]
            near = difflib.get_close_matches(str(requested), names, n=3)
            raise CannotLoadError(
                f"{case.label} has no module {requested!r} that could be a leaf",
                remedy=f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else "name the path of one, or its class",
            )
    return tracing


def _leaf(leaf: Any) -> Any:
    """Return the class if ``leaf`` names one with its module; else ``leaf`` itself, a path or the name of a class."""
    if not isinstance(leaf, str) or "." not in leaf:
        return leaf
    module, _, name = leaf.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except Exception:  # usually a path
        return leaf
    return kind if isinstance(kind, type) else leaf


def _users_line(error: BaseException, factory: Any) -> str:
    """Return the user's line that raised, or the definition of the factory if the error comes from torch."""
    return users_line(error, or_torchs=False) or defined_at(factory) or repr(factory)


def _subject(case: ModelCase, model: Any) -> Subject:
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
    if isinstance(model, model_zoo.ZooModel):
        inputs = partial(_zoo_arguments, model, batch, case.seed)
        others = partial(_zoo_arguments, model, seed=case.seed, input_set=0)
        return subject(model.build(), inputs, batch=batch, other_inputs=others, inlines=not model.needs_leaves)
    if isinstance(model, tuple) and len(cast("tuple[Any, ...]", model)) == 2 and isinstance(model[1], Steps):
        return _with_steps(case, model[0], model[1])
    if isinstance(model, tuple) and len(cast("tuple[Any, ...]", model)) == 2 and isinstance(model[1], InputSets):
        return _with_input_sets(case, model[0], model[1], subject)
    if case.is_seeded:
        raise _not_seeded(case)
    if isinstance(model, nn.Module):
        if case.batch is not None:
            raise _no_batch(case, "it has no example inputs")
        return subject(model, None)
    if isinstance(model, tuple) and len(cast("tuple[Any, ...]", model)) == 2 and isinstance(model[0], nn.Module):
        arguments = as_arguments(model[1])
        if case.batch is not None:
            require_callable(subject(model[0], arguments.for_input_set), arguments)
            arguments = _resized(case, model[0], arguments, case.batch)
        return subject(model[0], arguments.for_input_set, batch=case.batch)
    raise _no_model(case, model)


def _no_model(case: ModelCase, returned: Any) -> CannotLoadError:
    return CannotLoadError(
        f"the factory {case.label!r} returned no model",
        value=repr(cast("object", returned))[:80],
        why="a factory returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel",
    )


def _not_seeded(case: ModelCase) -> CannotLoadError:
    return CannotLoadError(
        f"the inputs of {case.label!r} are not drawn from a seed",
        where=f"--fx-seed {case.seed}",
        why="its factory returns them itself, if any",
        remedy="leave out --fx-seed, or return InputSets of a function, which takes a seed",
    )


def _with_steps(case: ModelCase, module: Any, steps: Steps) -> Subject:
    """Return a model that is called in steps; the inputs of the first call are its example inputs."""
    if steps.first is None:
        raise InputError(
            f"the steps of {case.label} lack the inputs of the first call",
            remedy="return (module, Steps(function, first=inputs)) from the factory",
        )
    subject = _subject(case, (module, steps.first))
    require_callable(subject, subject.arguments())
    # The first inputs may be InputSets, and those of a batch size have been made for the subject.
    return subject.with_steps(replace(steps, first=None) if callable(steps.source) else steps)


def _with_input_sets(case: ModelCase, module: Any, sets: InputSets, subject: Callable[..., Subject]) -> Subject:
    """Return a model with several input sets. Raises ``InputError`` if one is outside of its own domain."""
    if not isinstance(module, nn.Module):
        raise _no_model(case, module)
    if case.is_seeded and not sets.draws:
        raise _not_seeded(case)
    is_function = sets.count is None
    if case.batch is not None and not is_function:
        raise _no_batch(case, "they are enumerated by InputSets")
    size = (case.batch or 1) if is_function else None
    examples = [sets.arguments(number, case.seed, size) for number in range(sets.count or 1)]
    for example in examples:
        sets.domain.require(example, case.label)
    return subject(
        module,
        partial(sets.arguments, seed=case.seed, size=size),
        batch=size,
        other_inputs=(lambda other: sets.arguments(0, case.seed, other)) if is_function else None,
        input_set_count=sets.count if len(examples) > 1 else None,
        domain=sets.domain,
    )


def require_callable(subject: Subject, arguments: Arguments) -> None:
    """Raise ``InputError`` if the model cannot be called with ``arguments``, its example inputs."""
    __tracebackhide__ = True
    error = subject.eager().error
    if error is None:
        return
    what = f"{subject.name} cannot be called with its own example inputs"
    forward: Any = subject.shared_copy().forward
    printed = _describe_arguments(arguments)
    if isinstance(error, TypeError) and (mismatch := _mismatch(forward, arguments)) is not None:
        why, remedy = mismatch
        raise InputError(what, where=place_of(forward), value=printed, why=why, remedy=remedy) from None
    mixed = mixed_dtypes(subject.tensors) if "type" in str(error) else []
    others = {value.dtype for value in arguments.tensors if value.is_floating_point()} - {subject.dtype}
    remedy = _ONE_DTYPE if mixed else _OTHER_INPUTS
    if others and not mixed and "type" in str(error):
        own = dtype_name(subject.dtype)
        remedy = f"return inputs in {own}, the dtype of the model, or convert both with --fx-dtype {own}"
    raise InputError(
        what,
        where=users_line(error),
        value=printed,
        why="\n         ".join([f"{type(error).__name__}: {str(error).strip()}", *mixed]),
        remedy=remedy,
    ) from (error if isinstance(error, FxError) else None)


_ONE_DTYPE = "convert all of the model, .half() or .float(), or let forward convert values between its parts"
_OTHER_INPUTS = (
    "return others from the factory: (module, inputs), inputs a tuple (positional), a dict (keywords) or the only "
    "argument"
)


def _mismatch(forward: Any, arguments: Arguments) -> tuple[str, str] | None:
    """Return the reason why ``forward`` refuses the names or number of ``arguments``, and a remedy; None if it fits."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    variadic = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind not in variadic]
    has_any = any(parameter.kind is kinds.VAR_KEYWORD for parameter in signature.parameters.values())
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


def _describe_arguments(arguments: Arguments) -> str:
    """Return the dtypes and shapes of a model's arguments, by position or name."""
    values = [*((f"[{index}]", value) for index, value in enumerate(arguments.args)), *arguments.kwargs.items()]
    return ", ".join(f"{name} {_describe_value(value)}" for name, value in values) or "no arguments"


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)} {tuple(value.shape)}"
    return shown(value) if isinstance(value, (int, float, str, bool, type(None))) else describe(value)


def _resized(case: ModelCase, module: nn.Module, arguments: Arguments, batch: int) -> Arguments:
    """Return the user's inputs with ``batch`` samples: the first ones, or all of them repeatedly.

    Samples are counted along the first dimension, where all tensors with dimensions must have the same size. The
    dimension is the batch if the model returns the same for both copies of a repeated sample.
    """
    if arguments.samples == batch:
        return arguments
    if not arguments.samples:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in arguments.tensors) or "none"
        raise _no_batch(case, f"its input tensors share no first size: {shapes}")
    times = -(-batch // arguments.samples)
    resized, twice = (
        _repeated(arguments, times).map(lambda tensor: tensor[:batch] if tensor.dim() else tensor),
        _repeated(arguments, 2),
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
        why = f"with them it raises {in_a_line(error)}"
        raise _no_batch(case, why, arguments.samples)
    if not all(_halves_agree(tensor, arguments.samples) for tensor in Arguments((runs[0].output,)).tensors):
        why = "its output for a sample depends on the others: the first dimension of its inputs is not the batch"
        raise _no_batch(case, why, arguments.samples)
    return resized


def _repeated(arguments: Arguments, times: int) -> Arguments:
    """Repeat the samples; a tensor without dimensions is unchanged."""
    return arguments.map(lambda tensor: torch.cat([tensor] * times) if tensor.dim() else tensor)


def _halves_agree(tensor: torch.Tensor, samples: int) -> bool:
    """Return whether an output agrees, up to rounding, for both copies of repeated samples; True if it has no batch."""
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
