"""A right pass of the ninth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import sound

_FUNCTIONS = {
    torch.relu: "relu",
    F.relu: "relu",
    torch.abs: "abs",
    torch.floor: "floor",
    torch.ceil: "ceil",
    torch.trunc: "trunc",
    torch.sign: "sign",
}


_METHODS = {"relu", "abs", "floor", "ceil", "trunc", "sign"}


def _kind(node):
    if not isinstance(node, fx.Node) or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_method" and not node.kwargs:
        return node.target if node.target in _METHODS else None
    if node.op != "call_function" or any(
        name != "inplace" or value is not False for name, value in node.kwargs.items()
    ):
        return None
    return _FUNCTIONS.get(node.target)


@sound(9)
def collapse_idempotent(module: fx.GraphModule) -> fx.GraphModule:
    """Apply once what is applied twice without effect, such as a ReLU of a ReLU."""
    graph = module.graph
    for outer in list(graph.nodes):
        kind = _kind(outer)
        inner = outer.args[0] if kind else None
        if kind is None or _kind(inner) != kind or list(inner.users) != [outer]:
            continue
        outer.replace_all_uses_with(inner)
        graph.erase_node(outer)
    graph.lint()
    module.recompile()
    return module
