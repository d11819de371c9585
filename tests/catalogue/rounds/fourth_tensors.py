"""Passes of the fourth round on calls that compute with tensors."""

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault


def _parts(node):
    """The input, dimension and index of a gather, or None."""
    is_gather = (node.op == "call_function" and node.target is torch.gather) or (
        node.op == "call_method" and node.target == "gather"
    )
    if not is_gather:
        return None
    extra = dict(node.kwargs)
    if extra.pop("sparse_grad", False) or "out" in extra:
        return None
    operands = list(node.args)
    for name in ("input", "dim", "index")[len(operands) :]:
        if name not in extra:
            return None
        operands.append(extra[name])
    return operands if len(operands) == 3 and isinstance(operands[1], int) else None


@fault(
    4,
    "only some sizes",
    "structure",
    "contract",
    wrong="Gather lets the index be smaller than the input in the other dimensions, where take_along_dim broadcasts.",
)
def gather_along_axis(graph_module: fx.GraphModule):
    """Rewrite torch.gather and Tensor.gather to take_along_dim, which the converter maps one to one."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        parts = _parts(node)
        if parts is None:
            continue
        source, dim, index = parts
        with graph.inserting_before(node):
            new = graph.call_function(torch.take_along_dim, (source, index, dim))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _parts_mask(node):
    is_fill = (node.op == "call_function" and node.target is torch.masked_fill) or (
        node.op == "call_method" and node.target == "masked_fill"
    )
    if not is_fill or "out" in node.kwargs:
        return None
    operands = list(node.args)
    for name in ("input", "mask", "value")[len(operands) :]:
        if name not in node.kwargs:
            return None
        operands.append(node.kwargs[name])
    if not isinstance(operands[2], (int, float)) or not math.isfinite(operands[2]):
        return None
    return operands


def _replace(graph, node, new):
    node.replace_all_uses_with(new)
    graph.erase_node(node)


@fault(
    4,
    "swallowed NaN",
    "contract",
    "non-finite inputs",
    "gradients",
    wrong="What is masked away is multiplied by zero, which leaves NaN where it was infinite or NaN.",
)
def mask_by_arithmetic(graph_module: fx.GraphModule):
    """Lower masked_fill with a finite number to multiply and add, as the device has no select."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        parts = _parts_mask(node)
        if parts is None:
            continue
        source, mask, value = parts
        with graph.inserting_before(node):
            keep = graph.call_method("logical_not", (mask,))
            unmasked = graph.call_function(torch.mul, (source, keep))
            filled = graph.call_function(torch.mul, (mask, value))
            filled = graph.call_method("type_as", (filled, source))
            new = graph.call_function(torch.add, (unmasked, filled))
        _replace(graph, node, new)
    graph_module.recompile()
    return graph_module


_NAMES = ("input", "target", "size_average", "reduce", "reduction", "log_target")


def _settings(graph_module, node):
    """Input, target, reduction and log_target of a KL divergence, or None."""
    if node.op == "call_function" and node.target is F.kl_div:
        arguments = {**dict(zip(_NAMES, node.args)), **node.kwargs}
        if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
            return None
        reduction, log_target = arguments.get("reduction", "mean"), arguments.get("log_target", False)
    elif node.op == "call_module":
        loss = graph_module.get_submodule(node.target)
        if type(loss) is not nn.KLDivLoss or loss._forward_hooks or loss._forward_pre_hooks:
            return None
        arguments = {**dict(zip(_NAMES, node.args)), **node.kwargs}
        reduction, log_target = loss.reduction, loss.log_target
    else:
        return None
    if reduction not in ("none", "sum", "mean") or not isinstance(log_target, bool):
        return None
    return arguments["input"], arguments["target"], reduction, log_target


def _reduce(graph, value, reduction):
    return value if reduction == "none" else graph.call_method(reduction, (value,))


@fault(
    4,
    "swallowed NaN",
    "contract",
    "gradients",
    "non-finite inputs",
    wrong="Target * log(target) is NaN where the target is zero; the loss takes it as zero there.",
)
def open_kl_div(graph_module: fx.GraphModule):
    """Lower F.kl_div and nn.KLDivLoss to target * (log(target) - input) and the reduction."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        settings = _settings(graph_module, node)
        if settings is None:
            continue
        logp, target, reduction, log_target = settings
        with graph.inserting_before(node):
            log = target if log_target else graph.call_function(torch.log, (target,))
            weight = graph.call_function(torch.exp, (target,)) if log_target else target
            gap = graph.call_function(torch.sub, (log, logp))
            new = _reduce(graph, graph.call_function(torch.mul, (weight, gap)), reduction)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


_NAMES_SMOOTH = ("input", "target", "size_average", "reduce", "reduction", "beta")


def _settings_smooth(graph_module, node):
    arguments = {**dict(zip(_NAMES_SMOOTH, node.args)), **node.kwargs}
    if node.op == "call_function" and node.target is F.smooth_l1_loss:
        if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
            return None
        reduction, beta = arguments.get("reduction", "mean"), arguments.get("beta", 1.0)
    elif node.op == "call_module":
        loss = graph_module.get_submodule(node.target)
        if type(loss) is not nn.SmoothL1Loss or loss._forward_hooks or loss._forward_pre_hooks:
            return None
        reduction, beta = loss.reduction, loss.beta
    else:
        return None
    if reduction not in ("none", "sum", "mean") or not isinstance(beta, (int, float)) or beta < 0:
        return None
    return arguments["input"], arguments["target"], reduction, beta


def _finish(graph, node, value, reduction):
    if reduction != "none":
        value = graph.call_method(reduction, (value,))
    node.replace_all_uses_with(value)
    graph.erase_node(node)


@fault(
    4,
    "only some values",
    "contract",
    "gradients",
    "non-finite inputs",
    wrong="With beta=0 the loss is plain L1, and the slope becomes 0/0.",
)
def open_smooth_l1(graph_module: fx.GraphModule):
    """Lower smooth_l1_loss to s / beta * (d - s / 2), where d is the distance and s is d or at most beta."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        settings = _settings_smooth(graph_module, node)
        if settings is None:
            continue
        prediction, target, reduction, beta = settings
        with graph.inserting_before(node):
            gap = graph.call_function(torch.abs, (graph.call_function(torch.sub, (prediction, target)),))
            small = graph.call_function(torch.clamp, (gap,), {"max": beta})
            slope = graph.call_function(torch.div, (small, beta))
            middle = graph.call_function(torch.sub, (gap, graph.call_function(torch.mul, (small, 0.5))))
            value = graph.call_function(torch.mul, (slope, middle))
            _finish(graph, node, value, reduction)
    graph_module.recompile()
    return graph_module


def _divisor(node):
    """The dividend and the positive integer by which it is floor-divided, or None."""
    if node.op != "call_function" or len(node.args) != 2:
        return None
    dividend, divisor = node.args
    if node.target in (operator.floordiv, torch.floor_divide):
        floor = not node.kwargs
    elif node.target is torch.div:
        floor = dict(node.kwargs) == {"rounding_mode": "floor"}
    else:
        return None
    if not floor or type(divisor) is not int or divisor <= 0 or not isinstance(dividend, fx.Node):
        return None
    # only where the program itself says that these are int64 ids
    if dividend.op != "call_method" or dividend.target != "long":
        return None
    return dividend, divisor


@fault(
    4,
    "precision lost",
    "contract",
    "other values",
    wrong="Integers divided as float32 lose their low digits from 2**24 on.",
)
def integer_floor_division(graph_module: fx.GraphModule):
    """Lower floor division of int64 ids by a constant to true division, floor and a cast back."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        operands = _divisor(node)
        if operands is None:
            continue
        dividend, divisor = operands
        with graph.inserting_before(node):
            ratio = graph.call_function(torch.div, (dividend, divisor))
            whole = graph.call_function(torch.floor, (ratio,))
            new = graph.call_method("to", (whole, torch.int64))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


_WRITES = ("index_fill_", "index_add_", "index_copy_", "scatter_", "scatter_add_", "masked_fill_", "index_put_")


def _writes(graph):
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target in _WRITES and isinstance(node.args[0], fx.Node):
            yield node


def _later_users(graph, node, base):
    order = {other: at for at, other in enumerate(graph.nodes)}
    return [user for user in base.users if order[user] > order[node]]


def _functionalize(graph, node):
    base = node.args[0]
    with graph.inserting_before(node):
        new = graph.call_method(node.target[:-1], node.args, node.kwargs)
    for user in _later_users(graph, node, base):
        user.replace_input_with(base, new)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


@fault(
    4,
    "effect dropped",
    "contract",
    "state",
    "inputs untouched",
    "aliasing",
    wrong="When what is written to is a view, the tensor it is a view of has to change too.",
)
def functional_scatter(graph_module: fx.GraphModule):
    """Replace in-place index writes by their functional forms and read their results from there on."""
    graph = graph_module.graph
    for node in _writes(graph):
        # a caller sees writes into its inputs, and a module those into its buffers: these have to stay
        if node.args[0].op not in ("placeholder", "get_attr"):
            _functionalize(graph, node)
    graph.lint()
    graph_module.recompile()
    return graph_module
