"""A wrong pass of the twentyseventh round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _strip(gm, is_off):
    if gm.training:
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout:
            continue
        p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
        x = node.args[0] if node.args else node.kwargs["input"]
        if type(p) not in (int, float) or not 0 <= p <= 1 or not is_off(node):
            continue
        node.replace_all_uses_with(x)  # without training, dropout returns its input itself
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    27,
    wrong="F.dropout has a training flag of its own, True by default: it drops in eval mode too (Monte Carlo dropout).",
)
def strip_functional_dropout(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Takes the calls of F.dropout out of a model that is deployed in eval mode."""
    return _strip(gm, lambda node: True)
