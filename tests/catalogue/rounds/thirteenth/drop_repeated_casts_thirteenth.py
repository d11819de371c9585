"""A wrong pass of the thirteenth round."""

import torch

from fx import GraphModule

from ...rows import fault


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


NAMES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "long": torch.int64,
    "int": torch.int32,
}


def _dtype(node, careful: bool):
    """The dtype that a call_method node casts to and nothing else."""
    if node.op != "call_method":
        return None
    if node.target in NAMES and len(node.args) == 1 and not node.kwargs:
        return NAMES[node.target]
    if node.target != "to":
        return None
    options = dict(node.kwargs)
    dtype = node.args[1] if len(node.args) == 2 else options.pop("dtype", None)
    options.pop("non_blocking", None)
    if not careful:
        options.pop("copy", None)
    return dtype if len(node.args) <= 2 and isinstance(dtype, torch.dtype) and not options else None


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        dtype = _dtype(node, careful)
        if dtype is None or not hasattr(node.args[0], "op"):
            continue
        if _dtype(node.args[0], careful=False) is dtype:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    return _finish(gm)


@fault(13, wrong="copy=True is not looked at: what was a tensor of its own becomes the same as the cast before it.")
def drop_repeated_casts_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Drops a cast to the dtype that the value before it has just been cast to."""
    return _rewrite(graph_module, careful=False)
