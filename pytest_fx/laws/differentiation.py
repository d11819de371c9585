"""Gradients of a program's outputs with respect to its inputs and parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from fx.node import reached
from pytest_fx.harness.evaluation import Arguments, default_dtype, places, same_random_numbers
from pytest_fx.harness.run import Runner
from pytest_fx.harness.snapshot import dense
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.subject import Subject

Key = TypeVar("Key")
Gradients = Mapping[str, torch.Tensor]
_OF_EAGER = "gradients of eager"
"""Key of eager's gradients in ``Subject.findings``."""
Take = Callable[[str, torch.Tensor], None]
"""Function that receives a gradient, after the name of its input or parameter."""


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """The results of a call and its backward pass."""

    gradients: Gradients | Exception
    """The gradients, or the exception that prevented them."""
    state: Mapping[str, torch.Tensor]
    """Final values of the parameters and buffers that changed."""


def backward_pass(
    runner: Runner, arguments: Arguments, dtype: torch.dtype, names: set[str] | None = None, *, stored: bool = False
) -> BackwardPass:
    """Run a program and its backward pass, and restore its state.

    With ``stored``, the gradients take no memory until they are read.
    """
    storage = StoredTensors() if stored else None
    try:
        take = None if storage is None else storage.__setitem__
        gradients = gradients_by(runner.call, arguments, dtype, runner.program, names, take)
        state = {name: tensor.detach().clone() for name, tensor in runner.written().items()}
        return BackwardPass(gradients if storage is None or isinstance(gradients, Exception) else storage, state)
    finally:
        runner.restore()


def gradients_of(
    runner: Runner, arguments: Arguments, dtype: torch.dtype, names: set[str] | None = None, *, stored: bool = False
) -> Gradients | Exception:
    """Return the gradients of a program, or the exception that prevented them; restore the program's state."""
    return backward_pass(runner, arguments, dtype, names, stored=stored).gradients


def gradients_of_eager(subject: Subject, names: set[str]) -> Gradients | Exception:
    """Return eager's gradients of the inputs and the parameters ``names``; they are computed once for all passes."""
    cached = subject.findings.get(_OF_EAGER)
    if cached is None or cached[0] != names:
        runner, stored = subject.eager_runner(), subject.is_large
        gradients = gradients_of(runner, subject.arguments(), subject.dtype, names, stored=stored)
        if isinstance(gradients, Exception):
            return gradients
        cached = subject.findings[_OF_EAGER] = names, gradients
    return cached[1]


def gradients_by(
    call: Callable[..., Any],
    arguments: Arguments,
    dtype: torch.dtype,
    owner: nn.Module,
    names: set[str] | None = None,
    take: Take | None = None,
) -> Gradients | Exception:
    """Return the gradients of a weighted sum of all outputs, or the exception that prevents them.

    The gradients are with respect to the inputs, and to the parameters in ``names``, or to all parameters. If ``take``
    is given, it receives each gradient, and the result is empty.
    """
    copies = arguments.copies()
    inputs = {
        f"input{place}": tensor.requires_grad_()
        for place, tensor in places(copies).items()
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
    passed = copies.map(lambda tensor: tensor.clone() if tensor.requires_grad else tensor)  # may be written to
    try:
        with torch.enable_grad(), default_dtype(dtype), same_random_numbers(arguments), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = weighted_sum(call(*passed.args, **passed.kwargs))
            if total is None:
                return {}
            if take is not None and not _may_call_backward(total):
                _give_each(total, wanted, take)
                return {}
            gradients = gradients_at(total, wanted, owner.parameters())
            if take is None:
                return gradients
            for name, gradient in gradients.items():
                take(name, gradient)
            return {}
    except Exception as error:
        return error


def gradients_at(
    total: torch.Tensor,
    wanted: Mapping[Key, torch.Tensor],
    parameters: Iterable[torch.Tensor] = (),
    *,
    retain_graph: bool = False,
) -> dict[Key, torch.Tensor]:
    """Return the gradient of ``total`` with respect to each tensor of ``wanted``; zeros if there is none.

    The ``grad`` of these tensors and of ``parameters`` is unchanged. With ``retain_graph``, ``total`` can be
    differentiated again.
    """
    if _may_call_backward(total):
        gradients: Any = _accumulated(total, list(wanted.values()), parameters, retain_graph=retain_graph)
    else:
        gradients = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, retain_graph=retain_graph)
    pairs = zip(wanted.items(), gradients, strict=True)
    return {key: torch.zeros_like(tensor) if grad is None else dense(grad) for (key, tensor), grad in pairs}


def _accumulated(
    total: torch.Tensor, wanted: Sequence[torch.Tensor], parameters: Iterable[torch.Tensor], *, retain_graph: bool
) -> list[torch.Tensor | None]:
    """Return the gradients that ``total.backward()`` adds to the ``grad`` of tensors.

    A nested backward pass, as that of a reentrant checkpoint, does not work under ``torch.autograd.grad``.
    """
    leaves_at = {id(tensor): tensor for tensor in (*wanted, *parameters, *_leaves_of(total))}
    earlier = [(tensor, tensor.grad) for tensor in leaves_at.values() if tensor.is_leaf]
    try:
        for tensor, _ in earlier:
            tensor.grad = None
        for tensor in wanted:
            if tensor.requires_grad:
                tensor.retain_grad()
        total.backward(retain_graph=retain_graph)
        return [tensor.grad for tensor in wanted]
    finally:
        for tensor, gradient in earlier:
            tensor.grad = gradient


def _give_each(total: torch.Tensor, wanted: Mapping[str, torch.Tensor], take: Take) -> None:
    """Call ``take`` with each gradient of ``total`` as soon as it is computed, so that they need not coexist."""
    pending = dict(wanted)
    handles: list[Any] = []

    def hook(name: str, tensor: torch.Tensor) -> None:
        gradient, tensor.grad = tensor.grad, None
        assert gradient is not None, "called with a gradient"
        del pending[name]
        take(name, dense(gradient))

    earlier = [(tensor, tensor.grad) for tensor in wanted.values()]
    try:
        for name, tensor in wanted.items():
            tensor.grad = None
            handles.append(tensor.register_post_accumulate_grad_hook(partial(hook, name)))
        torch.autograd.backward(total, inputs=list(wanted.values()))
    finally:
        for handle in handles:
            handle.remove()
        for tensor, gradient in earlier:
            tensor.grad = gradient
    for name, tensor in pending.items():
        take(name, torch.zeros_like(tensor))


def _may_call_backward(total: torch.Tensor) -> bool:
    """Return whether the backward pass of ``total`` runs Python code, which may start a nested backward pass."""
    return any(isinstance(node, BackwardCFunction) for node in _backward_nodes(total))


def _leaves_of(total: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the leaf tensors in the autograd graph of ``total``; the backward pass adds to their ``grad``."""
    for node in _backward_nodes(total):
        if isinstance(variable := getattr(node, "variable", None), torch.Tensor):
            yield variable


def _backward_nodes(total: torch.Tensor) -> Iterable[Any]:
    """Return the nodes of the autograd graph of a tensor, each once."""
    start: list[Any] = [] if total.grad_fn is None else [total.grad_fn]
    return reached(start, lambda node: [following for following, _ in node.next_functions if following is not None])


def weighted_sum(output: Any) -> torch.Tensor | None:
    """Return a sum of all elements of all differentiable outputs, with different weights; None if there are none."""
    total: torch.Tensor | None = None
    for number, (_, leaf) in enumerate(leaves(output)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point():
            steps = torch.arange(1, leaf.numel() + 1, dtype=torch.float64, device=leaf.device).reshape(leaf.shape)
            part = (leaf * torch.cos(steps + number).to(leaf.dtype)).sum()
            total = part if total is None else total + part
    return total
