"""A wrong pass of the seventh round."""

import torch
import torch.fx
from torch import nn

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def rewrite(module, clean):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        if plain(module.get_submodule(node.target), nn.Identity) and isinstance(node.args[0], torch.fx.Node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    clean(module)
    graph.lint()
    module.recompile()
    return module


def delete_uncalled(module):
    called = {node.target for node in module.graph.nodes if node.op == "call_module"}

    def needed(name):
        return any(f"{target}.".startswith(f"{name}.") or name.startswith(f"{target}.") for target in called)

    for name in [name for name, _ in module.named_modules() if name and not needed(name)]:
        module.delete_submodule(name)


@fault(7, wrong="A module whose parameter is read (get_attr) without calling it counts as unused and is deleted.")
def bypass_identities(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Bypass `nn.Identity` and delete the submodules that are not used."""
    return rewrite(module, delete_uncalled)
