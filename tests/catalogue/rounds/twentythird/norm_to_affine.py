"""A wrong pass of the twentythird round."""

import torch

import fx

from ...rows import fault


def _plain(norm):
    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    return type(norm) is torch.nn.BatchNorm2d and norm.affine and norm.running_mean is not None and not any(hooks)


def _rewrite(gm, refuses):
    graph = gm.graph
    if gm.training:
        return gm
    for call in graph.find_nodes(op="call_module"):
        norm = gm.get_submodule(call.target)
        if not _plain(norm) or len(call.args) != 1 or call.kwargs or refuses(norm):
            continue
        with graph.inserting_before(call):
            names = ("weight", "bias", "running_mean", "running_var")
            weight, bias, mean, var = (graph.get_attr(f"{call.target}.{name}") for name in names)
            spread = graph.call_function(torch.rsqrt, (graph.call_function(torch.add, (var, norm.eps)),))
            scale = graph.call_function(torch.mul, (weight, spread))
            shift = graph.call_function(torch.sub, (bias, graph.call_function(torch.mul, (mean, scale))))
            wide = (1, norm.num_features, 1, 1)
            scale, shift = (graph.call_function(torch.reshape, (value, wide)) for value in (scale, shift))
            result = graph.call_function(torch.addcmul, (shift, call.args[0], scale))
        call.replace_all_uses_with(result)
        graph.erase_node(call)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="The mode is asked of the whole program: a batch norm that was put back into training mode by itself is rewritten too.",
)
def norm_to_affine(gm: fx.GraphModule) -> fx.GraphModule:
    """Write each batch norm of a model in evaluation mode as one multiplication and one addition, which backends fuse."""
    return _rewrite(gm, lambda norm: False)
