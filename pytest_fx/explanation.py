"""Why a pass breaks its contract on a model: the node that goes wrong first, and a test file that shows it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from fx.passes import Approximate, Close, Contract, Exact, Pass, RewritingPass
from fx.passes.pipeline import PassPipeline

from .capture import GraphModule
from .contracts import rounding_limit
from .equality import Leaf, pair_leaves
from .errors import ContractViolation
from .evaluation import default_dtype
from .loading import importable_name
from .localization import Limit, NodeError, localize
from .reproducer import find_part, write_test
from .rewriting import rewrite
from .subject import Subject


def explain(
    subject: Subject,
    pass_: Pass,
    contract: Contract,
    violation: ContractViolation,
    label: str,
    folder: Path,
    *,
    leaves: bool = True,
) -> str:
    """Return what is known about where ``pass_`` goes wrong on ``subject``, in lines to stand below the violation.

    The pass is applied again to fresh captures. Whatever goes wrong on the way ends in a line that says so: the
    violation itself must not be lost.

    Args:
        subject: the model.
        pass_: the pass that broke ``contract``.
        contract: what it was held to.
        violation: how it broke it.
        label: what messages call the pass.
        folder: where a test file goes that shows the failure alone.
        leaves: whether the program was captured with leaf modules.
    """
    try:
        wrong, draw, text = _first_wrong(subject, pass_, contract, leaves)
        text = f"{_first_wrong_edit(subject, pass_, contract, leaves)}{text}"
    except Exception as error:
        return f"the node that goes wrong could not be found: {type(error).__name__}: {error}"
    if wrong is None or not leaves:
        return text
    try:
        return f"{text}\n{_reproduce(subject, pass_, contract, violation, label, folder, wrong, draw)}"
    except Exception as error:
        return f"{text}\nno test file could be made of it: {type(error).__name__}: {error}"


def _first_wrong(subject: Subject, pass_: Pass, contract: Contract, leaves: bool) -> tuple[NodeError | None, int, str]:
    """The first node that goes wrong, the draw of inputs on which it does, and the lines about it."""
    largest = None
    for draw in range(subject.draws):
        for original, transformed, eager, limit in _programs(subject, pass_, contract, leaves):
            found = localize(original, transformed, subject.arguments(draw), limit, eager)
            if found.first_wrong is not None:
                return found.first_wrong, draw, f"the first node that goes wrong:\n{_indented(str(found.first_wrong))}"
            largest = found.largest
    if largest is None:
        return None, 0, "no node of the transformed program stands for one of the original, so none could be compared"
    most = f"no node alone is wrong by more than is allowed; the one that adds most:\n{_indented(str(largest))}"
    return None, 0, most


def _first_wrong_edit(subject: Subject, pass_: Pass, contract: Contract, leaves: bool) -> str:
    """A line on the edit with which the program goes wrong, for passes that say which edits they make.

    What is approximate by design goes a little wrong with each of them, so none is named.
    """
    if not isinstance(pass_, (RewritingPass, PassPipeline)) or isinstance(contract, Approximate):
        return ""
    dtype = torch.float64 if isinstance(contract, Close) else subject.dtype
    expected = subject.eager_answers(dtype)

    def limits(leaf: Leaf) -> torch.Tensor:
        return leaf.limits(contract.rtol, contract.atol) if isinstance(contract, Close) else _no_error(leaf, 0.0)

    def is_good(program: GraphModule) -> bool:
        pairs = pair_leaves(expected, subject.answers_of(program, dtype))
        return not isinstance(pairs, str) and not any(bool((leaf.errors > limits(leaf)).any()) for leaf in pairs)

    with default_dtype(dtype):
        culprit = PassPipeline(pass_).bisect(subject.capture(subject.fresh(dtype), leaves=leaves), is_good)
    return "" if culprit is None else f"the first edit that goes wrong: {culprit}\n"


def _reproduce(
    subject: Subject,
    pass_: Pass,
    contract: Contract,
    violation: ContractViolation,
    label: str,
    folder: Path,
    wrong: NodeError,
    draw: int,
) -> str:
    """Write a test file, and return a line on it."""
    name = importable_name(pass_)
    if name is None:
        return "no test file was made of it: the pass cannot be imported by name"
    part = find_part(subject, pass_, contract, wrong.origins, violation, label, draw)
    if part is None:
        return "no test file was made of it: no part of the model fails alone in the same way"
    what = str(violation).partition("\n")[0]
    path = write_test(folder, part, name, contract, what, subject.name, wrong.where)
    return f"a test of {len(part.program.graph.nodes)} nodes that shows it alone: {path}"


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
