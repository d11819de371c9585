"""A wrong pass of the eleventh round."""

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


def _swap(module, allowed):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        pool = _plain(module, node, nn.MaxPool2d)
        if pool is None or pool.return_indices or pool.dilation not in (1, (1, 1)):
            continue
        before = node.args[0]
        act = _plain(module, before, *allowed)
        if act is None or len(before.users) != 1:
            continue
        if isinstance(act, nn.LeakyReLU) and not 0 < act.negative_slope <= 1:
            continue
        if isinstance(act, nn.PReLU) and act.num_parameters != 1:
            continue
        with graph.inserting_before(node):
            pooled = graph.call_module(node.target, (before.args[0],))
            new = graph.call_module(before.target, (pooled,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(before)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="PReLU is taken for monotone, but its learned slope may be negative, and then the maximum is another element.",
)
def pool_before_activation_eleventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Move a monotone activation (ReLU, LeakyReLU, PReLU) behind the max pooling that follows it."""
    return _swap(module, (nn.ReLU, nn.LeakyReLU, nn.PReLU))
