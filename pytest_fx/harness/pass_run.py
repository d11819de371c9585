"""A transform applied to a subject, and the runs of both: everything that laws check, computed on first use."""

from __future__ import annotations

import gc
import os
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch import nn

from fx import Graph, GraphModule, Node
from fx.analysis.kernel_calls import KernelMode
from fx.errors import FxError, PassError
from fx.interop.adapt import AdaptedPass, NoProgramError
from fx.interop.pass_library import is_for_ours
from fx.matcher.origins import record_origins
from fx.naming.printing import describe
from fx.operators.effects import effect_of
from fx.passes import Approximate, Contract, Pass, RewritingPass, close, contract_of, exact, pass_name
from fx.pipelines.pipeline import PassPipeline, program_in
from fx.pipelines.rewriting import make_edits
from fx.provenance import SourceLocation
from pytest_fx.forms import (
    ATEN,
    TO_TRY,
    ExportedSource,
    FormedPass,
    FormResult,
    Level,
    UnreadableResultError,
    called_as_module,
    form_names,
    is_guessed,
    is_unclear,
)
from pytest_fx.harness.evaluation import Arguments, default_dtype, same_random_numbers, threads
from pytest_fx.harness.layouts import compiled_anew, uncompiled
from pytest_fx.harness.metrics import Measured, MetricDrop
from pytest_fx.harness.output_contracts import OutputContract
from pytest_fx.harness.process import ProcessState, count_forks, has_children
from pytest_fx.harness.run import Run, Runner, hidden
from pytest_fx.harness.shared_weights import release
from pytest_fx.harness.snapshot import (
    ModuleSnapshot,
    held_by,
    memory_of,
    place_of,
    same_tensor,
    settings_of,
    tensors_of,
)
from pytest_fx.harness.subject import Inputs, Subject
from pytest_fx.processes.deadline import TookTooLong, Watchdog
from pytest_fx.runtimes import ConvertedProgram, ShippedModel, runtime_of

MARK = "kept by passes"
"""A key of ``node.meta`` that every node has before the pass, as if an analysis had written it."""
LARGEST_TIME = 10.0
"""Time limit of a pass on one random program, in seconds."""
LARGEST_PART = 0.25
"""Limit of a program's own memory while another exists in float64, as a part of the memory of a large model."""


@dataclass(frozen=True, slots=True)
class Before:
    """The captured program before the pass, which may edit it in place."""

    code: str
    """Its generated code."""
    layers: dict[str, tuple[Any, ...]]
    """The settings of its modules, by name."""
    nodes: dict[str, tuple[str, SourceLocation | None]]
    """Each node as printed, and its line in the user's code, by name."""
    inputs: tuple[tuple[str, str], ...]
    """The placeholders' targets with their defaults, written as Python."""
    module: ModuleSnapshot
    """The captured module."""
    constants: frozenset[str]
    """Names of tensors that the program has and the module has not, such as constants made in ``forward``."""
    has_checks: bool
    """True if the program has a check that may fail."""


class PassRun:
    """A pass applied to one capture of a subject, or a program that was made of the subject elsewhere.

    The pass is called once, and nobody changes its program afterwards. Laws read all of this.
    """

    pass_asked: Any = None
    """The pass as the user gave it, if its form was found by trial."""
    pass_: Any = None
    """The pass; None for a given program."""
    leaves = True
    """True if the program is captured with leaf modules."""
    seconds = LARGEST_TIME
    """Time limit of the pass, in seconds."""
    before: Before | None = None
    """The captured program before the pass; None for a given program."""
    result: Any = None
    """The value that the pass returned; the captured program if it returned None."""
    form_result: FormResult | None = None
    """The result if it is no program of ours, but that of a pass in another form, or some other callable."""
    not_judged: str | None = None
    """The reason why there is no verdict, although no fault of the pass is known."""
    edits: int | None = None
    """Number of edits that the pass made; None if it does not report them."""
    error: Exception | SystemExit | None = None
    """The exception that the pass raised, unless it was a refusal."""
    refusal: PassError | None = None
    """The :class:`~fx.errors.PassError` with which the pass refused the program."""
    too_long: TookTooLong | None = None
    """The error that interrupted the pass at its time limit."""
    damage: str | None = None
    """The changes that the pass made to the captured module, in words."""
    damage_beside_tensors: str | None = None
    """The same without changes of parameters and buffers."""
    looks_twice = True
    """True if a law that looks broken is judged again when eager may be to blame; False once another law is broken."""
    disturbed_by_pass = False
    """True if the pass itself changed process state, rather than a call of its program."""
    _held: Mapping[str, tuple[torch.Tensor, bool]] = MappingProxyType({})
    """The tensors, by name, of the module that a pass in another form was given, and whether they require gradients."""
    _watchdog: Watchdog | None = None
    _recording: Callable[[], AbstractContextManager[None]] = nullcontext
    kernel_mode: type[KernelMode] | None = None
    """The mode of PyTorch under which both programs run now; None for none."""
    _has_room = False

    def __init__(
        self,
        subject: Subject,
        pass_: Pass,
        *,
        contract: Contract | None = None,
        leaves: bool = True,
        label: str | None = None,
        input_set_count: int | None = None,
        watchdog: Watchdog | None = None,
        seconds: float = LARGEST_TIME,
        recording: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Apply ``pass_`` to a capture of ``subject``.

        Args:
            subject: the module.
            pass_: the pass.
            contract: the contract to check; None for that of the pass.
            leaves: whether the program is captured with leaf modules.
            label: the name of the pass in messages; None for its own name.
            input_set_count: number of input sets that the program is called with; None for that of the subject.
            watchdog: interrupts the pass at its time limit; None for no limit.
            seconds: the time limit.
            recording: makes a context in which the pass runs, to record something.

        Raises:
            TraceError: the module cannot be captured.
        """
        self._prepare(
            subject, pass_name(pass_) if label is None else label, contract or contract_of(pass_), input_set_count
        )
        self.pass_, self.leaves, self.seconds = pass_, leaves, seconds
        self._watchdog, self._recording = watchdog, recording
        self._apply_to_capture()

    @classmethod
    def given(
        cls,
        subject: Subject,
        program: nn.Module,
        contract: Contract = close,
        label: str = "",
        input_set_count: int | None = None,
    ) -> PassRun:
        """Judge ``program``, which was made of ``subject`` elsewhere; laws on graphs and passes do not apply to it."""
        pass_run = cls.__new__(cls)
        pass_run._prepare(subject, label or type(program).__name__, contract, input_set_count)
        pass_run.result = program
        pass_run._arrange(program)
        return pass_run

    def _arrange(self, program: nn.Module) -> None:
        """Let a converted model return outputs of the structure of eager's, and check that it is one of this model."""
        if isinstance(program, ConvertedProgram):
            arguments, eager = self.subject.arguments(), self.subject.eager()
            if eager.error is None:
                forward = self.subject.shared_copy().forward
                program.arrange_like(forward, arguments.args, arguments.kwargs, eager.output)

    def _prepare(self, subject: Subject, name: str, contract: Contract, input_set_count: int | None) -> None:
        self.subject = subject
        self.name = name
        self.contract = contract
        self.chosen_input_set_count = input_set_count
        """The number of input sets if it was set for this run."""
        self.disturbance: list[str] = []
        """The process state that it changed, in sentences; the state has been restored."""
        self.waivers: list[str] = []
        """Reasons why differences beyond the contract were accepted; they are part of the verdict."""
        self.not_asked: dict[str, str] = {}
        """Laws that could not be checked, wholly or on some inputs, each with the reason."""
        self.compared = 0
        """Number of elements compared with eager's so far; at 0 a verdict has no meaning."""
        self.metric_drop: MetricDrop | None = None
        """The drop of the metric, if the contract has one and it was measured."""
        self._cache: dict[Any, Any] = {}

    def _apply_to_capture(self) -> None:
        """Capture the module, call the pass, and record its damage to the module."""
        if isinstance(self.pass_, FormedPass):
            self._apply_in_form(self.pass_)
            return
        module = self.subject.shared_copy()
        captured = self.subject.capture(module, leaves=self.leaves, pass_=self.pass_)
        self.before = before = _before(captured, module, self.subject)
        self._apply(captured)
        self._note_damage(before.module, module)

    def _note_damage(self, before: ModuleSnapshot, module: nn.Module) -> None:
        """Record the changes that the pass made to the module of its program."""
        self.damage = before.damage(module)
        if self.damage is not None:
            self.damage_beside_tensors = before.damage(module, of_tensors=False)
            self.subject.reset()

    def _apply_in_form(self, pass_: FormedPass) -> None:
        """Give the pass the module as torch exports it, at each level of decomposition until it changes something.

        A level where it only removes dead code counts if it changes nothing else at any level.
        """
        source = self.subject.export_source()
        before = ModuleSnapshot.of(source.module, self.subject.tensors)
        first_error: Exception | SystemExit | None = None
        tidied: FormResult | None = None
        for level in pass_.levels:
            with default_dtype(self.subject.dtype), same_random_numbers(), threads(self.subject.threads):
                self.not_judged = pass_.form.why_not_given(source, level)
            was_called = self.form_result is not None or first_error is not None
            if self.not_judged is not None and level == pass_.form.fallback and was_called:
                self.not_judged = None
                break
            if self.not_judged is None:
                self.error = None
                self._call(partial(self._take_of_form, pass_, source, level))
            first_error = first_error or self.error
            if self.refusal or self.too_long or self.not_judged or (self.changed_in_form and not self.only_tidied):
                break
            tidied = tidied or (self.form_result if self.only_tidied else None)
        is_tidied = self.only_tidied or not self.changed_in_form
        if tidied is not None and is_tidied and not (self.refusal or self.too_long):
            self.form_result, self.result, self.not_judged = tidied, tidied.program, None
        self.error = None if self.changed_in_form else first_error
        self._held = before.tensors
        self._note_damage(before, source.module)

    def at_each_level(self) -> Generator[PassRun]:
        """Yield this run, and then one for each later level of the exported program at which the pass acts.

        Levels with the same graph count as one. Errors and refusals at a later level do not count: the pass fits the
        level at which it acts first.
        """
        yield self
        pass_, result = self.pass_, self.form_result
        if not isinstance(pass_, FormedPass) or result is None or result.level is None or not result.changed:
            return
        earlier: list[Level] = [result.level]
        for level in pass_.later_levels(result.level):
            run = self.once(("at", level), partial(self._at_level, pass_, level, tuple(earlier)))
            earlier.append(level)
            if run is not None:
                yield run

    def _at_level(self, pass_: FormedPass, level: Level, earlier: tuple[Level, ...]) -> PassRun | None:
        """Apply the pass at another level, unless the graph there is that of an earlier one. None if it does not act.

        Its contract and names are those of this run.
        """
        source = self.subject.export_source()
        with default_dtype(self.subject.dtype), same_random_numbers(), threads(self.subject.threads):
            if pass_.form.why_not_given(source, level) is not None or any(
                source.is_alike(level, each) for each in earlier
            ):
                return None
        run = PassRun(
            self.subject,
            pass_.at(level),
            contract=self.contract,
            label=self.name,
            input_set_count=self.chosen_input_set_count,
            watchdog=self._watchdog,
            seconds=self.seconds,
        )
        if not run.changed_in_form or run.not_judged is not None or run.only_tidied > self.only_tidied:
            return None
        return run

    def _take_of_form(self, pass_: FormedPass, source: ExportedSource, level: Level) -> None:
        with self._recording():
            result = pass_.applied(source, level)
        self._arrange(result.program)
        self.form_result, self.result = result, result.program

    @property
    def changed_in_form(self) -> bool:
        """True if a pass in another form changed its program."""
        return self.form_result is not None and self.form_result.changed

    @property
    def only_tidied(self) -> bool:
        """True if a pass in another form only removed dead code."""
        return self.form_result is not None and self.form_result.is_tidied

    def make_room(self) -> None:
        """If the program of a large model has much memory of its own, compute float64 results and run the pass again.

        Memory has no room for the program and a float64 model at once. The first program has not been judged.
        """
        if not self.subject.is_large or self._has_room or not self._is_heavy():
            return
        self.result, self.edits = None, None
        self._cache.clear()
        self._collect()
        self._compute_in_float64()
        self._has_room = True
        self._apply_to_capture()

    def _is_heavy(self) -> bool:
        """Return whether the pass made a program with much memory of its own."""
        after, shared_weights = self.after, self.subject.shared_weights()
        if after is None or self.damage is not None or not self.changed:
            return False
        shared = {memory_of(weight.tensor) for weight in shared_weights.values()}
        own = {memory_of(tensor): tensor.numel() * tensor.element_size() for tensor in held_by(after)}
        size = sum(weight.tensor.nbytes for weight in shared_weights.values())
        return sum(own[memory] for memory in own.keys() - shared) > LARGEST_PART * size

    def _compute_in_float64(self) -> None:
        """Run both programs in float64, and free their float64 versions.

        These runs show how large rounding errors are; further inputs are seldom run in float64.
        """
        subject = self.subject
        if subject.is_float64 or not subject.has_inputs:
            return
        inputs = range(subject.float64_input_set_count)
        with subject.set_aside():
            for each in inputs:
                subject.eager(each, float64=True)
            if not isinstance(self.contract, (Approximate, OutputContract, Measured)) and self.has_float64:
                for each in inputs:
                    self.actual(each, float64=True)
            subject.claim_float64(None)

    def _apply(self, captured: GraphModule) -> None:
        """Call the pass on the captured program, and record its result."""

        def call() -> None:
            pass_ = with_data(self.pass_, lambda: self.subject.data(self.subject.dtype))
            with self._recording():
                result, self.edits = _call_pass(pass_, captured)
            self._take(captured if result is None else result)

        self._call(call)

    def _take(self, result: Any) -> None:
        """Record the result of a pass. A callable that is no program of ours is judged by its outputs."""
        self.result = result
        if isinstance(result, (GraphModule, type)) or (_is_data(result) and runtime_of(result) is None):
            return
        try:
            program = called_as_module(result)
            self._arrange(program)
            self.form_result = FormResult(program)
            self._held, self.before = ({} if self.before is None else self.before.module.tensors), None
        except UnreadableResultError as error:
            self.not_judged = str(error)

    def _call(self, call: Callable[[], None]) -> None:
        """Call the pass by ``call`` within its time limit, and record its exception."""
        subject = self.subject
        try:
            with (
                default_dtype(subject.dtype),
                threads(subject.threads),
                self.watched(),  # inside the blocks that restore the dtype and the threads
                self._limit(),
                warnings.catch_warnings(),
            ):
                call()
            self._collect()
        except TookTooLong as error:
            self.too_long = error
        except NoProgramError as error:
            self._take(error.returned)
            if self.form_result is None and self.not_judged is None:
                self.error = error
        except UnreadableResultError as error:
            self.not_judged = str(error)
        except PassError as error:
            if _is_refusal(self.pass_, error):
                self.refusal = error
            else:
                self.error = error
        except (Exception, SystemExit) as error:  # sys.exit() in a pass must not end pytest
            self.error = error

    @contextmanager
    def watched(self, *, calls: bool = False) -> Generator[None]:
        """Record the process state that the pass changes in the block, and restore it. A forked child ends here.

        With ``calls`` the block is a call of the program.
        """
        before, process = ProcessState.now(), os.getpid()
        forked, had_children = count_forks(), has_children()
        try:
            yield
        finally:
            if os.getpid() != process:
                os._exit(1)
            changes = before.changes()
            if changes:
                before.put_back()
            if count_forks() != forked and has_children() and not had_children:
                changes.append("a child process, forked by os.fork, was left behind")
            if changes and not (calls and self.disturbance):
                self.disturbance, self.disturbed_by_pass = changes, not calls

    @property
    def input_set_count(self) -> int:
        """The number of input sets that the program is called with."""
        chosen = self.chosen_input_set_count
        return self.subject.input_set_count if chosen is None else chosen

    @property
    def mode(self) -> str:
        """``"eval"`` or ``"train"``."""
        return self.subject.mode

    @property
    def is_given(self) -> bool:
        """True if the program was made elsewhere, by an unknown pass."""
        return self.pass_ is None

    @property
    def is_made_elsewhere(self) -> bool:
        """True if no pass of this run made the program: it is given, or a file in the place of a pass."""
        return self.is_given or (isinstance(self.pass_, FormedPass) and isinstance(self.pass_.pass_, ShippedModel))

    @property
    def is_in_form(self) -> bool:
        """True if the pass takes or makes programs of another form than ours."""
        return self.form_result is not None or isinstance(self.pass_, FormedPass)

    @property
    def is_converted(self) -> bool:
        """True if the program is run by another runtime, in memory of its own and without gradients."""
        return isinstance(self.program, ConvertedProgram)

    @property
    def program(self) -> nn.Module | None:
        """The program to run, made by the pass or given; None if the pass made none."""
        if self.form_result is not None:
            return self.form_result.program
        return self.after if self.before is not None else self.result

    @property
    def after(self) -> GraphModule | None:
        """The program of ours that the pass made; None if it made none."""
        return self.result if isinstance(self.result, GraphModule) else None

    @property
    def graph_program(self) -> GraphModule | torch.fx.GraphModule | None:
        """The program that the pass made if it has a graph, ours or torch's; otherwise None."""
        if self.form_result is not None:
            program = self.form_result.program
            return program if isinstance(program, torch.fx.GraphModule) else None
        return self.after

    @property
    def changed(self) -> bool:
        """True if the pass changed the code of the program, its modules, or the values of its tensors."""
        return self.once("changed", self._is_changed)

    def left_the_same_as(self, other: PassRun) -> bool:
        """Return whether another pass left the same program: its code, the settings of its modules, and its tensors."""
        after, beside = self.after, other.after
        if after is None or beside is None or self.written != other.written or _layers(after) != _layers(beside):
            return False
        tensors, others = tensors_of(after), tensors_of(beside)
        return tensors.keys() == others.keys() and all(
            same_tensor(tensor, others[name]) and tensor.requires_grad == others[name].requires_grad
            for name, tensor in tensors.items()
        )

    @property
    def written(self) -> str:
        """The code generated from the graph that the pass left, even if the program runs other code."""
        after = self.after
        assert after is not None, "the pass made no program"
        return self.once("written", lambda: after.graph.python_code("self").src)

    def waive(self, reason: str) -> None:
        """Record the reason for accepting a difference beyond the contract."""
        if reason not in self.waivers:
            self.waivers.append(reason)

    @contextmanager
    def promising(self, contract: Contract) -> Generator[None]:
        """Judge by ``contract`` inside the block."""
        before, self.contract = self.contract, contract
        try:
            yield
        finally:
            self.contract = before

    def leave_out(self, law: str, reason: str) -> None:
        """Record the reason for not checking a law, wholly or on some inputs."""
        self.not_asked.setdefault(law, reason)

    def _is_changed(self) -> bool:
        after, before = self.after, self.before
        if self.is_in_form:
            return self.changed_in_form
        if before is None:
            return True
        if after is None:
            return False
        if self.written != before.code or _layers(after) != before.layers:
            return True
        tensors, values = before.module.tensors, before.module.values
        return _ties(after, tensors) or any(
            name not in tensors
            or not ((tensor is tensors[name][0] and self.damage is None) or same_tensor(tensor, values[name]))
            or tensor.requires_grad != tensors[name][1]
            for name, tensor in tensors_of(after).items()
            if name not in before.constants
        )

    # Runs of both programs.

    def eager(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return the run of the module itself on ``inputs``, in float64 if ``float64``."""
        if self.kernel_mode is None:
            return self.subject.eager(inputs, float64)
        run = lambda: self.subject.run_in_a_row(self.subject.eager_runner(float64), inputs, float64)[-1]  # noqa: E731
        return self.once(("eager", inputs, float64, self.kernel_mode), run)

    def actual(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return the run of the transformed program on ``inputs``, in float64 if ``float64``."""
        key = "actual", inputs, float64, self.kernel_mode
        if key not in self._cache:
            # All calls of a row at once, since the last one usually serves as the run of another input set.
            with_later = inputs in (0, 1) and not float64 and self.kernel_mode is None and bool(self.later_calls)
            steps = self.subject.steps
            last = self.later_calls[-1] if with_later else steps[-1] if inputs in steps else inputs
            runs = dict(zip(self.subject.calls(last), self._run(last, float64), strict=True))
            if last != inputs and not any(run.writes for run in runs.values()):
                runs.setdefault(self.subject.alone(last), runs[last])
            self._cache.update({("actual", name, float64, self.kernel_mode): run for name, run in runs.items()})
            if key not in self._cache:
                self._cache[key] = self._run(inputs, float64)[-1]
        return self._cache[key]

    @property
    def later_calls(self) -> tuple[str, ...]:
        """The calls of a row after the first, without a reset in between; none if input sets are limited for cost."""
        is_limited = self.chosen_input_set_count is not None and (self.before is None or self.subject.is_full_size)
        return () if is_limited else self.subject.later_calls

    def _run(self, inputs: Inputs, float64: bool) -> list[Run]:
        """Call the transformed program; watch process state, and hide eager's outputs from it."""
        calls = self.subject.calls(inputs)
        names = {*calls, *map(self.subject.alone, calls)}
        eager = [run for key, run in self._cache.items() if isinstance(key, tuple) and key[0] == "eager"]
        runner = self.runner(float64)
        with hidden([*self.subject.runs_with(names), *eager]), self.watched(calls=True), compiled_anew():
            return self.subject.run_in_a_row(runner, inputs, float64)

    def runner(self, float64: bool = False) -> Runner:
        """Return the runner of the transformed program."""
        program = self.after_float64 if float64 else self.program
        assert program is not None, "there is no such program"
        return self.once(("runner", float64), lambda: self.subject.runner(program, float64=float64))

    @property
    def has_float64(self) -> bool:
        """True if the module runs in float64 as well, and the pass makes a program of it there."""
        is_formed = isinstance(self.pass_, FormedPass)
        if self.subject.is_float64 or self.is_converted or (self.before is None and not is_formed):
            return False
        if self.subject.eager(0, True).error is not None or (is_formed and not self.subject.computes_in_float64):
            return False
        return self.once("has float64", lambda: self.after_float64 is not None)

    @property
    def after_float64(self) -> nn.Module | None:
        """The program that the pass makes in float64; None if it makes none, or if the subject is in float64 itself.

        For a large model it is freed when another float64 model is needed, and made again on the next use.
        """
        if self.subject.is_float64 or self.is_converted:
            return None
        if self.before is None and not isinstance(self.pass_, FormedPass):
            return None
        return self._once_in_float64("after in float64", self._transformed_in_float64)

    def to_perturb(self, float64: bool) -> GraphModule:
        """Return a capture of the module without the pass, to run with perturbed rounding."""
        if not float64:
            return self.once("to perturb", self.capture)
        return self._once_in_float64("to perturb in float64", lambda: self.capture(float64=True))

    def _once_in_float64(self, key: str, make: Callable[[], nn.Module | None]) -> Any:
        if key not in self._cache:
            if self.subject.is_large:
                self.let_go_of_float64()
            self.subject.claim_float64(self.let_go_of_float64)
            self._cache[key] = make()
            self.subject.claim_float64(self.let_go_of_float64)  # including tensors shared while making it
        return self._cache[key]

    def forget_float64(self) -> None:
        """Judge without a float64 version of the program, because the capture in float64 is a different program."""
        self.let_go_of_float64()
        self._cache.update({"after in float64": None, "has float64": False})

    def let_go_of_float64(self) -> None:
        """Free the programs in float64; they are made again when needed."""
        self._cache.pop(("runner", True), None)
        for key in ("after in float64", "to perturb in float64"):
            if (program := self._cache.get(key)) is not None:
                del self._cache[key]
                if self.subject.is_large and program is not self.result:  # a pass with a cache may return it again
                    release(program)  # frees its tensors even if a running call still refers to it
                del program
                self._collect()

    def close(self) -> None:
        """Free the programs, unless others refer to them: a pass may keep its program.

        The model's findings keep whether the pass changed it, see :func:`changes`.
        """
        self.let_go_of_float64()
        if "changed" in self._cache:
            self.subject.findings["changes", id(self.pass_), self.leaves] = self.pass_, self.changed
        self._cache.clear()
        self.result = None
        self._collect()

    def _transformed_in_float64(self) -> nn.Module | None:
        subject = self.subject
        try:
            if isinstance(self.pass_, FormedPass):
                return self._transformed_in_form(self.pass_)
            # Nothing else refers to the tensors of this copy: those that the pass replaces are freed at once.
            module = (lambda: subject.fresh(torch.float64)) if subject.is_large else lambda: subject.shared_copy(True)
            captured = subject.capture(module(), leaves=self.leaves, float64=True, pass_=self.pass_)
            return self._transformed(captured, torch.float64)
        except (Exception, TookTooLong):
            return None
        finally:
            if self.damage is not None:  # a pass that writes to the module does so in both dtypes
                subject.reset()

    def _transformed_in_form(self, pass_: FormedPass) -> nn.Module | None:
        """Return the float64 result of a pass in another form, at the level that it changed in the working dtype."""
        source, subject = self.subject.export_source(True), self.subject
        level = pass_.levels[-1] if self.form_result is None else self.form_result.level or pass_.levels[-1]
        with default_dtype(torch.float64), same_random_numbers(), threads(subject.threads):
            if pass_.form.why_not_given(source, level) is not None:
                return None
            with self.watched(), self._limit():
                return pass_.applied(source, level).program

    def apply_again(self) -> None:
        """Apply the pass to another copy of its program, and raise its error."""
        if not isinstance(self.pass_, FormedPass):
            self.transform(self.subject.shared_copy())
            return
        source, subject = self.subject.export_source(), self.subject
        level = None if self.form_result is None else self.form_result.level
        with default_dtype(subject.dtype), threads(subject.threads), self.watched(), self._limit():
            self.pass_.applied(source, level or self.pass_.levels[0])

    def transform(self, module: nn.Module) -> GraphModule | None:
        """Return the program that the pass makes of ``module``, or None if it makes none; raise what it raises."""
        captured = self.subject.capture(module, leaves=self.leaves, pass_=self.pass_)
        return self._transformed(captured, self.subject.dtype)

    def _transformed(self, captured: GraphModule, dtype: torch.dtype) -> GraphModule | None:
        record_origins(captured.graph)
        self._collect()  # garbage of the capture
        with default_dtype(dtype), threads(self.subject.threads), self.watched(), self._limit():
            result, _ = _call_pass(with_data(self.pass_, lambda: self.subject.data(dtype)), captured)
        result = captured if result is None else result
        del captured
        self._collect()
        return result if isinstance(result, GraphModule) else None

    def _collect(self) -> None:
        """Collect the garbage of a pass on a large model."""
        if self.subject.is_large:
            gc.collect()

    def capture(self, float64: bool = False) -> GraphModule:
        """Return a new capture of the module without the pass."""
        module = self.subject.shared_copy(float64)
        return self.subject.capture(module, leaves=self.leaves, float64=float64, pass_=self.pass_)

    def untouched(self) -> PassRun:
        """Return a run with the same subject, in which no pass is applied to the capture."""
        options: dict[str, Any] = {"leaves": self.leaves, "input_set_count": self.chosen_input_set_count}
        return self.once("untouched", lambda: PassRun(self.subject, leave_alone, contract=exact, **options))

    def with_nothing_changed(self) -> PassRun:
        """Return a run with the same subject and an identity pass of the same form, to which all laws apply."""
        form_pass = self.pass_
        if not isinstance(form_pass, FormedPass):
            return self.untouched()

        def apply() -> PassRun:
            level = None if self.form_result is None else self.form_result.level
            run = PassRun(
                self.subject,
                form_pass.untouched(level),
                contract=self.contract,
                input_set_count=self.chosen_input_set_count,
            )
            run._cache["changed"] = True
            return run

        return self.once("with nothing changed", apply)

    @contextmanager
    def under(self, mode: type[KernelMode]) -> Generator[None]:
        """Run both programs again in the block, without a compiler and under a mode of PyTorch."""
        self.kernel_mode = mode
        try:
            with uncompiled(), mode():
                yield
        finally:
            self.kernel_mode = None

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return the result of ``compute``, which is cached under ``key``."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def names(self) -> dict[str, str]:
        """The name in the captured module of each parameter and buffer of the program, by the name in the program."""
        return self.once("names", self._names)

    def _names(self) -> dict[str, str]:
        assert self.program is not None, "the pass made no program"
        tensors = self._held if self.before is None else self.before.module.tensors
        original_names = {id(tensor): name for name, (tensor, _) in tensors.items()}
        return {name: original_names.get(id(tensor), name) for name, tensor in tensors_of(self.program).items()}

    def _limit(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watchdog is None else self._watchdog.limit(self.seconds, computing=True)


def applied(subject: Subject, pass_: Pass, *, leaves: bool = True) -> PassRun:
    """Return ``pass_`` applied to ``subject``: read and call it, but never change it, since the latest run is cached.

    For a small model, the latest runs with leaf modules and without are both cached.
    """
    key = "pass_run", leaves or subject.is_large
    cached: PassRun | None = subject.findings.get(key)
    if cached is None or (cached.pass_ is not pass_ and cached.pass_asked is not pass_) or cached.leaves != leaves:
        if cached is not None:
            del subject.findings[key]  # two programs need not exist at once
            cached.close()
        cached = subject.findings[key] = in_fitting_form(PassRun(subject, pass_, leaves=leaves))
    return cached


def in_fitting_form(pass_run: PassRun) -> PassRun:
    """Return a run of the pass in the form that it expects, if it fails on our programs and declares no form.

    Other forms are tried if the pass raises a type or attribute error, or fails inside torch. A form fits if the pass
    raises nothing and changes the program; after a missing attribute of our program, it need only raise nothing. A pass
    that misses an attribute in every form expects an unknown form, and is not judged. A pass for ``torch.fx`` that
    names no operation, and changes nothing, may be for ATen.
    """
    error, pass_ = pass_run.error, pass_run.pass_
    asks_program = isinstance(getattr(error, "obj", None), (GraphModule, torch.fx.GraphModule))
    is_about_classes = isinstance(error, (TypeError, AttributeError)) or (error is not None and _is_of_torch(error))
    if error is None and not pass_run.changed and isinstance(pass_, AdaptedPass) and is_unclear(pass_.pass_):
        run = PassRun(pass_run.subject, FormedPass(pass_.pass_, ATEN), leaves=pass_run.leaves)
        if run.error is None and run.changed:
            run.pass_asked = pass_
            return run
        return pass_run
    own = pass_.pass_ if isinstance(pass_, FormedPass) and is_guessed(pass_) else pass_
    if not is_about_classes or isinstance(own, (AdaptedPass, FormedPass, PassPipeline)) or is_for_ours(own):
        return pass_run
    tried: list[str] = []
    for form in TO_TRY:
        run = PassRun(pass_run.subject, FormedPass(own, form), leaves=pass_run.leaves)
        if run.error is None and run.program is not None and (run.changed or asks_program):
            run.pass_asked = pass_
            return run
        tried.append(form.name)
        asks_program = asks_program and isinstance(run.error, AttributeError)
    if asks_program:
        pass_run.not_judged = (
            f"it fails in all forms that were tried (fx: {type(error).__name__}: {error}; {', '.join(tried)}); "
            f"set its form with --fx-form: {', '.join(form_names())}"
        )
        pass_run.error = None
    return pass_run


def _is_of_torch(error: BaseException) -> bool:
    """Return whether an exception was raised in torch's own code."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Path(frames[-1]).is_relative_to(Path(torch.__file__).parent)


def changes(subject: Subject, pass_: Pass, *, leaves: bool = True) -> bool:
    """Return whether ``pass_`` changes the program captured of ``subject``; a cached answer saves another run of it."""
    cached = subject.findings.get(("changes", id(pass_), leaves))  # by identity: not every pass can be hashed
    return applied(subject, pass_, leaves=leaves).changed if cached is None else cached[1]


def _call_pass(pass_: Any, program: GraphModule) -> tuple[Any, int | None]:
    """Call the pass; return its result, of any type, and the number of its edits, or None if it reports none."""
    if type(pass_) is PassPipeline:
        ran = pass_.run(program)
        return ran.graph_module, sum(len(report.edits) for report in ran.reports)
    if isinstance(pass_, RewritingPass) and type(pass_).__call__ is RewritingPass.__call__:
        return program, len(make_edits(pass_, program))
    return program_in(pass_(program)), None


def with_data(pass_: Any, calls: Callable[[], Sequence[Arguments]]) -> Any:
    """Return the pass with the arguments of ``calls`` as data, if it or a part of its pipeline has ``with_data``."""
    if isinstance(pass_, PassPipeline):
        return PassPipeline([with_data(part, calls) for part in pass_.passes], pass_.listeners, pass_.name)
    if isinstance(pass_, type) or not hasattr(pass_, "with_data"):
        return pass_
    return pass_.with_data([(arguments.args, arguments.kwargs) for arguments in calls()])


def parts_of(pass_: Any) -> tuple[Any, ...]:
    """Return the passes of a pipeline, or a pass alone."""
    return pass_.passes if isinstance(pass_, PassPipeline) else (pass_,)


def may_change(pass_: Pass) -> set[str]:
    """Return the properties that a pass, or one of a pipeline, changes on purpose."""
    return {name for part in parts_of(pass_) for name in getattr(part, "may_change", ())}


def inputs_of(program: GraphModule) -> tuple[tuple[str, str], ...]:
    """Return the targets of the placeholders with their defaults, written as Python."""
    placeholders: list[Node] = program.graph.find_nodes(op="placeholder")
    return tuple((str(node.target), ", ".join(map(repr, node.args))) for node in placeholders)


def _is_refusal(pass_: Pass, error: PassError) -> bool:
    """Return whether ``error`` is a refusal by the pass; a pipeline also raises it if one of its passes failed."""
    if isinstance(pass_, PassPipeline):
        return isinstance(error.__cause__, PassError)
    return error.__cause__ is None or isinstance(error.__cause__, FxError)


def _is_data(result: Any) -> bool:
    """Return whether the result of a pass is plain data or a graph: a mistake, and not another form of program."""
    is_builtin = type(result).__module__ == "builtins" and not callable(result)
    return is_builtin or isinstance(result, (Graph, torch.fx.Graph))


def _before(captured: GraphModule, module: nn.Module, subject: Subject) -> Before:
    record_origins(captured.graph)
    for node in captured.graph.nodes:
        node.meta[MARK] = node.name
    return Before(
        captured.code,
        _layers(captured),
        {node.name: (describe(node), node.source) for node in captured.graph.nodes},
        inputs_of(captured),
        ModuleSnapshot.of(module, subject.tensors),
        frozenset(tensors_of(captured).keys() - tensors_of(module).keys()),
        any(map(_is_check, captured.graph.nodes)),
    )


def _is_check(node: Node) -> bool:
    effect = effect_of(node) if node.op == "call_function" and not node.users else None
    return effect is not None and effect.kind == "check"


def _layers(program: GraphModule) -> dict[str, tuple[Any, ...]]:
    """Return the settings of the modules in a program, and of the program itself only the mode."""
    return {**settings_of(program), "": (program.training,)}


def _ties(program: GraphModule, held: Mapping[str, tuple[torch.Tensor, bool]]) -> bool:
    """Return whether two tensors of a program are the same, but those in ``held`` with their names are not."""
    first: dict[int, str] = {}
    for named in (program.named_parameters, program.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            other = first.setdefault(place_of(tensor), name) if name in held else name
            if other != name and place_of(held[other][0]) != place_of(held[name][0]):
                return True
    return False


def leave_alone(program: GraphModule) -> GraphModule:
    """Return ``program`` unchanged."""
    return program
