"""A wrong pass of the sixteenth round."""

import copy

from torch import nn

from fx import GraphModule

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


_STATELESS = (nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.SiLU, nn.MaxPool2d, nn.AvgPool2d)


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    calls_of: dict[int, int] = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module":
            continue
        module = modules[node.target]
        if careful and not any(_plain(module, kind) for kind in _STATELESS):
            continue
        if not _plain(module, type(module)) or next(module.parameters(), None) is not None or list(module.children()):
            continue
        calls_of[id(module)] = calls_of.get(id(module), 0) + 1
        if calls_of[id(module)] == 1:
            continue
        name = node.target.replace(".", "_") + "_call"
        while hasattr(graph_module, f"{name}{calls_of[id(module)]}"):
            name += "_"
        name = f"{name}{calls_of[id(module)]}"
        graph_module.add_submodule(name, copy.deepcopy(module))
        node.target = name
    return finish(graph_module)


@fault(
    16,
    wrong="No state is taken to mean no parameters: a batch norm without affine has none, but keeps running statistics.",
)
def own_module_per_call(graph_module: GraphModule) -> GraphModule:
    """Gives each call of a shared module that has no state its own copy, so that each call can be given its own observer."""
    return _rewrite(graph_module, careful=False)
