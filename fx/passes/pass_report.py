"""What a pipeline reports of each pass that it ran, and whom it notifies while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from fx.graph_module import GraphModule
from fx.naming.tables import table_lines
from fx.passes.rewriting import Edit

_HEADER = ("pass", "edits", "nodes", "seconds", "changed")


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did."""

    name: str
    """Name of the pass."""
    edits: tuple[Edit, ...]
    """The edits that it made, in order; one stands for all of a pass that changes something and names no edits."""
    seconds: float
    """How long the pass itself took."""
    nodes_before: int
    """How many nodes the graph had before it."""
    nodes_after: int
    """How many it had after it."""
    changed: bool
    """Whether it changed the graph, a graph inside it, or which modules and tensors the program holds."""

    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        nodes = f"{self.nodes_before} -> {self.nodes_after}"
        return self.name, str(len(self.edits)), nodes, f"{self.seconds:.4f}", "yes" if self.changed else "no"

    def __str__(self) -> str:
        return _table([self])


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What a run of a pipeline made; prints as a table of its passes."""

    graph_module: GraphModule
    """The program."""
    reports: tuple[PassReport, ...]
    """What each pass did, in order; passes for which no fuel was left are not among them."""

    @property
    def changed(self) -> bool:
        """Return whether any pass changed something."""
        return any(report.changed for report in self.reports)

    def __str__(self) -> str:
        return _table(self.reports)


def _table(reports: Iterable[PassReport]) -> str:
    return "\n".join(table_lines(_HEADER, (report.row() for report in reports), width=sys.maxsize))


class PipelineListener:
    """Is notified of what a pipeline does; override what is of interest.

    An exception raised in a method ends the run. It keeps its type and gets a note that says where it was raised.

    >>> import torch, fx
    >>> from fx.passes.pipeline import PassPipeline
    >>> class Timer(PipelineListener):
    ...     def after_pass(self, report, graph_module):
    ...         print(report.name, report.changed)
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x))
    >>> _ = PassPipeline("remove-dead-code", listeners=(Timer(),)).run(program)
    remove-dead-code False
    """

    def before_pass(self, name: str, graph_module: GraphModule) -> None:
        """The pass called ``name`` is about to be given ``graph_module``."""

    def edit(self, name: str, edit: Edit) -> None:
        """The pass called ``name`` is about to make ``edit``; one that does not say so beforehand has made it."""

    def after_pass(self, report: PassReport, graph_module: GraphModule) -> None:
        """A pass made ``graph_module``, which was found to be in order."""
