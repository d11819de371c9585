"""Rare parts of programs: bounded slices, tuples of one, wide layers, rounding, products of parameters."""

from __future__ import annotations

import copy
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from .rows import behind, calls, layers, numbers, of, replace, wrong

TILE = 8


@wrong("wrong operand", "contract", "structure", on=of(lambda m, x: x[:, 1:3], (2, 6)))
def slices_as_narrow(gm: fx.GraphModule) -> None:
    """A slice of columns becomes ``narrow``, which takes a length where the slice has its end."""
    for node in calls(gm, operator.getitem):
        match node.args[1]:
            case (slice(start=None, stop=None, step=None), slice(start=int(start), stop=int(stop), step=None)):
                if 0 < start < stop:
                    replace(node, torch.narrow, node.args[0], 1, start, stop)
            case _:
                pass
    gm.recompile()


@wrong("other interface", "structure", on=of(lambda m, x: (x + 1,), (2, 3)))
def unwrap_one_result(gm: fx.GraphModule) -> None:
    """A tuple of one result becomes the result."""
    output = gm.graph.output_node()
    if isinstance(output.args[0], tuple) and len(output.args[0]) == 1:
        output.args = output.args[0]
    gm.recompile()


class Tiled(nn.Module):
    """A linear layer whose outputs are computed eight at a time, but for the last few."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        """Return the outputs side by side."""
        weights = self.layer.weight.split(TILE)[: self.layer.out_features // TILE]
        biases = [None] * len(weights) if self.layer.bias is None else self.layer.bias.split(TILE)
        return torch.cat([F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=False)], -1)


@wrong("wrong operand", "contract", "structure", on=of(lambda m, x: m.layer(x), (2, 4), layer=nn.Linear(4, 13)))
def wide_layers_in_tiles(gm: fx.GraphModule) -> None:
    """A layer with more than eight outputs is computed in tiles of eight, and the rest is forgotten."""
    for node, layer in layers(gm, nn.Linear):
        if layer.out_features > TILE:
            gm.add_submodule(f"{node.target}_tiled", Tiled(layer))
            node.target = f"{node.target}_tiled"
    gm.recompile()


@wrong("lost value", "contract", on=of(
    lambda m, x: torch.quantize_per_tensor(x, 0.1, 128, torch.quint8).dequantize() + 1, (2, 3)
))  # fmt: skip
def without_rounding(gm: fx.GraphModule) -> None:
    """Quantizing and dequantizing again is taken for nothing."""
    for node in calls(gm, "dequantize"):
        if node.args[0].target is torch.quantize_per_tensor:
            node.replace_all_uses_with(node.args[0].args[0])
    gm.graph.eliminate_dead_code()
    gm.recompile()


@wrong("wrong algebra", "contract", on=of(
    lambda m, x: F.linear(x, m.weight * 2.0, m.bias), (2, 4), weight=nn.Parameter(numbers(3, 4)),
    bias=nn.Parameter(numbers(3))
))  # fmt: skip
def factors_behind_layers(gm: fx.GraphModule) -> None:
    """A factor of a weight moves behind the layer, over the bias."""
    for node in calls(gm, F.linear):
        weight = node.args[1] if len(node.args) > 1 else None
        if not isinstance(weight, fx.Node) or weight.target is not operator.mul:
            continue
        constant, factor = weight.args
        if not isinstance(constant, fx.Node) or constant.op != "get_attr" or not isinstance(factor, float):
            continue
        node.replace_input_with(weight, constant)
        behind(node, operator.mul, node, factor)
    gm.graph.eliminate_dead_code()
    gm.recompile()


@wrong("wrong algebra", "contract", on=of(
    lambda m, x: m.second(m.between(m.first(x))), (2, 4), first=nn.Linear(4, 3), between=nn.GELU(),
    second=nn.Linear(3, 2)
))  # fmt: skip
def scales_between_layers(gm: fx.GraphModule) -> None:
    """A scale moves from one layer into the next, whatever activation is between them."""
    for node, second in layers(gm, nn.Linear):
        between = node.args[0]
        if between.op != "call_module" or type(gm.get_submodule(between.target)) not in (nn.ReLU, nn.GELU):
            continue
        before = between.args[0]
        first = gm.get_submodule(before.target) if before.op == "call_module" else None
        if type(first) is not nn.Linear or len(before.users) + len(between.users) > 2:
            continue
        scaled, restored = copy.deepcopy(first), copy.deepcopy(second)
        with torch.no_grad():
            restored.weight.mul_(2)
            for tensor in scaled.parameters():
                tensor.div_(2)
        for user, layer in ((before, scaled), (node, restored)):
            name = f"{user.name}_scaled"
            gm.add_submodule(name, layer)
            user.target = name
        break
    gm.recompile()
