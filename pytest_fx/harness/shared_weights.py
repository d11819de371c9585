"""Copies of a module that share their tensors, so that a large model is in memory once, and in float64 once at most."""

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
"""Elements of parameters, buffers and inputs from which on a model is of full size, and held to what it can afford."""


class SharedWeights:
    """A module of which others get copies. It is never changed itself.

    Tensors of a small one are there twice: as they are, and as copies share them. Those of a large one are there once,
    to be shared, and what they hold lies in a file beside them, to tell what was written to them and to undo it. What
    there is of it in float64 takes twice as much: :meth:`claim_float64`.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take ``module`` itself, not a copy."""
        self._module = module
        tensors = tensors_of(module)
        self.is_large = _can_be_stored(module, tensors)
        self._requires_grad = {name: tensor.requires_grad for name, tensor in tensors.items()}
        self._strides = {name: tensor.stride() for name, tensor in tensors.items()} if self.is_large else {}
        self.tensors: Mapping[str, torch.Tensor] = tensors
        """Equal to its parameters and buffers, by name: to be compared with, never to be changed."""
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
            made: dict[int, Any] = {id(tensor): self._copied(name, tensor, dtype) for name, tensor in own.items()}
        elif dtype is not None:
            # Parameters are most of a model, and are not copied once more than it takes to convert them.
            made = {
                id(one): nn.Parameter(converted(one.detach(), dtype), one.requires_grad)
                for one in self._module.parameters()
                if type(one) is nn.Parameter and converted(one.new_empty(0), dtype).dtype != one.dtype
            }
        else:
            made = {}
        copied = _copied(self._module, made)
        return copied if dtype is None else in_dtype(copied, dtype)

    def _copied(self, name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """A copy of what ``tensor`` held at first, laid out as it is."""
        values = self.tensors[name]
        wanted = converted(values.new_empty(0), dtype).dtype
        copied = torch.empty_strided(values.shape, self._strides[name], dtype=wanted, device=values.device)
        copied.copy_(values)
        if type(tensor) is nn.Parameter:
            return nn.Parameter(copied, self._requires_grad[name])
        return copied.requires_grad_(self._requires_grad[name])

    def shared_copy(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a new copy that shares its tensors with others."""
        own = tensors_of(self._module).values()
        shared_weights = [kept.tensor for kept in self.shared_weights(dtype).values()]
        return _copied(self._module, dict(zip(map(id, own), shared_weights, strict=True)))

    def shared_weights(self, dtype: torch.dtype | None = None) -> dict[int, KeptTensor]:
        """Return the tensors that copies by :meth:`shared_copy` share, by identity, with what they hold."""
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
        """Return what calls such a copy, which ``make`` makes the first time."""
        if dtype not in self._runners:
            self._runners[dtype] = make()
        return self._runners[dtype]

    def shared_so_far(self, dtype: torch.dtype | None = None) -> dict[int, KeptTensor]:
        """The same, none if none of them are there yet."""
        return self._shared.get(dtype, {})

    def reset(self) -> None:
        """Share other tensors from now on: somebody has changed those that are shared."""
        if self.is_large:
            self._module = self.deepcopy()
        self._shared.clear()
        self._runners.clear()

    @contextmanager
    def set_aside(self) -> Generator[None]:
        """Free the shared tensors of a large model, those in float64 aside, in the block, where nobody needs them."""
        own = tensors_of(self._module) if self.is_large else {}
        for tensor in own.values():
            tensor.data = tensor.new_empty(0)
        try:
            yield
        finally:
            for name, tensor in own.items():
                tensor.data = self._copied(name, tensor, None).detach()

    def close(self) -> None:
        """Let go of all tensors: nobody asks for a copy any more."""
        self._shared.clear()
        self._runners.clear()
        self._module = nn.Module()
        self.tensors = {}

    def claim_float64(self, forget: Callable[[], None] | None) -> None:
        """Say that there is about to be a model in float64 that a call of ``forget`` lets go of; None for none.

        Of a large model whoever has one has to let go of it before. ``forget`` is a method.
        """
        if not self.is_large:
            return
        # Held weakly, so that a run of a pass that nobody needs any more is freed although it once had a float64 model;
        # what is gone then has nothing left to let go of.
        release_earlier = None if self._float64_owner is None else self._float64_owner()
        if release_earlier is not None and release_earlier != forget:  # the same owner may go on with what it has
            release_earlier()
            gc.collect()  # captures of what was shared know themselves
        self._float64_owner = None if forget is None else weakref.WeakMethod(forget)

    def forget_float64(self) -> None:
        """Let go of the tensors that are shared in float64."""
        for kept in (self._shared, self._runners):
            for dtype in [dtype for dtype in kept if dtype is not None]:
                del kept[dtype]


def _copied(module: nn.Module, made: dict[int, Any]) -> nn.Module:
    """A deep copy of ``module`` for which some copies are made already, by the identities of what they are of.

    Every module has ten dictionaries of hooks, nearly all of them empty, which ``deepcopy`` takes apart one by one.
    """
    for part in module.modules():
        for held in vars(part).values():
            if type(held) is OrderedDict and not held:
                made[id(held)] = OrderedDict()
    return copy.deepcopy(module, made)


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return ``module`` with its floating-point and complex tensors in ``dtype``; ``Module.to`` makes those real."""
    return module._apply(lambda tensor: converted(tensor, dtype))


def release(program: nn.Module) -> None:
    """Take apart a program that nobody uses any more.

    A program and its graph know each other: what they hold would be there until the garbage collector runs.
    """
    for held in (vars(vars(program).get("_graph", program)), vars(program)):
        held.clear()


def _can_be_stored(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether there is much, and each tensor is only its values: not a view, nor of a class of its own.

    What becomes of others when they are copied is theirs to say. Nor may the module hold views of them as attributes.
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
    own = {id(tensor) for tensor in plain}  # which an LSTM holds in a list, too
    return not any(id(one) not in own and memory_of(one) in memories for one in held_by(module))
