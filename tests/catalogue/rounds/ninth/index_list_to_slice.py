"""A wrong pass of the ninth round."""

import operator

import torch

from ...rows import fault


def _run(module, right):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        index = node.args[1]
        parts = list(index) if isinstance(index, tuple) else [index]
        if not parts or not isinstance(parts[-1], list) or not parts[-1]:
            continue
        if not all(isinstance(part, slice) and part == slice(None) for part in parts[:-1]):
            continue
        wanted = parts[-1]
        if not all(type(i) is int for i in wanted):  # a list of bools is a mask
            continue
        if any(after != before + 1 for before, after in zip(wanted, wanted[1:])):
            continue
        if right and wanted[0] < 0:
            continue
        with graph.inserting_before(node):
            if right:
                view = graph.call_function(torch.narrow, (node.args[0], len(parts) - 1, wanted[0], len(wanted)))
            else:
                whole = (*parts[:-1], slice(wanted[0], wanted[-1] + 1))
                view = graph.call_function(operator.getitem, (node.args[0], whole))
            new = graph.call_method("clone", (view,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Asks that the indices follow each other, but not that they are not negative: [-2, -1] becomes the empty slice -2:0.",
)
def index_list_to_slice(module):
    """Copy a slice instead of gathering, where a list of indices counts up by one."""
    return _run(module, False)
