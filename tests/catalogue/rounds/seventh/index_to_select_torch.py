"""A right pass of the seventh round."""

import operator

import torch
import torch.fx

from ...rows import sound


def place(index):
    """The dimension and the number that an index selects behind full slices, or None."""
    if not isinstance(index, tuple) or len(index) < 2 or type(index[-1]) is not int:
        return None
    for part in index[:-1]:
        if not isinstance(part, slice) or part.start is not None or part.stop is not None or part.step is not None:
            return None
    return len(index) - 1, index[-1]


@sound(7)
def index_to_select(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write `x[:, i]`, `x[:, :, i]` and so on, by a constant number behind full slices, as `torch.select`."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or len(node.args) != 2:
            continue
        source, dim_and_index = node.args[0], place(node.args[1])
        if dim_and_index is None or not isinstance(source, torch.fx.Node):
            continue
        with graph.inserting_before(node):
            selected = graph.call_function(torch.select, (source, *dim_and_index))
        node.replace_all_uses_with(selected)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
