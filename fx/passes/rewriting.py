"""Passes as a sequence of edits, which can be counted, limited and named one by one (paper, section 5.5)."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fx.arguments import shown
from fx.errors import PassError
from fx.graph_module import expect_program
from fx.origins import EarlierNode, complete_origins, match_origins, record_origins
from fx.passes.pass_options import check_options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fx.graph_module import GraphModule
    from fx.provenance import SourceLocation


@dataclass(frozen=True, slots=True)
class Edit:
    """One rewrite that a pass is about to make."""

    description: str
    """What it does, in words that follow the pass's name: ``"bn1 into conv1"``."""
    where: SourceLocation | None = None
    """The user's line of what is rewritten, if known."""

    def __str__(self) -> str:
        return self.description if self.where is None else f"{self.description} ({self.where.place})"


class RewritingPass:
    """Base of passes that edit a program step by step.

    A subclass writes ``rewrites``, a generator that yields an :class:`Edit` *before* it makes it. So whoever drives
    it can count the edits, name them, and stop after any of them with a program that is whole: that is how a
    pipeline finds the one that breaks something.

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
        """Check the options, where the pass is a dataclass that is not registered; ``register_pass`` sees to others."""
        check_options(type(self), {field.name: getattr(self, field.name) for field in dataclasses.fields(self)})  # type: ignore[arg-type]

    @abstractmethod
    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Edit ``graph_module``, and before each edit say which one comes."""
        raise NotImplementedError(f"{type(self).__name__} must define rewrites")

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Edit ``graph_module`` and return it."""
        make_edits(self, graph_module)
        return graph_module


def make_edits(pass_: RewritingPass, graph_module: GraphModule, fuel: int | None = None) -> list[Edit]:
    """Let ``pass_`` edit ``graph_module``, at most ``fuel`` times, and return the edits that it made.

    Every new node gets the origins and the user's line of what it replaces or serves, and the program is recompiled
    if its graph changed.
    """
    expect_program(graph_module, f"{type(pass_).__name__} runs on a GraphModule")
    graph = graph_module.graph
    record_origins(graph)
    revision, earlier = graph.revision, EarlierNode.all_of(graph)
    made = take_edits(pass_, graph_module, fuel)
    if graph.revision != revision:
        match_origins(graph, earlier)
        complete_origins(graph)
        graph_module.recompile()
    return made


def take_edits(
    pass_: RewritingPass,
    graph_module: GraphModule,
    fuel: int | None = None,
    announce: Callable[[Edit], object] | None = None,
) -> list[Edit]:
    """Do what :func:`make_edits` does, but leave origins, lines and code as the pass leaves them.

    ``announce`` is called with each edit before it is made. Raises :class:`~fx.errors.PassError` if the pass yields
    something else than an :class:`Edit`, or makes its first edit before it says so.
    """
    made: list[Edit] = []
    revision = graph_module.graph.revision
    with closing(_generator(pass_.rewrites(graph_module))) as edits:
        for edit in edits:
            if len(made) == fuel:
                break
            if not isinstance(edit, Edit):
                raise PassError(
                    f"a pass announced a {type(edit).__name__}, which is not an Edit",
                    value=shown(edit),
                    remedy='yield Edit("what it does", node.source) before each edit',
                )
            if not made and graph_module.graph.revision != revision:
                raise PassError(
                    "a pass edited the graph before it announced the edit",
                    value=str(edit),
                    why="whoever stops it after some edits would stop it after one more, and blame another one",
                    remedy="yield first and edit then; work out what to edit without changing the graph",
                )
            made.append(edit)
            if announce is not None:
                announce(edit)
    return made


def _generator(edits: Iterator[Edit]) -> Generator[Edit, None, None]:
    """``edits`` as something that can be closed, whatever kind of iterator a pass returns."""
    yield from edits
