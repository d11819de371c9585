"""Parameters that can be trained after a pass, under any name: wrong passes beside similar right ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .rows import BOTH, Case, right, wrong

_KIND = "what can be trained"


class Net(nn.Module):
    """Three layers: the first is frozen, the others have equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.load_state_dict(self.first.state_dict())
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(torch.tanh(self.frozen(x)))))


def _net(train: bool) -> Case:
    torch.manual_seed(0)
    return Case(Net().train(train), (torch.randn(3, 4),))


_inference, _training = partial(_net, train=False), partial(_net, train=True)


class Wrapper(nn.Module):
    """A linear layer with copies of the parameters of another."""

    def __init__(self, layer: nn.Linear, use: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(part.detach().clone()) for part in (layer.weight, layer.bias))
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.use(self.weight), self.bias)


def _wrap(graph_module: Any, use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    graph_module.add_submodule("wrapper", Wrapper(graph_module.first, use))
    for node in graph_module.graph.nodes:
        if node.target == "first":
            node.target = "wrapper"
    graph_module.delete_submodule("first")
    graph_module.recompile()


_wrong, _right = partial(wrong, _KIND, programs=0), partial(right, kind=_KIND, programs=0, modes=BOTH)


@_wrong("gradients", on=_inference)
def wrap_with_detached_weights(graph_module: Any) -> None:
    """A wrapper under a new name has copies of the weights, and detaches them."""
    _wrap(graph_module, torch.detach)


@_right(_inference, _training)
def wrap_with_weights(graph_module: Any) -> None:
    """A wrapper under a new name has copies of the weights."""
    _wrap(graph_module, torch.clone)


@_wrong("gradients", on=_inference, says=("the parameter 'frozen.weight', which is frozen in eager, can be trained",))
def thaw_a_layer(graph_module: Any) -> None:
    """The copy of a frozen layer can be trained."""
    frozen = nn.Linear(4, 4)
    frozen.load_state_dict(graph_module.frozen.state_dict())
    graph_module.frozen = frozen


@_right(_inference, _training)
def copy_a_frozen_layer(graph_module: Any) -> None:
    """Copies of a frozen layer and of one that is trained take their places."""
    graph_module.frozen = copy.deepcopy(graph_module.frozen)
    graph_module.second = copy.deepcopy(graph_module.second)


@_wrong("gradients", on=_training, says=("the parameters 'first.weight' and 'second.weight' are one in the program",))
def tie_equal_weights(graph_module: Any) -> None:
    """Two layers with equal weights come to share them."""
    graph_module.second = copy.deepcopy(graph_module.second)
    graph_module.second.weight = graph_module.first.weight
