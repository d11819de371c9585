"""Tensors that somebody is about to write to, and what they held before."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["KeptTensor"]


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
        self._copied = tensor.detach().clone() if fetch is None else None
        self._fetch = fetch
        self._shape = tensor.shape
        self._version = tensor._version
        self._was_leaf = tensor.is_leaf

    @property
    def values(self) -> torch.Tensor:
        """What it held."""
        if self._fetch is not None:
            return self._fetch().detach()
        assert self._copied is not None, "what nobody fetches was copied"
        return self._copied

    @property
    def written(self) -> bool:
        """Whether somebody wrote to it, by other means than ``Tensor.data``, or gave it another shape."""
        return self.tensor._version != self._version or self.tensor.shape != self._shape

    def put_back(self) -> None:
        """Let the tensor hold what it held, and follow from nothing if it did not."""
        if self._was_leaf and not self.tensor.is_leaf and not self.tensor._is_view():
            self.tensor.detach_()
        if self.tensor.shape != self._shape:  # after unsqueeze_() and the like
            self.tensor.data = self.values.clone()
        else:
            self.tensor.detach().copy_(self.values)
        self._version = self.tensor._version
