"""``PassManager`` for passes that return a ``PassResult``. :class:`fx.passes.PassPipeline` verifies programs, too."""

from __future__ import annotations

import functools
import graphlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from fx.arguments import shown
from fx.errors import PassError, add_note
from fx.graph_module import GraphModule
from fx.passes.infra.pass_base import PassResult

Constraint = Callable[[Callable[..., Any], Callable[..., Any]], bool]
"""A function that returns whether the first pass may run before the second."""


def pass_result_wrapper(fn: Callable[..., Any]) -> Callable[..., PassResult | None]:
    """Return a pass that calls ``fn`` and returns a ``PassResult``, with ``modified=True`` if ``fn`` returns none."""

    @functools.wraps(fn)
    def wrapped(graph_module: torch.nn.Module) -> PassResult:
        result = fn(graph_module)
        changed = PassResult(graph_module if result is None else result, True)
        return result if isinstance(result, PassResult) else changed

    wrapped.__name__ = _name_of(fn)
    return wrapped


def this_before_that_pass_constraint(this: Callable[..., Any], that: Callable[..., Any]) -> Constraint:
    """Return the constraint that ``that`` may not run before ``this``."""
    return lambda a, b: a != that or b != this


class PassManager:
    """A manager that runs passes in an order that all constraints allow, up to ``steps`` times or to a fixed point."""

    def __init__(
        self,
        passes: list[Any] | None = None,
        constraints: list[Constraint] | None = None,
        steps: int | None = None,
        run_checks_after_each_pass: bool = False,
    ) -> None:
        """Set the passes, the constraints on their order, the largest number of runs of all passes, and the checks."""
        self.passes: list[Any] = list(passes or ())
        self.constraints: list[Constraint] = list(constraints or ())
        self.steps = steps or 1
        self.run_checks_after_each_pass = run_checks_after_each_pass
        self.check: Callable[[torch.nn.Module], object] = lambda module: None
        """The function that checks a module at the start, and raises an exception if the module is invalid."""

    def add_checks(self, check: Callable[[torch.nn.Module], object]) -> None:
        """Set :attr:`check`."""
        self.check = check

    def add_pass(self, _pass: Callable[..., Any]) -> None:
        """Append a pass."""
        self.passes.append(_pass)

    def add_constraint(self, constraint: Constraint) -> None:
        """Add a constraint."""
        self.constraints.append(constraint)

    def validate_constraints(self) -> None:
        """Raise a ``PassError`` if a constraint forbids the order of the passes."""
        if (misplaced := self._misplaced()) is not None:
            a, b = map(_name_of, misplaced)
            what = f"pass schedule constraint violated: {b} has to run before {a}"
            raise PassError(what, remedy="change their order, or drop the constraint")

    def solve_constraints(self) -> None:
        """Sort the passes topologically, so that all constraints hold.

        Raises:
            PassError: the constraints form a cycle; the message names its passes.
        """
        numbers, passes = range(len(self.passes)), self.passes
        before = {b: [a for a in numbers if a != b and not self._may_precede(passes[b], passes[a])] for b in numbers}
        try:
            self.passes = [passes[number] for number in graphlib.TopologicalSorter(before).static_order()]
        except graphlib.CycleError as error:
            names = ", ".join(_name_of(passes[number]) for number in dict.fromkeys(error.args[1]))
            raise PassError(f"Circular dependency detected within the following passes: {names}") from None

    def __call__(self, module: torch.nn.Module) -> PassResult:
        """Run the passes, sorted first if they need it; an exception from one of them gets a note with its name."""
        if self._misplaced() is not None:
            self.solve_constraints()
        self.check(module)
        is_modified = False
        for _ in range(self.steps):
            is_changed = False
            for pass_ in self.passes:
                try:
                    result = self._run(pass_, module)
                except Exception as error:
                    add_note(error, f"while the pass {_name_of(pass_)} ran")
                    raise
                module, is_changed = result.graph_module, is_changed or bool(result.modified)
            is_modified = is_modified or is_changed
            if not is_changed:
                break
        return PassResult(module, is_modified)

    def _run(self, pass_: Callable[..., Any], module: torch.nn.Module) -> PassResult:
        result = pass_(module)
        if not hasattr(result, "graph_module"):
            what = f"the pass {_name_of(pass_)} returns no PassResult"
            raise PassError(what, value=shown(result), remedy="wrap it: pass_result_wrapper(the_pass)")
        if isinstance(program := result.graph_module, GraphModule):
            program.recompile()
        if self.run_checks_after_each_pass:
            if isinstance(program, GraphModule):
                program.graph.lint()
            self.check(program)
        return result

    def _misplaced(self) -> tuple[Any, Any] | None:
        """Return the first two passes whose order a constraint forbids, or None."""
        pairs = itertools.combinations(self.passes, 2)
        return next(((a, b) for a, b in pairs if not self._may_precede(a, b)), None)

    def _may_precede(self, a: Callable[..., Any], b: Callable[..., Any]) -> bool:
        return all(allows(a, b) for allows in self.constraints)


def _name_of(pass_: Callable[..., Any]) -> str:
    return pass_.__name__ if inspect.isfunction(pass_) else type(pass_).__name__
