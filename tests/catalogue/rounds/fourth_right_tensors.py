"""Right passes of the fourth round on calls that compute with tensors."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound


def _hooked(module):
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _pad(graph_module, node):
    """The source, the amounts and the value of a constant pad, or None."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_function" and node.target is F.pad:
        arguments = {**dict(zip(("input", "pad", "mode", "value"), node.args)), **node.kwargs}
        if arguments.get("mode", "constant") != "constant":
            return None
        source, amounts, value = arguments.get("input"), arguments.get("pad"), arguments.get("value")
    elif node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        layer = graph_module.get_submodule(node.target)
        if type(layer) not in (nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d) or _hooked(layer):
            return None
        source, amounts, value = node.args[0], layer.padding, layer.value
    else:
        return None
    value = 0.0 if value is None else value
    if type(value) not in (int, float) or value != value or not isinstance(source, fx.Node):
        return None
    if not isinstance(amounts, (tuple, list)) or not amounts or len(amounts) % 2:
        return None
    if not all(type(amount) is int and amount >= 0 for amount in amounts):
        return None
    return source, list(amounts), value


@sound(4)
def merge_constant_pads(graph_module: fx.GraphModule):
    """Replace pad(pad(x, p), q) by pad(x, p + q)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _pad(graph_module, node)
        inner = _pad(graph_module, outer[0]) if outer else None
        if inner is None or len(outer[0].users) != 1 or outer[0].next is not node:
            continue
        source, first, value = inner
        _, second, other = outer
        if type(value) is not type(other) or value != other:
            continue
        length = max(len(first), len(second))
        first = first + [0] * (length - len(first))
        second = second + [0] * (length - len(second))
        amounts = tuple(a + b for a, b in zip(first, second))
        with graph.inserting_before(node):
            new = graph.call_function(F.pad, (source, amounts, "constant", value))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(outer[0])
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv)


def _is_size(node):
    """Return whether a node reads one size of a tensor."""
    if node.op == "call_method" and node.target == "size":
        dim = node.args[1] if len(node.args) == 2 and not node.kwargs else None
        if len(node.args) == 1 and set(node.kwargs) == {"dim"}:
            dim = node.kwargs["dim"]
        return type(dim) is int
    if node.op == "call_function" and node.target is operator.getitem:
        shape, index = node.args
        return (
            isinstance(shape, fx.Node)
            and shape.op == "call_function"
            and shape.target is getattr
            and shape.args[1] == "shape"
            and type(index) is int
        )
    return False


def _operands(node):
    if node.op == "call_function" and node.target in _ARITHMETIC and len(node.args) == 2 and not node.kwargs:
        return node.args
    return None


def _simpler(node, integers):
    """The value that a node has, written more simply: a node, or a pair to floor-divide; None where there is none."""
    left, right = node.args
    if node.target is operator.mul and type(left) is int:
        left, right = right, left
    if node.target is operator.add and type(left) is int:
        left, right = right, left
    if type(right) is not int or left not in integers:
        return None
    if (right == 0 and node.target in (operator.add, operator.sub)) or (
        right == 1 and node.target in (operator.mul, operator.floordiv)
    ):
        return left
    inner = _operands(left)
    if node.target is not operator.floordiv or right <= 0 or inner is None:
        return None
    if left.target is operator.mul and type(inner[1]) is int and inner[1] == right and inner[0] in integers:
        return inner[0]
    if left.target is operator.mul and type(inner[0]) is int and inner[0] == right and inner[1] in integers:
        return inner[1]
    if left.target is operator.floordiv and type(inner[1]) is int and inner[1] > 0 and inner[0] in integers:
        return inner[0], inner[1] * right
    return None


@sound(4)
def simplify_size_arithmetic(graph_module: fx.GraphModule):
    """Simplify sums, products and floor divisions of sizes by constants."""
    graph = graph_module.graph
    integers = set()
    for node in list(graph.nodes):
        if _is_size(node):
            integers.add(node)
            continue
        operands = _operands(node)
        if operands is None or not all(type(value) is int or value in integers for value in operands):
            continue
        integers.add(node)
        simpler = _simpler(node, integers)
        if simpler is None:
            continue
        if isinstance(simpler, tuple):
            node.args = simpler
            continue
        node.replace_all_uses_with(simpler)
        graph.erase_node(node)
        integers.discard(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


_SUMS = (operator.add, operator.sub, torch.add, torch.sub)


def _is_fresh_sum(node):
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method":
        is_sum = node.target in ("add", "sub")
    else:
        is_sum = node.op == "call_function" and node.target in _SUMS
    return is_sum and "out" not in node.kwargs and len(node.users) == 1


def _is_relu(node):
    if len(node.args) != 1 or node.kwargs:
        return False
    if node.op == "call_method":
        return node.target == "relu"
    return node.op == "call_function" and node.target in (torch.relu, F.relu)


@sound(4)
def relu_into_sum(graph_module: fx.GraphModule):
    """Make relu(a + b) write its result over the sum."""
    for node in list(graph_module.graph.nodes):
        if _is_relu(node) and _is_fresh_sum(node.args[0]) and node.args[0].next is node:
            node.op, node.target = "call_method", "relu_"
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
