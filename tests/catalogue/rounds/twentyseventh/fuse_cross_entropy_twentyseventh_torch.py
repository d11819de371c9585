"""A wrong pass of the twentyseventh round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _log_softmax(node):
    """Input and dimension of a call of log_softmax, if it has nothing else."""
    if not isinstance(node, torch.fx.Node) or len(node.args) not in (1, 2):
        return None
    if set(node.kwargs) - {"dim", "dtype", "_stacklevel"} or node.kwargs.get("dtype") is not None:
        return None
    if node.op == "call_function" and node.target in (F.log_softmax, torch.log_softmax):
        pass
    elif node.op != "call_method" or node.target != "log_softmax":
        return None
    dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    return (node.args[0], dim) if type(dim) is int else None


def _follows(node, earlier):
    node = node.prev
    while node.op in ("get_attr", "placeholder"):
        node = node.prev
    return node is earlier


def _fuse(gm, class_dims):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss or len(node.args) != 2:
            continue
        options = {name: value for name, value in node.kwargs.items() if value is not None}
        if set(options) - {"weight", "ignore_index", "reduction"}:
            continue
        scores = node.args[0]
        softmax = _log_softmax(scores)
        if softmax is None or softmax[1] not in class_dims or len(scores.users) != 1 or not _follows(node, scores):
            continue
        node.target = F.cross_entropy
        node.args, node.kwargs = (softmax[0], node.args[1]), options
        gm.graph.erase_node(scores)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    27, wrong="dim=-1 is taken for the dimension of the classes, which cross_entropy has as dimension 1 of its input."
)
def fuse_cross_entropy_twentyseventh(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """log_softmax and nll_loss become one cross_entropy."""
    return _fuse(gm, class_dims=(1, -1))
