"""A wrong pass of the seventh round."""

import copy

import torch
import torch.fx
from torch import nn

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def equalized(first, second):
    """Copies of both with the ranges of the channels between them evened out."""
    first_copy, second_copy = copy.deepcopy(first), copy.deepcopy(second)
    with torch.no_grad():
        r1, r2 = first_copy.weight.abs().amax((1, 2, 3)), second_copy.weight.abs().amax((0, 2, 3))
        factor = torch.where((r1 > 0) & (r2 > 0), torch.exp2(torch.round(torch.log2(r1 / r2) / 2)), torch.ones_like(r1))
        first_copy.weight.div_(factor.reshape(-1, 1, 1, 1))
        if first_copy.bias is not None:
            first_copy.bias.div_(factor)
        second_copy.weight.mul_(factor.reshape(1, -1, 1, 1))
    return first_copy, second_copy


def rewrite(module, calls):
    for node in list(module.graph.nodes):
        path = [node]
        while len(path) < 3 and len(path[-1].args) == 1 and not path[-1].kwargs and path[-1].op == "call_module":
            path.append(path[-1].args[0])
            if not isinstance(path[-1], torch.fx.Node):
                path.pop()
                break
        if len(path) < 3 or any(step.op != "call_module" for step in path) or len(path[2].args) != 1:
            continue
        second, act, first = (module.get_submodule(step.target) for step in path)
        if not (plain(second, nn.Conv2d) and plain(act, nn.ReLU, nn.LeakyReLU) and plain(first, nn.Conv2d)):
            continue
        if second.groups != 1 or any(len(step.users) != 1 for step in path[1:]) or first is second:
            continue
        for step, layer in zip((path[2], path[0]), equalized(first, second)):
            name, old = f"{step.name}_equalized", step.target
            module.add_submodule(name, layer)
            for call in calls(module, step, old):
                call.target = name
    module.recompile()
    return module


@fault(
    7,
    wrong="All calls of a convolution get the scaled weights, without asking that each of them is part of such a pair.",
)
def equalize_conv_pairs(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Even out the channel ranges of two convolutions around a ReLU (data-free quantization): factors are powers of two, so that nothing changes in the outputs."""
    return rewrite(
        module, lambda gm, step, old: [n for n in gm.graph.nodes if n.op == "call_module" and n.target == old]
    )
