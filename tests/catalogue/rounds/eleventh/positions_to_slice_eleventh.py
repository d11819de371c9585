"""A right pass of the eleventh round."""

import torch
from torch import nn

import fx

from ...rows import sound


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


def _count(node):
    """The n of torch.arange(n), n a literal or a size of a tensor."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not torch.arange:
        return None
    if len(node.args) != 1 or set(node.kwargs) - {"device"}:
        return None
    n = node.args[0]
    if isinstance(n, fx.Node):
        return n if n.op == "call_method" and n.target == "size" and len(n.args) == 2 and not n.kwargs else None
    return n if type(n) is int and n >= 0 else None


@sound(11)
def positions_to_slice_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace embedding(torch.arange(n)) by a copy of the first n rows of the table."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        table = _plain(module, node, nn.Embedding)
        if table is None or table.max_norm is not None or table.padding_idx is not None:
            continue
        count = _count(node.args[0])
        if count is None or table.sparse or table.scale_grad_by_freq:
            continue
        if not isinstance(count, fx.Node) and count > table.num_embeddings:
            continue
        positions = node.args[0]
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            rows = graph.call_method("narrow", (weight, 0, 0, count))  # raises, as the lookup does, if n is too large
            new = graph.call_method("clone", (rows,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        if not positions.users:
            graph.erase_node(positions)
    module.recompile()
    return module
