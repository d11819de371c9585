"""A right pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import sound


@sound(28)
def hoist_get_attrs(gm: torch.fx.GraphModule):
    """Moves the reads of parameters and buffers to the top of the program, where a loader can fetch them at once."""
    called = [node.target for node in gm.graph.nodes if node.op == "call_module"]
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    modules = [gm.get_submodule(target) for target in called]
    if not inputs or any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return gm
    last = inputs[-1]
    for node in list(gm.graph.nodes):
        if node.op != "get_attr":
            continue
        owner, _, name = node.target.rpartition(".")
        if any(owner == target or owner.startswith(target + ".") for target in called):
            continue
        module = gm.get_submodule(owner)
        if name in module._parameters or name in module._buffers:
            last.append(node)
            last = node
    gm.recompile()
    return gm
