"""Parameters, buffers, gradients, and the module that was captured."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, calls, layers, of, replace, settled, substitute, wrong

_linear = of(lambda m, x: torch.relu(m.fc(x)), (2, 3), train=True, fc=nn.Linear(3, 4))
_normalized = of(lambda m, x: m.bn(m.fc(x)), (2, 3), fc=nn.Linear(3, 4), bn=settled(nn.BatchNorm1d(4)))


# The original.


@wrong("parameters mutated in place", "original untouched", on=_normalized)
def fold_norm_in_place(gm: fx.GraphModule) -> None:
    """The pass scales the weights of the captured module itself."""
    for node, norm in layers(gm, nn.BatchNorm1d):
        source = node.args[0]
        layer = gm.get_submodule(source.target) if source.op == "call_module" else None
        if type(layer) is not nn.Linear or norm.training or not norm.affine or layer.bias is None:
            continue
        scale = norm.weight.data * torch.rsqrt(norm.running_var + norm.eps)
        layer.weight.data.mul_(scale[:, None])
        layer.bias.data.sub_(norm.running_mean).mul_(scale).add_(norm.bias.data)
        substitute(node, source)
    gm.recompile()


@wrong("parameters mutated in place", "original untouched", on=_linear, modes=BOTH)
@adapt
def scale_into_weights(gm: torch.fx.GraphModule) -> None:
    """Weights are rounded where they are, in the module that was captured as well."""
    for module in gm.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data = module.weight.data.to(torch.bfloat16).to(module.weight.dtype)


@wrong("original damaged", "original untouched", on=of(lambda m, x: m.act(x * 2), (2,), act=nn.ReLU()))
def modules_in_place(gm: fx.GraphModule) -> None:
    """A setting is changed of a module that the captured one uses too."""
    for _, layer in [*layers(gm, nn.ReLU), *layers(gm, nn.LeakyReLU), *layers(gm, nn.Dropout)]:
        layer.inplace = True
    gm.recompile()


@wrong("original damaged", "original untouched", on=of(
    lambda m, x: m.drop(x * 2), (2,), train=True, drop=nn.Dropout()
), modes=BOTH)  # fmt: skip
def layers_in_evaluation_mode(gm: fx.GraphModule) -> None:
    """The pass sets layers of the captured module itself to evaluation mode."""
    for kind in (nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d):
        for _, layer in layers(gm, kind):
            layer.eval()


@wrong("requires_grad lost", "original untouched", "gradients", on=_linear, modes=BOTH)
def freeze_parameters(gm: fx.GraphModule) -> None:
    """Parameters no longer require gradients, in the module that was captured as well."""
    for parameter in gm.parameters():
        parameter.requires_grad_(False)


# Gradients.


@wrong("gradient cut", "gradients", on=_linear, modes=BOTH)
def linear_on_detached_weights(gm: fx.GraphModule) -> None:
    """The weight is detached on the way to the function."""
    for node, layer in layers(gm, nn.Linear):
        with gm.graph.inserting_before(node):
            weight = gm.graph.call_method("detach", (gm.graph.get_attr(f"{node.target}.weight"),))
            bias = None if layer.bias is None else gm.graph.get_attr(f"{node.target}.bias")
        replace(node, F.linear, node.args[0], weight, bias)
    gm.recompile()


@wrong("gradient cut", "gradients", on=of(lambda m, x: F.gelu(x * 2), (2, 3), train=True), modes=BOTH)
def activations_without_gradients(gm: fx.GraphModule) -> None:
    """Nothing flows back through an activation whose input is fetched as data."""
    for node in calls(gm, F.gelu, torch.relu, torch.sigmoid, torch.tanh):
        with gm.graph.inserting_before(node):
            data = gm.graph.call_function(getattr, (node.args[0], "data"))
        node.args = (data, *node.args[1:])
    gm.recompile()


@wrong("buffer vs parameter", "gradients", on=_linear, contract=exact, modes=BOTH)
def parameters_as_buffers(gm: fx.GraphModule) -> None:
    """The parameters of a layer become buffers, which do not learn."""
    for node, layer in layers(gm, nn.Linear):
        names = {"weight": layer.weight, "bias": layer.bias}
        fetched = []
        for name, tensor in names.items():
            if tensor is None:
                fetched.append(None)
                continue
            gm.register_buffer(f"{node.name}_{name}", tensor.detach().clone())
            with gm.graph.inserting_before(node):
                fetched.append(gm.graph.get_attr(f"{node.name}_{name}"))
        replace(node, F.linear, node.args[0], *fetched)
    gm.recompile()


@wrong("gradient cut", "gradients", on=of(lambda m, x: x.sum(0) / 2, (2, 3), train=True), modes=BOTH)
@adapt
def reductions_of_detached_values(gm: torch.fx.GraphModule) -> None:
    """A detach that kept memory low while the pass was written stayed in."""
    for node in list(gm.graph.nodes):
        if node.target in (torch.sum, "sum", torch.mean, "mean"):
            with gm.graph.inserting_before(node):
                apart = gm.graph.call_method("detach", (node.args[0],))
            node.args = (apart, *node.args[1:])
    gm.recompile()


@wrong(
    "gradient cut", "gradients", on=of(lambda m, x: m.fc(x) * 3.0, (2, 3), train=True, fc=nn.Linear(3, 2)), modes=BOTH
)
def scale_folded_into_linear(gm: fx.GraphModule) -> None:
    """The scaled weights are new ones: they get the gradients, and the trained parameters get none."""
    for node in calls(gm, operator.mul):
        source, factor = node.args
        if not isinstance(source, fx.Node) or source.op != "call_module" or not isinstance(factor, (int, float)):
            continue
        layer = gm.get_submodule(source.target)
        if type(layer) is not nn.Linear or len(source.users) > 1:
            continue
        scaled = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
        scaled.weight = nn.Parameter(layer.weight.detach() * factor)
        scaled.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach() * factor)
        gm.add_submodule(f"{source.name}_scaled", scaled)
        source.target = f"{source.name}_scaled"
        substitute(node, source)
    gm.recompile()


@wrong("gradient cut", "gradients", on=of(lambda m, x: torch.abs(x), torch.tensor([0.0, 1.0]), train=True), modes=BOTH)
def abs_by_square_root(gm: fx.GraphModule) -> None:
    """The gradient of the square root is infinite at zero, and times zero that is NaN."""
    for node in calls(gm, torch.abs, "abs"):
        with gm.graph.inserting_before(node):
            square = gm.graph.call_function(operator.mul, (node.args[0], node.args[0]))
        replace(node, torch.sqrt, square)
    gm.recompile()
