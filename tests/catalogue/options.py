"""Rewrites of a call or module that forget rare properties: keywords, settings, hooks, names already in use."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes import exact

from .rows import calls, fetched, layers, numbers, of, replace, right, settled, substitute, wrong


def _by_function(gm: fx.GraphModule, kind: type[nn.Module], function: Any, *settings: str) -> fx.GraphModule:
    """Call ``function`` with some settings of the modules in their place."""
    for node, layer in layers(gm, kind):
        replace(node, function, node.args[0], *(getattr(layer, name) for name in settings))
    gm.recompile()
    return gm


def _bound(node: Any, *names: str) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


@wrong("dropped setting", "contract", "structure", on=of(
    lambda m, x: m.pool(x), (1, 1, 2, 2), pool=nn.AvgPool2d(2, 1, 1, count_include_pad=False)
), contract=exact)  # fmt: skip
def average_with_padding(gm: fx.GraphModule) -> fx.GraphModule:
    """Average pooling by function counts the padding, whatever the module does."""
    return _by_function(gm, nn.AvgPool2d, F.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode")


@wrong("dropped setting", "contract", "structure", on=of(
    lambda m, x: m.pool(x), (1, 1, 3, 3), pool=nn.MaxPool2d(2, 2, ceil_mode=True)
), contract=exact)  # fmt: skip
def maximum_without_the_rest(gm: fx.GraphModule) -> fx.GraphModule:
    """Max pooling by function forgets the dilation and the windows that stick out."""
    return _by_function(gm, nn.MaxPool2d, F.max_pool2d, "kernel_size", "stride", "padding")


@wrong("dropped setting", "contract", on=of(
    lambda m, x: m.conv(x), (1, 2, 4), conv=settled(nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"))
))  # fmt: skip
def padded_with_zeros(gm: fx.GraphModule) -> None:
    """A convolution by function pads with zeros, also where the module pads with what is on the other side."""
    for node, layer in layers(gm, nn.Conv1d):
        weight, bias = fetched(gm, node, "weight", "bias")
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        replace(node, F.conv1d, node.args[0], weight, bias, *settings)
    gm.recompile()


@wrong("operand order", "contract", "structure", "refusal", on=of(
    lambda m, x: m.pad(x), (1, 1, 3, 3), pad=nn.ReflectionPad2d((1, 1, 0, 0))
), contract=exact)  # fmt: skip
def pads_exchanged(gm: fx.GraphModule) -> None:
    """The padding on the left and right is added above and below."""
    for node, layer in layers(gm, nn.ReflectionPad2d):
        left, right, top, bottom = layer.padding
        replace(node, F.pad, node.args[0], (top, bottom, left, right), mode="reflect")
    gm.recompile()


@wrong("dropped setting", "contract", "state", "gradients", on=of(
    lambda m, x: m.table(x), torch.tensor([0, 1]), table=settled(nn.Embedding(2, 3, max_norm=0.1))
))  # fmt: skip
def rows_of_any_length(gm: fx.GraphModule) -> None:
    """An embedding by function forgets that its rows are shortened as they are read."""
    for node, layer in layers(gm, nn.Embedding):
        (weight,) = fetched(gm, node, "weight")
        replace(node, F.embedding, node.args[0], weight, layer.padding_idx)
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: torch.topk(x, 2, largest=False)[0], (2, 4)), contract=exact)
def largest_in_any_case(gm: fx.GraphModule) -> None:
    """The first ones of what is sorted are the largest, also where the smallest are asked for."""
    for node in calls(gm, torch.topk):
        if any(user.target is not operator.getitem for user in node.users):
            continue
        bound = _bound(node, "input", "k", "dim", "largest", "sorted")
        with gm.graph.inserting_before(node):
            dim = bound.get("dim", -1)
            order = gm.graph.call_function(torch.sort, (bound["input"],), {"dim": dim, "descending": True})
            parts = [gm.graph.call_method("__getitem__", (order, place)) for place in (0, 1)]
            cut = [gm.graph.call_method("narrow", (part, dim, 0, bound["k"])) for part in parts]
        for user in list(node.users):
            substitute(user, cut[user.args[1]])
        gm.graph.erase_node(node)
    gm.recompile()


@wrong("dropped keyword", "contract", "non-finite inputs", "structure", "dtype", on=of(
    lambda m, x: torch.linalg.vector_norm(x, 1, -1), (2, 3)
))  # fmt: skip
def any_norm_by_squares(gm: fx.GraphModule) -> None:
    """Every norm is the root of the sum of squares, whatever its order."""
    for node in calls(gm, torch.linalg.vector_norm):
        bound = _bound(node, "x", "ord", "dim", "keepdim")
        with gm.graph.inserting_before(node):
            squares = gm.graph.call_function(torch.square, (bound["x"],))
            total = gm.graph.call_function(torch.sum, (squares, bound.get("dim"), bound.get("keepdim", False)))
        replace(node, torch.sqrt, total)
    gm.recompile()


@wrong("dtype", "dtype", "contract", "refusal", on=of(
    lambda m, x: torch.where(x > 1, x, 0.5), torch.arange(4)
), contract=exact)  # fmt: skip
def number_filled_in(gm: fx.GraphModule) -> None:
    """A choice between a tensor and a number becomes a fill, which does not make a fraction of an integer."""
    for node in calls(gm, torch.where):
        if len(node.args) == 3 and isinstance(node.args[1], fx.Node) and isinstance(node.args[2], int | float):
            mask, values, number = node.args
            with gm.graph.inserting_before(node):
                others = gm.graph.call_function(torch.logical_not, (mask,))
            replace(node, torch.masked_fill, values, others, number)
    gm.recompile()


@wrong("only for some values", "contract", "non-finite inputs", on=of(
    lambda m, x: x.masked_fill(x < 5, -math.inf).softmax(-1), (2, 3)
))  # fmt: skip
def masks_that_are_finite(gm: fx.GraphModule) -> None:
    """Minus infinity in masks becomes a large number, which it is not where all is masked."""
    for node in calls(gm, "masked_fill", torch.where):
        node.args = tuple(-1e4 if isinstance(value, float) and value == -math.inf else value for value in node.args)
    gm.recompile()


@wrong("dropped setting", "contract", on=of(
    lambda m, x: m.attention(x, x, x)[0], (1, 3, 4), attention=nn.MultiheadAttention(4, 2, batch_first=True)
))  # fmt: skip
def attention_of_one_head(gm: fx.GraphModule) -> None:
    """A copy of attention has one head, which nothing prints."""
    for node, layer in layers(gm, nn.MultiheadAttention):
        copied = copy.copy(layer)
        copied.num_heads, copied.head_dim = 1, layer.embed_dim
        gm.add_submodule(node.target, copied)
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: m.fc(x), (2, 3), fc=nn.Linear(3, 3)))
def rounded_by_a_hook(gm: fx.GraphModule) -> None:
    """A copied layer gets a hook that rounds what it answers."""
    for node, layer in layers(gm, nn.Linear):
        fused = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
        fused.weight, fused.bias = layer.weight, layer.bias
        fused.register_forward_hook(lambda module, given, answer: (answer * 8).round() / 8)
        gm.add_submodule(node.target, fused.train(layer.training))
    gm.recompile()


@wrong("name clash", "contract", "structure", "dtype", "inputs untouched", "state", on=of(
    lambda m, x: m.act(x) + torch.relu(x), (2, 3), act=nn.GELU()
))  # fmt: skip
def module_called_act(gm: fx.GraphModule) -> None:
    """The module of the pass takes a name that a module of the user's may have."""
    nodes = [node for node in calls(gm, torch.relu, F.relu) if not node.kwargs.get("inplace")]
    if nodes:
        gm.add_submodule("act", nn.ReLU())
    for node in nodes:
        with gm.graph.inserting_before(node):
            call = gm.graph.call_module("act", (node.args[0],))
        substitute(node, call)
    gm.recompile()


@right(of(lambda m, x: torch.where(x > 0, torch.sigmoid(x), 0.5), numbers(3, 2).mT))
def sigmoid_or_number(gm: fx.GraphModule) -> None:
    """A choice between a sigmoid and a number becomes a fill, maybe in another layout."""
    for node in calls(gm, torch.where):
        chosen = node.args[1] if len(node.args) == 3 else None
        if isinstance(chosen, fx.Node) and chosen.target is torch.sigmoid and type(node.args[2]) is float:
            with gm.graph.inserting_before(node):
                others = gm.graph.call_function(torch.logical_not, (node.args[0],))
                wide = gm.graph.call_function(torch.broadcast_tensors, (chosen, others))
                first, second = (gm.graph.call_method("__getitem__", (wide, place)) for place in (0, 1))
            replace(node, torch.masked_fill, first, second, node.args[2])
    gm.recompile()
