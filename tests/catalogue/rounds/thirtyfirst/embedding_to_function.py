"""A wrong pass of the thirtyfirst round."""

import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault


def _rewrite(gm, options):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = gm.get_submodule(node.target)
        if type(layer) is not nn.Embedding or layer.max_norm is not None:
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            continue
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(node.target + ".weight")
            rows = gm.graph.call_function(F.embedding, (node.args[0], weight), options(layer))
        node.replace_all_uses_with(rows)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


def _gradient_options(layer):
    return {"scale_grad_by_freq": layer.scale_grad_by_freq, "sparse": layer.sparse}


@fault(
    31,
    wrong="nn.Embedding becomes F.embedding without its padding_idx: the row of the padding token then gets a "
    "gradient and is trained (gradients only).",
)
def embedding_to_function(gm: fx.GraphModule):
    """Lower nn.Embedding layers to F.embedding on the weight."""
    return _rewrite(gm, _gradient_options)
