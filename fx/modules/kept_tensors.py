"""Tensors before a write to them, with their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch


class KeptTensor:
    """A tensor with its present values, so that later writes can be undone.

    >>> total = torch.zeros(2)
    >>> kept = KeptTensor(total)
    >>> total.add_(1)
    tensor([1., 1.])
    >>> kept.written
    True
    >>> kept.put_back()
    >>> total, kept.written
    (tensor([0., 0.]), False)
    """

    def __init__(self, tensor: torch.Tensor, fetch: Callable[[], torch.Tensor] | None = None) -> None:
        """Record ``tensor``; ``fetch`` returns an equal tensor that is never written. Without it, copy the tensor."""
        self.tensor = tensor
        """The tensor."""
        if fetch is None:
            copied = tensor.detach().clone()
            fetch = partial(torch.Tensor.detach, copied)
        self._fetch = fetch
        self._shape = tensor.shape
        self._version = _version(tensor)
        self._was_leaf = tensor.is_leaf

    @property
    def values(self) -> torch.Tensor:
        """The recorded values."""
        return self._fetch().detach()

    @property
    def written(self) -> bool:
        """True if the tensor was written, by other means than ``Tensor.data``, or has another shape."""
        return _version(self.tensor) != self._version or self.tensor.shape != self._shape

    def put_back(self) -> None:
        """Restore the values of the tensor; detach it if it was a leaf."""
        if self._was_leaf and not self.tensor.is_leaf and not self.tensor._is_view():
            self.tensor.detach_()
        if self.tensor.shape != self._shape:  # after unsqueeze_() and the like
            self.tensor.data = self.values.clone()
        else:
            self.tensor.detach().copy_(self.values)
        self._version = _version(self.tensor)


def _version(tensor: torch.Tensor) -> float:
    """Return the number of writes to a tensor; NaN, which equals nothing, if writes are possible but not counted."""
    if not tensor.is_inference():
        return tensor._version
    return math.nan if torch.is_inference_mode_enabled() else 0
