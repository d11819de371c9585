"""Helpers shared by the passes of the thirteenth round share."""

from torch.fx import GraphModule


def single(node) -> bool:
    return len(node.args) == 1 and not node.kwargs


def finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm
