"""Why a pass breaks its contract on a model: the node that goes wrong first, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fx.passes import Approximate, Close, Contract, Exact, Pass

from .capture import GraphModule
from .contracts import rounding_limit
from .equality import Leaf
from .localization import Limit, localize
from .rewriting import rewrite
from .subject import Subject


def explain(subject: Subject, pass_: Pass, contract: Contract, *, leaves: bool = True) -> str:
    """Return what is known about where ``pass_`` goes wrong on ``subject``, in lines to stand below the violation.

    The pass is applied once more to fresh captures. Whatever goes wrong on the way ends in a line that says so: the
    violation itself must not be lost.
    """
    arguments = subject.arguments()
    largest = None
    try:
        for original, transformed, eager, limit in _programs(subject, pass_, contract, leaves):
            found = localize(original, transformed, arguments, limit, eager)
            if found.first_wrong is not None:
                return f"the first node that goes wrong:\n{_indented(str(found.first_wrong))}"
            largest = found.largest
    except Exception as error:
        return f"the node that goes wrong could not be found: {type(error).__name__}: {error}"
    if largest is None:
        return "no node of the transformed program stands for one of the original, so none could be compared"
    return f"no node alone is wrong by more than is allowed; the one that adds most:\n{_indented(str(largest))}"


def _programs(
    subject: Subject, pass_: Pass, contract: Contract, leaves: bool
) -> Iterator[tuple[GraphModule, GraphModule, GraphModule | None, Limit]]:
    """Original, transformed and eager program and the limit, in the order in which the contract compares."""
    narrow = subject.capture(leaves=leaves)
    if isinstance(contract, Exact):
        yield narrow, rewrite(subject, pass_, leaves=leaves).program, None, _no_error
        return
    wide = subject.capture(subject.fresh(torch.float64), leaves=leaves)
    if isinstance(contract, Close):
        transformed = rewrite(subject, pass_, torch.float64, leaves=leaves).program
        yield wide, transformed, narrow, lambda leaf, eager: leaf.limits(contract.rtol, contract.atol)
        wide = subject.capture(subject.fresh(torch.float64), leaves=leaves)
    limit = rounding_limit if not isinstance(contract, Approximate) else _any_error
    yield wide, rewrite(subject, pass_, leaves=leaves).program, narrow, limit


def _no_error(leaf: Leaf, eager: float) -> torch.Tensor:
    return torch.zeros_like(leaf.errors)


def _any_error(leaf: Leaf, eager: float) -> torch.Tensor:
    """A pass that promises a ratio for the whole program has no limit for a node."""
    return torch.full_like(leaf.errors, torch.inf)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
