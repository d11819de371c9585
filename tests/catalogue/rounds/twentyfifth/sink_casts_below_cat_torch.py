"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import writes


def is_cast(node):
    return (
        isinstance(node, torch.fx.Node) and node.op == "call_method" and node.target == "float" and len(node.args) == 1
    )


def sink(gm, accepts):
    if writes(gm):
        return gm
    for cat in list(gm.graph.nodes):
        if (
            cat.op != "call_function"
            or cat.target is not torch.cat
            or not cat.args
            or not isinstance(cat.args[0], (list, tuple))
        ):
            continue
        casts = list(cat.args[0])
        if len(casts) < 2 or not all(is_cast(cast) and not cast.kwargs and accepts(cast.args[0]) for cast in casts):
            continue
        cat.args = ([cast.args[0] for cast in casts], *cat.args[1:])
        with gm.graph.inserting_after(cat):
            whole = gm.graph.call_method("float", (cat,))
        cat.replace_all_uses_with(whole, delete_user_cb=lambda user: user is not whole)
        for cast in dict.fromkeys(casts):
            if not cast.users:
                gm.graph.erase_node(cast)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="Inputs of different dtypes are first promoted by cat: int64 next to float16 becomes float16, then float32.",
)
def sink_casts_below_cat(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Cast once behind a concatenation in place of casting each of its inputs: fewer kernels, and less to copy."""
    return sink(gm, lambda source: True)
