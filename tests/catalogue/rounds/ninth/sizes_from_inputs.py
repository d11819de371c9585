"""A wrong pass of the ninth round."""

import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import fault

_UNARY = {torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.neg, F.relu, F.gelu, F.silu, F.dropout}


_UNARY_METHODS = {"relu", "sigmoid", "tanh", "exp", "neg"}


_BINARY = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


_RESHAPES = {
    "t_",
    "transpose_",
    "swapaxes_",
    "swapdims_",
    "squeeze_",
    "unsqueeze_",
    "resize_",
    "resize_as_",
    "set_",
    "as_strided_",
}


def _source(node, right):
    """The operand that a value has the shape of, or None."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_function" and (node.target in _UNARY or (not right and node.target in _BINARY)):
        return node.args[0]
    if node.op == "call_method" and node.target in _UNARY_METHODS:
        return node.args[0]
    return None


def _asks_shape(node):
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.op == "call_function" and node.target is getattr and node.args[1] == "shape"


def _run(module, right):
    graph = module.graph
    if any((node.op == "call_method" and node.target in _RESHAPES) or "out" in node.kwargs for node in graph.nodes):
        return module
    for node in list(graph.nodes):
        if not _asks_shape(node) or not isinstance(node.args[0], fx.Node):
            continue
        value = node.args[0]
        while (source := _source(value, right)) is not None:
            value = source
        if value is not node.args[0]:
            node.args = (value, *node.args[1:])
    graph.lint()
    module.recompile()
    return module


@fault(
    9, wrong="Takes the shape of a sum or product from its first operand, which may be broadcast to that of the second."
)
def sizes_from_inputs(module: fx.GraphModule) -> fx.GraphModule:
    """Ask the operand of elementwise operations for its shape, so that results are not kept for their shape alone."""
    return _run(module, False)
