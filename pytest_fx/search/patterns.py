"""The patterns that a pass looks for, recorded while it runs on one program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

from fx import GraphModule
from fx.matcher.patterns import Pattern
from pytest_fx.harness.capture import capture
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.processes.deadline import Watchdog


class _Negation(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)


def patterns_looked_for(pass_: Any, watchdog: Watchdog, seconds: float) -> tuple[GraphModule, ...]:
    """Apply a pass to a program of one operation, and return the patterns that it looks for there.

    The patterns of ``replace_pattern`` and of matchers are recorded, of torch.fx and of ours, wherever the pass has
    them from.
    """
    graphs: list[Any] = []
    subject = Subject.of(GivenProgram(_Negation, Arguments((torch.ones(2),)), "negation"), "eval")
    with ExitStack() as stack:
        for kind in (SubgraphMatcher, Pattern):
            stack.enter_context(_noting(kind, graphs.append))
        PassRun(subject, pass_, watchdog=watchdog, seconds=seconds)
    programs: dict[str, GraphModule] = {}
    for graph in graphs:
        try:
            wrapped: Any = torch.fx.GraphModule({}, graph) if isinstance(graph, torch.fx.Graph) else graph
            program = capture(wrapped)
        except Exception:  # a pattern that is no program by itself may raise anything
            continue
        programs.setdefault(program.code, program)
    return tuple(programs.values())


@contextmanager
def _noting(kind: Any, note: Callable[[Any], object]) -> Generator[None]:
    """Call ``note`` with the first argument of each construction of a class."""
    usual = kind.__init__

    @functools.wraps(usual)
    def noting(self: Any, pattern: Any, *others: Any, **options: Any) -> None:
        usual(self, pattern, *others, **options)
        note(pattern)

    kind.__init__ = noting
    try:
        yield
    finally:
        kind.__init__ = usual
