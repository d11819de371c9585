"""A wrong pass of the thirtieth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _plain


def _open(gm, choose):
    layers = dict(gm.named_modules(remove_duplicate=False))
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.RMSNorm) or len(node.args) != 1:
            continue
        layer, value = layers[node.target], node.args[0]
        eps = choose(layer.eps)
        if eps is None:
            continue
        dims = tuple(range(-len(layer.normalized_shape), 0))
        with graph.inserting_before(node):
            dtype = graph.call_function(getattr, (value, "dtype"))
            wide = graph.call_method("to", (value, graph.call_function(torch.promote_types, (dtype, torch.float32))))
            square = graph.call_method("pow", (wide, 2))
            mean = graph.call_method("mean", (square, dims, True))
            root = graph.call_function(torch.rsqrt, (graph.call_function(operator.add, (mean, eps)),))
            result = graph.call_function(operator.mul, (wide, root))
            if layer.weight is not None:
                result = graph.call_function(operator.mul, (result, graph.get_attr(f"{node.target}.weight")))
            result = graph.call_method("to", (result, dtype))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="eps=None, the default of nn.RMSNorm, means the machine epsilon of the dtype; the pass takes 1e-6: wrong "
    "for layers with the default eps whose inputs are small (a mean square near 1e-6).",
)
def open_rms_norm(gm: torch.fx.GraphModule):
    """Open nn.RMSNorm into elementary operators, with the sums in float32 for half precision."""
    return _open(gm, lambda eps: 1e-6 if eps is None else eps)
