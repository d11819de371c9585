"""Copies of a module that share tensors: a large model is in memory once, and at most once more in float64."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from fx.modules.kept_tensors import KeptTensor
from pytest_fx.harness.evaluation import converted
from pytest_fx.harness.run import Runner
from pytest_fx.harness.snapshot import held_by, is_strided, memory_of, overlaps, tensors_of
from pytest_fx.harness.stored import StoredTensors

FULL_SIZE = 2**20
"""Number of elements of parameters, buffers and inputs from which on a model of full size gets cheaper checks."""


class SharedWeights:
    """A module that is never changed itself, and copies of it.

    The tensors of a small module exist twice: its own, and those that copies share. Those of a large module exist once,
    and are shared; a file has their values, to detect and undo writes to them. A float64 copy of it takes twice as
    much memory, see :meth:`claim_float64`.
    """

    def __init__(self, module: nn.Module) -> None:
        """Hold ``module`` itself, not a copy."""
        self._module = module
        tensors = tensors_of(module)
        self.is_large = _can_be_stored(module, tensors)
        self._requires_grad = {name: tensor.requires_grad for name, tensor in tensors.items()}
        self._strides = {name: tensor.stride() for name, tensor in tensors.items()} if self.is_large else {}
        self.tensors: Mapping[str, torch.Tensor] = tensors
        """Tensors equal to its parameters and buffers, by name, to compare with; never change them."""
        if self.is_large:
            self.tensors = stored = StoredTensors()
            for name, tensor in tensors.items():
                stored[name] = tensor
        self._shared: dict[torch.dtype | None, dict[int, KeptTensor]] = {}
        self._runners: dict[torch.dtype | None, Runner] = {}
        self._float64_owner: weakref.WeakMethod[Callable[[], None]] | None = None

    def deepcopy(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy, its floating-point tensors in ``dtype`` if given."""
        if self.is_large:
            own = tensors_of(self._module)
            copies: dict[int, Any] = {id(tensor): self._copied(name, tensor, dtype) for name, tensor in own.items()}
        elif dtype is not None:
            # Parameters are most of a model; those that are converted need no other copy.
            copies = {
                id(parameter): nn.Parameter(converted(parameter.detach(), dtype), parameter.requires_grad)
                for parameter in self._module.parameters()
                if type(parameter) is nn.Parameter and converted(parameter.new_empty(0), dtype).dtype != parameter.dtype
            }
        else:
            copies = {}
        copied = _copied(self._module, copies)
        return copied if dtype is None else in_dtype(copied, dtype)

    def _copied(self, name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Return a copy of the original values of ``tensor``, with its strides."""
        values = self.tensors[name]
        wanted = converted(values.new_empty(0), dtype).dtype
        copied = torch.empty_strided(values.shape, self._strides[name], dtype=wanted, device=values.device)
        copied.copy_(values)
        if type(tensor) is nn.Parameter:
            return nn.Parameter(copied, self._requires_grad[name])
        return copied.requires_grad_(self._requires_grad[name])

    def shared_copy(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy that shares its tensors with the other shared copies."""
        own = tensors_of(self._module).values()
        shared_weights = [weight.tensor for weight in self.shared_weights(dtype).values()]
        return _copied(self._module, dict(zip(map(id, own), shared_weights, strict=True)))

    def shared_weights(self, dtype: torch.dtype | None = None) -> dict[int, KeptTensor]:
        """Return the tensors that copies by :meth:`shared_copy` share, with their original values, by identity."""
        if dtype is not None:
            self.claim_float64(self.forget_float64)
        if dtype not in self._shared:
            shared = self._module if self.is_large and dtype is None else self.deepcopy(dtype)
            self._shared[dtype] = {
                id(tensor): KeptTensor(tensor, partial(self.tensors.__getitem__, name))
                for name, tensor in tensors_of(shared).items()
            }
        return self._shared[dtype]

    def runner(self, dtype: torch.dtype | None, make: Callable[[], Runner]) -> Runner:
        """Return the runner of a shared copy, which the first call makes by ``make``."""
        if dtype not in self._runners:
            self._runners[dtype] = make()
        return self._runners[dtype]

    def shared_so_far(self, dtype: torch.dtype | None = None) -> dict[int, KeptTensor]:
        """Return :meth:`shared_weights` without creating them: an empty dict if they do not exist yet."""
        return self._shared.get(dtype, {})

    def reset(self) -> None:
        """Share new tensors from now on, because the shared ones were changed."""
        if self.is_large:
            self._module = self.deepcopy()
        self._shared.clear()
        self._runners.clear()

    @contextmanager
    def set_aside(self) -> Generator[None]:
        """Free the shared tensors of a large model, except in float64, inside the block, which must not use them."""
        own = tensors_of(self._module) if self.is_large else {}
        for tensor in own.values():
            tensor.data = tensor.new_empty(0)
        try:
            yield
        finally:
            for name, tensor in own.items():
                tensor.data = self._copied(name, tensor, None).detach()

    def close(self) -> None:
        """Free all tensors; no copy can be made any more."""
        self._shared.clear()
        self._runners.clear()
        self._module = nn.Module()
        self.tensors = {}

    def claim_float64(self, forget: Callable[[], None] | None) -> None:
        """Claim memory for a float64 model that the method ``forget`` frees; None for no such model.

        A large model exists in float64 only once: the previous owner frees it first.
        """
        if not self.is_large:
            return
        # The weak reference lets an unused run of a pass be freed although it once had a float64 model. An owner that
        # no longer exists has nothing to free.
        release_earlier = None if self._float64_owner is None else self._float64_owner()
        if release_earlier is not None and release_earlier != forget:  # the same owner may keep its model
            release_earlier()
            gc.collect()  # captures of shared tensors are reference cycles
        self._float64_owner = None if forget is None else weakref.WeakMethod(forget)

    def forget_float64(self) -> None:
        """Free the tensors that are shared in float64."""
        for by_dtype in (self._shared, self._runners):
            for dtype in [dtype for dtype in by_dtype if dtype is not None]:
                del by_dtype[dtype]


def _copied(module: nn.Module, copies: dict[int, Any]) -> nn.Module:
    """Return a deep copy of ``module``; ``copies`` has copies of some parts already, by identity of the original.

    Every module has ten dictionaries of hooks, nearly all of them empty, which ``deepcopy`` would process one by one.
    """
    for part in module.modules():
        for value in vars(part).values():
            if type(value) is OrderedDict and not value:
                copies[id(value)] = OrderedDict()
    return copy.deepcopy(module, copies)


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return ``module`` with floating-point and complex tensors in ``dtype``; ``Module.to`` makes complex ones real."""
    return module._apply(lambda tensor: converted(tensor, dtype))


def release(program: nn.Module) -> None:
    """Clear the attributes of a program that is no longer used.

    A program and its graph refer to each other: their tensors would stay until the garbage collector runs.
    """
    for attributes in (vars(vars(program).get("_graph", program)), vars(program)):
        attributes.clear()


def _can_be_stored(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the module is large, and each tensor can be copied by its values: no views, no subclasses.

    Subclasses define their own copies. Nor may attributes of the module be views of its tensors.
    """
    if sum(tensor.numel() for tensor in tensors.values()) < FULL_SIZE:
        return False
    plain = [
        tensor
        for tensor in tensors.values()
        if type(tensor) in (torch.Tensor, nn.Parameter)
        and is_strided(tensor)
        and not overlaps(tensor)
        and not tensor.is_quantized
        and tensor.is_leaf
    ]
    if len(plain) != len(tensors):
        return False
    memories = {memory_of(tensor) for tensor in plain if tensor.numel()}
    if len(memories) != sum(1 for tensor in plain if tensor.numel()):
        return False
    own = {id(tensor) for tensor in plain}  # an LSTM has them in a list, too
    return not any(id(tensor) not in own and memory_of(tensor) in memories for tensor in held_by(module))
