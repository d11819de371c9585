"""A wrong pass of the twelfth round."""

from torch import nn

import fx

from ...rows import fault

STATELESS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.Softmax, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d)


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _key(layer, configured):
    options = sorted((name, repr(value)) for name, value in vars(layer).items() if not name.startswith("_"))
    return type(layer), tuple(options) if configured else ()


def _run(module, configured):
    first = {}
    for node in module.graph.nodes:
        if node.op != "call_module":
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in STATELESS or _hooked(layer) or "forward" in vars(layer):
            continue
        node.target = first.setdefault(_key(layer, configured), node.target)
    module.recompile()
    return module


@fault(
    12,
    wrong="Modules without parameters count as equal when their types are; how they were configured is not compared.",
)
def share_equal_modules_twelfth(module: fx.GraphModule) -> fx.GraphModule:
    """Call one module where several that have no parameters are equal: activations and pools."""
    return _run(module, False)
