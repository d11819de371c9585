"""A wrong pass of the twentysixth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import _plain


def _keeps_state(gm):
    """Return whether a module has buffers, which its calls may change, so that their order matters."""
    for node in gm.graph.nodes:
        if node.op == "call_module" and next(gm.get_submodule(node.target).buffers(), None) is not None:
            return True
    return False


def _sink(gm, accepted):
    if not _plain(gm) or _keeps_state(gm):
        return gm
    for node in reversed(list(gm.graph.nodes)):
        if node.op not in ("call_function", "call_method", "call_module") or not node.users or not accepted(gm, node):
            continue
        place = {n: i for i, n in enumerate(gm.graph.nodes)}
        min(node.users, key=place.__getitem__).prepend(node)
    gm.recompile()
    return gm


@fault(26, wrong="Swaps calls that draw random numbers, so each gets the numbers of the other.")
def sink_to_first_use_twentysixth(gm: torch.fx.GraphModule):
    """Run each call as late as possible, right before its first reader: less is alive at a time."""
    return _sink(gm, lambda gm, node: True)
