"""A wrong pass of the fifteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import fault


def step_of(node):
    """The integer that the node adds to a buffer or to the result of another step, or None."""
    if (
        not isinstance(node, Node)
        or node.op != "call_method"
        or node.target != "add_"
        or node.kwargs
        or len(node.args) != 2
    ):
        return None
    return node.args[1] if type(node.args[1]) is int and 0 <= node.args[1] < 60 else None


def buffer_of(graph_module, node):
    """The name of the buffer of 64-bit integers that the node works on, or None."""
    if node.args[0].op != "get_attr":
        return None
    owner, _, name = node.args[0].target.rpartition(".")
    value = graph_module.get_submodule(owner)._buffers.get(name)
    return node.args[0].target if value is not None and value.dtype == torch.long else None


@fault(15, wrong="The buffer may be read between the two.")
def merge_counter_steps(graph_module: GraphModule) -> GraphModule:
    """Merge two ``add_`` of small integers to the same buffer into one."""
    previous = None
    for node in list(graph_module.graph.nodes):
        if node.op == "get_attr":
            continue
        step = step_of(node)
        if step is None or buffer_of(graph_module, node) is None:
            continue
        first = previous
        previous = node
        if first is None or first.users or buffer_of(graph_module, first) != buffer_of(graph_module, node):
            continue
        node.args = (node.args[0], step_of(first) + step)
        graph_module.graph.erase_node(first)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
