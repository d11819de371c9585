"""A wrong pass of the twentythird round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault

_PURE = {
    F.relu, F.gelu, F.silu, F.hardswish, F.softmax, F.layer_norm, F.group_norm, F.batch_norm, F.interpolate,
    torch.relu, torch.sigmoid, torch.tanh, torch.add, torch.mul, torch.flatten, torch.cat,
}  # fmt: skip


def _rewrite(gm, refuses):
    for node in reversed(list(gm.graph.nodes)):
        if node.op != "call_function" or node.users or node.target not in _PURE:
            continue
        if "out" in node.kwargs or node.kwargs.get("inplace") or any(value is True for value in node.args):
            continue
        if refuses(node):
            continue
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    23, wrong="`F.batch_norm` in training is removed too, though it writes the running statistics that it was given."
)
def remove_dead_functions(gm: fx.GraphModule) -> fx.GraphModule:
    """Remove functions whose result nothing uses: activations, norms and arithmetic left over by earlier rewrites."""
    return _rewrite(gm, lambda node: False)
