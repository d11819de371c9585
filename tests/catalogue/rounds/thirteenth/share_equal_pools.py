"""A wrong pass of the thirteenth round."""

from torch import nn

from fx import GraphModule

from ...rows import fault


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


KINDS = (nn.AvgPool2d, nn.MaxPool2d)


AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override", "training")


MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode", "training")


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    target_of_key = {}
    for node in gm.graph.find_nodes(op="call_module"):
        pool = gm.get_submodule(node.target)
        if not any(_plain(pool, kind) for kind in KINDS):
            continue
        fields = AVERAGE if type(pool) is nn.AvgPool2d else MAXIMUM
        key = tuple(str(getattr(pool, field)) for field in fields) if careful else repr(pool)
        node.target = target_of_key.setdefault((type(pool), key), node.target)
    return _finish(gm)


@fault(
    13,
    wrong="Layers are compared by their repr, and that of AvgPool2d leaves out ceil_mode, count_include_pad and divisor_override.",
)
def share_equal_pools(graph_module: GraphModule) -> GraphModule:
    """Lets pooling layers that are configured alike share one module, so that the converter emits one kernel."""
    return _rewrite(graph_module, careful=False)
