"""A transform applied to a subject, and what both compute: all that laws are about, each worked out when asked."""

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
from fx.naming.printing import describe
from fx.operators.effects import effect_of
from fx.origins import record_origins
from fx.passes import Approximate, Contract, Pass, RewritingPass, close, contract_of, exact, pass_name
from fx.passes.infra.pass_base import program_in
from fx.passes.pipeline import PassPipeline
from fx.passes.rewriting import make_edits
from fx.provenance import SourceLocation
from pytest_fx.forms import (
    TO_TRY,
    ExportedSource,
    FormedPass,
    FormResult,
    Level,
    UnreadableResultError,
    called_as_module,
    form_names,
    is_guessed,
)
from pytest_fx.harness.evaluation import Arguments, default_dtype, same_random_numbers, threads
from pytest_fx.harness.layouts import compiled_anew, uncompiled
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

MARK = "kept by passes"
"""A key of ``node.meta`` that every node has before the pass, as if an analysis had written it."""
LARGEST_TIME = 10.0
"""Seconds that a pass may take on one random program."""
LARGEST_PART = 0.25
"""How much memory of its own, in parts of that of a large model, a program may have beside another in float64."""


@dataclass(frozen=True, slots=True)
class Before:
    """The captured program as it was before the pass, which may have edited it since."""

    code: str
    """Its generated code."""
    layers: dict[str, tuple[Any, ...]]
    """The settings of the modules that it calls."""
    nodes: dict[str, tuple[str, SourceLocation | None]]
    """Each node printed, and the user's line of it, by name."""
    inputs: tuple[tuple[str, str], ...]
    """The placeholders' targets with their defaults, written as Python."""
    module: ModuleSnapshot
    """The module that was captured."""
    constants: frozenset[str]
    """Tensors that the captured program holds beside those, such as ``forward`` makes."""
    has_checks: bool
    """Whether it checks anything that may not hold."""


class PassRun:
    """A pass applied to one capture of a subject, or a program that was made of the subject elsewhere.

    The pass is called once, and the program is left as it left it. Laws read all of this.
    """

    pass_asked: Any = None
    """The pass as it was asked for, where it was found by trying in which form it takes the model."""
    pass_: Any = None
    """The pass; None for a program that was given."""
    leaves = True
    """Whether the program is captured with leaf modules."""
    seconds = LARGEST_TIME
    """How long the pass may take."""
    before: Before | None = None
    """The captured program before the pass; None where one was given."""
    result: Any = None
    """Whatever the pass returned; the captured program if that was None."""
    form_result: FormResult | None = None
    """The same, where it is no program of ours: of a pass in another form, or something else that can be called."""
    not_judged: str | None = None
    """Why there can be no verdict, where nothing is wrong with the pass as far as is known."""
    edits: int | None = None
    """Edits that the pass made; None if it does not say which it makes."""
    error: Exception | SystemExit | None = None
    """What the pass raised, a refusal aside."""
    refusal: PassError | None = None
    """The :class:`~fx.errors.PassError` with which it refused the program."""
    too_long: TookTooLong | None = None
    """Where it was when its time was over."""
    damage: str | None = None
    """What it did to the module that was captured, in words."""
    damage_beside_tensors: str | None = None
    """The same without what it did to parameters and buffers."""
    looks_twice = True
    """Whether a law that looks broken is judged again where eager may be to blame: not once another one is broken."""
    disturbed_by_pass = False
    """Whether the pass disturbed the process, and not a call of what it made."""
    _held: Mapping[str, tuple[torch.Tensor, bool]] = MappingProxyType({})
    """The tensors of the module that a pass in another form was given, by name."""
    _watchdog: Watchdog | None = None
    _recording: Callable[[], AbstractContextManager[None]] = nullcontext
    _mode: type[KernelMode] | None = None
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
            contract: what the pass is held to; None for its own.
            leaves: whether the program is captured with leaf modules.
            label: what messages call the pass; None for its name.
            input_set_count: how many sets of inputs the program is called with; None for as many as the module is.
            watchdog: ends it when its time is over; None for no limit.
            seconds: how long it may take.
            recording: what notes something while it runs.

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
        """Take ``program``, which somebody made of ``subject``; laws on graphs and passes do not apply to it."""
        made = cls.__new__(cls)
        made._prepare(subject, label or type(program).__name__, contract, input_set_count)
        made.result = program
        return made

    def _prepare(self, subject: Subject, name: str, contract: Contract, input_set_count: int | None) -> None:
        self.subject = subject
        self.name = name
        self.contract = contract
        self._input_set_count = input_set_count
        self.disturbance: list[str] = []
        """What it changed of the process, in sentences; it is put back."""
        self.waivers: list[str] = []
        """Why differences beyond the contract were not held against it, in words; they belong to the verdict."""
        self.not_asked: dict[str, str] = {}
        """Laws that could not be asked, wholly or for some inputs, each with the reason."""
        self.compared = 0
        """Elements that were compared with eager's so far: without any, no verdict means anything."""
        self._cache: dict[Any, Any] = {}

    def _apply_to_capture(self) -> None:
        """Capture the module, call the pass, and look what it did to the module."""
        if isinstance(self.pass_, FormedPass):
            self._apply_in_form(self.pass_)
            return
        module = self.subject.shared_copy()
        captured = self.subject.capture(module, leaves=self.leaves, pass_=self.pass_)
        self.before = before = _before(captured, module, self.subject)
        self._apply(captured)
        self._note_damage(before.module, module)

    def _note_damage(self, before: ModuleSnapshot, module: nn.Module) -> None:
        """Find out what the pass did to the module that it was given a program of."""
        self.damage = before.damage(module)
        if self.damage is not None:
            self.damage_beside_tensors = before.damage(module, of_tensors=False)
            self.subject.reset()

    def _apply_in_form(self, pass_: FormedPass) -> None:
        """Give the pass what torch makes of the module, decomposed or not, until it changes something."""
        source = self.subject.export_source()
        before = ModuleSnapshot.of(source.module, self.subject.tensors)
        first_error: Exception | SystemExit | None = None
        for level in pass_.levels:
            with default_dtype(self.subject.dtype), same_random_numbers(), threads(self.subject.threads):
                self.not_judged = pass_.form.why_not_given(source, level)
            if self.not_judged is None:
                self.error = None
                self._call(partial(self._take_of_form, pass_, source, level))
            first_error = first_error or self.error
            if self.refusal or self.too_long or self.not_judged or self.changed_in_form:
                break
        self.error = None if self.changed_in_form else first_error
        self._held = before.tensors
        self._note_damage(before, source.module)

    def _take_of_form(self, pass_: FormedPass, source: ExportedSource, level: Level) -> None:
        with self._recording():
            self.form_result = pass_.applied(source, level)
        self.result = self.form_result.program

    @property
    def changed_in_form(self) -> bool:
        """Return whether a pass in another form changed what it was given."""
        return self.form_result is not None and self.form_result.changed

    def make_room(self) -> None:
        """Run the pass once more if it made much of a large model, after the calls in float64.

        There is no room for both at a time. The program that was there before has not been judged.
        """
        if not self.subject.is_large or self._has_room or not self._is_heavy():
            return
        self.result, self.edits = None, None
        self._cache.clear()
        self._collect()
        self._answer_in_float64()
        self._has_room = True
        self._apply_to_capture()

    def _is_heavy(self) -> bool:
        """Return whether the pass made a program with much memory of its own."""
        after, shared_weights = self.after, self.subject.shared_weights()
        if after is None or self.damage is not None or not self.changed:
            return False
        shared = {memory_of(kept.tensor) for kept in shared_weights.values()}
        own = {memory_of(tensor): tensor.numel() * tensor.element_size() for tensor in held_by(after)}
        size = sum(kept.tensor.nbytes for kept in shared_weights.values())
        return sum(own[memory] for memory in own.keys() - shared) > LARGEST_PART * size

    def _answer_in_float64(self) -> None:
        """Find out what both programs return in float64, and let go of these.

        That is what tells how large rounding errors are; other inputs are seldom looked at in float64.
        """
        subject = self.subject
        if subject.is_float64 or not subject.has_inputs:
            return
        inputs = range(subject.float64_input_set_count)
        with subject.set_aside():
            for each in inputs:
                subject.eager(each, float64=True)
            if not isinstance(self.contract, Approximate) and self.has_float64:
                for each in inputs:
                    self.actual(each, float64=True)
            subject.claim_float64(None)

    def _apply(self, captured: GraphModule) -> None:
        """Call the pass on what was captured, and keep what came of it."""

        def call() -> None:
            pass_ = with_data(self.pass_, lambda: self.subject.data(self.subject.dtype))
            with self._recording():
                result, self.edits = _called(pass_, captured)
            self._take(captured if result is None else result)

        self._call(call)

    def _take(self, result: Any) -> None:
        """Keep what a pass returned. What can be called, and is no program of ours, is judged by what it computes."""
        self.result = result
        if isinstance(result, (GraphModule, type)) or _is_data(result):
            return
        try:
            self.form_result = FormResult(called_as_module(result))
            self._held, self.before = ({} if self.before is None else self.before.module.tensors), None
        except UnreadableResultError as error:
            self.not_judged = str(error)

    def _call(self, call: Callable[[], None]) -> None:
        """Call the pass by ``call``, within its time, and keep what it raised."""
        subject = self.subject
        try:
            with (
                default_dtype(subject.dtype),
                threads(subject.threads),
                self.watched(),  # inside of what puts back the dtype and the threads
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
        except (Exception, SystemExit) as error:  # which sys.exit() raises: the end of the pass, not of pytest
            self.error = error

    @contextmanager
    def watched(self, *, calls: bool = False) -> Generator[None]:
        """Note what the pass changes of the process, and put it back. A copy of it that the pass has forked ends.

        With ``calls`` that is noted of a call of the program.
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
                changes.append("a copy of it, made by os.fork, was left behind")
            if changes and not (calls and self.disturbance):
                self.disturbance, self.disturbed_by_pass = changes, not calls

    @property
    def input_set_count(self) -> int:
        """Return how many sets of inputs the program is called with."""
        return self.subject.input_set_count if self._input_set_count is None else self._input_set_count

    @property
    def has_chosen_input_sets(self) -> bool:
        """Return whether somebody has said how many sets of inputs that are."""
        return self._input_set_count is not None

    @property
    def mode(self) -> str:
        """``"eval"`` or ``"train"``."""
        return self.subject.mode

    @property
    def is_given(self) -> bool:
        """Return whether the program was made elsewhere, by no pass that is known here."""
        return self.pass_ is None

    @property
    def is_in_form(self) -> bool:
        """Return whether the pass takes or makes programs that are none of ours."""
        return self.form_result is not None or isinstance(self.pass_, FormedPass)

    @property
    def program(self) -> nn.Module | None:
        """Return what is run: the program that the pass made, or that was given; None if the pass made none."""
        if self.form_result is not None:
            return self.form_result.program
        return self.after if self.before is not None else self.result

    @property
    def after(self) -> GraphModule | None:
        """Return what the pass made, or None if it made no program."""
        return self.result if isinstance(self.result, GraphModule) else None

    @property
    def graph_program(self) -> GraphModule | torch.fx.GraphModule | None:
        """Return what the pass made, where that has a graph; also one of torch."""
        if self.form_result is not None:
            program = self.form_result.program
            return program if isinstance(program, torch.fx.GraphModule) else None
        return self.after

    @property
    def changed(self) -> bool:
        """Return whether what the pass made is written otherwise, or holds other modules or values, than before."""
        return self.once("changed", self._is_changed)

    def left_the_same_as(self, other: PassRun) -> bool:
        """Return whether another pass left the same program: its code, its modules' settings, and its tensors."""
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
        """The code of the graph that the pass left, whether or not that is what the program runs."""
        after = self.after
        assert after is not None, "the pass made no program"
        return self.once("written", lambda: after.graph.python_code("self").src)

    def waive(self, reason: str) -> None:
        """Note why a difference beyond the contract is not held against the program."""
        if reason not in self.waivers:
            self.waivers.append(reason)

    def leave_out(self, law: str, reason: str) -> None:
        """Note why the program is not held to a law, or not on some inputs."""
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
        held, values = before.module.tensors, before.module.values
        return _ties(after, held) or any(
            name not in held
            or not ((tensor is held[name][0] and self.damage is None) or same_tensor(tensor, values[name]))
            or tensor.requires_grad != held[name][1]
            for name, tensor in tensors_of(after).items()
            if name not in before.constants
        )

    # What is computed.

    def eager(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return what the module itself does with its inputs, or a variant of them; in float64 if ``float64``."""
        if self._mode is None:
            return self.subject.eager(inputs, float64)
        run = lambda: self.subject.run_in_a_row(self.subject.eager_runner(float64), inputs, float64)[-1]  # noqa: E731
        return self.once(("eager", inputs, float64, self._mode), run)

    def actual(self, inputs: Inputs = 0, float64: bool = False) -> Run:
        """Return what the transformed program does with them."""
        key = "actual", inputs, float64, self._mode
        if key not in self._cache:
            # All calls in a row at once, since the last of them is that of another input set most often.
            with_later = inputs in (0, 1) and not float64 and self._mode is None and bool(self.later_calls)
            last = self.later_calls[-1] if with_later else inputs
            runs = dict(zip(self.subject.calls(last), self._run(last, float64), strict=True))
            if last != inputs and not any(run.writes for run in runs.values()):
                runs.setdefault(self.subject.alone(last), runs[last])
            self._cache.update({("actual", name, float64, self._mode): run for name, run in runs.items()})
            if key not in self._cache:
                self._cache[key] = self._run(inputs, float64)[-1]
        return self._cache[key]

    @property
    def later_calls(self) -> tuple[str, ...]:
        """The calls after the first one of a row without a reset; none if input sets are limited for cost."""
        is_limited = self.has_chosen_input_sets and (self.before is None or self.subject.is_full_size)
        return () if is_limited else self.subject.later_calls

    def _run(self, inputs: Inputs, float64: bool) -> list[Run]:
        """Call the transformed program, which is watched and finds no output of eager's."""
        calls = self.subject.calls(inputs)
        names = {*calls, *map(self.subject.alone, calls)}
        eager = [run for key, run in self._cache.items() if isinstance(key, tuple) and key[0] == "eager"]
        runner = self.runner(float64)
        with hidden([*self.subject.runs_with(names), *eager]), self.watched(calls=True), compiled_anew():
            return self.subject.run_in_a_row(runner, inputs, float64)

    def runner(self, float64: bool = False) -> Runner:
        """Return what calls the transformed program."""
        program = self.after_float64 if float64 else self.program
        assert program is not None, "asked for a program that there is not"
        return self.once(("runner", float64), lambda: self.subject.runner(program, float64=float64))

    @property
    def has_float64(self) -> bool:
        """Return whether there is another version of the program in float64, and of what the pass makes of it."""
        is_formed = isinstance(self.pass_, FormedPass)
        if self.subject.is_float64 or (self.before is None and not is_formed):
            return False
        if self.subject.eager(0, True).error is not None or (is_formed and not self.subject.computes_in_float64):
            return False
        return self.once("has float64", lambda: self.after_float64 is not None)

    @property
    def after_float64(self) -> nn.Module | None:
        """Return what the pass makes of the program in float64; None if nothing, or if the program is in float64.

        Of a large model it is there until something else is asked for in float64, and then made again.
        """
        if self.subject.is_float64 or (self.before is None and not isinstance(self.pass_, FormedPass)):
            return None
        return self._once_in_float64("after in float64", self._transformed_in_float64)

    def to_perturb(self, float64: bool) -> GraphModule:
        """A capture of the module that no pass has seen, to be run with other rounding errors."""
        if not float64:
            return self.once("to perturb", self.capture)
        return self._once_in_float64("to perturb in float64", lambda: self.capture(float64=True))

    def _once_in_float64(self, key: str, make: Callable[[], nn.Module | None]) -> Any:
        if key not in self._cache:
            if self.subject.is_large:
                self.let_go_of_float64()
            self.subject.claim_float64(self.let_go_of_float64)
            self._cache[key] = make()
            self.subject.claim_float64(self.let_go_of_float64)  # also what was shared while that was made
        return self._cache[key]

    def forget_float64(self) -> None:
        """Judge without what the pass makes of the program in float64, which is captured as another one there."""
        self.let_go_of_float64()
        self._cache.update({"after in float64": None, "has float64": False})

    def let_go_of_float64(self) -> None:
        """Free what the pass made of the program in float64; it is made again where it is needed."""
        self._cache.pop(("runner", True), None)
        for key in ("after in float64", "to perturb in float64"):
            if (program := self._cache.get(key)) is not None:
                del self._cache[key]
                if self.subject.is_large and program is not self.result:  # which a pass that remembers gave once more
                    release(program)  # whoever is just running it need not keep it
                del program
                self._collect()

    def close(self) -> None:
        """Free the programs that were made, unless somebody else has them: a pass may keep what it made.

        Whether the pass changed the model is kept with the model, see :func:`changes`.
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
            # Nobody else has the tensors of this copy: those that the pass replaces are free at once.
            module = (lambda: subject.fresh(torch.float64)) if subject.is_large else lambda: subject.shared_copy(True)
            captured = subject.capture(module(), leaves=self.leaves, float64=True, pass_=self.pass_)
            return self._transformed(captured, torch.float64)
        except (Exception, TookTooLong):
            return None
        finally:
            if self.damage is not None:  # what was written to in one dtype is so in the other
                subject.reset()

    def _transformed_in_form(self, pass_: FormedPass) -> nn.Module | None:
        """Return what a pass in another form makes in float64 of what it changed in the working dtype."""
        source, subject = self.subject.export_source(True), self.subject
        level = pass_.levels[-1] if self.form_result is None else self.form_result.level or pass_.levels[-1]
        with default_dtype(torch.float64), same_random_numbers(), threads(subject.threads):
            if pass_.form.why_not_given(source, level) is not None:
                return None
            with self.watched(), self._limit():
                return pass_.applied(source, level).program

    def transform(self, module: nn.Module, float64: bool = False) -> GraphModule | None:
        """Return what the pass makes of ``module``, None if that is not a program, or raise what the pass raises."""
        captured = self.subject.capture(module, leaves=self.leaves, float64=float64, pass_=self.pass_)
        return self._transformed(captured, torch.float64 if float64 else self.subject.dtype)

    def _transformed(self, captured: GraphModule, dtype: torch.dtype) -> GraphModule | None:
        record_origins(captured.graph)
        self._collect()  # what the capture has left
        with default_dtype(dtype), threads(self.subject.threads), self.watched(), self._limit():
            result, _ = _called(with_data(self.pass_, lambda: self.subject.data(dtype)), captured)
        result = captured if result is None else result
        del captured
        self._collect()
        return result if isinstance(result, GraphModule) else None

    def _collect(self) -> None:
        """Free what the pass has dropped, where that is much."""
        if self.subject.is_large:
            gc.collect()

    def capture(self, float64: bool = False) -> GraphModule:
        """Return a new capture of the module that no pass has seen."""
        module = self.subject.shared_copy(float64)
        return self.subject.capture(module, leaves=self.leaves, float64=float64, pass_=self.pass_)

    def untouched(self) -> PassRun:
        """The same subject with no pass applied to its capture."""
        how: dict[str, Any] = {"leaves": self.leaves, "input_set_count": self._input_set_count}
        return self.once("untouched", lambda: PassRun(self.subject, leave_alone, contract=exact, **how))

    def with_nothing_changed(self) -> PassRun:
        """The same subject with a pass in the form of this one that changes nothing: all laws are asked of that."""
        form_pass = self.pass_
        if not isinstance(form_pass, FormedPass):
            return self.untouched()

        def apply() -> PassRun:
            level = None if self.form_result is None else self.form_result.level
            run = PassRun(
                self.subject,
                form_pass.untouched(level),
                contract=self.contract,
                input_set_count=self._input_set_count,
            )
            run._cache["changed"] = True
            return run

        return self.once("with nothing changed", apply)

    @contextmanager
    def under(self, mode: type[KernelMode]) -> Generator[None]:
        """Run both programs anew in the block, without a compiler and under a mode of PyTorch's."""
        self._mode = mode
        try:
            with uncompiled(), mode():
                yield
        finally:
            self._mode = None

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return what ``compute`` returns, which is found out once for a key."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def names(self) -> dict[str, str]:
        """The name in the captured module of each parameter and buffer of the program, wherever the pass put it."""
        return self.once("names", self._names)

    def _names(self) -> dict[str, str]:
        assert self.program is not None, "the pass made no program"
        held = self._held if self.before is None else self.before.module.tensors
        known = {id(tensor): name for name, (tensor, _) in held.items()}
        return {name: known.get(id(tensor), name) for name, tensor in tensors_of(self.program).items()}

    def _limit(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watchdog is None else self._watchdog.limit(self.seconds)


def applied(subject: Subject, pass_: Pass, *, leaves: bool = True) -> PassRun:
    """Return ``pass_`` applied to ``subject``, to be read and called, never changed: the latest is kept.

    Of a small model it is the latest to the program with leaf modules, and to that without.
    """
    key = "pass_run", leaves or subject.is_large
    kept: PassRun | None = subject.findings.get(key)
    if kept is None or (kept.pass_ is not pass_ and kept.pass_asked is not pass_) or kept.leaves != leaves:
        if kept is not None:
            del subject.findings[key]  # two programs need not be there at once
            kept.close()
        kept = subject.findings[key] = _in_another_form(PassRun(subject, pass_, leaves=leaves))
    return kept


def _in_another_form(pass_run: PassRun) -> PassRun:
    """Return a pass that does not take programs of ours in the form in which it takes the model, where it shows none.

    It does so if it fails on what it is given, or inside of torch, and changes something of torch's, or fails no more.
    A pass that asks each program for what it does not have is in no form that is known, and cannot be judged.
    """
    error, pass_ = pass_run.error, pass_run.pass_
    asks_program = isinstance(getattr(error, "obj", None), (GraphModule, torch.fx.GraphModule))
    is_about_classes = isinstance(error, (TypeError, AttributeError)) or (error is not None and _is_of_torch(error))
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
            f"it takes none of the forms that were tried (fx: {type(error).__name__}: {error}; {', '.join(tried)}); "
            f"--fx-form says which it is in: {', '.join(form_names())}"
        )
        pass_run.error = None
    return pass_run


def _is_of_torch(error: BaseException) -> bool:
    """Return whether torch's own code raised an exception."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Path(frames[-1]).is_relative_to(Path(torch.__file__).parent)


def changes(subject: Subject, pass_: Pass, *, leaves: bool = True) -> bool:
    """Return whether ``pass_`` changes the program captured of ``subject``, for which it need not be applied again."""
    known = subject.findings.get(("changes", id(pass_), leaves))  # by identity: not every pass can be hashed
    return applied(subject, pass_, leaves=leaves).changed if known is None else known[1]


def _called(pass_: Any, program: GraphModule) -> tuple[Any, int | None]:
    """Return what the pass returns, which is anything if it is a user's, and how many edits it made, if it says so."""
    if type(pass_) is PassPipeline:
        ran = pass_.run(program)
        return ran.graph_module, sum(len(report.edits) for report in ran.reports)
    if isinstance(pass_, RewritingPass) and type(pass_).__call__ is RewritingPass.__call__:
        return program, len(make_edits(pass_, program))
    return program_in(pass_(program)), None


def with_data(pass_: Any, calls: Callable[[], Sequence[Arguments]]) -> Any:
    """A pass that asks for data (by a method ``with_data``), or a pipeline of some, with the arguments of ``calls``."""
    if isinstance(pass_, PassPipeline):
        return PassPipeline([with_data(part, calls) for part in pass_.passes], pass_.listeners, pass_.name)
    if isinstance(pass_, type) or not hasattr(pass_, "with_data"):
        return pass_
    return pass_.with_data([(arguments.args, arguments.kwargs) for arguments in calls()])


def parts_of(pass_: Any) -> tuple[Any, ...]:
    """Return the passes of a pipeline, or a pass alone."""
    return pass_.passes if isinstance(pass_, PassPipeline) else (pass_,)


def may_change(pass_: Pass) -> set[str]:
    """Return what a pass, or one of a pipeline, changes on purpose."""
    return {kept for part in parts_of(pass_) for kept in getattr(part, "may_change", ())}


def inputs_of(program: GraphModule) -> tuple[tuple[str, str], ...]:
    """Return the targets of the placeholders with their defaults, written as Python."""
    placeholders: list[Node] = program.graph.find_nodes(op="placeholder")
    return tuple((str(node.target), ", ".join(map(repr, node.args))) for node in placeholders)


def _is_refusal(pass_: Pass, error: PassError) -> bool:
    """Return whether a pass refuses with ``error``, which a pipeline also raises where one of its passes failed."""
    if isinstance(pass_, PassPipeline):
        return isinstance(error.__cause__, PassError)
    return error.__cause__ is None or isinstance(error.__cause__, FxError)


def _is_data(result: Any) -> bool:
    """Return whether what a pass returned is plain data, or a graph: a mistake, and not another form of program."""
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
    """The settings of the modules of a program, but its own: of these there is only the mode."""
    return {**settings_of(program), "": (program.training,)}


def _ties(program: GraphModule, held: Mapping[str, tuple[torch.Tensor, bool]]) -> bool:
    """Return whether tensors of a program are one where those with their names are not."""
    first: dict[int, str] = {}
    for named in (program.named_parameters, program.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            other = first.setdefault(place_of(tensor), name) if name in held else name
            if other != name and place_of(held[other][0]) != place_of(held[name][0]):
                return True
    return False


def leave_alone(program: GraphModule) -> GraphModule:
    """The pass that does nothing."""
    return program
