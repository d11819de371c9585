"""A right pass of the thirtyfirst round."""

import fx

from ...rows import sound

RESHAPING = {
    "t_",
    "transpose_",
    "swapaxes_",
    "swapdims_",
    "squeeze_",
    "unsqueeze_",
    "resize_",
    "resize_as_",
    "set_",
    "as_strided_",
}


def _reshapes_in_place(graph):
    names = (
        node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "") for node in graph.nodes
    )
    return any(name in RESHAPING or name == "setattr" for name in names)


def _order(node):
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    if not dims or not all(type(dim) is int for dim in dims):
        return None
    order = [dim + len(dims) if dim < 0 else dim for dim in dims]
    return order if sorted(order) == list(range(len(dims))) else None


@sound(31)
def compose_permutes_thirtyfirst(gm: fx.GraphModule):
    """Replace a permute of a permute by one permute."""
    if _reshapes_in_place(gm.graph):
        return gm
    for node in list(gm.graph.nodes):
        outer = _order(node)
        inner = _order(node.args[0]) if outer else None
        if inner is None or len(inner) != len(outer):
            continue
        source = node.args[0]
        # an order that undoes the first still makes a view: a new tensor, as before
        node.args = (source.args[0], *(inner[dim] for dim in outer))
        if not source.users:
            gm.graph.erase_node(source)
    gm.graph.lint()
    gm.recompile()
    return gm
