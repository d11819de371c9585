"""A wrong pass of the eighth round."""

import operator

from torch import nn

import fx

from ...rows import fault


def _rewrite(module, unread):
    for node in module.graph.nodes:
        if node.op != "call_module" or len(node.args) != 3 or set(node.kwargs):
            continue
        layer = module.get_submodule(node.target)
        if type(layer) is not nn.MultiheadAttention or "forward" in vars(layer):
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or layer.dropout:
            continue
        if all(unread(user) for user in node.users):
            node.kwargs = {"need_weights": False}
    module.recompile()
    return module


def _takes_weights(user):
    return user.target is operator.getitem and user.args[1] != 0 and bool(user.users)


@fault(
    8,
    wrong="Only getitem calls are asked which part they take; where the pair is handed on whole its weights are missing.",
)
def skip_attention_weights(module: fx.GraphModule) -> fx.GraphModule:
    """Call nn.MultiheadAttention with need_weights=False where its second result is not read."""
    return _rewrite(module, lambda user: not _takes_weights(user))
