"""A wrong pass of the thirtyfirst round."""

import operator

import fx

from ...rows import fault


def _size_of(node):
    """(x, d) where node is x.shape[d] or x.size(d)."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method" and node.target == "size" and len(node.args) == 2 and not node.kwargs:
        return node.args
    if node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        shape = node.args[0]
        if shape.target is getattr and shape.args[1:] == ("shape",):
            return shape.args[0], node.args[1]
    return None


def _rewrite(gm, applies):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv:
            continue
        total, size = node.args[0], _size_of(node.args[1])
        if not isinstance(total, fx.Node) or total.op != "call_method" or total.target != "sum" or size is None:
            continue
        dim = total.kwargs.get("dim", total.args[1] if len(total.args) == 2 else None)
        if (
            type(dim) is not int
            or len(total.args) > 2
            or set(total.kwargs) - {"dim", "keepdim"}
            or len(total.users) > 1
        ):
            continue
        if type(size[1]) is not int or size[1] != dim or size[0] is not total.args[0] or not applies(gm, size[0]):
            continue
        with gm.graph.inserting_before(total):
            mean = gm.graph.call_method("mean", total.args, dict(total.kwargs))
        node.replace_all_uses_with(mean)
        gm.graph.erase_node(node)
        gm.graph.erase_node(total)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="x.sum(d) / x.shape[d] becomes x.mean(d) whatever the dtype of x: mean is not defined for integers and "
    "booleans, so that counting, as in an accuracy, raises.",
)
def sum_to_mean(gm: fx.GraphModule):
    """Replace a sum over a dimension divided by its size by a mean."""
    return _rewrite(gm, lambda gm, x: True)
