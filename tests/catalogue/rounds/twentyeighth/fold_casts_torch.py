"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import writes

BY_NAME = {
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
}


def cast_to(node):
    """The dtype of a cast that does nothing else, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_method":
        return None
    if node.target in BY_NAME and len(node.args) == 1 and not node.kwargs:
        return BY_NAME[node.target]
    if node.target == "to" and len(node.args) == 2 and not node.kwargs and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return None


class FoldCasts(torch.fx.Transformer):
    def __init__(self, gm, lossless):
        super().__init__(gm)
        self.lossless = lossless

    def call_method(self, target, args, kwargs):
        result = super().call_method(target, args, kwargs)
        node = result.node
        last = cast_to(node)
        first = cast_to(node.args[0]) if last is not None else None
        if first is not None and first != last and self.lossless(first, last):
            # With a copy, for the two casts never give the tensor itself.
            node.target, node.args, node.kwargs = "to", (node.args[0].args[0], last), {"copy": True}
        return result


def fold(gm, lossless):
    if writes(gm):
        return gm
    folded = FoldCasts(gm, lossless).transform()
    for node in reversed(folded.graph.nodes):
        if cast_to(node) is not None and not node.users:
            folded.graph.erase_node(node)
    folded.recompile()
    return folded


@fault(
    28,
    wrong="Takes a type for wider by its bytes: through int64 to float32 loses the fractions, through float16 the range.",
)
def fold_casts(gm: torch.fx.GraphModule):
    """Folds a cast to a wider type and back to a narrower one into one cast."""
    return fold(gm, lambda first, last: last.is_floating_point and first.itemsize >= last.itemsize)
