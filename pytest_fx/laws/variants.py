"""Other inputs for a program: other batch sizes, strides and values that are no numbers, made from those it has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from pytest_fx.comparison.evaluation import Arguments

BATCHES = (1, 0, 3)
"""The batch sizes that programs are tried with besides their own."""


def _same(arguments: Arguments) -> Arguments | None:
    return arguments


def _with_batch(size: int, arguments: Arguments) -> Arguments | None:
    """The first dimension of every tensor that has more than one, where it is as long as in the first such tensor."""
    batch = next((tensor.shape[0] for tensor in arguments.tensors if tensor.dim() > 1), size)
    if batch == size:
        return None

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2 or tensor.shape[0] != batch:
            return tensor
        if batch == 0:
            return tensor.new_ones((size, *tensor.shape[1:]))
        return tensor.index_select(0, torch.arange(size, device=tensor.device) % batch)

    return arguments.map(resized)


def _non_contiguous(arguments: Arguments) -> Arguments | None:
    """The same values, the last dimension varying slowest in memory."""
    if not any(tensor.dim() > 1 and tensor.numel() > 1 for tensor in arguments.tensors):
        return None

    def strided(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        return tensor.movedim(-1, 0).clone(memory_format=torch.contiguous_format).movedim(0, -1)

    return arguments.map(strided)


def _non_finite(arguments: Arguments) -> Arguments | None:
    """NaN first and infinities last in every floating-point tensor; half of them where there are few elements."""
    if not any(tensor.is_floating_point() and tensor.numel() for tensor in arguments.tensors):
        return None
    count = iter(range(len(arguments.tensors)))

    def poisoned(tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() and tensor.numel()):
            return tensor
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).flatten()
        if next(count) % 2 == 0:
            flat[0] = torch.nan
        if len(flat) > 1:
            flat[-1] = -torch.inf
            flat[len(flat) // 2] = torch.inf
        return flat.reshape(tensor.shape)

    return arguments.map(poisoned)


VARIANTS: dict[str, Callable[[Arguments], Arguments | None]] = {
    "inputs": _same,
    **{f"inputs of batch size {size}": partial(_with_batch, size) for size in BATCHES},
    "non-contiguous inputs": _non_contiguous,
    "inputs with NaN and infinities": _non_finite,
}
"""How each variant of a program's inputs is made; None where there is none for some inputs."""
