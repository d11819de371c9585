"""A wrong pass of the ninth round."""

from torch import nn

from ...rows import fault

_STATELESS = {
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.LayerNorm,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SiLU,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Sigmoid,
    nn.Tanh,
    nn.GELU,
    nn.Softmax,
    nn.Identity,
    nn.AvgPool2d,
    nn.MaxPool2d,
}


def _hooked(layer):
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )


def _run(module, right):
    graph = module.graph
    for node in reversed(list(graph.nodes)):
        if node.op != "call_module" or node.users:
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in _STATELESS or _hooked(layer):
            continue
        if right and getattr(layer, "inplace", False):
            continue
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Drops a call whose result is not used although the activation works in place, so that its input is used instead.",
)
def drop_dead_modules(module):
    """Drop calls of layers without state whose results nothing uses (torch.fx keeps none of these by itself)."""
    return _run(module, False)
