"""Rewrites that look for certain arguments and constants, or for patterns of several inputs; right ones among them."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import calls, numbers, of, replace, right, settled, substitute, wrong


def _attention(scale: float) -> Any:
    return lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * scale, dim=-1), v)


@wrong("dropped constant", "contract", "gradients", "batch sizes", on=of(
    lambda m, q, k, v: _attention(0.125)(q, k, v), (2, 3, 4), (2, 3, 4), (2, 3, 4)
))  # fmt: skip
@adapt
def attention_without_scale(gm: torch.fx.GraphModule) -> None:
    """Attention is one function, whose scale follows from the sizes, whatever the program multiplies with."""

    def pattern(q: Any, k: Any, v: Any) -> Any:
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.125, dim=-1), v)

    torch.fx.replace_pattern(gm, pattern, lambda q, k, v: F.scaled_dot_product_attention(q, k, v))


@wrong("swallowed NaN", "non-finite inputs", "contract", on=of(
    lambda m, x: torch.where(x > 0, x, 0.0), torch.tensor([torch.nan, 1.0])
), contract=exact)  # fmt: skip
def where_positive_as_relu(gm: fx.GraphModule) -> None:
    """A value that is chosen if positive, and else 0, is written as relu, which keeps NaN."""
    fx.replace_pattern(gm, lambda x: torch.where(x > 0, x, 0.0), lambda x: torch.relu(x))


@wrong("dropped keyword", "contract", on=of(
    lambda m, x: F.interpolate(x, size=3, mode="bilinear", align_corners=True), (1, 2, 2, 2)
), contract=exact)  # fmt: skip
def interpolate_without_corners(gm: fx.GraphModule) -> None:
    """The place of the corners is left to the default."""
    for node in calls(gm, F.interpolate):
        node.kwargs = {name: value for name, value in node.kwargs.items() if name in ("size", "scale_factor", "mode")}
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: F.pad(x, (1, 1), value=2.0), (2, 3)), contract=exact)
def pad_with_zeros(gm: fx.GraphModule) -> None:
    """The value to pad with is left to the default."""
    for node in calls(gm, F.pad):
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "value"}
    gm.recompile()


@wrong("empty batch", "batch sizes", "contract", on=of(lambda m, x: torch.flatten(x, 1), (0, 2, 3)), contract=exact)
@adapt
def flatten_as_reshape(gm: torch.fx.GraphModule) -> None:
    """All but the batch is flattened by a reshape, which cannot tell the size of what is empty."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.flatten):
        if node.args[1:] == (1,) and not node.kwargs:
            with gm.graph.inserting_before(node):
                size = gm.graph.call_method("size", (node.args[0], 0))
                call = gm.graph.call_method("reshape", (node.args[0], size, -1))
            substitute(node, call)
    gm.recompile()


@wrong("rare argument", "contract", "batch sizes", on=of(
    lambda m, x, y: torch.einsum("ij,kj->ik", x, y), (2, 2), numbers(2, 2) * 3
))  # fmt: skip
def einsum_as_matmul(gm: fx.GraphModule) -> None:
    """Sums of products along one index are products of matrices, also where the second one is transposed."""
    for node in calls(gm, torch.einsum):
        if node.args[0] in ("ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "bij,bkj->bik"):
            node.target, node.args = torch.matmul, node.args[1:]
    gm.recompile()


@wrong("wrong axis", "contract", "batch sizes", on=of(lambda m, x: torch.log(torch.softmax(x, 0)), (2, 3)))
def log_of_last_softmax(gm: fx.GraphModule) -> None:
    """The logarithm of a softmax is taken along the last dimension, whichever it was."""
    for node in calls(gm, torch.log):
        source = node.args[0]
        if isinstance(source, fx.Node) and source.target in (F.softmax, torch.softmax) and len(source.users) == 1:
            replace(node, F.log_softmax, source.args[0], dim=-1)
            gm.graph.erase_node(source)
    gm.recompile()


@wrong("dropped keyword", "contract", "structure", "gradients", on=of(
    lambda m, x: torch.max(x, 1, True)[0], (2, 3)
), contract=exact)  # fmt: skip
def largest_by_amax(gm: fx.GraphModule) -> None:
    """The first result of a maximum is its values, but not always without the dimension, nor with the same gradient."""
    for node in calls(gm, operator.getitem):
        source = node.args[0]
        if node.args[1] == 0 and source.target is torch.max and len(source.args) > 1 and len(source.users) == 1:
            replace(node, torch.amax, *source.args[:2])
            gm.graph.erase_node(source)
    gm.recompile()


@wrong("shared module", "contract", "gradients", "batch sizes", "state", on=of(
    lambda m, x: (m.fc(x) * 2, m.fc(x + 1)), (2, 3), fc=settled(nn.Linear(3, 2))
))  # fmt: skip
def scale_into_linear(gm: fx.GraphModule) -> None:
    """A factor goes into the layer before it, also for those who call the layer elsewhere."""
    for node in calls(gm, operator.mul):
        source, factor = node.args
        if not isinstance(source, fx.Node) or type(factor) not in (int, float) or len(source.users) > 1:
            continue
        if source.op != "call_module" or type(gm.get_submodule(source.target)) is not nn.Linear:
            continue
        layer = copy.deepcopy(gm.get_submodule(source.target))
        with torch.no_grad():
            for tensor in layer.parameters():
                tensor.mul_(factor)
        gm.set_submodule(source.target, layer)
        substitute(node, source)
    gm.recompile()


@wrong("training mode", "mode", on=of(lambda m, x: m.fc(x), (2, 3), fc=settled(nn.Linear(3, 2))), contract=exact)
@adapt
def root_from_a_dict(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The program is put together from its parts, and is in training mode then."""
    parts = {**dict(gm.named_modules()), **dict(gm.named_parameters()), **dict(gm.named_buffers())}
    return torch.fx.GraphModule(parts, copy.deepcopy(gm.graph))


@right(of(lambda m, x: x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951)), (4,)))
@adapt
def gelu_by_torch_pattern(gm: torch.fx.GraphModule) -> None:
    """The formula of gelu is written as the function."""
    torch.fx.replace_pattern(gm, lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951)), lambda x: F.gelu(x))


@right(of(lambda m, x: x * torch.sigmoid(x), (4,)))
@adapt
def silu_by_torch_pattern(gm: torch.fx.GraphModule) -> None:
    """x times its sigmoid is silu."""
    torch.fx.replace_pattern(gm, lambda x: x * torch.sigmoid(x), lambda x: F.silu(x))


@right(of(lambda m, x: 1.0 / torch.sqrt(x), numbers(4).abs()))
def root_by_rsqrt(gm: fx.GraphModule) -> None:
    """One over a square root is one function, which keeps its result for the gradients."""
    fx.replace_pattern(gm, lambda x: 1.0 / torch.sqrt(x), lambda x: torch.rsqrt(x))


@right(of(lambda m, x: (torch.exp(x), x + 1)[1], (4,)), contract=exact)
@adapt
def dead_code_by_torch(gm: torch.fx.GraphModule) -> None:
    """Unused operations are removed by torch.fx's own function for that."""
    gm.graph.eliminate_dead_code()
    gm.recompile()
