"""A wrong pass of the eleventh round."""

import torch
import torch.fx
import torch.nn.functional as F
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


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _lower(module, ask_padding):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        pool = _plain(module, node, nn.AvgPool2d)
        conv = _plain(module, node.args[0], nn.Conv2d) if pool is not None else None
        if conv is None or pool.ceil_mode or not conv.weight.is_floating_point():
            continue
        kernel, padding = _pair(pool.kernel_size), _pair(pool.padding)
        if ask_padding and padding != (0, 0) and not pool.count_include_pad:
            continue
        divisor = pool.divisor_override or kernel[0] * kernel[1]
        name = _fresh(module, f"{node.name}_kernel")
        weight = torch.full(
            (conv.out_channels, 1, *kernel), 1.0 / divisor, dtype=conv.weight.dtype, device=conv.weight.device
        )
        module.register_buffer(name, weight, persistent=False)
        with graph.inserting_before(node):
            kernels = graph.get_attr(name)
            new = graph.call_function(
                F.conv2d, (node.args[0], kernels, None, _pair(pool.stride), padding, 1, conv.out_channels)
            )
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="count_include_pad=False is not asked: padded windows must be divided by the number of real elements, not by the size of the kernel.",
)
def avgpool_to_conv(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write nn.AvgPool2d after a Conv2d as a depthwise convolution with a constant kernel."""
    return _lower(module, ask_padding=False)
