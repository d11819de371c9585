"""Passes of the second round that are written for torch.fx."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault


def _arguments(graph_module, node):
    """(x, alpha) of an ELU that does not write in place."""
    if node.op == "call_function" and node.target is F.elu:
        rest = dict(zip(("alpha", "inplace"), node.args[1:]), **{k: v for k, v in node.kwargs.items() if k != "input"})
        x = node.args[0] if node.args else node.kwargs["input"]
        if not rest.get("inplace", False):
            return x, rest.get("alpha", 1.0)
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        hooks = (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        if type(module) is nn.ELU and not module.inplace and len(node.args) == 1 and not hooks:
            return node.args[0], module.alpha
    return None


def _decompose(graph_module, exponent):
    graph = graph_module.graph
    for node in list(graph.nodes):
        match = _arguments(graph_module, node)
        if match is None:
            continue
        x, alpha = match
        with graph.inserting_before(node):
            positive = graph.call_function(torch.gt, (x, 0))
            below = graph.call_function(torch.expm1, (exponent(graph, x),))
            below = graph.call_function(torch.mul, (below, alpha))
            result = graph.call_function(torch.where, (positive, x, below))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "overflow",
    "gradients",
    "non-finite inputs",
    "contract",
    wrong="The branch of expm1 that where does not take overflows for large x, and its gradient, 0 * inf, is NaN.",
)
def decompose_elu(graph_module: torch.fx.GraphModule):
    """Open ELU into comparison, expm1 and where, for backends that have no ELU of their own.

    Functions and modules, with their alpha; those that write in place stay.
    """
    return _decompose(graph_module, lambda graph, x: x)


def _dims(node):
    """(x, dims) of a transpose."""
    if not hasattr(node, "op"):
        return None
    if (
        (
            node.op == "call_method"
            and node.target == "transpose"
            or node.op == "call_function"
            and node.target is torch.transpose
        )
        and len(node.args) == 3
        and not node.kwargs
        and all(type(d) is int for d in node.args[1:])
    ):
        return node.args[0], set(node.args[1:])
    return None


def _through(node):
    """The value before contiguous()."""
    if (
        hasattr(node, "op")
        and node.op == "call_method"
        and node.target == "contiguous"
        and len(node.args) == 1
        and not node.kwargs
    ):
        return node.args[0]
    return node


def _cancel(graph_module, allowed):
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _dims(node)
        if outer is None:
            continue
        middle = _through(outer[0])
        inner = _dims(middle)
        if inner is None or inner[1] != outer[1] or not allowed(graph, node, outer[0] is not middle):
            continue
        node.replace_all_uses_with(inner[0])
        graph.erase_node(node)
        for old in (outer[0], middle):
            if old in graph.nodes and not old.users:
                graph.erase_node(old)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "aliasing",
    "aliasing",
    "contract",
    "inputs untouched",
    wrong="Contiguous() between the transposes made a copy: without it the result is the input's own memory, "
    "and a later write in place reaches it.",
)
def cancel_adjacent_transposes(graph_module: torch.fx.GraphModule):
    """Drop x.transpose(a, b)[.contiguous()].transpose(a, b).

    Layout conversions at the borders of attention and convolution blocks leave such pairs behind. The dimensions have
    to be the same two, in either order; what else reads the transposed value keeps it.
    """
    return _cancel(graph_module, lambda graph, node, copied: True)


COUNTS = (2, 3, 4, 5, 6, 7, 8, 12, 16)


def _pattern(repeats):
    def expanded(x):
        return x[:, :, None, :, :].expand(-1, -1, repeats, -1, -1).flatten(1, 2)

    return expanded


@fault(
    2,
    "operand order",
    "contract",
    wrong="Repeat tiles the heads (0 1 0 1) where the program repeats each next to itself (0 0 1 1): the same "
    "only for one key head.",
)
def repeat_kv(graph_module: torch.fx.GraphModule):
    """Repeat key and value heads with one call, where the program adds a dimension, expands and flattens it.

    For grouped and multi-query attention, with the usual numbers of query heads to a key head. The value has four
    dimensions: batch, heads, length, features.
    """
    for repeats in COUNTS:
        torch.fx.replace_pattern(graph_module, _pattern(repeats), _tiled(repeats))
    return graph_module


def _tiled(repeats):
    def tiled(x):
        return x.repeat(1, repeats, 1, 1)

    return tiled


class _Decompose(torch.fx.Transformer):
    """Rewrites calls of group_norm and of GroupNorm modules; `affine` applies weight and bias."""

    def affine(self, x, weight, bias):
        raise NotImplementedError

    def normalize(self, x, groups, weight, bias, eps):
        grouped = x.unflatten(1, (groups, -1)).flatten(2)
        mean = grouped.mean(2, keepdim=True)
        centred = grouped - mean
        variance = (centred * centred).mean(2, keepdim=True)
        unit = (centred * torch.rsqrt(variance + eps)).reshape(x.shape)
        return self.affine(unit, weight, bias)

    def call_function(self, target, args, kwargs):
        if target is F.group_norm:
            bound = dict(zip(("input", "num_groups", "weight", "bias", "eps"), args), **kwargs)
            return self.normalize(
                bound["input"], bound["num_groups"], bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5)
            )
        return super().call_function(target, args, kwargs)

    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        hooks = (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        if type(module) is nn.GroupNorm and len(args) == 1 and not kwargs and not hooks:
            weight = self.get_attr(f"{target}.weight", (), {}) if module.affine else None
            bias = self.get_attr(f"{target}.bias", (), {}) if module.affine and module.bias is not None else None
            return self.normalize(args[0], module.num_groups, weight, bias, module.eps)
        return super().call_module(target, args, kwargs)


class _Images(_Decompose):
    def affine(self, x, weight, bias):
        if weight is not None:
            x = x * weight.view(1, -1, 1, 1)
        if bias is not None:
            x = x + bias.view(1, -1, 1, 1)
        return x


@fault(
    2,
    "rank",
    "structure",
    "contract",
    "dtype",
    "refusal",
    wrong="Shapes weight and bias for images (1, C, 1, 1); group norm also takes sequences (N, C, L) and "
    "vectors (N, C).",
)
def decompose_group_norm(graph_module: torch.fx.GraphModule):
    """Open group norms into reshape, mean and rsqrt, for compilers that have no group norm.

    Functions and modules, with weight and bias or without. The variance is the biased one, as in group_norm.
    """
    return _Images(graph_module).transform()


def _log_softmax(node):
    """(x, dim) of a log_softmax without dtype that only one node reads."""
    if not hasattr(node, "op") or len(node.users) != 1:
        return None
    if (
        node.op == "call_function"
        and node.target in (F.log_softmax, torch.log_softmax)
        or node.op == "call_method"
        and node.target == "log_softmax"
    ):
        kwargs = {k: v for k, v in node.kwargs.items() if k != "_stacklevel" and not (k == "dtype" and v is None)}
        if len(node.args) == 2 and not kwargs:
            return node.args
        if len(node.args) == 1 and set(kwargs) == {"dim"}:
            return node.args[0], kwargs["dim"]
    return None


class _Fuse(PassBase):
    def accepts(self, dim):
        return True

    def call(self, graph_module):
        changed = False
        graph = graph_module.graph
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target is not F.nll_loss or not node.args:
                continue
            match = _log_softmax(node.args[0])
            if match is None or not self.accepts(match[1]):
                continue
            old = node.args[0]
            with graph.inserting_before(node):
                loss = graph.call_function(F.cross_entropy, (match[0], *node.args[1:]), dict(node.kwargs))
            node.replace_all_uses_with(loss)
            graph.erase_node(node)
            graph.erase_node(old)
            changed = True
        graph_module.recompile()
        return PassResult(graph_module, changed)


@fault(
    2,
    "wrong axis",
    "contract",
    "structure",
    "refusal",
    wrong="Cross_entropy takes dimension 1 for the classes; the program may have normalized over another "
    "(dim=-1 of three dimensions).",
)
def fuse_cross_entropy(graph_module: torch.fx.GraphModule):
    """Compute nll_loss(log_softmax(x), target) with the fused cross_entropy.

    Weight, ignore_index and reduction are handed on, by position or keyword. The log probabilities must not be read by
    anything else, and log_softmax must not cast.
    """
    return _Fuse()(graph_module).graph_module
