"""A wrong pass of the eleventh round."""

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


def _method(node, name):
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == name and not node.kwargs


def _fuse(module, places):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if not _method(node, "flatten") or node.args[1:] != (1, 2):
            continue
        expand = node.args[0]
        if not _method(expand, "expand") or len(expand.users) != 1:
            continue
        sizes = expand.args[1:]
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = sizes[0]
        unsqueeze = expand.args[0]
        if not _method(unsqueeze, "unsqueeze") or len(unsqueeze.users) != 1 or len(unsqueeze.args) != 2:
            continue
        place = unsqueeze.args[1]
        if type(place) is not int or place not in places or len(sizes) != 5 or not all(type(s) is int for s in sizes):
            continue
        count = sizes[place]
        if count < 2 or any(s != -1 for i, s in enumerate(sizes) if i != place):
            continue
        with graph.inserting_before(node):
            new = graph.call_method("repeat_interleave", (unsqueeze.args[0], count), {"dim": 1})
        node.replace_all_uses_with(new)
        for old in (node, expand, unsqueeze):
            graph.erase_node(old)
    module.recompile()
    return module


@fault(
    11,
    wrong="Where the new dimension stands is not asked: before the heads the expanded heads are tiled (h0 h1 h0 h1), not interleaved (h0 h0 h1 h1).",
)
def repeat_kv_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace k.unsqueeze(..).expand(-1, .., n, ..).flatten(1, 2) by k.repeat_interleave(n, dim=1)."""
    return _fuse(module, places=(1, 2))
