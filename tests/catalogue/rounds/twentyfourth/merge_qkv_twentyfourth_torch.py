"""A wrong pass of the twentyfourth round."""

import operator

import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

from ...rows import fault


def _plain(m):
    return (
        type(m) is nn.Linear and m.bias is not None and not any(v for k, v in vars(m).items() if k.endswith("_hooks"))
    )


def _groups(gm):
    group = []
    for node in [*gm.graph.nodes]:
        is_projection = (
            node.op == "call_module"
            and not node.kwargs
            and len(node.args) == 1
            and _plain(gm.get_submodule(node.target))
        )
        if is_projection and (not group or node.args == group[0].args):
            group.append(node)
            continue
        if len(group) > 1:
            yield group
        group = [node] if is_projection else []


def _merge(gm, equal):
    for group in _groups(gm):
        sizes = [gm.get_submodule(n.target).out_features for n in group]
        graph = gm.graph
        with graph.inserting_before(group[0]):
            weights = [graph.get_attr(f"{n.target}.weight") for n in group]
            biases = [graph.get_attr(f"{n.target}.bias") for n in group]
            weight = graph.call_function(torch.cat, (weights,))
            bias = graph.call_function(torch.cat, (biases,))
            merged = graph.call_function(F.linear, (group[0].args[0], weight, bias))
            if equal:
                parts = graph.call_function(torch.chunk, (merged, len(group), -1))
            else:
                parts = graph.call_function(torch.split, (merged, sizes, -1))
            new = [graph.call_function(operator.getitem, (parts, i)) for i in range(len(group))]
        for old, part in zip(group, new):
            old.replace_all_uses_with(part)
            graph.erase_node(old)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The merged result is cut into equal chunks, but the projections may have different out_features (grouped queries).",
)
def merge_qkv_twentyfourth(gm: torch.fx.GraphModule):
    """Merge neighbouring Linear layers that read the same value."""
    return _merge(gm, equal=True)
