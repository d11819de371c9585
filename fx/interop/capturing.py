"""``capture``: capture any model, symbolically if possible, else through ``torch.export``."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal, TypeAlias

from torch import nn

from fx.argument_types import checked
from fx.canonical.forms import Form
from fx.capture.example_values import bound, expect_guards_hold
from fx.capture.signature import PH
from fx.capture.tracer import symbolic_trace
from fx.errors import CaptureError, FxError, InteropError, TraceError
from fx.frames import is_pythons_file, is_users_file
from fx.graph_module import GraphModule
from fx.interop.exporting import Call, ExportedModel, returns_cache, settings_with_cache, without_cache
from fx.interop.node_notes import location_of
from fx.provenance import SourceLocation, defined_at

WAYS = ("symbolic", "guided", "export")
"""Ways to capture a model, in the order in which they are tried."""
NO_CACHE = "config.use_cache is off: it returns no cache"
"""The note on a captured model of transformers."""
AUTO: Final = "auto"
"""The value of ``how`` for the first way that succeeds."""
Way: TypeAlias = Literal["auto", "symbolic", "guided", "export"]
_LONGEST_CAUSE = 160
"""Maximum length of a torch message in a cause, in characters."""
_ADVICE = {
    r"data-dependent": "choose between values with torch.where: torch.export takes no branch on what a call computes",
    r"Cache'> in output, which is not a known": "let the model return no cache: call it with use_cache=False",
    r"uninitialized parameter": "call the model on an input before it is captured",
    r"> in output, which is not a known": "register the class of the output: torch.export.register_dataclass",
}
"""Remedies for error messages of torch, by a pattern in the message; the first match counts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why one way to capture a model failed."""

    way: str
    """One of :data:`WAYS`."""
    cause: str
    """The exception, in one line."""
    where: str | None
    """The user's line, if known."""
    remedy: str | None
    """The remedy in the message, if it names one."""
    message: str
    """The whole message of the exception."""

    def __str__(self) -> str:
        return f"{self.way}: {self.cause}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """The record of how a program was captured: its ``meta["capture"]``."""

    way: str
    """The one of :data:`WAYS` that captured the model."""
    refusals: tuple[Refusal, ...] = ()
    """The reasons why the ways before it failed."""
    batch: str | None = None
    """Of an exported program: ``"free"``, or the reason why it takes one batch size only."""
    note: str | None = None
    """The change that was made to the model during capture, if any."""


Captured = tuple[GraphModule, str | None, str | None]
"""A program, with the ``batch`` and the ``note`` of its :class:`CaptureRecord`."""


@checked(TraceError)
def capture(
    model: nn.Module | Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    how: Way = AUTO,
    form: Form = "functional",
) -> GraphModule:
    """Capture a model for calls like the one with ``args`` and ``kwargs``, in the first way that works.

    Symbolic tracing keeps the modules and functions of the model's code. If the code asks for sizes or dtypes, the
    example inputs answer, and the program checks these answers (``guards``). If the code depends on values that exist
    only during a call, ``torch.export`` calls the model once, and the program is specialized on its decisions.
    ``meta["capture"]``, a :class:`CaptureRecord`, names the way, the reasons why the ways before it failed, and whether
    an exported program takes any batch size.

    Parameters that the call omits are captured with their defaults. Tensors are shared with the model. A model of
    transformers that returns a cache, which no graph can hold, is captured with ``config.use_cache`` off, and the
    record notes it.

    Args:
        model: the program; ``torch.export`` takes modules only.
        args: positional example inputs.
        kwargs: example inputs by name.
        how: ``"auto"``, or the only way to try: ``"symbolic"``, ``"guided"`` or ``"export"``.
        form: the operators of an exported program: ``"functional"``, functions and methods of torch, or ``"aten"``, the
            operators of ATen as ``torch.export`` returns them.

    Raises:
        CaptureError: no way can capture the model. The message has the cause of each, and the user's line.
        TraceError: ``how`` is ``"symbolic"``, and symbolic tracing fails.

    >>> import torch, fx
    >>> class Padding(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x + sum(range(int(x.shape[1])))
    >>> program = fx.capture(Padding(), (torch.ones(2, 3),))
    >>> program.meta["capture"].way, program.meta["capture"].batch, tuple(program(torch.ones(5, 3)).shape)
    ('guided', None, (5, 3))
    """
    args, keywords = tuple(args), dict(kwargs or {})
    _expect_call(model, args, keywords)

    def symbolic() -> GraphModule:
        if not (args or keywords):
            return symbolic_trace(model)
        return for_example(symbolic_trace(model, defaults_left(model, args, keywords)))

    def guided() -> GraphModule:
        return for_example(symbolic_trace(model, example_inputs=example_inputs(model, args, keywords)))

    def for_example(program: GraphModule) -> GraphModule:
        expect_guards_hold(program, bound(_called(model), None, example_inputs(model, args, keywords)))
        return program

    def exported() -> Captured:
        export = export_model(model, args, keywords)
        return export.program_for(model, form), export.batch, note  # type: ignore[arg-type]  a module by now

    note = NO_CACHE if isinstance(model, nn.Module) and settings_with_cache(model) else None
    ways = {
        "symbolic": lambda: _traced(symbolic, model, (args, keywords)),
        "guided": lambda: _traced(guided, model, (args, keywords)),
        "export": exported,
    }
    program, record = first_way(ways, how, _name_of(model))
    program.meta["capture"] = record
    return program


def _expect_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if the model cannot be called, or does not take these example inputs."""
    function = _called(model)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in function
        return
    try:
        signature.bind(*args, **kwargs) if args or kwargs else None
    except TypeError as error:
        raise TraceError(
            f"{_name_of(model)} does not take its example inputs: {error}",
            where=defined_at(inspect.unwrap(function)),
            value=f"{getattr(function, '__qualname__', _name_of(model))}{signature}",
            remedy="give the arguments of a call: fx.capture(model, (x,), {'name': y})",
        ) from None


def _traced(trace: Callable[[], GraphModule], model: Any, call: Call) -> Captured:
    """Return the program that ``trace`` captures; if it raises, try again with the model's cache switched off.

    Decorators of ``forward`` may hide ``config.use_cache`` from the traced code, so a call of the model decides
    whether the note is due.
    """
    if not isinstance(model, nn.Module) or not settings_with_cache(model):
        return trace(), None, None
    try:
        return trace(), None, NO_CACHE if returns_cache(model, call) else None
    except Exception:
        pass  # if the cache is not the cause, the model without a cache raises it again below
    with without_cache(model):
        return trace(), None, NO_CACHE


def first_way(ways: Mapping[str, Callable[[], Captured]], how: str, name: str) -> tuple[GraphModule, CaptureRecord]:
    """Return the program of the first of ``ways`` that succeeds, and the record of the attempts.

    Args:
        ways: functions that capture the model, by :data:`WAYS`.
        how: the only way to try, or ``"auto"``.
        name: the name of the model in the message.

    Raises:
        CaptureError: every way that was tried raised. If only symbolic tracing was, its own error is raised instead.
    """
    tried = {way: make for way, make in ways.items() if how in (AUTO, way)}
    if not tried:
        raise TraceError(f"there is no way {how!r} to capture {name}", remedy=f"try {', '.join((AUTO, *ways))}")
    refusals: list[Refusal] = []
    errors: list[Exception] = []
    for way, make in tried.items():
        try:
            program, batch, note = make()
        except Exception as error:
            if way == "symbolic" and len(tried) == 1:
                raise
            refusal = refusal_of(way, error)
            if not any((refusal.cause, refusal.where) == (earlier.cause, earlier.where) for earlier in refusals):
                refusals.append(refusal)
            errors.append(error)
        else:
            return program, CaptureRecord(way, tuple(refusals), batch, note)
    # The traceback of the first error shows the user's line; the cause shows the error of torch.export.
    raise _refused(name, list(tried), refusals).with_traceback(errors[0].__traceback__) from errors[-1]


def export_model(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedModel:
    """Export a model; raise ``InteropError`` if it is not a module, or the inputs do not fit its signature."""
    if not isinstance(model, nn.Module):
        raise InteropError("torch.export takes modules, and no functions")
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InteropError(
            f"torch.export needs example inputs: {error}",
            remedy="give the arguments of a call: fx.capture(model, (x,)), or (model, inputs) from a factory",
        ) from None
    return ExportedModel(model, args, dict(kwargs))


def _called(model: Any) -> Any:
    """Return the function whose parameters a model has."""
    return model.forward if isinstance(model, nn.Module) else model


def example_inputs(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the inputs of a call as symbolic tracing takes them: a tuple, or the bound arguments."""
    return inspect.signature(_called(model)).bind(*args, **kwargs) if kwargs else args


def defaults_left(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters that a call with ``args`` and ``kwargs`` omits, with their defaults.

    Parameters with default ``None`` or a flag that the call does pass are marked to stay inputs; symbolic tracing would
    otherwise capture them as omitted.
    """
    bound = inspect.signature(_called(model)).bind(*args, **kwargs)
    passed = set(bound.arguments)
    defaults = {name: parameter.default for name, parameter in bound.signature.parameters.items()}
    optional = {
        name: PH
        for name, value in bound.arguments.items()
        if isinstance(defaults[name], (bool, NoneType)) and value is not defaults[name]
    }
    bound.apply_defaults()
    kinds = inspect.Parameter
    variable = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    omitted = {
        name: value
        for name, value in bound.arguments.items()
        if name not in passed and bound.signature.parameters[name].kind not in variable
    }
    return {**omitted, **optional} or None


def refusal_of(way: str, error: Exception) -> Refusal:
    """Return ``error`` as a refusal, with its message cut to the cause: messages of torch fill pages."""
    message = str(error).strip()
    lines = message.splitlines() or [type(error).__name__]
    if isinstance(error, FxError):
        return Refusal(way, lines[0], _labelled(lines, "where"), _labelled(lines, "try"), message)
    cause = lines[0].partition(" (unhinted:")[0].rstrip(". ")
    if not cause.startswith(type(error).__name__):
        cause = f"{type(error).__name__}: {cause}"
    if len(cause) > _LONGEST_CAUSE:
        cause = f"{cause[:_LONGEST_CAUSE]}…"
    where = _location(error)
    advice = next((advice for words, advice in _ADVICE.items() if re.search(words, message)), None)
    return Refusal(way, cause, None if where is None else str(where), advice, message)


def _labelled(lines: list[str], label: str) -> str | None:
    """Return the text under a label of one of our error messages; None if it has no such label."""
    start = f"  {label:<6} "
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), None)


def _location(error: Exception) -> SourceLocation | None:
    """Return the user's line at which the model failed: named in the message of torch, else from the traceback."""
    if (named := location_of(str(error))) is not None:
        return named
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = (line for line in reversed(frames) if is_users_file(line.filename) and not is_pythons_file(line.filename))
    frame = next(users, None)
    if frame is None:
        return None
    return SourceLocation.of(frame.filename, frame.lineno or 0, frame.name, frame.line or "")


def _refused(name: str, tried: list[str], refusals: list[Refusal]) -> CaptureError:
    places = {refusal.where.partition(",")[0]: refusal.where for refusal in reversed(refusals) if refusal.where}
    remedies = [refusal.remedy for refusal in refusals if refusal.remedy]
    only = {"guided": " by tracing with its example inputs", "export": " through torch.export"}
    how = only[tried[0]] if len(tried) == 1 else ", neither symbolically nor through torch.export"
    error = CaptureError(
        f"{name} cannot be captured{how}",
        where="\n         ".join(reversed(places.values())) or None,
        why="\n         ".join(f"{refusal.way}: {refusal.cause}" for refusal in refusals),
        remedy="\n  or     ".join(remedies) or None,
    )
    error.refusals = tuple(refusals)
    return error


def _name_of(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", repr(model))
