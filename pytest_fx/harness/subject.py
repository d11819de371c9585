"""What is judged: a module with its inputs, be it a model or a random program, and what it does when left alone."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from fx import GraphModule
from fx.errors import CaptureError, TraceError, add_note
from fx.interop.capturing import CaptureRecord
from fx.modules.kept_tensors import KeptTensor
from pytest_fx.forms import ExportedSource
from pytest_fx.harness.capture import USUAL, Captures, Tracing, capture_without_leaves, leave_out_caches
from pytest_fx.harness.evaluation import Arguments, converted, default_dtype, same_random_numbers, threads
from pytest_fx.harness.float64_casts import Float64Casts
from pytest_fx.harness.layouts import uncompiled
from pytest_fx.harness.run import Run, Runner
from pytest_fx.harness.shared_draws import SharedDraws
from pytest_fx.harness.shared_weights import FULL_SIZE, SharedWeights, in_dtype, release
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.variants import (
    AFTERWARDS,
    AGAIN,
    ONE_CHANGED,
    VARIANTS,
    batch_of,
    of_batch,
    with_batch,
    with_one_turned,
    with_other_size,
)

ENOUGH_ELEMENTS = 256
"""Elements of an output over which an error is taken: the largest of few is a matter of luck."""
FEWEST_INPUT_SETS = 2
"""Input sets that a model is called with at least: a program specialized to the values of one fails on another."""
MOST_INPUT_SETS = 8
"""Input sets that a model is called with at most, however few elements it returns."""
BATCHES_OF_LARGE = (1, 2)
"""Samples that a model of full size is called with besides its own: the first of these that it has inputs of."""
FIRST_OF_DATA = 1000
"""The first input set that is data for a pass: none that outputs are compared for."""
CALLS_OF_DATA = 32
"""How many input sets a pass gets."""

Inputs = int | str
"""Which inputs: the number of an input set, or the name of a variant of the first one
(:mod:`pytest_fx.harness.variants`).
"""


class ProgramSource(Protocol):
    """A program that stands for itself; :class:`pytest_fx.generation.Program` is one."""

    @property
    def source(self) -> str:
        """Text that defines ``build()`` and ``inputs()``."""
        ...

    @property
    def inputs(self) -> Arguments:
        """Return what it is called with."""
        ...

    def build(self) -> nn.Module:
        """Return a new module."""
        ...


@dataclass(frozen=True, slots=True)
class GivenProgram:
    """A program that somebody wrote."""

    build: Callable[[], nn.Module]
    """Makes the module."""
    inputs: Arguments
    """What it is called with."""
    source: str = ""
    """Its text, where that is known."""


class Subject:
    """A module under test with its inputs. It is never handed out, run or changed itself: :meth:`fresh` makes copies.

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
    ) -> None:
        """Take a copy of ``module``.

        Args:
            name: what to call it.
            module: the model.
            inputs: makes the n-th input set, the same one whenever it is asked for the same n.
            batch: samples in them, where that can be chosen.
            threads: how many PyTorch computes with; None for as many as it has.
            device: where it runs.
            working_dtype: of its floating-point tensors; None for its own.
            input_set_count: how many sets of inputs it is called with; None for as many as its outputs need.
            other_inputs: makes arguments with as many samples as asked for; None if they are made of ``inputs``.
            mode: ``"eval"``; or ``"train"``, where the parts of a module that is given so keep their modes.
            keeps_dtypes: whether it is called with inputs in the dtypes that they have, not in the working dtype.
            source: text that defines it, where it is a random program.
            inlines: whether it is known that it can be captured in functions only.
            tracing: how it is captured.
        """
        self.name = name
        self.batch = batch
        self.threads = threads
        self.device = torch.device(device)
        self.source = source
        self.inlines = inlines
        self.tracing = tracing
        self._keeps_dtypes = keeps_dtypes
        own = copy.deepcopy(module).to(self.device)
        if mode == "eval" or not is_training(own):
            own.train(mode == "train")
        self.mode = "train" if own.training else "eval"
        self._captures = Captures(leave_out_caches(own))
        self._sources: dict[bool, ExportedSource] = {}
        self._weights = SharedWeights(own if working_dtype is None else in_dtype(own, working_dtype))
        if working_dtype is not None:  # also where there are no tensors that say so
            self.__dict__["dtype"] = working_dtype
        self._inputs = inputs
        self._default_dtype = torch.get_default_dtype()
        self._input_set_count = input_set_count
        self._other_inputs = other_inputs
        self._runs: dict[tuple[Inputs, bool], Run] = {}
        self.findings: dict[Any, Any] = {}
        """What others found out about the model and keep with it, by keys of theirs."""
        self.reported: set[str] = set()
        """What a test has said of it, which is said once."""
        self.reported_failures: list[tuple[Any, Any]] = []
        """Passes that were found to be wrong on it, each with what is the same whenever the failure is."""
        self.wrong: dict[str, str] = {}
        """The law that a program made of it breaks, by the name of the program: it is not timed."""
        self.in_training: Subject | None = None
        """The same model in training mode, where it is judged in that, too."""

    @classmethod
    def of(cls, program: ProgramSource, mode: str = "eval") -> Subject:
        """A program that stands for itself, called with its one set of inputs in the dtypes that they have.

        If it is in the mode already its parts keep theirs, which may be others.
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
        )
        subject.__dict__["dtype"] = torch.get_default_dtype()
        subject._has_dtypes_of_its_own = True
        return subject

    _has_dtypes_of_its_own = False
    """Whether it has no working dtype beside those of its tensors."""

    def at(self, inputs: Inputs) -> Subject:
        """The same module, called with one variant of the inputs only."""
        self._float64_casts.needed  # noqa: B018 - shared by both, as what calls the module is
        other = copy.copy(self)
        for found in ("captured", "capture_error", "input_set_count", "float64_input_set_count", "later_calls"):
            vars(other).pop(found, None)
        other.in_training = None
        other.name = f"{self.name} on {inputs}" if isinstance(inputs, str) else self.name
        other._inputs, other._input_set_count, other._other_inputs = (
            lambda input_set: self._made(self.alone(inputs)),
            1,
            None,
        )
        other._runs, other.findings, other._sources = {}, {}, {}
        return other

    @property
    def has_inputs(self) -> bool:
        """Return whether the model can be called at all: a factory need not give example inputs."""
        return self._inputs is not None

    @property
    def state_names(self) -> list[str]:
        """Return what the parameters and buffers are called that are saved with it."""
        return list(self.shared_copy().state_dict())

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Equal to its parameters and buffers, by name: to be compared with, never to be changed."""
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
        """Return whether it is so large that it is held to what it can afford only."""
        inputs = self._made(0).tensors if self.has_inputs else []
        return sum(tensor.numel() for tensor in chain(self.tensors.values(), inputs)) >= FULL_SIZE

    @cached_property
    def is_float64(self) -> bool:
        """Return whether all that it computes with is in float64 already."""
        inputs = self._made(0).tensors if self.has_inputs and self._keeps_dtypes else []
        lower_precision = (
            tensor for tensor in chain(self.tensors.values(), inputs) if tensor.dtype in _LOWER_PRECISION
        )
        return next(lower_precision, None) is None and (self._has_dtypes_of_its_own or self.dtype == torch.float64)

    def fresh(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy of the module in its mode, its floating-point tensors in ``dtype`` if given."""
        return self._weights.deepcopy(None if dtype == self.dtype and not self._has_dtypes_of_its_own else dtype)

    def shared_copy(self, float64: bool = False) -> nn.Module:
        """Return a new copy that shares its tensors with others, in float64 if asked: to be captured and called.

        What a :class:`~.run.Runner` that gets :meth:`shared_weights` sees written to them is undone. Whoever else
        changes them says so: :meth:`reset`.
        """
        return self._weights.shared_copy(self._shared_dtype(float64))

    def shared_weights(self, float64: bool = False) -> dict[int, KeptTensor]:
        """Return the tensors that copies by :meth:`shared_copy` share, by identity, with what they hold."""
        return self._weights.shared_weights(self._shared_dtype(float64))

    def _shared_dtype(self, float64: bool) -> torch.dtype | None:
        return torch.float64 if float64 and (self.dtype != torch.float64 or self._keeps_dtypes) else None

    def reset(self) -> None:
        """Share other tensors from now on: somebody has changed those that are shared."""
        self._weights.reset()
        vars(self).pop("captured", None)

    def recover(self) -> None:
        """Share other tensors, and forget what shares those so far: an interrupted test has not restored them."""
        if self.in_training is not None:
            self.in_training.recover()
        self._let_go()
        self.reset()

    @property
    def is_large(self) -> bool:
        """Return whether there is so much of it that it is not copied where its tensors can be shared."""
        return self._weights.is_large

    def tidy_up(self) -> None:
        """Free what a test has made of a large model: programs, and what is in float64. Answers are kept."""
        if self.in_training is not None:
            self.in_training.tidy_up()
        if self.is_large:
            self._let_go()
            gc.collect()

    def _let_go(self) -> None:
        for key in [key for key, found in self.findings.items() if hasattr(found, "close")]:
            self.findings.pop(key).close()
        self._weights.claim_float64(None)

    def close(self) -> None:
        """Free all that was found out about it: it is no longer used."""
        if self.in_training is not None:
            self.in_training.close()
        self._let_go()
        if "captured" in vars(self):
            release(vars(self).pop("captured"))
        self._runs.clear()
        self._captures.close()
        self._sources.clear()
        self._weights.close()
        if self.is_large:
            gc.collect()  # what passes have dropped shares its tensors

    @contextmanager
    def to_be_timed(self) -> Generator[nn.Module]:
        """A copy for calls that are not watched, with tensors of its own, but for a large model."""
        if not self.is_large:
            yield self.fresh()
            return
        runner = self.runner(self.shared_copy())
        try:
            yield runner.program
        finally:
            runner.restore()

    def set_aside(self) -> AbstractContextManager[None]:
        """Free what is shared of a large model in the block; see :meth:`~.shared_weights.SharedWeights.set_aside`."""
        return self._weights.set_aside()

    def claim_float64(self, forget: Callable[[], None] | None) -> None:
        """Announce a model in float64; see :meth:`~.shared_weights.SharedWeights.claim_float64`."""
        self._weights.claim_float64(forget)

    def _made(self, inputs: Inputs) -> Arguments:
        """The arguments as they are made, on the device."""
        if self._inputs is None:
            raise LookupError(f"{self.name} has no example inputs: its factory should return (module, inputs)")
        found = self._find(inputs)
        if found is None:
            raise LookupError(f"{self.name} has no {inputs}")
        return found.map(lambda tensor: tensor.to(self.device))

    def _find(self, inputs: Inputs) -> Arguments | None:
        assert self._inputs is not None
        with default_dtype(self._default_dtype):  # another one would draw other numbers
            if isinstance(inputs, int):
                return self._inputs(inputs)
            size = batch_of(inputs)
            if size is None and inputs not in VARIANTS:
                return with_other_size(self._inputs(0), inputs) or with_one_turned(self._inputs(0), inputs)
            if size is None:
                return VARIANTS[inputs](self._inputs(0))
            if self._other_inputs is not None:
                return None if size == self.batch else self._other_inputs(size)
            return with_batch(self._inputs(0), size)

    def has(self, inputs: Inputs) -> bool:
        """Return whether there are such inputs."""
        if inputs in (AGAIN, AFTERWARDS):
            return inputs in self.later_calls
        return self._inputs is not None and (isinstance(inputs, int) or self._find(inputs) is not None)

    @property
    def of_another_size(self) -> str:
        """The inputs with another number of samples that a model of full size is called with, if it has such."""
        names = [of_batch(size) for size in BATCHES_OF_LARGE]
        return next(filter(self.has, names), names[0])

    @cached_property
    def later_calls(self) -> tuple[str, ...]:
        """The calls after the first one of a row, between which the state is not reset; fewer if inputs are missing."""
        return () if not self.has_inputs else (AGAIN, AFTERWARDS) if self.has(self.alone(AFTERWARDS)) else (AGAIN,)

    def calls(self, inputs: Inputs) -> list[Inputs]:
        """Return the inputs of all calls of a row up to ``inputs``, between which the state is not reset."""
        return {AGAIN: [0, AGAIN], AFTERWARDS: [0, AGAIN, AFTERWARDS]}.get(str(inputs), [inputs])

    def alone(self, inputs: Inputs) -> Inputs:
        """Return the same inputs for a call by itself, in place of a later call of a row."""
        if inputs == AFTERWARDS:
            return 1 if self.input_set_count > 1 else ONE_CHANGED
        return 0 if inputs == AGAIN else inputs

    def arguments(self, inputs: Inputs = 0, float64: bool = False) -> Arguments:
        """Return arguments of a call, other values for each input set, or raise ``LookupError`` if there are none."""
        made = self._made(self.alone(inputs))
        if float64:
            return made.map(lambda tensor: converted(tensor, torch.float64))
        return made if self._keeps_dtypes else made.map(lambda tensor: converted(tensor, self.dtype))

    def data(self, dtype: torch.dtype) -> list[Arguments]:
        """Arguments of calls that are not among those that outputs are compared for, for a pass that asks for data."""
        if not self.has_inputs:
            return []
        if self._input_set_count == 1:
            return [self.arguments().copies(dtype if dtype != self.dtype else None)]
        own = dtype if not self._keeps_dtypes or dtype != self.dtype else None
        return [self._made(FIRST_OF_DATA + number).copies(own) for number in range(CALLS_OF_DATA)]

    def capture(
        self, module: nn.Module | None = None, *, leaves: bool = True, float64: bool = False, pass_: Any = None
    ) -> GraphModule:
        """Return a new capture, of a fresh copy or of ``module``, for calls like those with the example inputs.

        Through ``torch.export`` it is in the form in which ``pass_`` knows operations. With ``leaves`` false it is in
        functions only, and ``TraceError`` is raised where a module branches on values.
        """
        dtype = torch.float64 if float64 else self.dtype
        arguments = self._made(0) if self.has_inputs else None
        casting = self._float64_casts if float64 else None
        if float64 and self.has_inputs and not self.is_large:
            self.eager(float64=True)  # which finds out what has to be cast
        # What is computed while capturing becomes a constant.
        __tracebackhide__ = True
        with default_dtype(dtype), same_random_numbers(), threads(self.threads):
            made = self.fresh(torch.float64 if float64 else None) if module is None else module
            try:
                with nullcontext() if casting is None else casting.block():
                    if leaves:
                        call = self.arguments(float64=float64) if self.has_inputs else None
                        program = self._captures.capture(made, call, self.tracing, pass_)
                    else:
                        program = capture_without_leaves(made, arguments, self.tracing)
                if casting is not None:
                    casting.rewrite(program)
                return program
            except TraceError as error:
                if isinstance(error, CaptureError):
                    error.__cause__ = None  # what torch.export says goes on for pages
                if self.tracing.how in ("auto", "symbolic"):
                    add_note(error, "  or     --fx-leaf PATH|CLASS makes a module a leaf, --fx-tracer brings a tracer")
                raise

    def export_source(self, float64: bool = False) -> ExportedSource:
        """Return the model as ``torch.export`` gives it, sharing tensors with :meth:`shared_copy`; in float64 if asked.

        It is exported once for as long as these tensors are shared, and where nobody asks for a program never.
        """
        known, shared = self._sources.get(float64), self.shared_copy(float64)
        if known is None or not _share_tensors(known.module, shared):
            call = self.arguments(float64=float64).copies()
            dtype = torch.float64 if float64 else self.dtype
            known = self._sources[float64] = ExportedSource(
                lambda: self.shared_copy(float64),
                (call.args, call.kwargs),
                lambda: [(arguments.args, arguments.kwargs) for arguments in self.data(dtype)],
            )
        return known

    @property
    def computes_in_float64(self) -> bool:
        """Return whether the model can be called in float64 as it is, with none of its own casts replaced."""
        return self.eager(0, True).error is None and not self._float64_casts.needed

    @property
    def capture_record(self) -> CaptureRecord:
        """The way in which the model was captured, and why those before it refused."""
        self.captured.graph  # noqa: B018 - found out by capturing
        assert self._captures.record is not None
        return self._captures.record

    @property
    def is_exported(self) -> bool:
        """Return whether the model came in through ``torch.export``."""
        return self.capture_error is None and self.capture_record.way == "export"

    @cached_property
    def input_set_count(self) -> int:
        """Return how many input sets the model is called with."""
        if self._input_set_count is not None:
            return self._input_set_count
        return max(FEWEST_INPUT_SETS, _input_sets_for(self.eager().output))

    @cached_property
    def float64_input_set_count(self) -> int:
        """With how many of them it is called in float64, too: as many as give every output enough elements."""
        return min(self.input_set_count, _input_sets_for(self.eager().output))

    @cached_property
    def captured(self) -> GraphModule:
        """One capture of the model that is kept: to be read and called by :meth:`runner`, never changed."""
        return self.capture(self.shared_copy())

    @cached_property
    def capture_error(self) -> Exception | None:
        """Return why the model cannot be captured, if it cannot."""
        try:
            self.captured.graph  # noqa: B018 - found out by capturing
        except Exception as error:  # whatever the model's code raises when it is given traced values
            return error
        return None

    def runner(self, program: nn.Module, call: Callable[..., Any] | None = None, *, float64: bool = False) -> Runner:
        """Return what calls a program that shares tensors with :meth:`shared_copy`, or ``call`` in its place."""
        return Runner(
            program, call, kept=self._weights.shared_so_far(self._shared_dtype(float64)), thread_count=self.threads
        )

    def eager_runner(self, float64: bool = False) -> Runner:
        """Return what calls the module itself, in float64 if asked."""

        def make() -> Runner:
            module = self.shared_copy(float64)
            return self.runner(module, self._float64_casts.call(module) if float64 else None, float64=float64)

        return self._weights.runner(self._shared_dtype(float64), make)

    @property
    def runs(self) -> list[Run]:
        """Return what :meth:`eager` has found out so far."""
        return list(self._runs.values())

    def runs_with(self, inputs: Container[Inputs]) -> list[Run]:
        """Return those of :attr:`runs` with some inputs."""
        return [run for (name, _), run in self._runs.items() if name in inputs]

    def eager(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return what the module itself does when it is called, in float64 if ``float64``; found out once."""
        key = inputs, float64
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
        """Call a program with ``inputs`` after the calls before these; return one run for each call."""
        arguments = [self.arguments(each, float64) for each in self.calls(inputs)]
        with self._shared_draws() if float64 else nullcontext():
            return runner.in_a_row(arguments, torch.float64 if float64 else self.dtype)

    @contextmanager
    def _shared_draws(self) -> Generator[None]:
        """Draw in the block, in float64, what is drawn in the working dtype."""
        if self.is_float64 or not self.eager().draws:
            yield
            return
        with uncompiled(), SharedDraws(self.dtype):
            yield

    def _run_eager_with_casts(self, inputs: Inputs) -> Run | None:
        """Return what the module does in float64 where its casts are to float64; None if it does not run so either."""
        if self.is_float64 or self.eager(inputs).error is not None:
            return None
        self._float64_casts.needed = True
        run = self._run_eager(inputs, float64=True)
        self._float64_casts.needed = run.error is None
        return None if run.error is not None else run


def is_training(module: nn.Module) -> bool:
    """Return whether any part of a module is in training mode."""
    return any(part.training for part in module.modules())


def _share_tensors(module: nn.Module, other: nn.Module) -> bool:
    """Return whether two copies hold the same tensors."""
    held = ([*each.parameters(), *each.buffers()] for each in (module, other))
    return all(one is another for one, another in zip(*held, strict=True))


def in_mode(module: nn.Module, mode: str) -> nn.Module:
    """Put a module into ``"eval"`` or ``"train"`` mode with all its parts, unless it is in that already."""
    return module if module.training == (mode == "train") else module.train(mode == "train")


_LOWER_PRECISION = {torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex32}


def _input_sets_for(output: Any) -> int:
    """Return how many input sets give every floating-point output enough elements, within limits."""
    sizes = [leaf.numel() for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    smallest = min((size for size in sizes if size), default=ENOUGH_ELEMENTS)
    return min(MOST_INPUT_SETS, -(-ENOUGH_ELEMENTS // smallest))
