"""Wrong passes of the fifth round for torch.fx, part 1."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ..rows import fault

SOFTMAX_W04 = (F.softmax, torch.softmax)


def softmax_below_w04(node):
    is_log = node.target is torch.log or (node.op == "call_method" and node.target == "log")
    if not is_log or len(node.args) != 1 or node.kwargs:
        return None
    inner = node.args[0]
    if not isinstance(inner, torch.fx.Node) or len(inner.users) != 1:
        return None
    if inner.target in SOFTMAX_W04 or (inner.op == "call_method" and inner.target == "softmax"):
        return inner
    return None


@fault(5, wrong="It forgot the dtype argument of softmax, which computes in (and returns) another type.")
def log_of_softmax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replaces the log of a softmax by log_softmax, which is stable and one kernel."""
    for node in list(graph_module.graph.nodes):
        inner = softmax_below_w04(node)
        if inner is None:
            continue
        dim = inner.kwargs.get("dim", inner.args[1] if len(inner.args) > 1 else None)
        if dim is None:
            continue
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_function(F.log_softmax, (inner.args[0],), {"dim": dim})
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module


METHODS_W07 = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}


def cast_w07(node):
    """The type a node casts to, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target in METHODS_W07 and len(node.args) == 1:
        return METHODS_W07[node.target]
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1] if node.args[1].is_floating_point else None
    return None


@fault(
    5,
    wrong="It compared widths in bits: float16 and bfloat16 are both 16 bits wide, but neither holds the other's values (nor is rounding twice rounding once).",
)
def collapse_casts_fifth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Collapses a cast of a cast, as autocast regions leave behind, where the first one loses no more than the second."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        last = cast_w07(node)
        if last is None or cast_w07(node.args[0]) is None:
            continue
        inner = node.args[0]
        first = cast_w07(inner)
        if torch.finfo(first).bits < torch.finfo(last).bits:
            continue
        node.replace_input_with(inner, inner.args[0])
        if not inner.users:
            graph.erase_node(inner)
    graph_module.recompile()
    return graph_module


POINTWISE_W11 = {torch.relu, torch.sigmoid, torch.tanh, F.relu, F.relu6, F.silu, F.gelu, F.softplus}


MODULES_W11 = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.ReLU6, nn.SiLU, nn.GELU)


def is_w11(node, modules, functions, classes):
    if not isinstance(node, torch.fx.Node) or len(node.users) != 1 or len(node.args) != 1 or node.kwargs.get("inplace"):
        return False
    if node.op == "call_module":
        module = modules[node.target]
        return type(module) in classes and not getattr(module, "inplace", False)
    return node.op == "call_function" and node.target in functions


def max_pool_w11(node, modules):
    if node.op == "call_module":
        pool = modules[node.target]
        return type(pool) is nn.MaxPool2d and not pool.return_indices and pool.dilation == 1 and len(node.args) == 1
    if node.op != "call_function" or node.target is not F.max_pool2d:
        return False
    return (
        node.kwargs.get("return_indices", False) is False and node.kwargs.get("dilation", 1) == 1 and len(node.args) < 4
    )


def swap_w11(activation, pool):
    """Makes pool(activation(x)) into activation(pool(x))."""
    source = activation.args[0]
    pool.replace_all_uses_with(activation)
    pool.args = (source, *pool.args[1:])
    activation.args = (pool,)
    pool.append(activation)


@fault(
    5, wrong="It forgot that only monotone activations commute with the maximum: silu and gelu fall before they rise."
)
def activation_after_pool(graph_module: torch.fx.GraphModule):
    """Applies an activation after max pooling instead of before: a quarter of the elements, the same result."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if max_pool_w11(node, modules) and is_w11(node.args[0], modules, POINTWISE_W11, MODULES_W11):
            swap_w11(node.args[0], node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def bounds_w12(node):
    """The input and the two bounds of a clamp by floats, or None."""
    if not isinstance(node, torch.fx.Node):
        return None
    if node.target is not torch.clamp and not (node.op == "call_method" and node.target in ("clamp", "clip")):
        return None
    arguments = dict(zip(("input", "min", "max"), node.args), **node.kwargs)
    low, high = arguments.get("min"), arguments.get("max")
    if not isinstance(low, float) or not isinstance(high, float) or set(arguments) - {"input", "min", "max"}:
        return None
    return arguments["input"], low, high


@fault(5, wrong="It forgot that two ranges may not overlap: then the second clamp decides, not the intersection.")
def merge_clamps_fifth(graph_module: torch.fx.GraphModule):
    """Merges a clamp of a clamp into one, over the intersection of their ranges."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = bounds_w12(node)
        inner = bounds_w12(outer[0]) if outer is not None else None
        if inner is None or len(outer[0].users) != 1 or outer[0].next is not node:
            continue
        low, high = max(outer[1], inner[1]), min(outer[2], inner[2])
        with graph.inserting_after(node):
            merged = graph.call_function(torch.clamp, (inner[0], low, high))
        node.replace_all_uses_with(merged)
        first = outer[0]
        graph.erase_node(node)
        graph.erase_node(first)
    graph_module.recompile()
    return graph_module


class Decomposer_w14(torch.fx.Transformer):
    def call_function(self, target, args, kwargs):
        if target is not F.hardswish:
            return super().call_function(target, args, kwargs)
        x = args[0] if args else kwargs["input"]
        return x * F.relu6(x + 3) / 6

    def call_module(self, target, args, kwargs):
        if type(self.fetch_attr(target)) is not nn.Hardswish:
            return super().call_module(target, args, kwargs)
        return args[0] * F.relu6(args[0] + 3) / 6


@fault(5, wrong="It forgot the inplace argument: eager then overwrites the input, which is read again later.")
def decompose_hardswish(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes hardswish with relu6, for a backend that has no hardswish."""
    return Decomposer_w14(graph_module).transform()
