"""A wrong pass of the eleventh round."""

import torch
from torch import nn

import fx

from ...rows import fault

PURE = {
    "add",
    "sub",
    "mul",
    "truediv",
    "div",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "t",
    "transpose",
    "abs",
    "permute",
    "reshape",
    "view",
    "unsqueeze",
    "flatten",
    "float",
    "tril",
    "triu",
    "outer",
    "cat",
    "stack",
    "softmax",
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


def _fresh(module, base):
    """A name that no attribute has yet."""
    name, n = base, 0
    while hasattr(module, name):
        n += 1
        name = f"{base}_{n}"
    return name


def _attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _fold(module, pure_only):
    graph, values = module.graph, {}
    for node in [] if module.training or _writes(module) else list(graph.nodes):
        if node.op == "get_attr":
            value = _attribute(module, node.target)
            if isinstance(value, torch.Tensor) and not value.requires_grad and not isinstance(value, nn.Parameter):
                values[node] = value
        if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
            continue
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if any(used not in values for used in node.all_input_nodes) or pure_only and name not in PURE:
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            call = getattr(args[0], node.target) if node.op == "call_method" else node.target
            value = call(*args[1:], **kwargs) if node.op == "call_method" else call(*args, **kwargs)
        if not isinstance(value, torch.Tensor) or any(user.op == "output" for user in node.users):
            continue
        values[node] = value
    for node, value in values.items():
        if node.op != "get_attr" and any(user not in values for user in node.users):
            name = _fresh(module, f"{node.name}_folded")
            module.register_buffer(name, value.detach().clone(), persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
    for node in reversed(list(values)):
        if not node.users:
            graph.erase_node(node)
    module.recompile()
    return module


@fault(
    11,
    wrong="Random draws from constants (torch.normal(mean, std), rand_like of a buffer) are made once instead of each time.",
)
def fold_constants_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Compute what depends only on buffers and constants beforehand (inference)."""
    return _fold(module, pure_only=False)
