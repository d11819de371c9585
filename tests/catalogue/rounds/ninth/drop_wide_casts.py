"""A wrong pass of the ninth round."""

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
}


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def _cast(node):
    """The dtype that a node casts to, where it does nothing else."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target in _METHODS and len(node.args) == 1:
        return _METHODS[node.target]
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return None


def _lossless(middle, last, right):
    if middle is last:
        return False
    if right:
        return middle is torch.float64 and last in _NARROW
    return middle.itemsize >= last.itemsize


def _run(module, right):
    graph = module.graph
    for outer in list(graph.nodes):
        last = _cast(outer)
        inner = outer.args[0] if last is not None else None
        middle = _cast(inner)
        if middle is None or list(inner.users) != [outer] or not _lossless(middle, last, right):
            continue
        with graph.inserting_before(inner):
            new = graph.call_method("to", (inner.args[0], last), {"copy": True})  # never the operand itself
        outer.replace_all_uses_with(new)
        graph.erase_node(outer)
        graph.erase_node(inner)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes a cast to a dtype of at least as many bytes as lossless, also one to integers, which truncates.")
def drop_wide_casts(module: fx.GraphModule) -> fx.GraphModule:
    """Drop the first of two casts where it is to a wider dtype, which loses nothing."""
    return _run(module, False)
