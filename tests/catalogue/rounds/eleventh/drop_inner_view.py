"""A right pass of the eleventh round."""

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


def _is_size(value):
    if isinstance(value, fx.Node):
        return value.op == "call_method" and value.target == "size" and len(value.args) == 2 and not value.kwargs
    return type(value) is int


def _shape(node, targets):
    """Return the operand of a view or reshape and the new shape, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target not in targets or node.kwargs:
        return None
    x, *shape = node.args
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = list(shape[0])
    return (x, shape) if shape and isinstance(x, fx.Node) and all(_is_size(size) for size in shape) else None


@sound(11)
def drop_inner_view(module: fx.GraphModule) -> fx.GraphModule:
    """Replace x.view(...).view(shape) and x.view(...).reshape(shape) by x.reshape(shape)."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        outer = _shape(node, ("view", "reshape"))
        inner = _shape(outer[0], ("view",)) if outer else None
        if inner is None or not all(type(size) is int for size in inner[1]):
            continue
        before = node.args[0]
        with graph.inserting_before(node):
            new = graph.call_method("reshape", (inner[0], *outer[1]))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        if not before.users:
            graph.erase_node(before)
    module.recompile()
    return module
