"""A wrong pass of the eleventh round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault

VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", torch.flatten, torch.transpose}


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


def _is_relu(module, node):
    if len(node.args) != 1:
        return False
    if node.op == "call_function" and node.target in (torch.relu, F.relu):
        return not node.kwargs or node.kwargs == {"inplace": False}
    if node.op == "call_method":
        return node.target == "relu" and not node.kwargs
    return _plain(module, node, nn.ReLU) is not None


def _write_over(module, take_views):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if not _is_relu(module, node):
            continue
        x = node.args[0]
        new_memory = _plain(module, x, nn.Conv2d, nn.Linear, nn.BatchNorm2d) is not None
        view = take_views and x.op in ("call_method", "call_function") and x.target in VIEWS
        if len(x.users) != 1 or not (new_memory or view):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(torch.relu_, (x,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="One user of a view is taken for one user of its memory: the tensor that is viewed is overwritten as well.",
)
def inplace_relu(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Let a ReLU write over its input where nothing else uses that and its gradient does not need it."""
    return _write_over(module, take_views=True)
