"""Layers put together, or taken apart, under conditions that hold less often than was thought."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx

from .rows import BOTH, Witness, calls, fetched, folded, layers, of, replace, settled, substitute, wrong


def _image(forward: Any, **modules: Any) -> Witness:
    return of(forward, (2, 2, 4, 4), **{name: settled(module) for name, module in modules.items()})


def _vector(forward: Any, *, train: bool = False, **modules: Any) -> Witness:
    return of(forward, (2, 3), train=train, **{name: settled(module) for name, module in modules.items()})


@wrong("padding", "contract", on=_image(
    lambda m, x: m.conv(m.norm(x)), norm=nn.BatchNorm2d(2), conv=nn.Conv2d(2, 3, 3, padding=1)
))  # fmt: skip
def norm_before_padded_conv(gm: fx.GraphModule) -> None:
    """A batch norm is folded into the convolution behind it, which pads with zeros what is no longer shifted."""
    for node, conv in layers(gm, nn.Conv2d):
        source = node.args[0]
        norm = gm.get_submodule(source.target) if source.op == "call_module" else None
        if type(norm) is not nn.BatchNorm2d or norm.training or norm.running_var is None or len(source.users) > 1:
            continue
        if conv.groups > 1 or conv.weight.dtype != norm.running_var.dtype:
            continue
        with torch.no_grad():
            scale = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight)
            shift = (0 if norm.bias is None else norm.bias) - norm.running_mean * scale
            layer = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding)
            layer.dilation = conv.dilation
            layer.weight = nn.Parameter(conv.weight * scale[None, :, None, None])
            bias = (conv.weight.sum((2, 3)) * shift).sum(1)
            layer.bias = nn.Parameter(bias if conv.bias is None else bias + conv.bias)
        gm.add_submodule(f"{node.name}_folded", layer)
        node.target, node.args = f"{node.name}_folded", (source.args[0],)
        gm.graph.erase_node(source)
    gm.recompile()


@wrong("equal sizes", "contract", on=of(
    lambda m, x: m.norm(m.fc(x)), (2, 3, 4), fc=settled(nn.Linear(4, 3)), norm=settled(nn.BatchNorm1d(3))
))  # fmt: skip
def linear_and_norm_by_features(gm: fx.GraphModule) -> None:
    """A batch norm is folded into the linear layer before it wherever sizes agree, also those of other dimensions."""
    for node, norm in layers(gm, nn.BatchNorm1d):
        before = node.args[0]
        layer = gm.get_submodule(before.target) if before.op == "call_module" else None
        if type(layer) is not nn.Linear or norm.training or norm.running_var is None or len(before.users) > 1:
            continue
        if layer.weight.dtype != norm.running_var.dtype or layer.out_features != norm.num_features:
            continue
        gm.add_submodule(f"{node.name}_folded", folded(layer, norm))
        before.target = f"{node.name}_folded"
        substitute(node, before)
    gm.recompile()


@wrong("wrong bias", "contract", on=_vector(lambda m, x: m.fc(m.n(x)), n=nn.LayerNorm(3), fc=nn.Linear(3, 4)))
def layer_norm_into_linear(gm: fx.GraphModule) -> None:
    """The gain of a layer norm is folded into the linear layer behind it, and its offset forgotten."""
    for node, layer in layers(gm, nn.Linear):
        source = node.args[0]
        norm = gm.get_submodule(source.target) if source.op == "call_module" else None
        if type(norm) is not nn.LayerNorm or norm.weight is None or len(norm.normalized_shape) > 1:
            continue
        if len(source.users) > 1:
            continue
        plain = nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)
        fused = nn.Linear(layer.in_features, layer.out_features)
        fused.weight, fused.bias = nn.Parameter(layer.weight.detach() * norm.weight.detach()), layer.bias
        gm.add_submodule(f"{source.name}_plain", plain)
        gm.add_submodule(f"{node.name}_scaled", fused)
        source.target, node.target = f"{source.name}_plain", f"{node.name}_scaled"
    gm.recompile()


@wrong("parallel layers", "contract", "structure", on=_vector(
    lambda m, x: (m.a(x) * 2, m.b(x) + 1), a=nn.Linear(3, 2), b=nn.Linear(3, 4)
))  # fmt: skip
def siblings_in_equal_parts(gm: fx.GraphModule) -> None:
    """Two linear layers on one value become one, whose result is cut in the middle whatever they are sized."""
    linear = layers(gm, nn.Linear)
    for (earlier, first), (other, second) in itertools.pairwise(linear):
        if earlier.args != other.args or (first.bias is None) != (second.bias is None) or first is second:
            continue
        layer = nn.Linear(first.in_features, first.out_features + second.out_features, first.bias is not None)
        layer.weight = nn.Parameter(torch.cat([first.weight, second.weight]).detach())
        if first.bias is not None:
            layer.bias = nn.Parameter(torch.cat([first.bias, second.bias]).detach())
        gm.add_submodule(f"{earlier.name}_both", layer)
        with gm.graph.inserting_before(earlier):
            both = gm.graph.call_module(f"{earlier.name}_both", earlier.args)
            parts = gm.graph.call_function(torch.chunk, (both, 2), {"dim": -1})
            halves = [gm.graph.call_function(operator.getitem, (parts, place)) for place in (0, 1)]
        for old, new in zip((earlier, other), halves, strict=True):
            substitute(old, new)
        break
    gm.recompile()


@wrong("gradient cut", "gradients", on=of(
    lambda m, x: m.e(torch.tensor([0, 1, 2])) * x, (3, 2), train=True, e=nn.Embedding(4, 2, padding_idx=1)
), modes=BOTH)  # fmt: skip
def embedding_without_padding(gm: fx.GraphModule) -> None:
    """The index for padding is not passed on, and its row is trained like the others."""
    for node in calls(gm, nn.Embedding):
        (weight,) = fetched(gm, node, "weight")
        replace(node, F.embedding, node.args[0], weight)
    gm.recompile()


@wrong("keyword dropped", "contract", "structure", on=_image(lambda m, x: m.pool(x), pool=nn.MaxPool2d(2, stride=1)))
def pooling_by_function(gm: fx.GraphModule) -> None:
    """The stride of a pooling layer is taken to be the size of its window."""
    for kind, function in ((nn.MaxPool2d, F.max_pool2d), (nn.AvgPool2d, F.avg_pool2d)):
        for node, pool in layers(gm, kind):
            replace(node, function, node.args[0], pool.kernel_size)
    gm.recompile()


@wrong("structure", "contract", "structure", on=_image(lambda m, x: m.pool(x), pool=nn.AdaptiveAvgPool2d(1)))
def global_pooling_by_mean(gm: fx.GraphModule) -> None:
    """The mean over an image leaves no dimensions of one behind, as pooling does."""
    for node, pool in layers(gm, nn.AdaptiveAvgPool2d):
        if pool.output_size == 1:
            replace(node, torch.mean, node.args[0], (-2, -1))
    for node in calls(gm, F.adaptive_avg_pool2d):
        if node.kwargs.get("output_size") == 1:
            replace(node, torch.mean, node.args[0], (-2, -1))
    gm.recompile()


@wrong(
    "training mode", "contract", "state", on=_vector(lambda m, x: m.n(x), train=True, n=nn.BatchNorm1d(3)), modes=BOTH
)
def norms_copied_for_inference(gm: fx.GraphModule) -> None:
    """Batch norms are copied with what they need for inference; that the program trains is not looked at."""
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        for node, norm in layers(gm, kind):
            if norm.running_mean is None:
                continue
            copied = kind(norm.num_features, norm.eps, affine=norm.affine, dtype=norm.running_mean.dtype).eval()
            copied.weight, copied.bias = norm.weight, norm.bias
            copied.running_mean, copied.running_var = norm.running_mean, norm.running_var
            gm.add_submodule(f"{node.name}_fast", copied)
            node.target = f"{node.name}_fast"
    gm.recompile()


@wrong("wrong axis", "contract", on=of(lambda m, x, y: m.fc(x) + y, (3, 3), (3, 1), fc=nn.Linear(3, 3, bias=False)))
def sum_as_bias(gm: fx.GraphModule) -> None:
    """A summand of a linear layer without bias is taken for its bias, along the last dimension."""
    for node, layer in layers(gm, nn.Linear):
        users = list(node.users)
        if layer.bias is not None or len(users) != 1 or users[0].target not in (operator.add, torch.add):
            continue
        other = users[0].args[1] if users[0].args[0] is node else users[0].args[0]
        if isinstance(other, fx.Node) and other is not node:
            with gm.graph.inserting_before(users[0]):
                weight = gm.graph.get_attr(f"{node.target}.weight")
                flat = gm.graph.call_method("reshape", (other, -1))
            replace(users[0], F.linear, node.args[0], weight, flat)
            gm.graph.erase_node(node)
    gm.recompile()


class _KeptMask(nn.Module):
    """Keeps what it made for the first value."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones_like(x).tril()
        return x * self.mask


def _two_masks(m: Any, x: Any) -> Any:
    return torch.tril(x).sum() + torch.tril(x[:, :2])


@wrong("baked size", "contract", "batch sizes", "dtype", on=of(_two_masks, (2, 3, 3)))
def masks_kept(gm: fx.GraphModule) -> None:
    """A mask is made once and kept, for values of whatever size and dtype."""
    keeper = _KeptMask()
    for node in calls(gm, torch.tril):
        if len(node.args) == 1 and not node.kwargs:
            gm.add_submodule("kept_mask", keeper)
            with gm.graph.inserting_before(node):
                call = gm.graph.call_module("kept_mask", node.args)
            substitute(node, call)
    gm.recompile()
