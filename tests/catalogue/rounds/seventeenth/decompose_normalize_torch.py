"""A wrong pass of the seventeenth round."""

import operator

import torch.nn.functional as F
from torch.fx import GraphModule

from ...rows import fault


def _decompose(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not F.normalize:
            continue
        names = (
            {"p": 2.0, "dim": 1, "eps": 1e-12} | dict(zip(("input", "p", "dim", "eps"), node.args)) | dict(node.kwargs)
        )
        if names.pop("out", None) is not None or set(names) != {"input", "p", "dim", "eps"}:
            continue
        graph = graph_module.graph
        with graph.inserting_before(node):
            length = graph.call_method("norm", (names["input"], names["p"], names["dim"]), {"keepdim": True})
            if careful:
                length = graph.call_method("clamp_min", (length, names["eps"]))
            length = graph.call_method("expand_as", (length, names["input"]))
            quotient = graph.call_function(operator.truediv, (names["input"], length))
        node.replace_all_uses_with(quotient)
        graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="The denominator is not kept away from zero, so that rows of zeros become NaN.")
def decompose_normalize(graph_module: GraphModule) -> GraphModule:
    """Write F.normalize as a norm and a division, for backends that know no normalize."""
    return _decompose(graph_module, careful=False)
