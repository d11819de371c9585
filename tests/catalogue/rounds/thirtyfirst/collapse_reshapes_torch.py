"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx

from ...rows import fault

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


def _sizes(node):
    """Return whether the node sets sizes (and not a dtype, which `view` takes too)."""
    sizes = node.args[1:]
    return not node.kwargs and (len(sizes) > 1 or (len(sizes) == 1 and isinstance(sizes[0], (int, tuple, list))))


def _collapse(gm, inner_methods):
    if _reshapes_in_place(gm.graph):
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target not in ("view", "reshape") or not _sizes(node):
            continue
        inner = node.args[0]
        if inner.op != "call_method" or inner.target not in inner_methods or not _sizes(inner) or len(inner.users) > 1:
            continue
        node.args = (inner.args[0], *node.args[1:])
        if node.target == "view" and inner.target == "reshape":
            node.target = "reshape"
        gm.graph.erase_node(inner)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="A reshape of a reshape becomes one reshape of the source; where the first had to copy (a transposed "
    "source) the one that is left may be a view, and a later write in place goes into the source.",
)
def collapse_reshapes(gm: torch.fx.GraphModule):
    """Of reshapes one after the other, keep the last."""
    return _collapse(gm, ("view", "reshape"))
