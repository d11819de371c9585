"""The tensors that a program holds, and whether two are the same."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["overlaps", "same_tensor", "tensors_of"]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of ``module`` by name, tied ones once, also what is not saved with them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, device and elements; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if torch.equal(one, other):
        return True
    return (one.is_floating_point() or one.is_complex()) and bool(
        ((one == other) | (one.isnan() & other.isnan())).all()
    )


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements have memory in common, so that what writes to them leave depends on their order.

    >>> overlaps(torch.ones(3).expand(2, 3)), overlaps(torch.ones(3).unfold(0, 2, 1)), overlaps(torch.ones(2, 3).t())
    (True, True, False)
    """
    end = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= end:
            return True
        end += stride * (size - 1)
    return False
