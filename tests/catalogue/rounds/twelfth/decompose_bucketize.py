"""A wrong pass of the twelfth round."""

import torch

import fx

from ...rows import fault


def _sorted_buffer(module, node):
    """Return whether the node is a buffer of sorted boundaries that only bucketize uses."""
    if not isinstance(node, fx.Node) or node.op != "get_attr" or node.target not in dict(module.named_buffers()):
        return False
    value = module.get_buffer(node.target)
    if value.dim() != 1 or not torch.equal(value, value.sort().values):
        return False
    same = [other for other in module.graph.nodes if other.op == "get_attr" and other.target == node.target]
    return all(user.target is torch.bucketize for other in same for user in other.users)


def _run(module, read_right):
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not torch.bucketize or len(node.args) != 2 or set(node.kwargs) - {"right", "out_int32"}:
            continue
        x, boundaries = node.args
        if not isinstance(x, fx.Node) or x.target in ("size", "item") or not _sorted_buffer(module, boundaries):
            continue
        right = node.kwargs.get("right", False)
        if node.kwargs.get("out_int32", False) is not False or type(right) is not bool:
            continue
        compare = torch.lt if right and read_right else torch.le
        with graph.inserting_before(node):
            column = graph.call_method("unsqueeze", (x, -1))
            below = graph.call_function(compare, (column, boundaries))
            above = graph.call_function(torch.logical_not, (below,))  # NaN is above all boundaries
            index = graph.call_method("sum", (above, -1))
        node.replace_all_uses_with(index)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(12, wrong="`right` is not read: a value that is a boundary itself goes to the bucket on the other side.")
def decompose_bucketize(module: fx.GraphModule) -> fx.GraphModule:
    """Decompose bucketize into comparisons with all boundaries and a count, for backends without a binary search."""
    return _run(module, False)
