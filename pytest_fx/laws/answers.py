"""Laws on what the transformed program answers and does to what it is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from pytest_fx.comparison.structure import describe, leaves, skeleton

from .example import Example
from .judging import require_kept
from .law import broken
from .runs import Run
from .variants import BATCHES


def structure(example: Example) -> None:
    """The result has the same structure: containers and their keys, shapes, and what is no tensor."""
    runs = _both(example)
    if runs is None:
        return
    eager, actual = runs
    if skeleton(eager.answer) != skeleton(actual.answer):
        shown = f"{describe(actual.answer)} instead of {describe(eager.answer)}"
        broken("structure", "the program returns something of another structure", value=shown)
    for (path, wanted), (_, found) in zip(leaves(eager.answer), leaves(actual.answer), strict=True):
        if isinstance(wanted, torch.Tensor):
            if wanted.shape != found.shape:
                shown = f"{list(found.shape)} instead of {list(wanted.shape)}"
                broken("structure", "an output has another shape", where=f"output{path}", value=shown)
        elif type(wanted) is not type(found):
            shown = f"{type(found).__name__} instead of {type(wanted).__name__}"
            broken("structure", "an output is of another type", where=f"output{path}", value=shown)


def dtype(example: Example) -> None:
    """Every output has the same dtype, device and memory layout class (strided, sparse)."""
    runs = _both(example)
    if runs is None or skeleton(runs[0].answer) != skeleton(runs[1].answer):
        return
    for (path, wanted), (_, found) in zip(leaves(runs[0].answer), leaves(runs[1].answer), strict=True):
        if not isinstance(wanted, torch.Tensor):
            continue
        for what in ("dtype", "device", "layout"):
            one, other = getattr(wanted, what), getattr(found, what)
            if one != other:
                broken("dtype", f"an output has another {what}", where=f"output{path}", value=f"{other}, not {one}")


def contract(example: Example) -> None:
    """The answers are as near to eager's as the pass promises: see :mod:`fx.passes.contract`."""
    if example.after is not None:
        require_kept("contract", example, "inputs", _answer)


def inputs_untouched(example: Example) -> None:
    """The program writes to its inputs what eager writes to them, which most often is nothing."""
    if example.after is not None:
        require_kept("inputs untouched", example, "inputs", _inputs, "input")


def state(example: Example) -> None:
    """A call changes buffers as in eager: running statistics in training mode, counters, caches."""
    runs = _both(example)
    if runs is None or example.after is None:
        return
    eager, actual = runs[0].state, _by_first_name(example, runs[1].state)
    wanted = list(eager)
    for name in eager:
        if name not in actual:
            why = "training reads and saves it afterwards"
            broken("state", f"a call no longer changes {name!r} of the program, as it does in eager", why=why)
    for name in actual:
        if name in runs[0].rewritten:  # with the values that it had, which a rounding error may change
            wanted.append(name)
        elif name not in eager and name in example.before.tensors:
            broken("state", f"a call changes {name!r} of the program, but not in eager")
    if wanted:
        part = partial(_state, example, wanted)
        require_kept("state", example, "inputs", part, "buffer")


def aliasing(example: Example) -> None:
    """An output shares memory with an input, or with another output, where it does in eager, and nowhere else."""
    runs = _both(example)
    if runs is None or runs[0].shared == runs[1].shared:
        return
    eager, actual = (set(run.shared) for run in runs)
    for output, given in sorted(actual - eager):
        why = "writing to one then changes the other, which callers do not expect"
        broken("aliasing", f"output{output} now shares memory with {given}", why=why)
    for output, given in sorted(eager - actual):
        why = "who writes to one in eager changes the other as well"
        broken("aliasing", f"output{output} no longer shares memory with {given}", why=why)


def batch_sizes(example: Example) -> None:
    """The same holds for other batch sizes, 1 and 0 included, wherever eager takes them."""
    for size in BATCHES:
        _require_on(example, "batch sizes", f"inputs of batch size {size}")


def non_contiguous_inputs(example: Example) -> None:
    """The same holds for inputs whose elements lie in memory in another order, wherever eager takes them."""
    _require_on(example, "non-contiguous inputs", "non-contiguous inputs")


def non_finite_inputs(example: Example) -> None:
    """NaN and infinities in the inputs reach the outputs where they do in eager."""
    _require_on(example, "non-finite inputs", "inputs with NaN and infinities")


def _require_on(example: Example, law: str, variant: str) -> None:
    if example.after is not None and example.arguments(variant) is not None:
        require_kept(law, example, variant, _answer)


def _both(example: Example) -> tuple[Run, Run] | None:
    """What eager and the program do; None where either raises, which is for the law of the contract."""
    if example.after is None or example.eager().error is not None or example.actual().error is not None:
        return None
    return example.eager(), example.actual()


def _by_first_name(example: Example, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state that a call of the transformed program changed, by the names that it has in the captured module."""
    return {example.names.get(name, name): tensor for name, tensor in state.items()}


def _state(example: Example, wanted: list[str], run: Run) -> dict[str, torch.Tensor | None]:
    written = {**run.rewritten, **run.state}
    found = {**written, **_by_first_name(example, written)}
    return {name: found.get(name) for name in wanted}


def _answer(run: Run) -> Any:
    return run.answer


def _inputs(run: Run) -> Any:
    return run.inputs
