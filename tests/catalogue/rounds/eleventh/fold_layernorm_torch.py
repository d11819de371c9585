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


def _fresh(module, base):
    """A name that no attribute has yet."""
    name, n = base, 0
    while hasattr(module, name):
        n += 1
        name = f"{base}_{n}"
    return name


def _fold(module, add_bias):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        norm = _plain(module, node, nn.LayerNorm)
        if norm is None or norm.weight is None or len(norm.normalized_shape) != 1 or norm.training:
            continue
        users = list(node.users)
        linears = [_plain(module, user, nn.Linear) for user in users]
        if not users or any(m is None or m.training or m.weight.dtype != norm.weight.dtype for m in linears):
            continue
        bare = nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False).eval()
        name = _fresh(module, f"{node.name}_bare")
        module.add_submodule(name, bare)
        with graph.inserting_before(node):
            normal = graph.call_module(name, node.args)
        for user, linear in zip(users, linears):
            shift = norm.bias is not None and (linear.bias is not None or add_bias)
            new = nn.Linear(
                linear.in_features,
                linear.out_features,
                linear.bias is not None or shift,
                linear.weight.device,
                linear.weight.dtype,
            ).eval()
            with torch.no_grad():
                new.weight.copy_(linear.weight * norm.weight)
                if new.bias is not None:
                    new.bias.copy_(0 if linear.bias is None else linear.bias)
                    if shift:
                        new.bias.add_(linear.weight @ norm.bias)
            name = _fresh(module, f"{user.name}_folded")
            module.add_submodule(name, new)
            with graph.inserting_before(user):
                folded = graph.call_module(name, (normal,))
            user.replace_all_uses_with(folded)
            graph.erase_node(user)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(11, wrong="A projection without a bias (as in LLaMA) gets none, so that the shift of the layer norm is lost.")
def fold_layernorm(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold weight and bias of an nn.LayerNorm into the Linear layers that read it (inference)."""
    return _fold(module, add_bias=False)
