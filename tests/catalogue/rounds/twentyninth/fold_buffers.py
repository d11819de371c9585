"""A wrong pass of the twentyninth round."""

import operator

import torch

import fx

from ...rows import fault

METHODS = {"add", "sub", "mul", "div"}


FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


def _arithmetic(node):
    targets = METHODS if node.op == "call_method" else FUNCTIONS if node.op == "call_function" else ()
    return node.target in targets and not node.kwargs


def _value(gm, node):
    """The node's tensor if it is a buffer that no state dict holds, on the outermost module; else None."""
    if node.op != "get_attr" or node.target not in gm._buffers or node.target not in gm._non_persistent_buffers_set:
        return None
    value = gm._buffers[node.target]
    return None if value is None or value.requires_grad else value


def _fold(gm, safe):
    for node in list(gm.graph.nodes):
        if not _arithmetic(node) or not all(_arithmetic(user) for user in node.users):
            continue  # what is handed out or written later must be fresh at each call
        sources = node.all_input_nodes
        if not sources or any(_value(gm, s) is None or not safe(s) for s in sources):
            continue
        if any(not isinstance(a, (fx.Node, int, float)) for a in node.args):
            continue
        args = [_value(gm, a) if isinstance(a, fx.Node) else a for a in node.args]
        with torch.no_grad():
            result = getattr(args[0], node.target)(*args[1:]) if node.op == "call_method" else node.target(*args)
        name = f"folded_{node.name}"
        gm.register_buffer(name, result, persistent=False)
        with gm.graph.inserting_before(node):
            constant = gm.graph.get_attr(name)
        node.replace_all_uses_with(constant)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(29, wrong="Forgets that the program itself may write a buffer, so that the folded value is of the past.")
def fold_buffers(gm):
    """Compute what depends on buffers alone once, ahead of time, and keep the result as a buffer."""
    return _fold(gm, lambda node: True)
