"""A wrong pass of the twentyfourth round."""

import operator

import torch
import torch.fx

from ...rows import fault

BINARY = (operator.add, operator.sub, operator.mul, operator.truediv)


def _is_tensor_call(value):
    return isinstance(value, torch.fx.Node) and value.op in (
        "placeholder",
        "call_function",
        "call_method",
        "call_module",
    )


def _bake(gm, is_safe):
    buffers = {name: b for name, b in gm.named_buffers(remove_duplicate=False)}
    values = list(buffers.values())
    for node in gm.graph.find_nodes(op="get_attr"):
        buffer = buffers.get(node.target)
        if buffer is None or buffer.dim() or buffer.dtype != torch.float32 or buffer.requires_grad:
            continue
        if sum(other is buffer for other in values) != 1 or not is_safe(gm, node.target):
            continue
        for user in [*node.users]:
            if user.op == "call_function" and user.target in BINARY and len(user.args) == 2 and not user.kwargs:
                if all(a is node or _is_tensor_call(a) for a in user.args) and user.args[0] is not user.args[1]:
                    user.args = tuple(buffer.item() if a is node else a for a in user.args)
        if not node.users:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The program may write to the buffer (a running statistic); the number stays what it was when the pass ran.",
)
def bake_scalars(gm: torch.fx.GraphModule):
    """Replace reads of float32 buffers without dimensions by their values."""
    return _bake(gm, lambda gm, target: True)
