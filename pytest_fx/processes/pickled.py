"""Pickling a program without the bytes of its tensors, which torch writes itself and which take most of the time."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, TypeVar

import torch
from torch import nn

Program = TypeVar("Program", bound=nn.Module)
_PLAIN = (torch.Tensor, nn.Parameter)


def unpickled(program: Program) -> Program:
    """Return a program after pickling and unpickling; its tensors are copied beside the pickle.

    Raises what pickling or unpickling raises.

    >>> unpickled(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(program)
    file.seek(0)
    return _Unpickler(file, pickler.tensors).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.DEFAULT_PROTOCOL)
        self.tensors: dict[int, torch.Tensor] = {}
        """By identity."""

    def persistent_id(self, obj: Any) -> int | None:
        """Return the identity of a tensor; None for all other objects, which are pickled."""
        if type(obj) not in _PLAIN:
            return None
        self.tensors[id(obj)] = obj
        return id(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: dict[int, torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._copied: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        """Return a copy of a tensor, the same copy each time."""
        return copy.deepcopy(self._tensors[pid], self._copied)
