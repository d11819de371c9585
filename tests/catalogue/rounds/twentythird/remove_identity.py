"""A right pass of the twentythird round."""

import torch
import torch.nn.modules.module as base

import fx

from ...rows import sound

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def _plain(module):
    if (
        type(module) is not torch.nn.Identity
        or "forward" in vars(module)
        or any(base.__dict__[f"_global{n}"] for n in _HOOKS)
    ):
        return False
    return not any(getattr(module, name) for name in _HOOKS)


@sound(23)
def remove_identity(gm):
    """Remove `nn.Identity`, which stands where dropout or a norm was switched off."""
    for node in gm.graph.find_nodes(op="call_module"):
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        if _plain(gm.get_submodule(node.target)):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
