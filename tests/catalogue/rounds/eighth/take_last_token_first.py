"""A wrong pass of the eighth round."""

import operator

from torch import nn

import fx

from ...rows import fault


def _constant(index):
    if isinstance(index, slice):
        return all(part is None or type(part) is int for part in (index.start, index.stop, index.step))
    return type(index) is int


def _rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
            continue
        linear, index = node.args
        if linear.op != "call_module" or len(linear.users) != 1 or node.prev is not linear:
            continue
        layer = module.get_submodule(linear.target)
        if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
            continue
        if len(linear.args) != 1 or linear.kwargs or not isinstance(index, tuple) or len(index) < 2:
            continue
        if not all(_constant(part) for part in index) or not accepts(index):
            continue
        with graph.inserting_before(linear):
            token = graph.call_function(operator.getitem, (linear.args[0], index))
        linear.args = (token,)
        node.replace_all_uses_with(linear)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(8, wrong="It is not asked that the index leaves the last dimension alone: of a matrix, [:, -1] takes a feature.")
def take_last_token_first(module: fx.GraphModule) -> fx.GraphModule:
    """Select tokens before the head is applied, not after it."""
    return _rewrite(module, lambda index: True)
