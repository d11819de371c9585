"""Passes as a sequence of edits, which can be counted, limited and named one by one (paper, section 5.5)."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fx.argument_types import checked, refuse_misfit
from fx.arguments import shown
from fx.errors import PassError, type_in_words
from fx.graph_module import GraphModule
from fx.matcher.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.modules.attributes import find_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fx.node import Node
    from fx.provenance import SourceLocation


@dataclass(frozen=True, slots=True)
class Edit:
    """One rewrite that a pass is about to make."""

    description: str
    """A description that reads on from the pass's name: ``"bn1 into conv1"``."""
    where: SourceLocation | None = None
    """The user's line of the rewritten operation, if known."""

    def __str__(self) -> str:
        return self.description if self.where is None else f"{self.description} ({self.where.place})"


class RewritingPass:
    """Base of passes that edit a program step by step.

    A subclass writes ``rewrites``, a generator that yields each :class:`Edit` *before* it makes it. So its caller can
    count and name the edits, and stop after any of them with a valid program. Bisection in a pipeline relies on this.

    >>> import operator, torch, fx
    >>> class Negate(RewritingPass):
    ...     def rewrites(self, graph_module):
    ...         for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
    ...             yield Edit(f"{node} becomes a negation", node.source)
    ...             node.target = operator.neg
    >>> program = Negate()(fx.symbolic_trace(lambda x: torch.relu(x)))
    >>> program(torch.ones(1))
    tensor([-1.])
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the options of a dataclass that is not registered; ``register_pass`` adds this check to the others."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        options = {field.name: getattr(self, field.name) for field in fields if field.init}
        refuse_misfit(type(self).__init__, (self,), options, PassError, type(self))

    @abstractmethod
    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Edit ``graph_module``, and yield each edit before it is made."""
        raise NotImplementedError(f"{type(self).__name__} must define rewrites")

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Edit ``graph_module`` and return it."""
        make_edits(self, graph_module)
        return graph_module


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a pass about one operation that it could edit."""

    node: str
    """Name of its node."""
    is_edited: bool
    """True if the pass edits it."""
    reason: str
    """The edit, or the reason why the operation is left alone."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


class ExplainedPass(RewritingPass):
    """Base of passes that give the reason for each edit, and for each operation that they leave alone."""

    __slots__ = ()

    @abstractmethod
    def decisions(self, graph_module: GraphModule) -> Iterable[tuple[Node, bool, str]]:
        """Yield each operation that this pass could edit, whether it does, and why. The program is not changed."""

    @checked(PassError)
    def explain(self, graph_module: GraphModule) -> list[Decision]:
        """Report for each operation that this pass could edit whether it would, and why. The program is not changed."""
        return [Decision(node.name, edited, why, node.source) for node, edited, why in self.decisions(graph_module)]


@checked(PassError)
def make_edits(pass_: RewritingPass, graph_module: GraphModule, fuel: int | None = None) -> list[Edit]:
    """Run ``pass_`` on ``graph_module`` for at most ``fuel`` edits, and return the edits that it made.

    Every new node gets the origins and the user's line of the nodes that it replaces or serves. The program is
    recompiled if its graph changed.
    """
    graph = graph_module.graph
    record_origins(graph)
    revision, earlier = graph.revision, EarlierNode.all_of(graph)
    edits = take_edits(pass_, graph_module, fuel)
    if graph.revision != revision:
        match_origins(graph, earlier)
        complete_origins(graph)
        graph_module.recompile()
    return edits


def take_edits(
    pass_: RewritingPass,
    graph_module: GraphModule,
    fuel: int | None = None,
    announce: Callable[[Edit], object] | None = None,
) -> list[Edit]:
    """Run a pass as :func:`make_edits` does, but leave origins, lines and code as the pass leaves them.

    ``announce`` is called with each edit before it is made. Raises :class:`~fx.errors.PassError` if the pass yields
    anything but an :class:`Edit`, or makes its first edit before it yields.
    """
    taken_edits: list[Edit] = []
    revision = graph_module.graph.revision
    with closing(_generator(pass_.rewrites(graph_module))) as edits:
        for edit in edits:
            if len(taken_edits) == fuel:
                break
            if not isinstance(edit, Edit):
                raise PassError(
                    f"a pass announced {type_in_words(edit)}, which is not an Edit",
                    value=shown(edit),
                    remedy='yield Edit("what it does", node.source) before each edit',
                )
            if not taken_edits and graph_module.graph.revision != revision:
                raise PassError(
                    "a pass edited the graph before it announced the edit",
                    value=str(edit),
                    why="a run that stops after some edits would make one more, and bisection would blame a wrong one",
                    remedy="yield first and edit then; find the places to edit without changing the graph",
                )
            taken_edits.append(edit)
            if announce is not None:
                announce(edit)
    return taken_edits


def rewrites_inside(
    pass_: RewritingPass, graph_module: GraphModule, opcodes: tuple[str, ...] = ("get_attr",)
) -> Iterator[Edit]:
    """Run a pass on the programs that this one passes to operators, and yield its edits.

    Programs that it calls are included if ``call_module`` is among the opcodes.
    """
    paths = dict.fromkeys(str(node.target) for node in graph_module.graph.nodes if node.op in opcodes)
    values = {id(value): value for path in paths for value in [find_attribute(graph_module, path)]}
    for inner in values.values():
        if not isinstance(inner, GraphModule):
            continue
        revision = inner.graph.revision
        try:
            yield from pass_.rewrites(inner)
        finally:
            if inner.graph.revision != revision:
                inner.recompile()


def _generator(edits: Iterator[Edit]) -> Generator[Edit, None, None]:
    """Return a generator over ``edits``, which can be closed whatever kind of iterator a pass returns."""
    yield from edits
