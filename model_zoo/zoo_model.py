"""The zoo's record of one model: a function that builds it, its inputs, its source."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class ExampleInputs(Protocol):
    """A function that makes the positional arguments of one call of a model."""

    def __call__(self, batch: int = 1, seed: int = 0) -> tuple[Any, ...]:
        """Return arguments for a batch of ``batch`` samples; the same seed gives the same values."""
        ...


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model under a name, with inputs that it accepts.

    >>> from model_zoo import get_model
    >>> mlp = get_model("mlp")
    >>> tuple(mlp.build()(*mlp.example_inputs(batch=3)).shape)
    (3, 10)
    """

    name: str
    """The name on command lines and in tables."""
    build: Callable[[], nn.Module]
    """A function that makes an instance in evaluation mode, always with the same weights.

    It does not change the global random state.
    """
    example_inputs: ExampleInputs
    """A function that makes the positional arguments of one call, for a batch size and a seed."""
    source: str
    """The source of its definition: a paper, a library, a section of either."""
    tags: frozenset[str] = frozenset()
    """Kinds of the model, such as ``"vision"`` or ``"small"``."""
    small: str | None = None
    """Name of a model of the same structure that runs in milliseconds, if there is one."""
    needs_leaves: bool = False
    """Whether a ``torch.nn`` module in it branches on values, so that capture needs leaf modules."""


BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed the CPU's random numbers inside the block, and restore their state after it."""
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        torch.default_generator.manual_seed(seed)
        yield


def built(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes a model with ``make``: always with the same weights, in evaluation mode."""

    def build() -> nn.Module:
        with seeded(0):
            return make().eval()

    return build


def vary_vectors(module: nn.Module) -> nn.Module:
    """Give scales and biases of ``module`` values of all sizes, as training does, and return it.

    An untrained layer norm has scales of 1 and biases of 0: a transform could forget both unnoticed.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            is_scale = name.endswith("weight")
            nn.init.uniform_(parameter, 0.5, 1.5) if is_scale else nn.init.normal_(parameter, std=0.2)
    return module


def settle_batch_norm(module: nn.Module, arguments: tuple[Any, ...]) -> nn.Module:
    """Give every batch norm in ``module`` random affine parameters and the statistics of one call on ``arguments``.

    An untrained batch norm does almost nothing: mean 0, variance 1, scale 1, shift 0. A transform could forget any
    of the four and still agree with eager to five digits. Draws from the global random state (see :func:`seeded`);
    returns ``module`` in evaluation mode.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        if layer.affine:
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.2)
        layer.momentum = 1.0  # the running statistics become those of the call below
    module.train()
    with torch.no_grad():
        module(*arguments)
    module.eval()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return module
