"""A wrong pass of the twentyseventh round."""

import copy

from ...rows import fault
from .shared import _hooked


def _duplicate(gm, stateless):
    modules = dict(gm.named_modules())
    calls = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(node.target, []).append(node)
    for target, nodes in calls.items():
        layer = modules[target]
        if not type(layer).__module__.startswith("torch.nn.modules.") or _hooked(layer) or not stateless(layer):
            continue
        for number, node in enumerate(nodes[1:], start=1):
            name = f"{target}_copy{number}"
            if name in modules:
                continue
            gm.add_submodule(name, copy.deepcopy(layer))
            node.target = name
    gm.recompile()
    return gm


@fault(
    27,
    wrong="Layers without parameters may have buffers: a shared batch norm without affine splits its running statistics.",
)
def duplicate_shared_modules(gm):
    """Gives every call of a shared layer without parameters its own copy, so that a quantizer can attach one observer to each."""
    return _duplicate(gm, lambda layer: not list(layer.parameters()))
