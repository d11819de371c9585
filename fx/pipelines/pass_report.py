"""The reports of a pipeline on its passes, and the listeners to notify during a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from fx.graph_module import GraphModule
from fx.naming.tables import table_lines
from fx.pipelines.rewriting import Edit

_HEADER = ("pass", "edits", "nodes", "seconds", "changed")


@dataclass(frozen=True, slots=True)
class PassReport:
    """The report on one pass."""

    name: str
    """Name of the pass."""
    edits: tuple[Edit, ...]
    """The edits that it made, in order; a pass that changes something without announcing edits counts as one."""
    seconds: float
    """Run time of the pass itself, in seconds."""
    nodes_before: int
    """Number of nodes in the graph before the pass."""
    nodes_after: int
    """Number of nodes in the graph after the pass."""
    changed: bool
    """True if it changed the graph, a graph inside it, or the set of modules and tensors of the program."""

    def row(self) -> tuple[str, ...]:
        """Return its row of the table."""
        nodes = f"{self.nodes_before} -> {self.nodes_after}"
        return self.name, str(len(self.edits)), nodes, f"{self.seconds:.4f}", "yes" if self.changed else "no"

    def __str__(self) -> str:
        return _table([self])


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The result of a pipeline run; prints as a table of its passes."""

    graph_module: GraphModule
    """The program."""
    reports: tuple[PassReport, ...]
    """The report on each pass, in order, without the passes that did not run because the fuel was used up."""

    @property
    def changed(self) -> bool:
        """True if any pass changed something."""
        return any(report.changed for report in self.reports)

    def __str__(self) -> str:
        return _table(self.reports)


def _table(reports: Iterable[PassReport]) -> str:
    return "\n".join(table_lines(_HEADER, (report.row() for report in reports), width=sys.maxsize))


class PipelineListener:
    """Base of listeners to a pipeline run; a subclass overrides the methods that it needs.

    An exception raised in a method ends the run. It keeps its type and gets a note about the place where it was raised.

    >>> import torch, fx
    >>> from fx.pipelines.pipeline import PassPipeline
    >>> class Timer(PipelineListener):
    ...     def after_pass(self, report, graph_module):
    ...         print(report.name, report.changed)
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x))
    >>> _ = PassPipeline("remove-dead-code", listeners=(Timer(),)).run(program)
    remove-dead-code False
    """

    def before_pass(self, name: str, graph_module: GraphModule) -> None:
        """Handle the start of the pass ``name`` on ``graph_module``."""

    def edit(self, name: str, edit: Edit) -> None:
        """Handle an edit of the pass ``name``: before it is made, or afterwards for a pass that announces no edits."""

    def after_pass(self, report: PassReport, graph_module: GraphModule) -> None:
        """Handle the end of a pass, whose result ``graph_module`` has been verified."""
