"""A wrong pass of the eleventh round."""

import torch.nn.functional as F
from torch import nn

import fx

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
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    m = module.get_submodule(node.target)
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return m if type(m) in classes and not any(hooks) else None


def _lower(module, ask_statistics):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        norm = _plain(module, node, nn.InstanceNorm2d)
        if norm is None or not norm.affine:
            continue
        if ask_statistics and (norm.track_running_stats or norm.running_mean is not None):
            continue
        x, channels = node.args[0], norm.num_features
        with graph.inserting_before(node):
            weight, bias = (graph.get_attr(f"{node.target}.{kind}") for kind in ("weight", "bias"))
            rows, columns = (graph.call_method("size", (x, dim)) for dim in (-2, -1))
            images = graph.call_method("reshape", (x, -1, channels, rows, columns))  # unbatched images get a batch of 1
            normal = graph.call_function(F.group_norm, (images, channels, weight, bias, norm.eps))
            new = graph.call_method("reshape_as", (normal, x))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    11, wrong="track_running_stats=True is not asked: in evaluation such a layer normalizes by its running statistics."
)
def instance_to_group_norm(module: fx.GraphModule) -> fx.GraphModule:
    """Write an affine nn.InstanceNorm2d as a group norm with as many groups as channels."""
    return _lower(module, ask_statistics=False)
