"""A wrong pass of the seventeenth round."""

from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import may_write

WITHOUT_GRADIENT = {"argmax", "argmin", "long", "bool", "int", "isnan", "isinf"}


def _has_no_gradient(node) -> bool:
    return isinstance(node, Node) and node.op == "call_method" and node.target in WITHOUT_GRADIENT


def _drop(graph_module: GraphModule, careful: bool) -> GraphModule:
    if graph_module.training or may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "detach" or len(node.args) != 1:
            continue
        if careful and not _has_no_gradient(node.args[0]) or any(user.op == "output" for user in node.users):
            continue
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="Evaluation mode counts as a program without gradients; eval() only changes layers, and gradients still flow.",
)
def drop_detach_in_eval(graph_module: GraphModule) -> GraphModule:
    """Drop detach, which does nothing in evaluation."""
    return _drop(graph_module, careful=False)
