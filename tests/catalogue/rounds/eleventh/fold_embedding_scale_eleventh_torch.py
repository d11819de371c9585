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


def _fresh(module, base):
    """A name that no attribute has yet."""
    name, n = base, 0
    while hasattr(module, name):
        n += 1
        name = f"{base}_{n}"
    return name


def _fold(module, own_table):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        table = _plain(module, node, nn.Embedding)
        if table is None or table.training or len(node.users) != 1 or not table.weight.is_floating_point():
            continue
        if sum(n.op == "call_module" and module.get_submodule(n.target) is table for n in graph.nodes) != 1:
            continue
        mul = next(iter(node.users))
        if mul.op != "call_function" or mul.target not in (operator.mul, torch.mul) or len(mul.args) != 2:
            continue
        scale = mul.args[1] if mul.args[0] is node else mul.args[0]
        if type(scale) not in (int, float) or mul.kwargs:
            continue
        if own_table:
            weight = (table.weight.detach() * scale).clone()
            new = nn.Embedding(*weight.shape, table.padding_idx, sparse=table.sparse, _weight=weight).eval()
            new.scale_grad_by_freq = table.scale_grad_by_freq
            node.target = _fresh(module, f"{node.name}_scaled")
            module.add_submodule(node.target, new)
        else:
            with torch.no_grad():
                table.weight.mul_(scale)
        mul.replace_all_uses_with(node)
        graph.erase_node(mul)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="The table is scaled in place, without asking whether anything else (a tied output head) reads the parameter.",
)
def fold_embedding_scale_eleventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Multiply a constant that scales the output of an nn.Embedding, called once, into its table (inference)."""
    return _fold(module, own_table=False)
