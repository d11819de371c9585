"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.fx

from ...rows import fault


def _method(node, name):
    return node.op == "call_method" and node.target == name and len(node.args) == 1 and not node.kwargs


def _product(node, constant):
    """x @ w: its result shares nothing with w."""
    if node.op != "call_function" or node.target not in (operator.matmul, torch.matmul) or len(node.args) != 2:
        return False
    return constant is node.args[1]


def _fold(gm, accepted):
    if not accepted(gm):
        return gm
    owned = {id(p) for n in gm.graph.nodes if n.op == "call_module" for p in gm.get_submodule(n.target).parameters()}
    parameters = dict(gm.named_parameters(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if not _method(node, "contiguous") or not _method(node.args[0], "t") or node.args[0].args[0].op != "get_attr":
            continue
        frozen = parameters.get(node.args[0].args[0].target)
        if frozen is None or frozen.requires_grad or frozen.dim() != 2 or id(frozen) in owned:
            continue
        if not all(_product(user, node) for user in node.users):
            continue
        name = node.args[0].args[0].target.replace(".", "_") + "_laid_out"
        while hasattr(gm, name):
            name += "_"
        gm.register_buffer(name, frozen.detach().t().contiguous().clone(), persistent=False)
        with gm.graph.inserting_before(node):
            constant = gm.graph.get_attr(name)
        node.replace_all_uses_with(constant)
        turned = node.args[0]
        gm.graph.erase_node(node)
        if not turned.users:
            gm.graph.erase_node(turned)
    gm.recompile()
    return gm


@fault(
    26,
    wrong="A parameter without gradient is not a constant: a codebook is, for one, updated in place by a moving average.",
)
def fold_frozen_layout(gm: torch.fx.GraphModule):
    """Lay out frozen weights once, when the program is prepared: w.t().contiguous() becomes a constant."""
    return _fold(gm, lambda gm: True)
