"""A wrong pass of the eleventh round."""

import operator

import torch

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


def _lower(module, ask_indexing):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.meshgrid:
            continue
        axes = node.args[0] if len(node.args) == 1 and isinstance(node.args[0], (list, tuple)) else node.args
        if len(axes) != 2 or not all(isinstance(axis, fx.Node) for axis in axes):
            continue
        if ask_indexing and node.kwargs.get("indexing") not in (None, "ij"):
            continue
        picks = list(node.users)
        if not all(
            p.op == "call_function" and p.target is operator.getitem and type(p.args[1]) is int and p.args[1] in (0, 1)
            for p in picks
        ):
            continue
        rows, columns = axes
        with graph.inserting_before(node):
            column = graph.call_method("reshape", (rows, -1, 1))
            row = graph.call_method("reshape", (columns, 1, -1))
            grids = (
                graph.call_method("expand", (column, -1, graph.call_method("numel", (columns,)))),
                graph.call_method("expand", (row, graph.call_method("numel", (rows,)), -1)),
            )
        for pick in picks:
            pick.replace_all_uses_with(grids[pick.args[1]])
            graph.erase_node(pick)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(11, wrong="The keyword indexing is not asked: with indexing='xy' the grids are the other way round.")
def lower_meshgrid(module: fx.GraphModule) -> fx.GraphModule:
    """Write torch.meshgrid of two vectors as views of them."""
    return _lower(module, ask_indexing=False)
