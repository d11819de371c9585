"""A wrong pass of the seventeenth round."""

import operator

from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _is_last_step(node: Node) -> bool:
    """`output[:, -1, :]`, whose three indices say that the output has a batch."""
    index = node.args[1] if node.op == "call_function" and node.target is operator.getitem else None
    return (
        isinstance(index, tuple)
        and len(index) == 3
        and type(index[1]) is int
        and index[1] == -1
        and all(isinstance(i, slice) and i == slice(None) for i in (index[0], index[2]))
    )


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if not _is_last_step(node):
            continue
        output = node.args[0]
        if output.op != "call_function" or output.target is not operator.getitem or output.args[1] != 0:
            continue
        call = output.args[0]
        if call.op != "call_module" or len(output.users) > 1:
            continue
        module = graph_module.get_submodule(call.target)
        if type(module) is not nn.GRU or module.bidirectional or careful and not module.batch_first:
            continue
        with graph_module.graph.inserting_before(node):
            states = graph_module.graph.call_function(operator.getitem, (call, 1))
            last = graph_module.graph.call_function(operator.getitem, (states, -1))
        node.replace_all_uses_with(last)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(output)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="`batch_first` is not looked at: where time comes first, `[:, -1, :]` reads the last sequence and not the last step.",
)
def last_step_from_state_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Read the last step of a GRU from its final state, so that its output is not needed."""
    return _rewrite(graph_module, careful=False)
