"""Values with several users, modules with several calls, and the mode in which a program runs."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import (
    BOTH,
    behind,
    bypass,
    calls,
    folded,
    layers,
    merge,
    of,
    pure_calls,
    replace,
    settled,
    substitute,
    wrong,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses a part of TorchScript that is going away
    from torch.fx.experimental import optimization


def _convolution(node: Any, gm: Any) -> Any:
    source = node.args[0]
    layer = gm.get_submodule(source.target) if source.op == "call_module" else None
    return layer if type(layer) is nn.Conv2d else None


def _net(forward: Any, train: bool = False) -> Any:
    convolution, norm = nn.Conv2d(2, 2, 3, padding=1), settled(nn.BatchNorm2d(2))
    return of(forward, (2, 2, 4, 4), train=train, conv=convolution, bn=norm)


@wrong("several users", "contract", on=_net(lambda m, x: m.bn(y := m.conv(x)) + y))
def fold_norm_whoever_uses_it(gm: fx.GraphModule) -> None:
    """That something else uses the convolution's result is not checked."""
    for node, norm in layers(gm, nn.BatchNorm2d):
        conv = _convolution(node, gm)
        if conv is None or norm.training or norm.running_mean is None:
            continue
        gm.add_submodule(f"{node.args[0].name}_folded", folded(conv, norm))
        node.args[0].target = f"{node.args[0].name}_folded"
        substitute(node, node.args[0])
    gm.recompile()


@wrong("shared module", "contract", on=_net(lambda m, x: m.bn(m.conv(x)) + m.conv(x * 2)))
def fold_norm_into_shared_layer(gm: fx.GraphModule) -> None:
    """The convolution is replaced at its path, where another call finds it too."""
    for node, norm in layers(gm, nn.BatchNorm2d):
        conv = _convolution(node, gm)
        if conv is None or norm.training or norm.running_mean is None or len(node.args[0].users) > 1:
            continue
        gm.add_submodule(node.args[0].target, folded(conv, norm))
        substitute(node, node.args[0])
    gm.recompile()


@wrong("shared module", "contract", on=_net(lambda m, x: m.bn(m.conv(x)) + m.conv(x * 2)))
@adapt
def fuse_of_torch_fx(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """torch.fx's own fusion: a convolution that is called twice is folded into for both calls."""
    return optimization.fuse(gm) if not gm.training else gm


@wrong("training mode", "contract", on=_net(lambda m, x: m.bn(m.conv(x)), train=True), modes=BOTH)
def fold_norm_in_any_mode(gm: fx.GraphModule) -> None:
    """A batch norm in training mode normalizes with the batch, not with what it has seen so far."""
    for number, (node, norm) in enumerate(layers(gm, nn.BatchNorm2d)):
        conv = _convolution(node, gm)
        if conv is None or norm.running_mean is None or len(node.args[0].users) > 1:
            continue
        gm.add_submodule(f"folded_{number}", folded(conv, norm))
        node.args[0].target = f"folded_{number}"
        substitute(node, node.args[0])
    gm.recompile()


@wrong(
    "training mode", "contract", on=of(lambda m, x: m.drop(x) * 2, (4, 4), train=True, drop=nn.Dropout(0.5)), modes=BOTH
)
def drop_dropout(gm: fx.GraphModule) -> None:
    """Dropout is removed also where the program trains."""
    bypass(gm, nn.Dropout)


@wrong(
    "training mode", "contract", on=of(lambda m, x: m.drop(x) * 2, (4, 4), train=True, drop=nn.Dropout(0.5)), modes=BOTH
)
@adapt
def dropout_of_torch_fx(gm: torch.fx.GraphModule) -> Any:
    """torch.fx's own pass removes dropout in every mode."""
    return optimization.remove_dropout(gm)


@wrong("batch norm statistics", "state", on=of(
    lambda m, x: m.bn(x), (4, 3), train=True, bn=settled(nn.BatchNorm1d(3, momentum=0.4))
), modes=BOTH)  # fmt: skip
def batch_norm_by_function(gm: fx.GraphModule) -> None:
    """The module's momentum is left at the default, and the number of batches is no longer counted."""
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        for node, norm in layers(gm, kind):
            if not norm.affine or not norm.track_running_stats:
                continue
            with gm.graph.inserting_before(node):
                names = ("running_mean", "running_var", "weight", "bias")
                tensors = [gm.graph.get_attr(f"{node.target}.{name}") for name in names]
            replace(node, F.batch_norm, node.args[0], *tensors, training=norm.training, eps=norm.eps)
    gm.recompile()


@wrong("several users", "contract", on=of(lambda m, x: torch.relu(y := m.fc(x)) + y, (8, 3), fc=nn.Linear(3, 3)))
def fuse_linear_relu(gm: fx.GraphModule) -> None:
    """Other users of the linear layer's result get the rectified one."""
    for node in calls(gm, torch.relu):
        source = node.args[0]
        if source.op == "call_module" and type(gm.get_submodule(source.target)) is nn.Linear:
            path = f"{source.name}_relu"
            gm.add_submodule(path, nn.Sequential(gm.get_submodule(source.target), nn.ReLU()))
            source.target = path
            substitute(node, source)
    gm.recompile()


@wrong("several users", "contract", on=of(lambda m, x: (y := x * 2) + torch.sigmoid(y + 1), (2, 3)))
@adapt
def fuse_multiply_add(gm: torch.fx.GraphModule) -> None:
    """The product is erased in favour of the sum, also for those who use the product itself."""
    for node in list(gm.graph.nodes):
        if node.target not in (operator.add, torch.add) or len(node.args) != 2 or node.kwargs:
            continue
        product, addend = node.args
        if not isinstance(product, torch.fx.Node) or product.target not in (operator.mul, torch.mul):
            continue
        if isinstance(addend, (int, float)):
            substitute(node, behind(product, torch.add, product, addend))
    gm.recompile()


@wrong("shared module", "contract", on=of(
    lambda m, x: m.act(torch.relu(x)) + m.act(x), (2, 3), act=nn.ReLU()
), contract=exact)  # fmt: skip
def relu_after_relu(gm: fx.GraphModule) -> None:
    """The module that has nothing to do here is replaced by an identity, also for its other calls."""
    for node in calls(gm, nn.ReLU):
        if node.args and isinstance(node.args[0], fx.Node) and node.args[0].target in (torch.relu, F.relu, "relu"):
            gm.add_submodule(node.target, nn.Identity())
    gm.recompile()


@wrong("deleted submodule", "well formed", "contract", on=of(
    lambda m, x: m.act(m.act(x) - 1), (2, 3), act=nn.ReLU()
), modes=BOTH)  # fmt: skip
def relu_by_function(gm: fx.GraphModule) -> None:
    """The module is deleted after the first call is rewritten, though another call may need it."""
    visited = set()
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or node.target in visited:
            continue
        if type(gm.get_submodule(node.target)) in (nn.ReLU, nn.Sigmoid, nn.Tanh):
            function = {nn.ReLU: torch.relu, nn.Sigmoid: torch.sigmoid, nn.Tanh: torch.tanh}
            visited.add(node.target)
            layer = gm.get_submodule(node.target)
            gm.delete_submodule(node.target)
            replace(node, function[type(layer)], *node.args)
    gm.recompile()


@wrong("name clash", "contract", on=of(lambda m, x: m.b(m.a(x)), (2, 3), a=nn.Linear(3, 3), b=nn.Linear(3, 3)))
def weights_as_buffers(gm: fx.GraphModule) -> None:
    """All transposed weights are kept under one name, so the last one serves every layer."""
    for node, layer in layers(gm, nn.Linear):
        gm.register_buffer("weight_t", layer.weight.detach().t().contiguous())
        with gm.graph.inserting_before(node):
            product = gm.graph.call_function(torch.matmul, (node.args[0], gm.graph.get_attr("weight_t")))
            bias = None if layer.bias is None else gm.graph.get_attr(f"{node.target}.bias")
        if bias is None:
            substitute(node, product)
        else:
            replace(node, operator.add, product, bias)
    gm.recompile()


@wrong("unchecked operand", "contract", on=of(lambda m, x: (x.sum(0), x.sum(1)), (2, 3)), modes=BOTH)
def common_calls_by_target(gm: fx.GraphModule) -> None:
    """Two calls are taken for the same if their target and tensors are; numbers and keywords are not compared."""
    merge(gm, pure_calls(gm), lambda node: (node.target, tuple(node.all_input_nodes)))
