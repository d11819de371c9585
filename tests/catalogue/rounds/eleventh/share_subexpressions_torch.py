"""A wrong pass of the eleventh round."""

import operator

import torch
import torch.fx

from ...rows import fault

PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.pow,
    operator.getitem,
    torch.add,
    torch.sub,
    torch.mul,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.nn.functional.gelu,
    "add",
    "sub",
    "mul",
    "view",
    "reshape",
    "permute",
    "transpose",
    "relu",
    "sigmoid",
    "size",
    "sum",
    "mean",
}


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


def _key(value, typed):
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(_key(v, typed) for v in value))
    if isinstance(value, slice):
        return ("slice", *(_key(v, typed) for v in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return tuple((k, _key(value[k], typed)) for k in sorted(value))
    if isinstance(value, torch.fx.Node) or not typed:
        return value
    return (type(value), repr(value))


def _share(module, typed):
    graph, first_of_key = module.graph, {}
    for node in [] if _writes(module) else list(graph.nodes):
        if node.op not in ("call_function", "call_method") or node.target not in PURE:
            continue
        key = (node.op, node.target, _key(node.args, typed), _key(node.kwargs, typed))
        if key in first_of_key:
            node.replace_all_uses_with(first_of_key[key])
            graph.erase_node(node)
        else:
            first_of_key[key] = node
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="Constants are compared by ==, for which 1 and 1.0 and True are one: x * 2 and x * 2.0 of an integer tensor have different dtypes.",
)
def share_subexpressions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute once what pure operations compute several times of the same arguments."""
    return _share(module, typed=False)
