"""A transform applied to a subject, and what both compute: all that laws are about, each worked out when asked."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx import GraphModule, Node
from fx.analysis.kernel_calls import KernelMode
from fx.errors import FxError, PassError
from fx.naming.printing import describe
from fx.operators.effects import effect_of
from fx.origins import record_origins
from fx.passes import Approximate, Contract, Pass, RewritingPass, close, contract_of, exact, pass_name
from fx.passes.infra.pass_base import program_in
from fx.passes.pipeline import PassPipeline
from fx.passes.rewriting import make_edits
from fx.provenance import SourceLocation
from pytest_fx.harness.evaluation import Arguments, default_dtype, threads
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
        module = self.subject.shared_copy()
        captured = self.subject.capture(module, leaves=self.leaves, pass_=self.pass_)
        self.before = before = _before(captured, module, self.subject)
        self._apply(captured)
        self.damage = before.module.damage(module)
        if self.damage is not None:
            self.damage_beside_tensors = before.module.damage(module, of_tensors=False)
            self.subject.reset()

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
        """Call the pass, and keep what came of it."""
        subject = self.subject
        try:
            with (
                default_dtype(subject.dtype),
                threads(subject.threads),
                self.watched(),  # inside of what puts back the dtype and the threads
                self._limit(),
                warnings.catch_warnings(),
            ):
                pass_ = with_data(self.pass_, lambda: subject.data(subject.dtype))
                with self._recording():
                    result, self.edits = _called(pass_, captured)
            self.result = captured if result is None else result
            self._collect()
        except TookTooLong as error:
            self.too_long = error
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
    def program(self) -> nn.Module | None:
        """Return what is run: the program that the pass made, or that was given; None if the pass made none."""
        return self.after if self.before is not None else self.result

    @property
    def after(self) -> GraphModule | None:
        """Return what the pass made, or None if it made no program."""
        return self.result if isinstance(self.result, GraphModule) else None

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
        if self.subject.is_float64 or self.before is None or self.subject.eager(0, True).error is not None:
            return False
        return self.once("has float64", lambda: self.after_float64 is not None)

    @property
    def after_float64(self) -> GraphModule | None:
        """Return what the pass makes of the program in float64; None if nothing, or if the program is in float64.

        Of a large model it is there until something else is asked for in float64, and then made again.
        """
        if self.subject.is_float64 or self.before is None:
            return None
        return self._once_in_float64("after in float64", self._transformed_in_float64)

    def to_perturb(self, float64: bool) -> GraphModule:
        """A capture of the module that no pass has seen, to be run with other rounding errors."""
        if not float64:
            return self.once("to perturb", self.capture)
        return self._once_in_float64("to perturb in float64", lambda: self.capture(float64=True))

    def _once_in_float64(self, key: str, make: Callable[[], GraphModule | None]) -> Any:
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

    def _transformed_in_float64(self) -> GraphModule | None:
        subject = self.subject
        try:
            # Nobody else has the tensors of this copy: those that the pass replaces are free at once.
            module = (lambda: subject.fresh(torch.float64)) if subject.is_large else lambda: subject.shared_copy(True)
            captured = subject.capture(module(), leaves=self.leaves, float64=True, pass_=self.pass_)
            return self._transformed(captured, torch.float64)
        except (Exception, TookTooLong):
            return None
        finally:
            if self.damage is not None:  # what was written to in one dtype is so in the other
                subject.reset()

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
        held = {} if self.before is None else self.before.module.tensors
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
    if kept is None or kept.pass_ is not pass_ or kept.leaves != leaves:
        if kept is not None:
            del subject.findings[key]  # two programs need not be there at once
            kept.close()
        kept = subject.findings[key] = PassRun(subject, pass_, leaves=leaves)
    return kept


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
