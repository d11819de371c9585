"""A wrong pass of the seventh round."""

import copy
import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def steps(index, stop_free):
    """The steps of the two last dimensions if an index takes every n-th row and m-th column."""
    if not isinstance(index, tuple) or not all(isinstance(part, slice) or part is Ellipsis for part in index):
        return None
    if len(index) == 4 and Ellipsis not in index:
        front, last = index[:2], index[2:]
    elif len(index) == 3 and index[0] is Ellipsis and Ellipsis not in index[1:]:
        front, last = (), index[1:]
    else:
        return None
    if any(part != slice(None) for part in front) or any(part.start not in (None, 0) for part in last):
        return None
    if stop_free and any(part.stop is not None for part in last):
        return None
    strides = tuple(1 if part.step is None else part.step for part in last)
    return strides if all(type(step) is int and step > 0 for step in strides) and max(strides) > 1 else None


def rewrite(module, stop_free):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        below, index = node.args
        if not isinstance(below, torch.fx.Node) or below.op != "call_module" or len(below.users) != 1:
            continue
        conv, wanted = module.get_submodule(below.target), steps(index, stop_free)
        if wanted is None or not plain(conv, nn.Conv2d) or conv.padding == "same":
            continue
        strided = copy.deepcopy(conv)
        strided.weight, strided.bias = conv.weight, conv.bias
        strided.stride = tuple(old * step for old, step in zip(conv.stride, wanted))
        name = f"{below.name}_strided"
        module.add_submodule(name, strided)
        below.target = name
        node.replace_all_uses_with(below)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    7,
    wrong="Only start and step of the slices are asked, not their stop: a crop that subsamples becomes the whole image subsampled.",
)
def subsample_in_conv(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute only what is kept: `conv(x)[..., ::n, ::m]` becomes the same convolution with its stride times (n, m)."""
    return rewrite(module, stop_free=False)
