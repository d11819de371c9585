"""A wrong pass of the thirtysecond round."""

import operator

import torch

import fx

from ...rows import fault
from .shared import calls, erase_unused, free_name, is_number, replace


@fault(
    32,
    wrong="Buffers that the model itself writes to. Shows in a model with a counter or a running scale in a buffer, that calls self.steps.add_(1) and uses torch.exp(-self.steps): the program keeps the value of the first moment.",
)
def fold_buffer_arithmetic(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute arithmetic on buffers in advance, and keep the results as buffers."""
    pure = (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg),
        *(
            torch.add,
            torch.sub,
            torch.mul,
            torch.div,
            torch.exp,
            torch.neg,
            torch.sqrt,
            torch.rsqrt,
            torch.sigmoid,
            torch.tanh,
        ),
    )
    methods = ("add", "sub", "mul", "div", "neg", "exp", "sqrt", "rsqrt", "sigmoid", "tanh")
    buffers = dict(graph_module.named_buffers())
    values = {}
    for node in list(graph_module.graph.nodes):
        if node.op == "get_attr" and node.target in buffers:
            values[node] = buffers[node.target]
        elif (
            calls(node, pure, methods)
            and not node.kwargs
            and any(arg in values for arg in node.args if isinstance(arg, fx.Node))
        ):
            if not all(is_number(arg) or (isinstance(arg, fx.Node) and arg in values) for arg in node.args):
                continue
            if not node.users or not all(calls(user, pure, methods) for user in node.users):
                continue
            with torch.no_grad():
                function = node.target if node.op == "call_function" else getattr(torch.Tensor, node.target)
                value = function(*(values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args))
            name = free_name(graph_module, "folded")
            graph_module.register_buffer(name, value)
            with graph_module.graph.inserting_before(node):
                constant = graph_module.graph.get_attr(name)
            sources = [arg for arg in node.args if isinstance(arg, fx.Node)]
            replace(node, constant)
            values[constant] = value
            erase_unused(*dict.fromkeys(sources))
    graph_module.recompile()
    return graph_module
