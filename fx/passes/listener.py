"""``PipelineListener``: is notified of every pass and edit while a pipeline runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fx.graph_module import GraphModule
    from fx.passes.pass_report import PassReport
    from fx.passes.rewriting import Edit


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
