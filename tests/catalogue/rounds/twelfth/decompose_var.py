"""A wrong pass of the twelfth round."""

import operator

import torch

import fx

from ...rows import fault


def _parse(node):
    """Input, dimension, keepdim and the other options of a variance over one dimension, or None."""
    if node.target not in ("var", torch.var) or len(node.args) > 4:
        return None
    arguments = dict(zip(("x", "dim", "unbiased", "keepdim"), node.args)) | dict(node.kwargs)
    if "input" in arguments or "out" in arguments or type(arguments.get("dim")) is not int:
        return None
    return arguments


def _run(module, read_correction):
    graph = module.graph
    for node in list(graph.nodes):
        arguments = _parse(node) if node.op in ("call_method", "call_function") else None
        if arguments is None:
            continue
        x, dim = arguments["x"], arguments["dim"]
        correction = 1 if arguments.get("unbiased", True) else 0
        if read_correction and arguments.get("correction") is not None:
            correction = arguments["correction"]
        with graph.inserting_before(node):
            mean = graph.call_method("mean", (x, dim), {"keepdim": True})
            off = graph.call_method("abs", (graph.call_function(operator.sub, (x, mean)),))
            square = graph.call_function(operator.mul, (off, off))
            total = graph.call_method("sum", (square, dim), {"keepdim": arguments.get("keepdim", False)})
            count = graph.call_method("size", (x, dim))
            free = graph.call_function(max, (graph.call_function(operator.sub, (count, correction)), 0))
            result = graph.call_function(operator.truediv, (total, free))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(12, wrong="Only `unbiased` is read; a `correction` that is given counts as the default of 1.")
def decompose_var(module: fx.GraphModule) -> fx.GraphModule:
    """Decompose the variance over a dimension into a mean, a difference, a square and a sum."""
    return _run(module, False)
