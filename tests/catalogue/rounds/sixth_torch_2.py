"""Wrong passes of the sixth round for torch.fx, part 2."""

import operator

import torch
import torch.fx
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault


def differs_from_zero_w16(node):
    if not isinstance(node, torch.fx.Node) or node.kwargs or len(node.args) != 2:
        return False
    is_comparison = (node.op == "call_function" and node.target in (operator.ne, torch.ne)) or (
        node.op == "call_method" and node.target == "ne"
    )
    zero = node.args[1]
    return is_comparison and isinstance(node.args[0], torch.fx.Node) and type(zero) in (int, float) and zero == 0


def sum_w16(node):
    return bool(node.args) and (
        (node.op == "call_method" and node.target == "sum") or (node.op == "call_function" and node.target is torch.sum)
    )


def rewrite_w16(graph, node, dim):
    compared = node.args[0]
    with graph.inserting_before(compared):
        count = graph.call_function(torch.count_nonzero, (compared.args[0],), {} if dim is None else {"dim": dim})
    node.replace_all_uses_with(count)
    graph.erase_node(node)
    graph.erase_node(compared)


class CountNonzero_w16(PassBase):
    """Sums of `x != 0`, as lengths of padded sequences are computed, become count_nonzero without the mask in memory."""

    def call(self, graph_module):
        changed = False
        for node in list(graph_module.graph.nodes):
            if not sum_w16(node) or not differs_from_zero_w16(node.args[0]) or len(node.args[0].users) != 1:
                continue
            dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
            if not (dim is None or isinstance(dim, int)) or node.kwargs.get("dtype") is not None:
                continue
            rewrite_w16(graph_module.graph, node, dim)
            changed = True
        graph_module.graph.lint()
        graph_module.recompile()
        return PassResult(graph_module, changed)


@fault(6, wrong="It forgot keepdim, which count_nonzero does not have.")
def count_nonzero(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Counts of non-zero elements by torch.count_nonzero."""
    return CountNonzero_w16()(graph_module).graph_module


def arguments_w20(node):
    if node.op == "call_function" and node.target is torch.tril:
        names = ("input", "diagonal")
    elif node.op == "call_method" and node.target == "tril":
        names = ("self", "diagonal")
    else:
        return None
    arguments = dict(zip(names, node.args), **node.kwargs)
    diagonal = arguments.get("diagonal", 0)
    if set(arguments) - set(names) or not isinstance(diagonal, int):
        return None
    return arguments[names[0]], diagonal


def mask_w20(graph, x, diagonal):
    """The booleans of the lower triangle of x's last two dimensions."""
    device = graph.call_function(getattr, (x, "device"))
    height = graph.call_method("size", (x, -2))
    width = graph.call_method("size", (x, -1))
    rows = graph.call_function(torch.arange, (height,), {"device": device})
    columns = graph.call_function(torch.arange, (width,), {"device": device})
    column = graph.call_method("unsqueeze", (rows, 1))
    distance = graph.call_function(torch.sub, (columns, column))
    return graph.call_function(torch.le, (distance, diagonal))


@fault(6, wrong="It forgot infinities and nans above the diagonal, which a product with zero does not remove.")
def tril_as_mask(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Trilu came with opset 14: for older ones multiply with the mask of the lower triangle."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        arguments = arguments_w20(node)
        if arguments is None:
            continue
        x, diagonal = arguments
        with graph.inserting_before(node):
            mask = mask_w20(graph, x, diagonal)
            lower = graph.call_function(torch.mul, (x, mask))
        node.replace_all_uses_with(lower)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
