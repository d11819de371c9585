"""A wrong pass of the fourteenth round."""

import operator

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


_READERS = (operator.add, operator.sub, operator.mul, operator.matmul)


def _only_read(node):
    return all(user.op == "call_function" and user.target in _READERS for user in node.users)


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        module = _plain(graph_module, node, nn.Embedding)
        earlier = node.prev
        if module is None or module.max_norm is not None or _plain(graph_module, earlier, nn.Embedding) is not module:
            continue
        if earlier.args != node.args or earlier in node.all_input_nodes:
            continue
        if any(user.op == "output" for user in (*node.users, *earlier.users)):
            continue
        if careful and not (_only_read(node) and _only_read(earlier)):
            continue
        node.replace_all_uses_with(earlier)
        graph.erase_node(node)
    return finish(graph_module)


@fault(
    14,
    wrong="What uses the two results is not looked at: a method that writes to one of them (mul_) now writes to both.",
)
def share_lookups(graph_module: GraphModule) -> GraphModule:
    """Replace a repeated lookup of the same indices in the same Embedding by the first one."""
    return _rewrite(graph_module, False)
