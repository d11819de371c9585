"""Batch norms and gains that are folded into layers: into copies, or into what belongs to the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .on_models import model
from .rows import Case, bypass, node_of, right, wrong

Into = Callable[[Any, torch.Tensor, torch.Tensor], Any]
"""Makes the layer of its folded weight and bias, or edits the one that it is given."""


def folded(graph_module: Any, into: Into) -> None:
    """Fold the batch norm of ``model``, whose module stays where it is."""
    conv, norm = graph_module.get_submodule("0"), graph_module.get_submodule("1")
    factor = (norm.weight * torch.rsqrt(norm.running_var + norm.eps)).detach()
    weight = conv.weight.detach() * factor.view(-1, 1, 1, 1)
    layer = into(conv, weight, ((conv.bias - norm.running_mean) * factor + norm.bias).detach())
    if layer is not None:
        setattr(graph_module, "0", layer)
    bypass(graph_module, nn.BatchNorm2d)


def _with_parameters(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)


def _in_place(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def _copied(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    layer = copy.deepcopy(layer)
    _with_parameters(layer, weight, bias)
    return layer


def _fold(name: str, sentence: str, into: Into, *may_change: str) -> Any:
    def fold(graph_module: Any) -> None:
        folded(graph_module, into)

    pass_: Any = fold
    pass_.__name__, pass_.__doc__, pass_.may_change = name, sentence, may_change
    return pass_


_wrong = wrong("folding", "original untouched", on=model, programs=0)
_right = right(model, kind="folding", modes=("eval",), programs=0)
_right(_fold("fold_into_a_copy", "A batch norm into a copy of its layer, and leaves the dead module.", _copied))
_wrong(_fold("fold_into_the_layer", "Into new parameters of the original's layer.", _with_parameters))
_right(
    _fold(
        "fold_into_a_layer_to_be_used_up", "Into new parameters of a layer that it may use up.",
        _with_parameters, "tensors",
    )
)  # fmt: skip
_wrong(_fold("fold_in_place", "Into the original's parameters.", _in_place))
_right(_fold("fold_into_parameters_to_be_used_up", "Into parameters that it may use up.", _in_place, "tensors"))


@_right
def fold_by_fuse_conv_bn_eval(graph_module: Any) -> None:
    """A batch norm by fuse_conv_bn_eval, set back."""
    norm = graph_module.get_submodule("1")
    folded(graph_module, lambda layer, *_: nn.utils.fuse_conv_bn_eval(layer, norm))


class Gained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 4), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mul(self.layer(x), self.gain))


def gained() -> Case:
    torch.manual_seed(0)
    return Case(Gained().eval(), (torch.randn(5, 4),), torch.float32)


def _into_a_linear_layer(graph_module: Any) -> Any:
    """Fold the gain, and return the node that multiplies by it."""
    layer, gain = graph_module.layer, graph_module.gain.detach()
    graph_module.layer = nn.Linear(4, 4)
    _with_parameters(graph_module.layer, layer.weight.detach() * gain[:, None], layer.bias.detach() * gain)
    return node_of(graph_module, torch.mul)


@right(gained, kind="folding", modes=("eval",), programs=0)
def fold_a_gain(graph_module: Any) -> None:
    """A gain into a linear layer."""
    node = _into_a_linear_layer(graph_module)
    read = node.args[1]
    bypass(graph_module, torch.mul)
    graph_module.graph.erase_node(read)
    graph_module.recompile()


@wrong("folding", "gradients", on=gained, programs=0)
def fold_a_gain_and_read_it(graph_module: Any) -> None:
    """A gain into a linear layer, and reads it all the same."""
    node = _into_a_linear_layer(graph_module)
    with graph_module.graph.inserting_before(node):
        node.args = (node.args[0], graph_module.graph.call_function(torch.ones_like, (node.args[1],)))
    graph_module.recompile()
