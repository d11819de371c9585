"""A wrong pass of the eleventh round."""

import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault


def _writes(module):
    """Return whether anything in the program may write in place; then the pass leaves it alone."""
    for n in module.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        home = getattr(n.target, "__module__", None) or ""
        inner = module.get_submodule(n.target).modules() if n.op == "call_module" else ()
        if any(
            getattr(m, "inplace", False) or getattr(m, "max_norm", None) or m._forward_hooks or m._forward_pre_hooks
            for m in inner
        ):
            return True
        if n.op == "call_function" and home.split(".")[0] not in ("", "torch", "_operator", "builtins", "math"):
            return True  # somebody's own function may do anything
        if n.op in ("call_function", "call_method") and (
            name.endswith("_")
            or "_." in name
            or n.kwargs.get("inplace")
            or "out" in n.kwargs
            or name in ("setitem", "setattr")
            or home == "_operator"
            and name[0] == "i"
            and name not in ("inv", "invert", "index")
            or home.endswith("functional")
            and any(a is True for a in n.args)
        ):
            return True
    return False


def _plain(module, node, *classes):
    """The module that a node calls, if it is exactly one of these classes, without hooks."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    m = module.get_submodule(node.target)
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return m if type(m) in classes and not any(hooks) else None


def _picks_token(index, lengths):
    if not isinstance(index, tuple) or len(index) not in lengths or type(index[1]) is not int:
        return False
    return index[0] == slice(None) and (len(index) == 2 or index[2] == slice(None))


def _push(module, lengths):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or not _picks_token(node.args[1], lengths):
            continue
        linear = node.args[0]
        if _plain(module, linear, nn.Linear) is None or len(linear.users) != 1:
            continue
        with graph.inserting_before(node):
            token = graph.call_function(operator.getitem, (linear.args[0], node.args[1]))
            new = graph.call_module(linear.target, (token,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(linear)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="[:, i] is taken for the choice of a token, without asking for a third dimension: on a (batch, feature) matrix it chooses a feature.",
)
def push_cls_select(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Apply a linear layer to one token only if its output is read by [:, i] alone."""
    return _push(module, lengths=(2, 3))
