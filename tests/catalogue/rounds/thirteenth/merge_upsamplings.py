"""A wrong pass of the thirteenth round."""

import torch.nn.functional as F

from fx import GraphModule

from ...rows import fault


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _options(node):
    """(scale, mode) of an F.interpolate by a literal power of two."""
    if node.op != "call_function" or node.target is not F.interpolate or len(node.args) != 1:
        return None
    options = {name: value for name, value in node.kwargs.items() if value is not None and value is not False}
    scale, mode = options.pop("scale_factor", None), options.pop("mode", "nearest")
    if options or scale not in (2, 4, 8) or not isinstance(scale, (int, float)) or not isinstance(mode, str):
        return None
    return int(scale), mode


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        inner = node.prev
        second, first = _options(node), _options(inner)
        if first is None or second is None or node.args[0] is not inner or len(inner.users) != 1:
            continue
        if first[1] != second[1] or careful and first[1] != "nearest":
            continue
        node.args, node.kwargs = inner.args, {"scale_factor": float(first[0] * second[0]), "mode": first[1]}
        gm.graph.erase_node(inner)
    return _finish(gm)


@fault(13, wrong="It suffices that the modes are equal; only for nearest do two samplings make one.")
def merge_upsamplings(graph_module: GraphModule) -> GraphModule:
    """Makes one F.interpolate of two in a row, by the product of their scales."""
    return _rewrite(graph_module, careful=False)
