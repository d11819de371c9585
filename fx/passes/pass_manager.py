"""``PassManager`` for passes that return the program itself, with torch.fx's interface."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from fx.arguments import shown
from fx.errors import PassError
from fx.passes.infra.pass_manager import Constraint, this_before_that_pass_constraint
from fx.passes.infra.pass_manager import PassManager as ManagerOfResults

__all__ = ["PassManager", "inplace_wrapper", "log_hook", "loop_pass", "these_before_those_pass_constraint",
           "this_before_that_pass_constraint"]  # fmt: skip


def inplace_wrapper(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pass that runs ``fn`` and returns its first argument, which ``fn`` changes in place."""

    @functools.wraps(fn)
    def wrapped(changed: Any, *args: Any, **kwargs: Any) -> Any:
        fn(changed, *args, **kwargs)
        return changed

    return wrapped


def log_hook(fn: Callable[..., Any], level: int = logging.INFO) -> Callable[..., Any]:
    """Return a pass that runs ``fn`` and logs its result; use it inside :func:`inplace_wrapper`."""

    @functools.wraps(fn)
    def logged(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        logging.getLogger(__name__).log(level, "Ran pass %s\t Return value: %s", fn, result)
        return result

    return logged


def loop_pass(base_pass: Any, n_iter: int | None = None, predicate: Callable[[Any], bool] | None = None) -> Any:
    """Return a pass that runs ``base_pass`` ``n_iter`` times, or while ``predicate`` is true for the program.

    Raises:
        PassError: both are given or none, or ``n_iter`` is not a positive number.
    """
    if (n_iter is None) == (predicate is None) or (n_iter is not None and not n_iter > 0):
        what = "Exactly one of `n_iter` or `predicate` must be specified, and n_iter is positive"
        raise PassError(
            what, value=f"n_iter={n_iter}, predicate={shown(predicate)}", remedy="loop_pass(a_pass, n_iter=2)"
        )

    @functools.wraps(base_pass)
    def repeated(source: Any) -> Any:
        for _ in range(n_iter or 0):
            source = base_pass(source)
        while predicate is not None and predicate(source):
            source = base_pass(source)
        return source

    return repeated


def these_before_those_pass_constraint(these: Callable[..., Any], those: Callable[..., Any]) -> Constraint:
    """Return the constraint that no pass that wraps ``those`` may run before one that wraps ``these``."""
    return lambda a, b: inspect.unwrap(a) != those or inspect.unwrap(b) != these


class PassManager(ManagerOfResults):
    """A manager that runs passes in the given order, which must meet the constraints, each on the previous result."""

    @classmethod
    def build_from_passlist(cls, passes: list[Callable[..., Any]]) -> PassManager:
        """Return a manager of passes without constraints."""
        return cls(passes)

    def remove_pass(self, _passes: list[str] | None) -> None:
        """Remove the passes of these names."""
        self.passes = [pass_ for pass_ in self.passes if pass_.__name__ not in (_passes or ())]

    def replace_pass(self, _target: Callable[..., Any], _replacement: Callable[..., Any]) -> None:
        """Replace the passes with the name of ``_target`` by ``_replacement``."""
        self.passes = [_replacement if pass_.__name__ == _target.__name__ else pass_ for pass_ in self.passes]

    validate = ManagerOfResults.validate_constraints

    def __call__(self, source: Any) -> Any:
        """Run the passes on a program, and return the result of the last one."""
        self.validate()
        return functools.reduce(lambda result, pass_: pass_(result), self.passes, source)
