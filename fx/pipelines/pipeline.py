"""``PassPipeline``: passes in a visible order, each checked, counted and timed (paper, section 5.5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NoReturn, TypeVar, cast

import torch

from fx.analysis.verify import Violation
from fx.argument_types import Bounds, checked
from fx.arguments import expect_all, explained, shown
from fx.errors import FxError, PassError, add_note, type_in_words, with_article
from fx.graph_module import GraphModule, is_of_torch
from fx.matcher.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.naming.printing import describe
from fx.pipelines.bisection import Culprit, Predicate, find_culprit
from fx.pipelines.contract import Approximate, Close, Contract, contract_of, exact
from fx.pipelines.option_text import PassText
from fx.pipelines.pass_options import make_pass
from fx.pipelines.pass_report import PassReport, PipelineListener, PipelineResult
from fx.pipelines.registered_passes import Pass, parse_pipeline, pass_name, write_pass
from fx.pipelines.rewriting import Edit, RewritingPass, take_edits
from fx.pipelines.verification import (
    KEPT,
    MAY_CHANGE,
    ProgramSnapshot,
    find_stale_code,
    find_violation_in,
    says_may_change,
)

Answer = TypeVar("Answer")

_WHOLE_PASS = Edit("the pass as a whole")
"""The edit that is reported for a pass that announces no edits."""
_PASSES = "give a function from GraphModule to GraphModule, a pass of fx.passes, or the name of one"


@dataclass(frozen=True, slots=True)
class PassPipeline:
    """Passes that run one after the other; itself a pass.

    The program is verified around each pass: it must be well formed, have current code, and keep its interface to
    callers (inputs, structure of the result, writes, tensors). A pass that changes some of these on purpose declares
    it in an attribute ``may_change``, a tuple of names: ``"signature"``, ``"result"``, ``"writes"``, ``"tensors"``. The
    names ``"gradients"``, ``"non-finite"`` (results for NaN and infinities), ``"metadata"``, ``"checks"``, ``"sizes"``
    and ``"tracing"`` are accepted too, but not verified here. After a pass that changed something, every node records
    the nodes of the captured program that it represents, and a line of the user's. The generated code names the pass
    in its header.

    Passes edit the program in place: run them on ``copy.deepcopy(graph_module)`` to keep the original.

    >>> import fx
    >>> pipeline = PassPipeline("fuse-conv-bn,remove-dead-code")
    >>> str(pipeline)
    'fuse-conv-bn,remove-dead-code'
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)).eval())
    >>> [(report.name, len(report.edits)) for report in pipeline.run(program).reports]
    [('fuse-conv-bn', 1), ('remove-dead-code', 0)]
    """

    passes: tuple[Pass, ...]
    """The passes in order. They may be given as one text, or as passes, pass classes and texts in any mixture; a
    pipeline among them is replaced by its passes."""
    listeners: tuple[PipelineListener, ...] = ()
    """The listeners that are notified during a run."""
    name: str = "pipeline"
    """Name of the pipeline when it is used as a pass; its passes keep their own names."""

    @checked(PassError)
    def __init__(
        self,
        passes: Annotated[str | Pass | Iterable[object], _PASSES],
        listeners: Iterable[PipelineListener] = (),
        name: str = "pipeline",
    ) -> None:
        """Make a pipeline of ``passes``.

        Raises:
            PassError: one of them is not a pass, is not registered, or its text does not follow the grammar of
                :func:`fx.pipelines.registered_passes.parse_pipeline`.
        """
        try:
            flat = tuple(_passes_in(passes))
        except RecursionError as failure:
            raise explained(failure, passes, PassError) from None
        object.__setattr__(self, "passes", flat)
        what = "listeners of a pipeline have before_pass, edit and after_pass"
        checked = expect_all(listeners, _listens, what, error=PassError)
        object.__setattr__(self, "listeners", checked)
        object.__setattr__(self, "name", name)

    @property
    def contract(self) -> Contract:
        """The contract of the whole pipeline: the weakest of those of its passes."""
        weakest: Contract = exact
        for pass_ in self.passes:
            weakest = _weaker(weakest, _read_attribute(pass_, "contract", contract_of))
        return weakest

    def __str__(self) -> str:
        return ",".join(map(write_pass, self.passes))

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Run the passes on ``graph_module`` and return the program that results."""
        return self.run(graph_module).graph_module

    @checked(PassError)
    def run(self, graph_module: GraphModule, fuel: Annotated[int, Bounds(0)] | None = None) -> PipelineResult:
        """Run the passes on ``graph_module``, which they edit, and report on each.

        Args:
            graph_module: the program.
            fuel: largest number of edits, after which the run stops. A pass that announces no edits counts as one edit
                if it changed something. By default all passes run to their end.

        Raises:
            PassError: a pass raised, returned something that is not a program, or left one that breaks a rule. The
                message names the pass, the rule, the node and the user's line; an exception of the pass is chained.
                The program is then as the pass left it.
        """
        run = _Run(self, graph_module, fuel)
        for index in range(len(self.passes)):
            if run.fuel == 0:
                break
            run.step(index)
        return PipelineResult(run.program, tuple(run.reports))

    @checked(PassError)
    def bisect(self, graph_module: GraphModule, predicate: Predicate) -> Culprit | None:
        """Find the edit that breaks a program, by bisection over the fuel.

        Each run works on a deep copy of ``graph_module``, weights included (some 30 ms for ResNet50). The number of
        runs grows with the logarithm of the number of edits. If the program turns bad several times as fuel grows, any
        of the edits that turn it bad may be returned.

        Args:
            graph_module: the program, which stays as it is.
            predicate: called with a program; true for a good one. If it raises, the program is bad. A pass that
                raises or breaks a rule also makes it bad.

        Returns:
            The edit, or None if the program is good after all edits.

        Raises:
            PassError: the program is bad before any edit.

        >>> import operator, fx
        >>> class Negate(RewritingPass):
        ...     def rewrites(self, graph_module):
        ...         for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        ...             yield Edit(f"{node} becomes a negation")
        ...             node.target = operator.neg
        >>> program = fx.symbolic_trace(lambda x: torch.relu(x * 0) + torch.relu(x))
        >>> print(PassPipeline([Negate()]).bisect(program, lambda program: program(torch.ones(1)) >= 0))
        edit 2 of negate: relu_1 becomes a negation
        """

        def run(program: GraphModule, fuel: int | None, listener: PipelineListener) -> GraphModule:
            return replace(self, listeners=(listener,)).run(program, fuel).graph_module

        return find_culprit(run, graph_module, predicate)


class _Run:
    """The state of one pipeline run: the current program, the remaining fuel, and the reports so far."""

    def __init__(self, pipeline: PassPipeline, program: GraphModule, fuel: int | None) -> None:
        self.pipeline = pipeline
        self.program = program
        self.fuel = fuel
        self.reports: list[PassReport] = []
        self.name = ""
        self.place = "the pipeline"
        self.edits: list[Edit] = []
        self.listener_error: Exception | None = None
        self.refuse(
            find_violation_in(program) or find_stale_code(program), "the program given to the pipeline is broken"
        )
        self.before = ProgramSnapshot.of(program)

    def step(self, index: int) -> None:
        """Run one pass, check its result, and report on it."""
        pass_ = self.pipeline.passes[index]
        self.name, self.edits = pass_name(pass_), []
        self.place = f"pass {self.name!r} ({index + 1} of {len(self.pipeline.passes)})"
        self.notify("before_pass", self.name, self.program)
        graph, count = self.program.graph, len(self.program.graph.nodes)
        for inner, _ in self.before.programs:
            record_origins(inner)
        earlier = EarlierNode.all_of(graph)
        history, started = graph.history, time.perf_counter()
        is_rewriting = isinstance(pass_, RewritingPass) and type(pass_).__call__ is RewritingPass.__call__
        result = self.call(pass_, is_rewriting)
        seconds = time.perf_counter() - started
        after = self.check(pass_, result, is_rewriting)
        changed = after.has_other_graph(self.before) or after.has_other_state(self.before)
        if changed:
            match_origins(result.graph, earlier)
            for inner, _ in after.programs:
                complete_origins(inner)
            own = result.graph.history  # longer if the pass itself ran a pipeline
            result.graph.history = (*(own if own[: len(history)] == history else history), self.name)
            self.recompile(result)
            if not self.edits:
                self.announce(_WHOLE_PASS)
        self.program, self.before = result, after
        self.fuel = None if self.fuel is None else self.fuel - len(self.edits)
        report = PassReport(self.name, tuple(self.edits), seconds, count, len(result.graph.nodes), changed)
        self.reports.append(report)
        self.notify("after_pass", report, result)

    def call(self, pass_: Pass, is_rewriting: bool) -> GraphModule:
        """Run the pass on the program, and return the program that it made."""
        try:
            if is_rewriting:
                take_edits(cast("RewritingPass", pass_), self.program, self.fuel, self.announce)
                return self.program
            returned: Any = program_in(pass_(self.program))  # the graph's revision shows whether it changed
        except Exception as error:
            if error is self.listener_error:
                raise
            self.fail(error, is_rewriting)
        if isinstance(returned, GraphModule) or returned is None:
            return self.program if returned is None else returned
        kind = type(returned).__name__
        remedy = "return the GraphModule, or nothing after editing it in place"
        if hasattr(returned, "graph_module"):
            remedy = "return its graph_module"
        elif isinstance(returned, tuple):
            remedy = "return the GraphModule alone: whether it changed is read from the graph"
        elif is_of_torch(returned):
            remedy = "adapt a pass that is written for torch.fx: fx.interop.adapt(pass_)"
        elif isinstance(returned, torch.nn.Module):
            remedy = "return a GraphModule: capture the module with fx.symbolic_trace"
        raise PassError(
            f"{self.place} returned {with_article(kind)}, which is not a program", value=shown(returned), remedy=remedy
        )

    def check(self, pass_: Pass, result: GraphModule, is_rewriting: bool) -> ProgramSnapshot:
        """Refuse a program that is malformed, has stale code, or has another interface; return its snapshot."""
        self.refuse(find_violation_in(result), f"{self.place} left a broken program")
        if not is_rewriting:
            self.refuse(find_stale_code(result), f"{self.place} left a program that is out of date")
        after = ProgramSnapshot.of(result)
        excused = getattr(pass_, "may_change", ())
        violations = {
            name: violation
            for name, (compare, _) in KEPT.items()
            if name not in excused and (violation := compare(self.before, after))
        }
        for name, violation in violations.items():  # raises for the first, and names all
            way_out = f"or declare in the pass that it may: {says_may_change(violations)}"
            self.refuse(violation, f"{self.place} changed {KEPT[name][1]}", way_out)
        return after

    def recompile(self, program: GraphModule) -> None:
        """Regenerate the code, with the name of the pass in its header."""
        try:
            program.recompile()
        except Exception as error:
            self.fail(error, is_rewriting=False)

    def announce(self, edit: Edit) -> None:
        """Count an edit and notify the listeners."""
        self.edits.append(edit)
        self.notify("edit", self.name, edit)

    def notify(self, event: str, *what: object) -> None:
        """Call a method of each listener."""
        for listener in self.pipeline.listeners:
            try:
                getattr(listener, event)(*what)
            except Exception as error:
                add_note(error, f"raised by {event} of listener {type(listener).__name__}, at {self.place}")
                self.listener_error = error
                raise

    # Errors.

    def refuse(self, violation: Violation | None, what: str, way_out: str | None = None) -> None:
        """Raise if there is a violation."""
        if violation is None:
            return
        node = violation.node
        why, remedies = [violation.why, self.progress()], [violation.remedy, way_out]
        raise PassError(
            f"{what}: {violation.what}",
            where=None if node is None else node.source,
            value=None if node is None else describe(node),
            why="; ".join(part for part in why if part) or None,
            remedy=", ".join(part for part in remedies if part) or None,
        )

    def fail(self, error: Exception, is_rewriting: bool) -> NoReturn:
        """Raise a ``PassError`` for an exception that the pass raised."""
        first, *more = str(error).split("\n")
        indent = "" if isinstance(error, FxError) else " " * 9  # ours are in this form already
        raised = f"{type(error).__name__}: {first}" if first else type(error).__name__
        what = "\n".join([f"{self.place} raised {raised}", *(indent + line for line in more)])
        raise PassError(
            what,
            where=self.edits[-1].where if self.edits and not isinstance(error, FxError) else None,
            why=self.progress() or ("it had not begun its first edit" if is_rewriting else None),
            remedy="the program may be edited in part: continue with a fresh one",
        ) from error

    def progress(self) -> str | None:
        """Describe the last edit that the pass began, or return None if it began none."""
        if not self.edits:
            return None
        return f"the last edit it began is number {len(self.edits)}, {self.edits[-1]}"


def _passes_in(source: object) -> Iterator[Pass]:
    """Yield the passes of a pipeline from text, passes, pass classes, pipelines, or iterables of them."""
    if isinstance(source, str):
        yield from parse_pipeline(source)
    elif isinstance(source, PassPipeline):
        yield from source.passes
    elif isinstance(source, type):
        name = pass_name(source)
        yield _checked(make_pass(source, PassText(name, (), 0, name)))
    elif isinstance(source, Iterable) and not callable(source):
        for part in expect_all(source, lambda part: True, "a pipeline is made of passes", error=PassError):
            yield from _passes_in(part)
    else:
        yield _checked(source)


def _listens(value: Any) -> bool:
    return all(callable(getattr(value, event, None)) for event in ("before_pass", "edit", "after_pass"))


def _checked(pass_: Any) -> Pass:
    if not callable(pass_) or isinstance(pass_, torch.nn.Module):
        raise PassError(
            f"{type_in_words(pass_)} is not a pass",
            value=shown(pass_),
            remedy=_PASSES,
        )
    name, may_change = _read_attribute(pass_, "name", pass_name), _read_attribute(pass_, "may_change", _may_change)
    for kind in may_change:
        if kind not in MAY_CHANGE:
            raise PassError(
                f"pass {name!r} may change {shown(kind)}, which is unknown",
                remedy=f"may_change is a tuple of {', '.join(map(repr, MAY_CHANGE))}",
            )
    return cast("Pass", pass_)


def _may_change(pass_: Any) -> tuple[Any, ...]:
    what = f"may_change of pass {pass_name(pass_)!r} is a tuple of strings"
    return expect_all(getattr(pass_, "may_change", ()), lambda kind: isinstance(kind, str), what, error=PassError)


def _read_attribute(pass_: Any, attribute: str, read: Callable[[Any], Answer]) -> Answer:
    """Return ``read(pass_)``, or raise a ``PassError`` if that fails, so that ``attribute`` of the pass is unknown."""
    try:
        return read(pass_)
    except FxError:
        raise
    except Exception as error:
        raise PassError(
            f"{type_in_words(pass_)} is not a pass: its {attribute} cannot be read",
            why=f"{type(error).__name__}: {error}",
            remedy=f"make its attribute {attribute} a plain value, or leave it out",
        ) from error


def _weaker(first: Contract, second: Contract) -> Contract:
    """Return the contract that holds after two passes with these contracts."""
    if isinstance(first, Approximate) and isinstance(second, Approximate):
        return Approximate(min(first.sqnr_db, second.sqnr_db))
    if isinstance(first, Close) and isinstance(second, Close):
        factor = max(first.error_factor, second.error_factor)
        return Close(max(first.rtol, second.rtol), max(first.atol, second.atol), factor)
    return max(first, second, key=lambda contract: (isinstance(contract, Approximate), isinstance(contract, Close)))


def program_in(returned: Any) -> Any:
    """Return the ``graph_module`` of a ``PassResult`` or a similar object, and any other value as it is."""
    # A module that holds a program under this name may do more than the program.
    program = None if isinstance(returned, torch.nn.Module) else getattr(returned, "graph_module", None)
    return program if isinstance(program, GraphModule) else returned
