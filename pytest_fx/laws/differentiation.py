"""Gradients of all that a program returns, of its inputs and parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments, default_dtype, places, same_random_numbers
from pytest_fx.harness.run import Runner
from pytest_fx.harness.snapshot import dense
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.subject import Subject

Gradients = Mapping[str, torch.Tensor]
_OF_EAGER = "gradients of eager"
"""Where a subject keeps them."""
Take = Callable[[str, torch.Tensor], None]
"""Does something with a gradient, which it gets with the name of what it is the gradient of."""


def gradients_of(
    runner: Runner, arguments: Arguments, dtype: torch.dtype, names: set[str] | None = None, *, stored: bool = False
) -> Gradients | Exception:
    """The gradients of a program, whose state is put back afterwards; or why there are none.

    Where they are ``stored`` they take no memory while nobody reads them.
    """
    kept = StoredTensors() if stored else None
    try:
        take = None if kept is None else kept.__setitem__
        found = gradients_by(runner.call, arguments, dtype, runner.program, names, take)
        return found if kept is None or isinstance(found, Exception) else kept
    finally:
        runner.restore()


def gradients_of_eager(subject: Subject, names: set[str]) -> Gradients | Exception:
    """Return the gradients of a model itself, of inputs and the parameters ``names``; found out once for all passes."""
    known = subject.findings.get(_OF_EAGER)
    if known is None or known[0] != names:
        runner, stored = subject.eager_runner(), subject.is_large
        found = gradients_of(runner, subject.arguments(), subject.dtype, names, stored=stored)
        if isinstance(found, Exception):
            return found
        known = subject.findings[_OF_EAGER] = names, found
    return known[1]


def gradients_by(
    call: Callable[..., Any],
    arguments: Arguments,
    dtype: torch.dtype,
    owner: nn.Module,
    names: set[str] | None = None,
    take: Take | None = None,
) -> Gradients | Exception:
    """The gradients of a weighted sum of all outputs, or what is raised in their place; empty if there are none.

    They are those of the inputs and of the parameters called ``names``, or of all. If there is ``take``, it gets each
    of them, and none is returned.
    """
    given = arguments.copies()
    inputs = {
        f"input{place}": tensor.requires_grad_()
        for place, tensor in places(given).items()
        if tensor.is_floating_point()
    }
    parameters = {
        name: tensor
        for name, tensor in owner.named_parameters()
        if tensor.requires_grad and (names is None or name in names)
    }
    wanted = {**parameters, **inputs}
    if not wanted:
        return {}
    passed = given.map(lambda tensor: tensor.clone() if tensor.requires_grad else tensor)  # which may be written to
    try:
        with torch.enable_grad(), default_dtype(dtype), same_random_numbers(arguments), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = weighted_sum(call(*passed.args, **passed.kwargs))
            if total is None:
                return {}
            if take is not None:
                _give_each(total, wanted, take)
                return {}
            found: Any = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    except Exception as error:
        return error
    pairs = zip(wanted.items(), found, strict=True)
    return {name: torch.zeros_like(tensor) if grad is None else dense(grad) for (name, tensor), grad in pairs}


def _give_each(total: torch.Tensor, wanted: Mapping[str, torch.Tensor], take: Take) -> None:
    """Call ``take`` with each gradient of ``total`` when it is there, so that they need not be there all at once."""
    left = dict(wanted)
    handles: list[Any] = []

    def hook(name: str, tensor: torch.Tensor) -> None:
        gradient, tensor.grad = tensor.grad, None
        assert gradient is not None, "called with a gradient"
        del left[name]
        take(name, dense(gradient))

    had = [(tensor, tensor.grad) for tensor in wanted.values()]
    try:
        for name, tensor in wanted.items():
            tensor.grad = None
            handles.append(tensor.register_post_accumulate_grad_hook(partial(hook, name)))
        torch.autograd.backward(total, inputs=list(wanted.values()))
    finally:
        for handle in handles:
            handle.remove()
        for tensor, gradient in had:
            tensor.grad = gradient
    for name, tensor in left.items():
        take(name, torch.zeros_like(tensor))


def weighted_sum(output: Any) -> torch.Tensor | None:
    """A sum in which each element of each output that can be differentiated has another weight."""
    total: torch.Tensor | None = None
    for number, (_, leaf) in enumerate(leaves(output)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point():
            steps = torch.arange(1, leaf.numel() + 1, dtype=torch.float64, device=leaf.device).reshape(leaf.shape)
            part = (leaf * torch.cos(steps + number).to(leaf.dtype)).sum()
            total = part if total is None else total + part
    return total
