"""A wrong pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _arg


def _strip(gm, inactive):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout:
            continue
        value, rate = _arg(node, 0, "input"), _arg(node, 1, "p", 0.5)
        if type(rate) not in (int, float) or not 0 <= rate <= 1 or not isinstance(value, torch.fx.Node):
            continue
        if inactive(_arg(node, 2, "training", True)):
            node.replace_all_uses_with(value)
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="In evaluation mode every F.dropout is removed, but the function has a flag of its own, True by default: "
    "a program that samples in evaluation mode (Monte Carlo dropout, or a forgotten training=self.training) "
    "drops nothing any more.",
)
def strip_dropout(gm: torch.fx.GraphModule):
    """Remove functional dropout, which does nothing in evaluation mode, before export."""
    return _strip(gm, lambda flag: flag is False or not gm.training)
