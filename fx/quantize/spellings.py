"""How averages, and operations that move or select values, are called on integers (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fx.node import Node
from fx.quantize import arithmetic, pooling
from fx.quantize.affine import Affine

_torch: Any = torch
_AVERAGES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(pooling.AVERAGES, pooling.avg_pool),
    **dict.fromkeys(pooling.ADAPTIVE_AVERAGES, pooling.adaptive_avg_pool),
    _torch.mean: pooling.mean,
}
_POOLS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.max_pool3d), arithmetic.max_pool),
    **dict.fromkeys(pooling.ADAPTIVE_LARGEST, pooling.adaptive_max_pool),
}


@dataclass(frozen=True, slots=True)
class IntegerCall:
    """A function and what it is called with."""

    function: Callable[..., Any]
    """The function."""
    settings: dict[str, Any]
    """Arguments by name."""


def lower_average(node: Node) -> IntegerCall | None:
    """Return how an average is called, operand and scales aside; None where the program computes the sizes."""
    settings = {name: value for name, value in node.kwargs.items() if name not in ("input", "dtype")}
    sizes = [settings[name] for name in ("kernel_size", "output_size") if name in settings]
    if not all(isinstance(one, (tuple, list)) for one in sizes):
        return None
    if settings.get("divisor_override", 1) is None:
        del settings["divisor_override"]
    return IntegerCall(_AVERAGES[node.target], settings)


def lower_data_movement(node: Node, affine: Affine) -> IntegerCall | None:
    """Return how a call is spelled that moves or picks integers; None where it is as on float values."""
    if node.target in _POOLS:
        settings = {name: value for name, value in node.kwargs.items() if name != "return_indices"}
        return IntegerCall(_POOLS[node.target], settings)
    if node.target is F.pad and node.kwargs.get("mode") == "constant":
        return IntegerCall(F.pad, {**node.kwargs, "value": affine.zero_point})
    return None
