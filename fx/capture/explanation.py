"""``explain``: all that keeps a program from being captured, in one go, and the parts between that would be.

The program runs on proxies as in a trace. Where that would end, the obstacle is noted and the run goes on with a guess;
a module in which it cannot go on becomes one call. The next run guesses otherwise, until there is nothing new.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch

from fx.analysis.guards import GUARDS, guards_of
from fx.capture.guided import GuidedProxy
from fx.capture.misuse import explain_misuse
from fx.capture.restore.module_attributes import Change
from fx.capture.trace_state import TraceState
from fx.capture.tracer import Root, Tracer
from fx.capture.whole_calls import called_method
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
    """What keeps a program from being captured, at one line."""

    cause: str
    """What happens there."""
    where: str | None
    """The user's line."""
    value: str | None
    """The traced value concerned."""
    why: str | None
    """Why it is an obstacle."""
    remedy: str | None
    """What to try."""
    modules: tuple[str, ...]
    """Paths of the modules in which the line meets it; empty for the root itself."""

    def __str__(self) -> str:
        parts = [("where", self.where), ("in", ", ".join(self.modules) or None), ("value", self.value)]
        parts += [("why", self.why), ("try", self.remedy)]
        return "\n".join([self.cause, *(f"  {label:<6} {text}" for label, text in parts if text)])


@dataclass(frozen=True, slots=True)
class Part:
    """Operations between two obstacles, which would be captured as they stand."""

    operations: int
    """How many nodes there are, without inputs and attributes."""
    first: SourceLocation | None
    """The line of the first of them."""
    last: SourceLocation | None
    """The line of the last of them."""
    modules: tuple[str, ...]
    """Paths of the modules that are called whole."""

    def __str__(self) -> str:
        lines = [_place(one) for one in (self.first, self.last)]
        called = ", ".join([*self.modules[:3], *(["…"] if len(self.modules) > 3 else [])])
        count = f"{self.operations} operation{'s' if self.operations != 1 else ''}"
        return f"{count}, {' to '.join(dict.fromkeys(lines))}" + (f": {called}" if called else "")


@dataclass(frozen=True, slots=True)
class CaptureExplanation:
    """What capture makes of a program."""

    obstacles: tuple[Obstacle, ...]
    """All that were met, in the order of the first run that met them."""
    parts: tuple[Part, ...]
    """What lies between the obstacles of the longest run."""
    guards: tuple[str, ...]
    """What the example inputs answered: the program would check each."""
    unseen: tuple[str, ...]
    """Where a run ended though nothing was wrong but a guess, so that what follows was not looked at."""
    second_run: tuple[str, ...] = ()
    """Why a capture runs the program a second time, and how; empty where it runs it once."""

    @property
    def is_captured(self) -> bool:
        """Return whether nothing is in the way."""
        return not self.obstacles

    def __str__(self) -> str:
        said = [
            f"{_counted(len(self.obstacles), 'obstacle')}, {_counted(len(self.parts), 'part')} that can be captured"
        ]
        said += [f"{number}. {one}" for number, one in enumerate(self.obstacles, 1)]
        said += ["\n".join(["parts", *(f"  {number}. {part}" for number, part in enumerate(self.parts, 1))])]
        more = {"guards": self.guards, "not looked at": self.unseen, "run a second time": self.second_run}
        for label, lines in more.items():
            if lines:
                said.append("\n".join([label, *(f"  {line}" for line in lines)]))
        return "\n\n".join(said)


def explain(
    root: Root,
    example_inputs: tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    *,
    tracer: Callable[[], Tracer] = Tracer,
) -> CaptureExplanation:
    """Find all that keeps a program from being captured, each with its line, cause and remedy; nothing is changed.

    Args:
        root: a module, or a Python function.
        example_inputs: the inputs of a call; what these answer is no obstacle (:func:`symbolic_trace`).
        tracer: makes the tracer whose ``is_leaf_module`` decides which modules are looked into.

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
    found = _Findings(tracer())
    longest: _ContinuedRun | None = None
    for number in range(_MOST_RUNS):
        run = _ContinuedRun(found, number)
        before = found.size
        run.explore(root, example_inputs)
        if longest is None or len(run.graph.nodes) > len(longest.graph.nodes):
            longest = run
        if found.size == before:
            break
    assert longest is not None
    obstacles = tuple(Obstacle(*lines, tuple(dict.fromkeys(found.modules[key]))) for key, lines in found.noted.items())
    guards = tuple(str(guard) for guard in longest.guards())
    unseen, second_run = (tuple(dict.fromkeys(lines)) for lines in (found.unseen, found.second_run))
    return CaptureExplanation(obstacles, longest.parts(), guards, unseen, second_run)


class _Findings:
    """What all runs have found."""

    def __init__(self, decider: Tracer) -> None:
        self.decider = decider
        self.noted: dict[Any, tuple[str, str | None, str | None, str | None, str | None]] = {}
        self.modules: dict[Any, list[str]] = {}
        self.sides: dict[Any, set[bool]] = {}
        self.unseen: list[str] = []
        self.second_run: list[str] = []

    @property
    def size(self) -> int:
        """Return how many obstacles and sides of branches were noted so far."""
        return len(self.noted) + sum(map(len, self.sides.values()))

    def note(self, error: FxError, module: str) -> None:
        """Add an obstacle, unless the same line has met the same before."""
        what, *rest = str(error).splitlines() or [""]
        lines = {label: next((line[9:] for line in rest if line[2:9].strip() == label), None) for label in _LABELS}
        key = (what, lines["where"])
        self.noted.setdefault(key, (what, *(lines[label] for label in _LABELS)))  # type: ignore[arg-type]
        self.modules.setdefault(key, []).extend([module] if module else [])


class _ContinuedRun(Tracer):
    """One run over a program, which goes on where a trace ends."""

    def __init__(self, found: _Findings, number: int) -> None:
        super().__init__()
        self._found = found
        self._number = number
        self._asked: dict[Any, int] = {}
        self._guessed = False
        self._has_examples = False
        self._ends: list[Node] = []
        self._pending: list[tuple[FrameType, int, TraceError, str, Node]] = []

    def explore(self, root: Root, example_inputs: Any) -> None:
        """Run to the end, or as far as it goes."""
        self._has_examples = example_inputs is not None
        try:
            self.trace(root, None, example_inputs)
        except Exception as error:
            if not hasattr(self, "graph"):
                raise
            self._ended(error, "")
        self._confirm(None)

    def _start(self, root: Root, state: TraceState) -> Callable[..., Any]:
        self._pending, self._ends = [], []  # of a run that was given up for another one
        if state.needs.why is not None:
            self._found.second_run.append(state.needs.why)
        return super()._start(root, state)

    # What is looked into.

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """As the tracer that was asked for has it."""
        return self._found.decider.is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Look into a module; where that ends, it is one call."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            if self._helps_to_run_again(error):
                raise
            path = self.path_of_module(m)
            self._ended(error, path)
            return self.create_proxy("call_module", path, args, kwargs)

    def _helps_to_run_again(self, error: Exception) -> bool:
        """Return whether :meth:`trace` or what it calls runs the program once more because of an error."""
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
            self._found.unseen.append(f"behind {_raised_at(error)}: {type(error).__name__}: {error}")
        else:
            what = f"the program raises {type(error).__name__}: {error}"
            self._obstacle(TraceError(what, where=_raised_at(error), remedy="call the program as it is first"), path)

    def _run_again(self, root: Root, concrete_args: Any, state: TraceState, changes: list[Change]) -> None:
        names = ", ".join(dict.fromkeys(repr(name) for _, name in changes))
        self._found.second_run.append(f"to see that it does the same though it has changed {names}")
        try:
            super()._run_again(root, concrete_args, state, changes)
        except TraceError as error:
            self._obstacle(error, "")

    # Where a trace ends.

    @property
    def _path(self) -> str:
        """The path of the module that is running."""
        return next((path for path, _ in reversed(self.module_stack.values())), "")

    def _obstacle(self, error: FxError, path: str | None = None) -> None:
        self._found.note(error, self._path if path is None else path)
        self._ends.append(next(reversed(self.graph.nodes)))

    def proxy(self, node: Node) -> Proxy:
        """The proxy for a node."""
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
        """Make a node; of arguments that none can hold, without them."""
        try:
            return super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        except TraceError as error:
            if self._state.is_finished or self._state.runs_again:
                raise
            self._obstacle(error)
            self._guessed = True
            return super().create_proxy(kind, target, (), {}, name, type_expr, proxy_factory_fn)

    def _side(self, where: str) -> bool:
        """One side of a branch: one that no run has taken there, else the other one than the last time."""
        times = self._asked[where] = self._asked.get(where, -1) + 1
        taken = self._found.sides.setdefault(where, set())
        side = True if taken == {False} else False if taken != {False, True} else (times + self._number) % 2 == 0
        taken.add(side)
        return side

    def _confirm(self, frame: FrameType | None) -> None:
        """Note integers that were asked for, but by the instruction that now is recorded, which takes traced ones."""
        pending, self._pending = self._pending, []
        for asked, place, error, path, node in pending:
            taken = any(user.source is not None and user.source.is_at(asked.f_code, place) for user in node.users)
            if not taken and (asked is not frame or place != asked.f_lasti):
                self._guessed = True
                self._obstacle(error, path)

    def _refusal(self, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> TraceError:
        return kind(what, **lines)

    # What was found.

    def guards(self) -> list[Any]:
        """The guards of the graph."""
        return list(guards_of(self.graph.nodes)) if self._has_examples else []

    def parts(self) -> tuple[Part, ...]:
        """The operations between the obstacles."""
        ends = set(self._ends)
        found: list[list[Node]] = [[]]
        for node in self.graph.nodes:
            if node.op in ("call_function", "call_method", "call_module") and node.target not in GUARDS:
                found[-1].append(node)
            if node in ends:
                found.append([])
        return tuple(_part(nodes) for nodes in found if nodes)


class _GuessingState(TraceState):
    """A run that goes on with a guess where nothing answers what the traced code asks."""

    tracer: _ContinuedRun

    def answer(self, question: str, asked: Proxy, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> Any:
        """Return what the example inputs say, else a guess, and a note of the obstacle."""
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
        """The integer that the example inputs say, else a guess."""
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
