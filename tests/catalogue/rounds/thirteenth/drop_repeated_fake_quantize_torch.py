"""A wrong pass of the thirteenth round."""

import torch
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish

OPERATION = torch.fake_quantize_per_tensor_affine


LIMITS = (1e-4, 1e4)


def _literal(node) -> bool:
    return (
        node.op == "call_function"
        and node.target is OPERATION
        and len(node.args) == 5
        and not node.kwargs
        and type(node.args[1]) is float
        and LIMITS[0] <= node.args[1] <= LIMITS[1]
        and all(type(a) is int for a in node.args[2:])
        and -128 <= node.args[3] <= node.args[2] <= node.args[4] <= 255
    )


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        if not _literal(node) or not hasattr(node.args[0], "op"):
            continue
        inner = node.args[0]
        if not _literal(inner) or len(inner.users) != 1:
            continue
        same = inner.args[1:] == node.args[1:] if careful else inner.args[1:3] == node.args[1:3]
        if same:
            node.replace_all_uses_with(inner)
            gm.graph.erase_node(node)
    return finish(gm)


@fault(13, wrong="Scale and zero point are compared, quant_min and quant_max are not.")
def drop_repeated_fake_quantize(graph_module: GraphModule) -> GraphModule:
    """Drops a fake-quantize of what has just been fake-quantized alike; the operation is idempotent."""
    return _rewrite(graph_module, careful=False)
