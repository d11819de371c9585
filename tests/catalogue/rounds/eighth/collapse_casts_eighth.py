"""A wrong pass of the eighth round."""

import torch

import fx

from ...rows import fault

_METHODS = {
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
}


def _dtype_of(node):
    """The dtype that a cast with nothing else to it goes to."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return _METHODS.get(node.target) if len(node.args) == 1 else None


def _rewrite(module, keeps_all):
    graph = module.graph
    for node in list(graph.nodes):
        last = _dtype_of(node)
        if last is None or not last.is_floating_point:
            continue
        before = node.args[0]
        first = _dtype_of(before)
        if first is None or len(before.users) != 1 or node.prev is not before or not keeps_all(first, last):
            continue
        with graph.inserting_before(node):
            cast = graph.call_method("to", (before.args[0], last), {"copy": True})
        node.replace_all_uses_with(cast)
        graph.erase_node(node)
        graph.erase_node(before)
    module.recompile()
    return module


@fault(
    8,
    wrong="The first dtype counts as wide enough if it has as many bytes; int32 before float32 still drops the fraction.",
)
def collapse_casts_eighth(module: fx.GraphModule) -> fx.GraphModule:
    """Cast once where a value is cast to a wide dtype and from there to another floating one."""
    return _rewrite(module, lambda first, last: first != last and first.itemsize >= last.itemsize)
