"""The subject of a judgement: a module with its inputs, a model or a random program, and its own runs."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal, Protocol

import torch
from torch import nn

from fx import GraphModule
from fx.errors import CaptureError, TraceError, add_note
from fx.interop.capturing import CaptureRecord
from fx.modules.kept_tensors import KeptTensor
from pytest_fx.errors import InputError, in_a_line
from pytest_fx.forms import ExportedSource, RecordedSource
from pytest_fx.harness.capture import USUAL, Captures, Tracing, capture_without_leaves, leave_out_caches
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.evaluation import Arguments, converted, default_dtype, same_random_numbers, threads
from pytest_fx.harness.float64_casts import Float64Casts
from pytest_fx.harness.layouts import uncompiled
from pytest_fx.harness.run import NextCall, Run, Runner
from pytest_fx.harness.shared_draws import SharedDraws
from pytest_fx.harness.shared_weights import FULL_SIZE, SharedWeights, in_dtype, release
from pytest_fx.harness.snapshot import tensors_of
from pytest_fx.harness.steps import Steps, with_choices_of
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.variants import (
    AFTERWARDS,
    AGAIN,
    NON_FINITE,
    OF_SAME_VALUES,
    ONE_CHANGED,
    OTHER_VALUES,
    VARIANTS,
    batch_of,
    of_batch,
    with_batch,
    with_one_turned,
    with_other_size,
)
from pytest_fx.tracebacks import users_line

ENOUGH_ELEMENTS = 256
"""Least number of elements for the largest error of an output: with fewer, it is a matter of luck."""
FEWEST_INPUT_SETS = 2
"""Least number of input sets of a model: a program specialized to the values of one fails on another."""
MOST_INPUT_SETS = 8
"""Largest number of input sets of a model, however few elements it returns."""
BATCHES_OF_LARGE = (1, 2)
"""Batch sizes of the further inputs for a model of full size: the first for which it has inputs is used."""
FIRST_OF_DATA = 1000
"""Number of the first input set that is data for a pass: outputs are not compared on these."""
CALLS_OF_DATA = 32
"""Number of input sets that a pass gets as data."""

Inputs = int | str
"""The inputs of a call: the number of an input set, or the name of a variant of the first one
(:mod:`pytest_fx.harness.variants`).
"""


ExportKind = Literal["dynamic", "fixed", "recording"]
"""The way from a model to an exported program.

By ``torch.export`` with a dynamic batch size or with the sizes of the example, or by a recording in a few milliseconds.
"""


class ProgramSource(Protocol):
    """A self-contained program, such as :class:`pytest_fx.generation.Program`."""

    @property
    def source(self) -> str:
        """Text that defines ``build()`` and ``inputs()``."""
        ...

    @property
    def inputs(self) -> Arguments:
        """The arguments of its call."""
        ...

    def build(self) -> nn.Module:
        """Return a new module."""
        ...


@dataclass(frozen=True, slots=True)
class GivenProgram:
    """A program with its inputs that was written by hand."""

    build: Callable[[], nn.Module]
    """A function that makes the module."""
    inputs: Arguments
    """The arguments of its call."""
    source: str = ""
    """Its text, if known."""
    domain: InputDomain | None = None
    """The domain of its arguments; None for all values."""


class Subject:
    """A module under test with its inputs. The module is never handed out, run or changed: :meth:`fresh` copies it.

    >>> from torch import nn
    >>> subject = Subject("linear", nn.Linear(2, 1), lambda input_set: Arguments((torch.ones(3, 2),)))
    >>> subject.fresh().training, subject.fresh(torch.float64).weight.dtype
    (False, torch.float64)
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        inputs: Callable[[int], Arguments] | None,
        batch: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        working_dtype: torch.dtype | None = None,
        input_set_count: int | None = None,
        other_inputs: Callable[[int], Arguments] | None = None,
        *,
        mode: str = "eval",
        keeps_dtypes: bool = False,
        source: str = "",
        inlines: bool = False,
        tracing: Tracing = USUAL,
        domain: InputDomain | None = None,
    ) -> None:
        """Take a copy of ``module``.

        Args:
            name: the name in messages.
            module: the model.
            inputs: makes the n-th input set, the same one for the same n.
            batch: number of samples in them, if it can be chosen.
            threads: number of threads that PyTorch computes with; None for the present number.
            device: the device that it runs on. A model with tensors on several is not moved, nor are its inputs.
            working_dtype: the dtype of its floating-point tensors; None for its own.
            input_set_count: number of input sets that it is called with; None for as many as its outputs need.
            other_inputs: makes arguments with a given number of samples; None to derive them from ``inputs``.
            mode: ``"eval"``, or ``"train"``; in training, a module with parts in training mode keeps all their modes.
            keeps_dtypes: whether inputs keep their dtypes rather than being converted to the working dtype.
            source: text that defines it, if it is a random program.
            inlines: whether it is known that it can be captured in functions only.
            tracing: options of its capture.
            domain: the domain of its inputs; variants outside of it do not exist. None for all values.
        """
        self.name = name
        self.batch = batch
        self.threads = threads
        placed = devices_of(module)
        self.is_placed = len(placed) > 1
        """True if the user has put the parts of the model on several devices."""
        accelerators = [each for each in placed if each.type != "cpu"] if self.is_placed else []
        self.device = next(iter(accelerators), torch.device(device))
        """The device of its work; of several, the first other than a CPU. Clocks wait for it."""
        self.source = source
        self.inlines = inlines
        self.tracing = tracing
        self._keeps_dtypes = keeps_dtypes
        own = copy.deepcopy(module) if self.is_placed else copy.deepcopy(module).to(self.device)
        if mode == "eval" or not is_training(own):
            own.train(mode == "train")
        self.mode = "train" if own.training else "eval"
        self._captures = Captures(leave_out_caches(own))
        self._sources: dict[bool, ExportedSource] = {}
        self._weights = SharedWeights(own if working_dtype is None else in_dtype(own, working_dtype))
        if working_dtype is not None:  # even if it has no tensors of this dtype
            self.__dict__["dtype"] = working_dtype
        self._inputs = inputs
        self._default_dtype = torch.get_default_dtype()
        self._input_set_count = input_set_count
        self._other_inputs = other_inputs
        self.domain = domain
        """The declared domain of its inputs; None for all values."""
        self._steps: Steps | None = None
        self._runs: dict[tuple[Inputs, bool], Run] = {}
        self.findings: dict[Any, Any] = {}
        """Results about the model that others cache with it, by keys of their choice."""
        self.reported: set[str] = set()
        """Sentences about it that a test has reported, each to be reported once."""
        self.reported_failures: list[tuple[Any, Any]] = []
        """Passes that are wrong on it, each with a key that identifies the failure."""
        self.wrong: dict[str, str] = {}
        """The law that a program made of it breaks, by the name of the program, which is then not timed."""
        self.in_training: Subject | None = None
        """The same model in training mode, if it is judged in that mode, too."""

    @classmethod
    def of(cls, program: ProgramSource, mode: str = "eval") -> Subject:
        """Return the subject of a self-contained program, called with its only inputs in their own dtypes.

        If the module is in the mode already, its parts keep their own modes.
        """
        module = in_mode(program.build(), mode)
        subject = cls(
            "the program",
            module,
            lambda input_set: program.inputs,
            input_set_count=1,
            mode="train" if is_training(module) else "eval",
            keeps_dtypes=True,
            source=program.source,
            domain=getattr(program, "domain", None),  # programs of a user's own strategy have none
        )
        subject.__dict__["dtype"] = torch.get_default_dtype()
        subject._has_dtypes_of_its_own = True
        return subject

    export: ExportKind = "dynamic"
    """The way to an exported program."""
    restores_attributes = False
    """True if attributes of modules that are no tensors are state, which a compiler of Python keeps."""
    is_group = False
    """True if it consists of several programs: each variant of a single input would take as long as all of them."""

    _has_dtypes_of_its_own = False
    """True if its tensors keep their own dtypes, and there is no common working dtype."""

    def at(self, inputs: Inputs) -> Subject:
        """Return the same module, called with one variant of the inputs only."""
        self._float64_casts.needed  # noqa: B018 - both share it, as they share the runner
        other = copy.copy(self)
        for name in (
            "captured",
            "capture_error",
            "input_set_count",
            "float64_input_set_count",
            "later_calls",
            "_reference_steps",
        ):
            vars(other).pop(name, None)
        other._steps = None
        other.in_training = None
        other.name = f"{self.name} on {inputs}" if isinstance(inputs, str) else self.name
        other._inputs, other._input_set_count, other._other_inputs = (
            lambda input_set: self._made(self.alone(inputs)),
            1,
            None,
        )
        other._runs, other.findings, other._sources = {}, {}, {}
        return other

    def exported_by(self, export: ExportKind) -> Subject:
        """Return the same module, called with the first input set only, which becomes an exported program that way."""
        other = self.at(0)
        other.export = export
        return other

    def called_with(self, inputs: Sequence[Arguments]) -> Subject:
        """Return the same module, called with these input sets only."""
        other = self.at(0)
        other._inputs, other._input_set_count = inputs.__getitem__, len(inputs)
        return other

    def with_steps(self, steps: Steps) -> Subject:
        """Return the same module, also called in these steps.

        Raises:
            InputError: the module itself cannot be called in a step, or its inputs leave their declared domain.
        """
        other = copy.copy(self)
        vars(other).pop("_reference_steps", None)
        other._steps = steps
        other._runs, other.findings = {}, {}
        arguments, runs = other._reference_steps
        for name, run in zip(other.steps, runs, strict=True):
            if isinstance(run.error, InputError):
                raise run.error
            if run.error is not None:
                raise InputError(
                    f"{self.name} itself raises in {name}",
                    where=users_line(run.error),
                    why=in_a_line(run.error),
                    remedy="let the steps have the inputs that the model takes in this call",
                ) from run.error
        for name, inputs in zip(other.steps, arguments, strict=True):
            if other.domain is not None:
                other.domain.require(inputs, f"{self.name} in {name}")
        other.in_training = None if self.in_training is None else self.in_training.with_steps(steps)
        return other

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the calls of the steps that were declared for the model, in order."""
        return () if self._steps is None else self._steps.names

    @cached_property
    def _reference_steps(self) -> tuple[list[Arguments], list[Run]]:
        """The arguments and runs of the steps of the module itself in its working dtype.

        All other programs, and the module in float64, get their tokens and other choices from these arguments.
        """
        arguments: list[Arguments] = []

        def note(number: int, before: Run | None) -> Arguments:
            arguments.append(self._own_step(number, before, float64=False).copies())
            return arguments[-1]

        calls = [partial(note, number) for number in range(len(self.steps))]
        return arguments, self.eager_runner().in_a_row(calls, self.dtype)

    def _step(self, number: int, before: Run | None, *, float64: bool) -> Arguments:
        """Return the arguments of a step of any program."""
        return with_choices_of(self._reference_steps[0][number], self._own_step(number, before, float64=float64))

    def _own_step(self, number: int, before: Run | None, *, float64: bool) -> Arguments:
        """Return the arguments of a step as they follow from the run of the call before it."""
        assert self._steps is not None
        if before is None:
            first = self._steps.first_inputs
            return self.arguments(0, float64) if first is None else self._prepared(first, float64)
        if before.error is not None:
            raise before.error
        with default_dtype(torch.float64 if float64 else self.dtype):
            return self._prepared(self._steps.inputs(before.output, number), float64)

    def _prepared(self, arguments: Arguments, float64: bool) -> Arguments:
        """Return arguments on the device, and in the dtype of the calls."""
        on_device = self.on_device(arguments)
        return on_device.map(lambda tensor: converted(tensor, torch.float64)) if float64 else on_device

    @property
    def has_inputs(self) -> bool:
        """True if the model can be called at all: a factory need not give example inputs."""
        return self._inputs is not None

    @property
    def state_names(self) -> list[str]:
        """The names of the parameters and buffers in its state dict."""
        return list(self.shared_copy().state_dict())

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Tensors equal to its parameters and buffers, by name, to compare with; never change them."""
        return self._weights.tensors

    @cached_property
    def dtype(self) -> torch.dtype:
        """The working dtype: that of the first floating-point parameter, buffer or input."""
        inputs = self._made(0).tensors if self.has_inputs else []
        for tensor in chain(self.tensors.values(), inputs):
            if tensor.is_floating_point():
                return tensor.dtype
        return torch.get_default_dtype()

    @cached_property
    def _float64_casts(self) -> Float64Casts:
        return Float64Casts(self.dtype)

    @cached_property
    def is_full_size(self) -> bool:
        """True if it is so large that it gets only affordable checks."""
        inputs = self._made(0).tensors if self.has_inputs else []
        return sum(tensor.numel() for tensor in chain(self.tensors.values(), inputs)) >= FULL_SIZE

    @cached_property
    def is_float64(self) -> bool:
        """True if all its tensors are in float64 already."""
        inputs = self._made(0).tensors if self.has_inputs and self._keeps_dtypes else []
        lower_precision = (
            tensor for tensor in chain(self.tensors.values(), inputs) if tensor.dtype in _LOWER_PRECISION
        )
        return next(lower_precision, None) is None and (self._has_dtypes_of_its_own or self.dtype == torch.float64)

    def fresh(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy of the module in its mode, its floating-point tensors in ``dtype`` if given."""
        return self._weights.deepcopy(None if dtype == self.dtype and not self._has_dtypes_of_its_own else dtype)

    def shared_copy(self, float64: bool = False) -> nn.Module:
        """Return a new copy to capture and call, in float64 if ``float64``; it shares its tensors with other copies.

        A :class:`~.run.Runner` that gets :meth:`shared_weights` undoes the writes that it sees. After any other change
        of these tensors call :meth:`reset`.
        """
        return self._weights.shared_copy(self._shared_dtype(float64))

    def shared_weights(self, float64: bool = False) -> dict[int, KeptTensor]:
        """Return the tensors that copies by :meth:`shared_copy` share, with their original values, by identity."""
        return self._weights.shared_weights(self._shared_dtype(float64))

    def _shared_dtype(self, float64: bool) -> torch.dtype | None:
        return torch.float64 if float64 and (self.dtype != torch.float64 or self._keeps_dtypes) else None

    def reset(self) -> None:
        """Share new tensors from now on, because the shared ones were changed."""
        self._weights.reset()
        vars(self).pop("captured", None)

    def recover(self) -> None:
        """Share new tensors, and drop the users of the old ones, which an interrupted test has not restored."""
        if self.in_training is not None:
            self.in_training.recover()
        self._close_findings()
        self.reset()

    @property
    def is_large(self) -> bool:
        """True if it is so large that copies share its tensors wherever possible."""
        return self._weights.is_large

    def tidy_up(self) -> None:
        """Free the programs and the float64 tensors that a test has made of a large model; keep the results."""
        if self.in_training is not None:
            self.in_training.tidy_up()
        if self.is_large:
            self._close_findings()
            gc.collect()

    def _close_findings(self) -> None:
        for key in [key for key, finding in self.findings.items() if hasattr(finding, "close")]:
            self.findings.pop(key).close()
        self._weights.claim_float64(None)

    def close(self) -> None:
        """Free all tensors, programs and results: the subject is no longer used."""
        if self.in_training is not None:
            self.in_training.close()
        self._close_findings()
        if "captured" in vars(self):
            release(vars(self).pop("captured"))
        self._runs.clear()
        vars(self).pop("_reference_steps", None)
        self._captures.close()
        self._sources.clear()
        self._weights.close()
        if self.is_large:
            gc.collect()  # garbage of passes shares its tensors

    @contextmanager
    def to_be_timed(self) -> Generator[nn.Module]:
        """Yield a copy for calls that are not watched; it has its own tensors, unless the model is large."""
        if not self.is_large:
            yield self.fresh()
            return
        runner = self.runner(self.shared_copy())
        try:
            yield runner.program
        finally:
            runner.restore()

    def set_aside(self) -> AbstractContextManager[None]:
        """Free a large model's shared tensors in the block; see :meth:`~.shared_weights.SharedWeights.set_aside`."""
        return self._weights.set_aside()

    def claim_float64(self, forget: Callable[[], None] | None) -> None:
        """Announce a model in float64; see :meth:`~.shared_weights.SharedWeights.claim_float64`."""
        self._weights.claim_float64(forget)

    def _made(self, inputs: Inputs) -> Arguments:
        """Return the arguments in their original dtypes, on the device, or where the user placed them."""
        if self._inputs is None:
            raise LookupError(f"{self.name} has no example inputs: its factory should return (module, inputs)")
        arguments = self._find(inputs)
        if arguments is None:
            raise LookupError(f"{self.name} has no {inputs}")
        return arguments if self.is_placed else arguments.map(lambda tensor: tensor.to(self.device))

    def _find(self, inputs: Inputs) -> Arguments | None:
        """Return the inputs; None if the model has none of this name, or if they are outside of its domain."""
        arguments = self._of_any_value(inputs)
        is_given = isinstance(inputs, int) or inputs in self.steps
        if arguments is None or self.domain is None or inputs in OF_SAME_VALUES or is_given:
            return arguments
        if inputs != ONE_CHANGED and (
            inputs in OTHER_VALUES or inputs == NON_FINITE
        ):  # another value would not be the one in the name
            return arguments if self.domain.violation(arguments) is None else None
        return self.domain.mended(arguments)

    def _of_any_value(self, inputs: Inputs) -> Arguments | None:
        assert self._inputs is not None
        with default_dtype(self._default_dtype):  # with another one, random inputs would have other values
            if isinstance(inputs, int):
                return self._inputs(inputs)
            if inputs in self.steps:
                return self._reference_steps[0][self.steps.index(inputs)]
            size = batch_of(inputs)
            if size is None and inputs not in VARIANTS:
                return with_other_size(self._inputs(0), inputs) or with_one_turned(self._inputs(0), inputs)
            if size is None:
                return VARIANTS[inputs](self._inputs(0))
            if self._other_inputs is not None:
                return None if size == self.batch else self._other_inputs(size)
            return with_batch(self._inputs(0), size)

    def is_outside(self, inputs: Inputs) -> bool:
        """Return whether the model has no such inputs because they are outside of its declared domain."""
        return self.domain is not None and not self.has(inputs) and self._of_any_value(inputs) is not None

    def has(self, inputs: Inputs) -> bool:
        """Return whether the model has such inputs."""
        if inputs in (AGAIN, AFTERWARDS):
            return inputs in self.later_calls
        return self._inputs is not None and (isinstance(inputs, int) or self._find(inputs) is not None)

    @property
    def of_another_size(self) -> str:
        """The inputs of another batch size that a model of full size is called with, if it has any."""
        names = [of_batch(size) for size in BATCHES_OF_LARGE]
        return next(filter(self.has, names), names[0])

    @cached_property
    def later_calls(self) -> tuple[str, ...]:
        """The calls of a row after the first, without a reset of the state in between; fewer if inputs are missing."""
        return () if not self.has_inputs else (AGAIN, AFTERWARDS) if self.has(self.alone(AFTERWARDS)) else (AGAIN,)

    def calls(self, inputs: Inputs) -> list[Inputs]:
        """Return the inputs of all calls of a row up to ``inputs``; the state is not reset between them."""
        if inputs in self.steps:
            return [*self.steps[: self.steps.index(str(inputs)) + 1]]
        return {AGAIN: [0, AGAIN], AFTERWARDS: [0, AGAIN, AFTERWARDS]}.get(str(inputs), [inputs])

    def alone(self, inputs: Inputs) -> Inputs:
        """Return the name of the same inputs in a call by itself, if ``inputs`` names a later call of a row."""
        if inputs == AFTERWARDS:
            return 1 if self.input_set_count > 1 else ONE_CHANGED
        return 0 if inputs == AGAIN else inputs

    def arguments(self, inputs: Inputs = 0, float64: bool = False) -> Arguments:
        """Return the arguments of a call; each input set has other values. Raises ``LookupError`` if there are none."""
        own = self._made(self.alone(inputs))
        if float64:
            shares = own.shared_spans
            return own.copies(torch.float64) if shares else own.map(lambda tensor: converted(tensor, torch.float64))
        return own if self._keeps_dtypes else own.map(lambda tensor: converted(tensor, self.dtype))

    def on_device(self, arguments: Arguments) -> Arguments:
        """Return ``arguments`` on the device and in the dtype with which the model is called."""
        moved = arguments.map(lambda tensor: tensor.to(self.device))
        return moved if self._keeps_dtypes else moved.map(lambda tensor: converted(tensor, self.dtype))

    def data(self, dtype: torch.dtype) -> list[Arguments]:
        """Return data for a pass: arguments on which no outputs are compared, or the only ones that the program has."""
        if not self.has_inputs:
            return []
        if self._input_set_count == 1:
            return [self.arguments().copies(dtype if dtype != self.dtype else None)]
        own = dtype if not self._keeps_dtypes or dtype != self.dtype else None
        return [self._made(FIRST_OF_DATA + number).copies(own) for number in range(CALLS_OF_DATA)]

    def capture(
        self, module: nn.Module | None = None, *, leaves: bool = True, float64: bool = False, pass_: Any = None
    ) -> GraphModule:
        """Return a new capture of ``module``, or of a fresh copy, for calls like those with the example inputs.

        By ``torch.export`` it is in the form that ``pass_`` expects. If not ``leaves``, it is in functions only, and
        raises ``TraceError`` if a module branches on values.
        """
        dtype = torch.float64 if float64 else self.dtype
        arguments = self._made(0) if self.has_inputs else None
        casting = self._float64_casts if float64 else None
        if float64 and self.has_inputs and not self.is_large:
            self.eager(float64=True)  # finds out whether casts must be replaced
        # Values computed during a capture become constants, which must not depend on the process.
        __tracebackhide__ = True
        with default_dtype(dtype), same_random_numbers(), threads(self.threads):
            model = self.fresh(torch.float64 if float64 else None) if module is None else module
            try:
                with nullcontext() if casting is None else casting.block():
                    if leaves:
                        call = self.arguments(float64=float64) if self.has_inputs else None
                        program = self._captures.capture(model, call, self.tracing, pass_)
                    else:
                        program = capture_without_leaves(model, arguments, self.tracing)
                if casting is not None:
                    casting.rewrite(program)
                return program
            except TraceError as error:
                if isinstance(error, CaptureError):
                    error.__cause__ = None  # the message of torch.export takes pages
                if self.tracing.how in ("auto", "symbolic"):
                    add_note(error, "  or     --fx-leaf PATH|CLASS makes a module a leaf, --fx-tracer sets the tracer")
                raise

    def export_source(self, float64: bool = False) -> ExportedSource:
        """Return the ``torch.export`` form of the model, which shares tensors with :meth:`shared_copy`.

        The model is exported once while these tensors are shared, and only if a program is requested.
        """
        source, shared = self._sources.get(float64), self.shared_copy(float64)
        if source is None or not _share_tensors(source.module, shared):
            call = self.arguments(float64=float64).copies()
            dtype = torch.float64 if float64 else self.dtype
            kind = RecordedSource if self.export == "recording" else ExportedSource
            source = self._sources[float64] = kind(
                lambda: self.shared_copy(float64),
                (call.args, call.kwargs),
                lambda: [(arguments.args, arguments.kwargs) for arguments in self.data(dtype)],
                has_fixed_sizes=self.export != "dynamic",
            )
        return source

    @property
    def computes_in_float64(self) -> bool:
        """True if the model runs in float64 unchanged, with none of its casts replaced."""
        return self.eager(0, True).error is None and not self._float64_casts.needed

    @property
    def capture_record(self) -> CaptureRecord:
        """The method that captured the model, and the reasons why earlier ones failed."""
        self.captured.graph  # noqa: B018 - captures the model
        assert self._captures.record is not None
        return self._captures.record

    @property
    def is_exported(self) -> bool:
        """True if the model was captured by ``torch.export``."""
        return self.capture_error is None and self.capture_record.way == "export"

    @cached_property
    def input_set_count(self) -> int:
        """The number of input sets that the model is called with."""
        if self._input_set_count is not None:
            return self._input_set_count
        return max(FEWEST_INPUT_SETS, _input_sets_for(self.eager().output))

    @cached_property
    def float64_input_set_count(self) -> int:
        """The number of input sets that are run in float64, too: enough elements for every output."""
        return min(self.input_set_count, _input_sets_for(self.eager().output))

    @cached_property
    def captured(self) -> GraphModule:
        """A cached capture of the model: read it, or call it by :meth:`runner`, but never change it."""
        return self.capture(self.shared_copy())

    @cached_property
    def capture_error(self) -> Exception | None:
        """The error that prevents a capture of the model; None if it can be captured."""
        try:
            self.captured.graph  # noqa: B018 - captures the model
        except Exception as error:  # whatever the model's code raises when it is given traced values
            return error
        return None

    def runner(self, program: nn.Module, call: Callable[..., Any] | None = None, *, float64: bool = False) -> Runner:
        """Return a runner of a program that shares tensors with :meth:`shared_copy`, or of ``call`` in its place."""
        return Runner(
            program,
            call,
            kept=self._weights.shared_so_far(self._shared_dtype(float64)),
            thread_count=self.threads,
            restores_attributes=self.restores_attributes,
        )

    def eager_runner(self, float64: bool = False) -> Runner:
        """Return the runner of the module itself, in float64 if ``float64``."""

        def make() -> Runner:
            module = self.shared_copy(float64)
            return self.runner(module, self._float64_casts.call(module) if float64 else None, float64=float64)

        return self._weights.runner(self._shared_dtype(float64), make)

    @property
    def runs(self) -> list[Run]:
        """The runs of :meth:`eager` so far."""
        return list(self._runs.values())

    def runs_with(self, inputs: Container[Inputs]) -> list[Run]:
        """Return those of :attr:`runs` whose inputs are among ``inputs``."""
        return [run for (name, _), run in self._runs.items() if name in inputs]

    def eager(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return the run of the module itself on ``inputs``, in float64 if ``float64``; it is cached."""
        key = inputs, float64
        if key not in self._runs and inputs in self.steps:
            self.eager(0, float64)  # finds out whether casts must be replaced
            runs = (
                self.run_in_a_row(self.eager_runner(True), self.steps[-1], True)
                if float64
                else self._reference_steps[1]
            )
            self._runs.update({(name, float64): run for name, run in zip(self.steps, runs, strict=True)})
        if key not in self._runs:
            run = self._run_eager(inputs, float64)
            if run.error is not None and float64 and not self._float64_casts.needed:
                run = self._run_eager_with_casts(inputs) or run
            self._runs[key] = run
        return self._runs[key]

    def _run_eager(self, inputs: Inputs, float64: bool) -> Run:
        """Call the module; after the earlier calls of a row if one of these writes to its state."""
        calls = self.calls(inputs)
        alone = [self.eager(self.alone(each), float64) for each in calls] if len(calls) > 1 else []
        if alone and not any(run.writes for run in alone):
            return alone[-1]
        return self.run_in_a_row(self.eager_runner(float64), inputs, float64)[-1]

    def run_in_a_row(self, runner: Runner, inputs: Inputs, float64: bool = False) -> list[Run]:
        """Call a program on ``inputs``, after the earlier calls of their row; return one run for each call."""
        calls: list[Arguments | NextCall]
        if inputs in self.steps:
            count = len(self.calls(inputs))
            calls = [partial(self._step, number, float64=float64) for number in range(count)]
        else:
            calls = [self.arguments(each, float64) for each in self.calls(inputs)]
        with self._shared_draws() if float64 else nullcontext():
            return runner.in_a_row(calls, torch.float64 if float64 else self.dtype)

    @contextmanager
    def _shared_draws(self) -> Generator[None]:
        """Let float64 runs in the block draw the random numbers of the working dtype."""
        if self.is_float64 or not self.eager().draws:
            yield
            return
        with uncompiled(), SharedDraws(self.dtype):
            yield

    def _run_eager_with_casts(self, inputs: Inputs) -> Run | None:
        """Return the float64 run of the module with its casts replaced; None if that raises, too."""
        if self.is_float64 or self.eager(inputs).error is not None:
            return None
        self._float64_casts.needed = True
        run = self._run_eager(inputs, float64=True)
        self._float64_casts.needed = run.error is None
        return None if run.error is not None else run


def devices_of(module: nn.Module) -> list[torch.device]:
    """Return the devices of a module's parameters and buffers, in their order.

    >>> devices_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
    [device(type='cpu'), device(type='meta')]
    """
    return list(dict.fromkeys(tensor.device for tensor in tensors_of(module).values()))


def is_training(module: nn.Module) -> bool:
    """Return whether any part of a module is in training mode."""
    return any(part.training for part in module.modules())


def _share_tensors(module: nn.Module, other: nn.Module) -> bool:
    """Return whether two copies hold the same tensors."""
    tensors = ([*each.parameters(), *each.buffers()] for each in (module, other))
    return all(first is second for first, second in zip(*tensors, strict=True))


def in_mode(module: nn.Module, mode: str) -> nn.Module:
    """Put a module into ``"eval"`` or ``"train"`` mode with all its parts, unless it is in that already."""
    return module if module.training == (mode == "train") else module.train(mode == "train")


_LOWER_PRECISION = {torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex32}


def _input_sets_for(output: Any) -> int:
    """Return how many input sets give every floating-point output enough elements, within limits."""
    sizes = [leaf.numel() for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    smallest = min((size for size in sizes if size), default=ENOUGH_ELEMENTS)
    return min(MOST_INPUT_SETS, -(-ENOUGH_ELEMENTS // smallest))
