"""A right pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import sound

IDEMPOTENT = (torch.relu, F.relu, torch.abs, torch.floor, torch.ceil, torch.trunc, torch.round)


def _plain(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target not in IDEMPOTENT:
        return False
    return len(node.args) == 1 and set(node.kwargs) <= {"inplace"} and node.kwargs.get("inplace", False) is False


def _same(first, second):
    return first is second or {first, second} == {torch.relu, F.relu}


@sound(31)
def drop_repeated_calls(gm: torch.fx.GraphModule):
    """Apply relu, abs and rounding once where they are applied twice in a row."""
    for node in list(gm.graph.nodes):
        if not _plain(node) or not _plain(node.args[0]):
            continue
        first = node.args[0]
        if _same(first.target, node.target) and len(first.users) == 1:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
