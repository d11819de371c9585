"""Passes of the fourth round that fold into layers, or open them."""

import copy
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

_KINDS = (nn.LSTM, nn.GRU)


def _only_output(node):
    """Return whether the output sequence is read and the last state is, at most, unpacked."""
    getitems = all(user.op == "call_function" and user.target is operator.getitem for user in node.users)
    return bool(node.users) and getitems and all(user.args[1] == 0 or not user.users for user in node.users)


def _can_split(rnn, node):
    return (
        type(rnn) in _KINDS
        and rnn.num_layers > 1
        and not rnn.bidirectional
        and not rnn.proj_size
        and not (rnn._forward_hooks or rnn._forward_pre_hooks)
        and len(node.args) == 1
        and not node.kwargs
        and _only_output(node)
    )


def _layer(rnn, index):
    size = rnn.input_size if index == 0 else rnn.hidden_size
    new = type(rnn)(size, rnn.hidden_size, bias=rnn.bias, batch_first=rnn.batch_first)
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        if kind.startswith("weight") or rnn.bias:
            setattr(new, f"{kind}_l0", getattr(rnn, f"{kind}_l{index}"))
    return new.train(rnn.training)


def _split(graph_module, node, rnn):
    graph, value = graph_module.graph, node.args[0]
    with graph.inserting_before(node):
        for index in range(rnn.num_layers):
            name = f"{node.name}_layer{index}"
            graph_module.add_submodule(name, _layer(rnn, index))
            value = graph.call_function(operator.getitem, (graph.call_module(name, (value,)), 0))
    for user in list(node.users):
        user.replace_all_uses_with(value)
        graph.erase_node(user)
    graph.erase_node(node)


@fault(
    4,
    "training mode",
    "contract",
    "gradients",
    "deterministic",
    "state",
    wrong="A stack of recurrent layers drops out between its layers when it trains, and the split one does not.",
)
def split_stacked_lstm(graph_module: fx.GraphModule):
    """Split an LSTM or GRU of several layers, of which only the output sequence is used, into single layers."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module":
            rnn = graph_module.get_submodule(node.target)
            if _can_split(rnn, node):
                _split(graph_module, node, rnn)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def _zero_pad(graph_module, node):
    """The input and the pad (horizontal, vertical) of a symmetric zero pad, or None."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_function" and node.target is F.pad:
        arguments = {**dict(zip(("input", "pad", "mode", "value"), node.args)), **node.kwargs}
        if arguments.get("mode", "constant") != "constant" or arguments.get("value") not in (None, 0):
            return None
        source, pad = arguments["input"], arguments["pad"]
    elif node.op == "call_module" and type(graph_module.get_submodule(node.target)) is nn.ZeroPad2d:
        layer = graph_module.get_submodule(node.target)
        if layer._forward_hooks or layer._forward_pre_hooks or not node.args:
            return None
        source, pad = node.args[0], layer.padding
    else:
        return None
    if not isinstance(pad, (tuple, list)) or len(pad) != 4 or not all(type(p) is int and p >= 0 for p in pad):
        return None
    left, right, top, bottom = pad
    return (source, (top, left)) if left == right and top == bottom else None


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _pool(graph_module, node, pad):
    """The pooling layer with the pad in it, or None where it cannot take it."""
    pool = graph_module.get_submodule(node.target)
    if type(pool) not in (nn.MaxPool2d, nn.AvgPool2d) or pool._forward_hooks or pool._forward_pre_hooks:
        return None
    if pool.ceil_mode or any(_pair(pool.padding)):
        return None
    if any(2 * p > k for p, k in zip(pad, _pair(pool.kernel_size))):
        return None
    if type(pool) is nn.MaxPool2d and (pool.return_indices or _pair(pool.dilation) != (1, 1)):
        return None
    if type(pool) is nn.AvgPool2d and not pool.count_include_pad:
        return None
    new = copy.deepcopy(pool)
    new.padding = pad
    return new


def _absorb(graph_module, allowed):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1:
            continue
        zero_pad = _zero_pad(graph_module, node.args[0])
        pool = _pool(graph_module, node, zero_pad[1]) if zero_pad else None
        if pool is None or len(node.args[0].users) != 1 or not allowed(pool, node.args[0], zero_pad[0]):
            continue
        padding, name = node.args[0], f"{node.name}_padded"
        graph_module.add_submodule(name, pool)
        node.target, node.args = name, (zero_pad[0],)
        graph.erase_node(padding)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


@fault(
    4,
    "padding",
    "contract",
    "gradients",
    wrong="Max pooling pads with minus infinity and not with zero, so a zero pad may only be absorbed where no "
    "value is negative.",
)
def absorb_pad_into_pool(graph_module: fx.GraphModule):
    """Fold a symmetric zero pad into the padding of the max or average pooling that reads it."""
    return _absorb(graph_module, lambda pool, padding, source: padding.next in padding.users)


def _instance_norm(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1:
        return None
    norm = graph_module.get_submodule(node.target)
    hooks = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks
    return norm if type(norm) is nn.InstanceNorm2d and not hooks else None


def _open(graph_module, node, norm):
    graph, x = graph_module.graph, node.args[0]

    def per_channel(name):
        value = graph.get_attr(f"{node.target}.{name}")
        return graph.call_method("view", (value, -1, 1, 1))

    with graph.inserting_before(node):
        mean = graph.call_function(torch.mean, (x, (-2, -1)), {"keepdim": True})
        var = graph.call_function(torch.var, (x, (-2, -1)), {"correction": 0, "keepdim": True})
        spread = graph.call_function(torch.rsqrt, (graph.call_function(torch.add, (var, norm.eps)),))
        out = graph.call_function(torch.mul, (graph.call_function(torch.sub, (x, mean)), spread))
        if norm.affine:
            out = graph.call_function(torch.mul, (out, per_channel("weight")))
            out = graph.call_function(torch.add, (out, per_channel("bias")))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


@fault(
    4,
    "dropped setting",
    "contract",
    "state",
    wrong="With track_running_stats the evaluated layer normalizes by its running statistics, not by the instance's.",
)
def open_instance_norm(graph_module: fx.GraphModule):
    """Decompose nn.InstanceNorm2d into mean, variance and scale, with its own weight and bias."""
    for node in list(graph_module.graph.nodes):
        norm = _instance_norm(graph_module, node)
        if norm is not None:
            _open(graph_module, node, norm)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module
