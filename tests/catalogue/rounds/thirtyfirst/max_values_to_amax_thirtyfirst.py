"""A wrong pass of the thirtyfirst round."""

import operator

import fx

from ...rows import fault


def _rewrite(gm, applies):
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target != "max" or set(node.kwargs) - {"dim", "keepdim"}:
            continue
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        keepdim = node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False)
        if type(dim) is not int or not isinstance(keepdim, bool) or not applies(node.args[0]):
            continue
        users = list(node.users)
        if not users or any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
            continue
        if len(users) > 1:
            continue
        with gm.graph.inserting_before(node):
            values = gm.graph.call_method("amax", (node.args[0], dim, keepdim))
        users[0].replace_all_uses_with(values)
        gm.graph.erase_node(users[0])
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="x.max(dim)[0] becomes x.amax(dim); where the maximum occurs more than once, max sends the gradient to "
    "one of the places and amax shares it among all (gradients, after a ReLU for example).",
)
def max_values_to_amax_thirtyfirst(gm: fx.GraphModule):
    """Compute no indices for a maximum over a dimension if only its values are read."""
    return _rewrite(gm, lambda source: True)
