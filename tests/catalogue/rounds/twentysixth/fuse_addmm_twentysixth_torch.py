"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import _plain


def _fuse(gm, same_dtype):
    if not _plain(gm):
        return gm
    parameters = dict(gm.named_parameters(remove_duplicate=False))

    def parameter(node, dims):
        tensor = parameters.get(node.target) if isinstance(node, torch.fx.Node) and node.op == "get_attr" else None
        return tensor if tensor is not None and tensor.dim() == dims else None

    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.add:
            continue
        for product, shift in (node.args, node.args[::-1]):
            if (
                not isinstance(product, torch.fx.Node)
                or product.op != "call_function"
                or product.target is not torch.mm
            ):
                continue
            if len(product.users) != 1 or len(product.args) != 2 or product.kwargs:
                continue
            weight, bias = parameter(product.args[1], 2), parameter(shift, 1)
            if weight is None or bias is None or bias.shape[0] != weight.shape[1]:
                continue
            if same_dtype and not weight.dtype == bias.dtype:
                continue
            with gm.graph.inserting_before(node):
                fused = gm.graph.call_function(torch.addmm, (shift, *product.args))
            node.replace_all_uses_with(fused)
            gm.graph.erase_node(node)
            gm.graph.erase_node(product)
            break
    gm.recompile()
    return gm


@fault(26, wrong="The addition promotes a bias of another dtype than the weight, addmm wants one dtype.")
def fuse_addmm_twentysixth(gm: torch.fx.GraphModule):
    """torch.mm and the addition of a bias become one torch.addmm."""
    return _fuse(gm, False)
