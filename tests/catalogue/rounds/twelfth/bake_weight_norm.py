"""A wrong pass of the twelfth round."""

import copy

import torch
from torch import nn
from torch.nn.utils import parametrize

from ...rows import fault

BASES = (nn.Conv1d, nn.ConvTranspose1d, nn.Linear)


def _norms(layer):
    """The weight norm of a layer, if that is the one parametrization it has."""
    if (
        not parametrize.is_parametrized(layer)
        or not isinstance(layer, BASES)
        or set(layer.parametrizations) != {"weight"}
    ):
        return None
    steps = list(layer.parametrizations["weight"])
    return steps[0] if len(steps) == 1 and type(steps[0]).__name__ == "_WeightNorm" else None


def _run(gm, by_dim):
    mods, done = dict(gm.named_modules(remove_duplicate=False)), {}
    for node in gm.graph.nodes:
        layer = mods.get(node.target) if node.op == "call_module" else None
        if layer is None or layer.training or _norms(layer) is None:
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
            continue
        if node.target not in done:
            parametrization, norm = layer.parametrizations["weight"], _norms(layer)
            g, v = parametrization.original0.detach(), parametrization.original1.detach()
            if by_dim:
                weight = torch._weight_norm(v, g, norm.dim)
            else:
                weight = v * (g / v.flatten(1).norm(dim=1).reshape(-1, *[1] * (v.dim() - 1)))
            plain = copy.deepcopy(layer)
            parametrize.remove_parametrizations(plain, "weight")
            plain.weight = nn.Parameter(weight.clone())
            done[node.target] = f"{node.target}_baked".replace(".", "_")
            gm.add_submodule(done[node.target], plain)
        node.target = done[node.target]
    gm.recompile()
    return gm


@fault(
    12,
    wrong="The norm is always taken over all dimensions but the first, whatever `dim` the weight norm was made with.",
)
def bake_weight_norm(module):
    """Compute the normalized weights of a vocoder once, so that inference does not do it at each call."""
    return _run(module, False)
