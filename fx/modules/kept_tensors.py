"""Tensors that somebody is about to write to, and what they held before."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch


class KeptTensor:
    """A tensor with what it holds now, so that what is written to it later can be undone.

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
        """Take ``tensor``, and what fetches an equal tensor that nobody writes to, if there is one; else copy it."""
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
        """Return what it held."""
        return self._fetch().detach()

    @property
    def written(self) -> bool:
        """Return whether somebody wrote to it, by other means than ``Tensor.data``, or gave it another shape."""
        return _version(self.tensor) != self._version or self.tensor.shape != self._shape

    def put_back(self) -> None:
        """Let the tensor hold what it held, and follow from nothing if it did not."""
        if self._was_leaf and not self.tensor.is_leaf and not self.tensor._is_view():
            self.tensor.detach_()
        if self.tensor.shape != self._shape:  # after unsqueeze_() and the like
            self.tensor.data = self.values.clone()
        else:
            self.tensor.detach().copy_(self.values)
        self._version = _version(self.tensor)


def _version(tensor: torch.Tensor) -> float:
    """Return how often a tensor was written to; NaN, which nothing equals, where it does not count and may be written
    to.
    """
    if not tensor.is_inference():
        return tensor._version
    return math.nan if torch.is_inference_mode_enabled() else 0
