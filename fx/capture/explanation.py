"""``explain``: all obstacles to the capture of a program at once, and the parts between them that can be captured.

The program runs on proxies as in a trace. Where a trace would end, the obstacle is noted and the run continues with a
guess. A module in which it cannot continue becomes one call. The next run guesses differently, until nothing new comes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch

from fx.analysis.guards import guards_of
from fx.assertions import GUARDS
from fx.capture.exceptions import explain_misuse
from fx.capture.guided import GuidedProxy
from fx.capture.leaf_calls import called_method
from fx.capture.restore.record import Change
from fx.capture.trace_state import TraceState
from fx.capture.tracer import Root, Tracer
from fx.checks.questions import refusal_of
from fx.errors import FxError, TracedValueError, TraceError
from fx.frames import user_location, users_frame
from fx.node import Node, Target
from fx.provenance import SourceLocation
from fx.proxy import Proxy

_MOST_RUNS = 8
_LABELS = ("where", "value", "why", "try")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An obstacle to the capture of a program, at one line."""

    cause: str
    """The event that cannot be captured."""
    where: str | None
    """The user's line."""
    value: str | None
    """The traced value concerned."""
    why: str | None
    """The reason that it is an obstacle."""
    remedy: str | None
    """The remedy to try."""
    modules: tuple[str, ...]
    """Paths of the modules in which the line meets it; empty for the root itself."""

    def __str__(self) -> str:
        parts = [("where", self.where), ("in", ", ".join(self.modules) or None), ("value", self.value)]
        parts += [("why", self.why), ("try", self.remedy)]
        return "\n".join([self.cause, *(f"  {label:<6} {text}" for label, text in parts if text)])


@dataclass(frozen=True, slots=True)
class Part:
    """Operations between two obstacles, which would be captured unchanged."""

    operations: int
    """The number of nodes, without inputs and attributes."""
    first: SourceLocation | None
    """The line of the first node."""
    last: SourceLocation | None
    """The line of the last node."""
    modules: tuple[str, ...]
    """Paths of the modules that are called whole."""

    def __str__(self) -> str:
        lines = [_place(location) for location in (self.first, self.last)]
        called = ", ".join([*self.modules[:3], *(["…"] if len(self.modules) > 3 else [])])
        count = f"{self.operations} operation{'s' if self.operations != 1 else ''}"
        return f"{count}, {' to '.join(dict.fromkeys(lines))}" + (f": {called}" if called else "")


@dataclass(frozen=True, slots=True)
class CaptureExplanation:
    """The result of an attempt to capture a program."""

    obstacles: tuple[Obstacle, ...]
    """All obstacles, in the order of the first run that met them."""
    parts: tuple[Part, ...]
    """The parts between the obstacles of the longest run."""
    guards: tuple[str, ...]
    """The answers that the example inputs gave: the program would check each."""
    unseen: tuple[str, ...]
    """Places where a run ended only because of a guess, so that the code after them was not run."""
    second_run: tuple[str, ...] = ()
    """The reason for a second run during capture, and how it differs; empty if there is none."""

    @property
    def is_captured(self) -> bool:
        """True if there is no obstacle."""
        return not self.obstacles

    def __str__(self) -> str:
        blocks = [
            f"{_counted(len(self.obstacles), 'obstacle')}, {_counted(len(self.parts), 'part')} that can be captured"
        ]
        blocks += [f"{number}. {obstacle}" for number, obstacle in enumerate(self.obstacles, 1)]
        blocks += ["\n".join(["parts", *(f"  {number}. {part}" for number, part in enumerate(self.parts, 1))])]
        more = {"guards": self.guards, "not looked at": self.unseen, "run a second time": self.second_run}
        for label, lines in more.items():
            if lines:
                blocks.append("\n".join([label, *(f"  {line}" for line in lines)]))
        return "\n\n".join(blocks)


def explain(
    root: Root,
    example_inputs: tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    *,
    tracer: Callable[[], Tracer] = Tracer,
) -> CaptureExplanation:
    """Find all obstacles to the capture of a program, each with its line, cause and remedy; nothing is changed.

    Args:
        root: a module, or a Python function.
        example_inputs: the inputs of a call; a query that these answer is no obstacle (:func:`symbolic_trace`).
        tracer: makes the tracer whose ``is_leaf_module`` decides which modules are traced through.

    >>> import torch, fx
    >>> def gate(x):
    ...     y = torch.relu(x)
    ...     return y if y.sum() > 0 else -y
    >>> explanation = fx.explain(gate)
    >>> [obstacle.cause for obstacle in explanation.obstacles]
    ['symbolically traced variables cannot be used as inputs to control flow']
    >>> [part.operations for part in explanation.parts]
    [3, 1]
    """
    findings = _Findings(tracer())
    longest: _ContinuedRun | None = None
    for number in range(_MOST_RUNS):
        run = _ContinuedRun(findings, number)
        before = findings.size
        run.explore(root, example_inputs)
        if longest is None or len(run.graph.nodes) > len(longest.graph.nodes):
            longest = run
        if findings.size == before:
            break
    assert longest is not None
    obstacles = tuple(
        Obstacle(*lines, tuple(dict.fromkeys(findings.modules[key]))) for key, lines in findings.noted.items()
    )
    guards = tuple(str(guard) for guard in longest.guards())
    unseen, second_run = (tuple(dict.fromkeys(lines)) for lines in (findings.unseen, findings.second_run))
    return CaptureExplanation(obstacles, longest.parts(), guards, unseen, second_run)


class _Findings:
    """The findings of all runs."""

    def __init__(self, decider: Tracer) -> None:
        self.decider = decider
        self.noted: dict[Any, tuple[str, str | None, str | None, str | None, str | None]] = {}
        self.modules: dict[Any, list[str]] = {}
        self.sides: dict[Any, set[bool]] = {}
        self.unseen: list[str] = []
        self.second_run: list[str] = []

    @property
    def size(self) -> int:
        """The number of obstacles and sides of branches noted so far."""
        return len(self.noted) + sum(map(len, self.sides.values()))

    def note(self, error: FxError, module: str) -> None:
        """Add an obstacle, unless it was already met at the same line."""
        what, *rest = str(error).splitlines() or [""]
        lines = {label: next((line[9:] for line in rest if line[2:9].strip() == label), None) for label in _LABELS}
        key = (what, lines["where"])
        self.noted.setdefault(key, (what, *(lines[label] for label in _LABELS)))  # type: ignore[arg-type]
        self.modules.setdefault(key, []).extend([module] if module else [])


class _ContinuedRun(Tracer):
    """One run over a program, which continues where a trace would end."""

    def __init__(self, findings: _Findings, number: int) -> None:
        super().__init__()
        self._findings = findings
        self._number = number
        self._asked: dict[Any, int] = {}
        self._guessed = False
        self._has_examples = False
        self._ends: list[Node] = []
        self._pending: list[tuple[FrameType, int, TraceError, str, Node]] = []

    def explore(self, root: Root, example_inputs: Any) -> None:
        """Run to the end, or as far as possible."""
        self._has_examples = example_inputs is not None
        try:
            self.trace(root, None, example_inputs)
        except Exception as error:
            if not hasattr(self, "graph"):
                raise
            self._ended(error, "")
        self._confirm(None)

    def _start(self, root: Root, state: TraceState) -> Callable[..., Any]:
        self._pending, self._ends = [], []  # of a run that another run has replaced
        if state.needs.why is not None:
            self._findings.second_run.append(state.needs.why)
        return super()._start(root, state)

    # Modules.

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Decide as the given tracer does."""
        return self._findings.decider.is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Trace through a module; if that fails, record one call."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            if self._helps_to_run_again(error):
                raise
            path = self.path_of_module(m)
            self._ended(error, path)
            return self.create_proxy("call_module", path, args, kwargs)

    def _helps_to_run_again(self, error: Exception) -> bool:
        """Return whether :meth:`trace` or a function it calls runs the program again because of an error."""
        try:
            explain_misuse(error)
        except TracedValueError as misuse:
            if not self._state.needs.calls and called_method(misuse.__cause__) is not None:
                return True
        return self._state.runs_again

    def _ended(self, error: Exception, path: str) -> None:
        try:
            explain_misuse(error)
        except TracedValueError as misuse:
            error = misuse
        if isinstance(error, FxError):
            self._obstacle(error, path)
        elif self._guessed:
            self._findings.unseen.append(f"behind {_raised_at(error)}: {type(error).__name__}: {error}")
        else:
            what = f"the program raises {type(error).__name__}: {error}"
            self._obstacle(TraceError(what, where=_raised_at(error), remedy="call the program as it is first"), path)

    def _run_again(self, root: Root, concrete_args: Any, state: TraceState, changes: list[Change]) -> None:
        names = ", ".join(dict.fromkeys(repr(name) for _, name in changes))
        self._findings.second_run.append(f"to see that it does the same though it has changed {names}")
        try:
            super()._run_again(root, concrete_args, state, changes)
        except TraceError as error:
            self._obstacle(error, "")

    # Obstacles.

    @property
    def _path(self) -> str:
        """The path of the module that is running."""
        return next((path for path, _ in reversed(self.module_stack.values())), "")

    def _obstacle(self, error: FxError, path: str | None = None) -> None:
        self._findings.note(error, self._path if path is None else path)
        self._ends.append(next(reversed(self.graph.nodes)))

    def proxy(self, node: Node) -> Proxy:
        """Return the proxy for a node."""
        return GuidedProxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Make a node; if no node can hold the arguments, leave them out."""
        try:
            return super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        except TraceError as error:
            if self._state.is_finished or self._state.runs_again:
                raise
            self._obstacle(error)
            self._guessed = True
            return super().create_proxy(kind, target, (), {}, name, type_expr, proxy_factory_fn)

    def _side(self, where: str) -> bool:
        """Return one side of a branch: one that no run has taken there, else the opposite of the last one."""
        times = self._asked[where] = self._asked.get(where, -1) + 1
        sides = self._findings.sides.setdefault(where, set())
        side = True if sides == {False} else False if sides != {False, True} else (times + self._number) % 2 == 0
        sides.add(side)
        return side

    def _confirm(self, frame: FrameType | None) -> None:
        """Note integers that were asked for, except by the instruction recorded now, which takes traced ones."""
        pending, self._pending = self._pending, []
        for asking_frame, place, error, path, node in pending:
            is_recorded = any(
                user.source is not None and user.source.is_at(asking_frame.f_code, place) for user in node.users
            )
            if not is_recorded and (asking_frame is not frame or place != asking_frame.f_lasti):
                self._guessed = True
                self._obstacle(error, path)

    def _refusal(self, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> TraceError:
        return kind(what, **lines)

    # Results.

    def guards(self) -> list[Any]:
        """Return the guards of the graph."""
        return list(guards_of(self.graph.nodes)) if self._has_examples else []

    def parts(self) -> tuple[Part, ...]:
        """Return the operations between the obstacles."""
        ends = set(self._ends)
        parts: list[list[Node]] = [[]]
        for node in self.graph.nodes:
            if node.op in ("call_function", "call_method", "call_module") and node.target not in GUARDS:
                parts[-1].append(node)
            if node in ends:
                parts.append([])
        return tuple(_part(nodes) for nodes in parts if nodes)


class _GuessingState(TraceState):
    """A run that continues with a guess where nothing answers a query of the traced code."""

    tracer: _ContinuedRun

    def answer(self, question: str, asked: Proxy, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> Any:
        """Return the answer of the example inputs, else a guess, and note the obstacle."""
        run = self.tracer
        try:
            return super().answer(question, asked, what, kind, **lines)
        except TraceError as error:
            if self.runs_again:  # the next run may record the call
                raise
            self.refused = None
            run._obstacle(error)
            run._guessed = True
        if question == "bool":
            return run._side(str(lines.get("where")))
        if question == "iter":
            return iter((asked[0],))  # type: ignore[index]
        guesses = {"hash": id(asked), "identity": asked, "match": 0, "float": 1.0, "complex": 1j}
        return guesses.get(question, 1)

    def index(self, value: Proxy, frame: FrameType) -> int:
        """Return the integer that the example inputs give, else a guess."""
        try:
            if self.guide is not None:
                return super().index(value, frame)
            error = refusal_of("index", value, frame)
        except TraceError as refused:
            error = refused
        caller = users_frame(frame)
        self.tracer._pending.append((caller, caller.f_lasti, error, self.tracer._path, value.node))
        self.indexed.append((caller, caller.f_lasti, None))
        return 1

    def take_back_guards(self, args: Any, kwargs: Any) -> None:
        """Note integers that the calling instruction has asked for and does not take."""
        self.tracer._confirm(users_frame(sys._getframe(1)))
        super().take_back_guards(args, kwargs)


_ContinuedRun._state_class = _GuessingState


def _part(nodes: list[Node]) -> Part:
    called = dict.fromkeys(str(node.target) for node in nodes if node.op == "call_module")
    return Part(len(nodes), nodes[0].source, nodes[-1].source, tuple(called))


def _place(location: SourceLocation | None) -> str:
    return "an unknown line" if location is None else location.place


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' if count != 1 else ''}"


def _raised_at(error: Exception) -> str:
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(user_location(frame, {}))
