"""``LowerPrecision``: compute the layers of a module in a smaller type of numbers, except some."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fx.errors import PassError
from fx.passes import Contract, approximate

DECIBELS = {"float16": 50.0, "bfloat16": 30.0}
"""The promised signal-to-noise ratio of the outputs by type, in decibels, unless the user gives a contract."""


@dataclass(frozen=True, slots=True)
class LowerPrecision:
    """Compute each layer in ``dtype``, with its parameters and inputs; layers return values of the type of before."""

    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    """The type of numbers inside of layers."""
    keep: tuple[str, ...] = ()
    """The paths of layers that stay as they are, or patterns of paths."""

    name: ClassVar[str] = "lower-precision"
    may_change: ClassVar[tuple[str, ...]] = ("tensors", "gradients")

    @property
    def contract(self) -> Contract:
        """The promise for results."""
        return approximate(sqnr_db=DECIBELS[self.dtype])

    def __call__(self, module: nn.Module) -> nn.Module:
        """Return ``module`` with the layers replaced.

        Raises:
            PassError: a name in ``keep`` is the path of no layer.
        """
        layers = layers_of(module)
        for pattern in self.keep:
            if not any(fnmatchcase(path, pattern) for path in layers):
                raise PassError(
                    f"keep= names no layer: {pattern}", remedy=f"the layers are {', '.join(layers) or 'none at all'}"
                )
        for path, layer in layers.items():
            if not any(fnmatchcase(path, pattern) for pattern in self.keep):
                module.set_submodule(path, _InPrecision(layer, getattr(torch, self.dtype)))
        return module


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost submodules with floating-point parameters of their own, by path."""
    layers: dict[str, nn.Module] = {}
    for path, part in module.named_modules():
        is_inside = any(path.startswith(f"{outer}.") for outer in layers)
        own = [parameter for parameter in part.parameters(recurse=False) if parameter.is_floating_point()]
        if path and own and not is_inside:
            layers[path] = part
    return layers


class _InPrecision(nn.Module):
    """A layer that computes in another type of numbers."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).to(dtype)
        self.dtype = dtype
        self.outer_dtype = next(each.dtype for each in layer.parameters(recurse=False) if each.is_floating_point())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        args, kwargs = tree_map_only(torch.Tensor, self._cast_to(self.dtype), (args, kwargs))
        return tree_map_only(torch.Tensor, self._cast_to(self.outer_dtype), self.layer(*args, **kwargs))

    def _cast_to(self, dtype: torch.dtype) -> Any:
        return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
