"""A wrong pass of the twentyfourth round."""

import operator

import torch

import fx

from ...rows import fault


def _tensor(gm, node):
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = gm
    for part in node.target.split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def _fuse(gm, compare_types):
    for node in gm.graph.find_nodes(op="call_function", target=operator.add):
        for product, bias in (node.args, node.args[::-1]):
            vector = _tensor(gm, bias)
            if vector is None or not isinstance(product, fx.Node) or product.target is not torch.mm:
                continue
            if len(product.args) != 2 or product.kwargs or len(product.users) != 1:
                continue
            weight = _tensor(gm, product.args[1])
            if weight is None or weight.dim() != 2 or tuple(vector.shape) != (weight.shape[1],):
                continue  # no broadcast that widens the product
            if product.next is not node and (product.next is not bias or bias.next is not node):
                continue  # nothing runs in between
            if compare_types and weight.dtype != vector.dtype:
                continue
            with gm.graph.inserting_before(node):
                fused = gm.graph.call_function(torch.addmm, (bias, *product.args))
            node.replace_all_uses_with(fused)
            gm.graph.erase_node(node)
            gm.graph.erase_node(product)
            break
    gm.recompile()
    return gm


@fault(
    24,
    wrong="addmm does not promote types: with a bias of another dtype (integers, double) the addition worked and addmm raises.",
)
def fuse_addmm(gm):
    """Fuse each product of matrices with the bias that follows."""
    return _fuse(gm, compare_types=False)
