"""Operands in the wrong order, keywords dropped, constants taken from somewhere else."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, calls, fetched, layers, numbers, of, replace, settled, substitute, wrong

# Operand order.


@wrong("operand order", "contract", on=of(lambda m, x, y: x - y, (2, 3), (3,)), contract=exact)
def subtract_by_function(gm: fx.GraphModule) -> None:
    """Subtraction is written with its operands swapped."""
    for node in calls(gm, operator.sub):
        left, right = node.args
        if isinstance(left, fx.Node) and isinstance(right, fx.Node):
            replace(node, torch.sub, right, left)
    gm.recompile()


@wrong("operand order", "contract", on=of(lambda m, x: 2.0 / (x + 3), (2, 3)), modes=BOTH)
def tensor_first(gm: fx.GraphModule) -> None:
    """The tensor is put before the number also in operations that do not commute."""
    for node in gm.graph.nodes:
        if node.target in (operator.add, operator.mul, operator.sub, operator.truediv):
            left, right = node.args
            if not isinstance(left, fx.Node):
                node.args = (right, left)
    gm.recompile()


@wrong("operand order", "contract", on=of(lambda m, x, y: x @ y, (3, 3), numbers(3, 3) + 1))
def matmul_as_linear(gm: fx.GraphModule) -> None:
    """F.linear transposes its weight, so for square matrices the result is silently another one."""
    for node in calls(gm, operator.matmul, torch.matmul):
        if len(node.args) == 2:
            replace(node, F.linear, *node.args)
    gm.recompile()


@wrong("operand order", "contract", on=of(lambda m, x, y: torch.cat([y, x]), (2, 3), (1, 3)))
def cat_in_order_of_names(gm: fx.GraphModule) -> None:
    """Tensors to concatenate are sorted, so that equal concatenations look equal."""
    for node in calls(gm, torch.cat):
        parts, *rest = node.args
        if isinstance(parts, (list, tuple)):
            node.args = (sorted(parts, key=str), *rest)
    gm.recompile()


@wrong("operand order", "contract", on=of(lambda m, x, y: x.sub(y) * 2, (2, 3), (3,)))
@adapt
def methods_as_operators(gm: torch.fx.GraphModule) -> None:
    """The method's operands are taken as a set of inputs and reversed on the way."""
    targets = {"sub": operator.sub, "div": operator.truediv, "mul": operator.mul, "add": operator.add}
    for node in list(gm.graph.nodes):
        if node.op == "call_method" and node.target in targets and len(node.args) == 2 and not node.kwargs:
            replace(node, targets[node.target], *reversed(node.args))
    gm.recompile()


# Dropped keywords.


@wrong("dropped keyword", "contract", on=of(lambda m, x, y: torch.add(x, y, alpha=2), (3,), (3,)))
def add_as_operator(gm: fx.GraphModule) -> None:
    """torch.add becomes an operator, and alpha is lost."""
    for node in calls(gm, torch.add):
        if len(node.args) == 2:
            replace(node, operator.add, *node.args)
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: torch.sum(x, 1, keepdim=True), (2, 3)))
def sum_without_keepdim(gm: fx.GraphModule) -> None:
    """keepdim is not carried over when the reduction becomes a method."""
    for node in calls(gm, torch.sum, torch.mean):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if dim is None:
            continue
        replace(node, node.target.__name__, node.args[0], dim)
    gm.recompile()


@wrong("softmax dim default", "contract", on=of(lambda m, x: F.softmax(x, dim=0), (2, 3)))
def softmax_over_the_last(gm: fx.GraphModule) -> None:
    """Softmax is taken over the last dimension, whatever the program says."""
    for node in calls(gm, F.softmax, torch.softmax):
        replace(node, torch.softmax, node.args[0], -1)
    for node, layer in layers(gm, nn.Softmax):
        if layer.dim is not None:
            replace(node, torch.softmax, node.args[0], -1)
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: F.leaky_relu(x, 0.3), (2, 3)), modes=BOTH)
def leaky_relu_of_default_slope(gm: fx.GraphModule) -> None:
    """The slope of leaky_relu is left at its default."""
    for node in calls(gm, F.leaky_relu, nn.LeakyReLU):
        replace(node, F.leaky_relu, node.args[0])
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: F.gelu(x, approximate="tanh"), (2, 3)))
def gelu_without_approximation(gm: fx.GraphModule) -> None:
    """The choice of gelu's approximation is lost."""
    for node in calls(gm, F.gelu, nn.GELU):
        replace(node, F.gelu, node.args[0])
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: F.gelu(x), (2, 3)), modes=BOTH)
def gelu_by_tanh(gm: fx.GraphModule) -> None:
    """The faster approximation of gelu is passed off as close."""
    for node in calls(gm, F.gelu):
        node.kwargs = {"approximate": "tanh"}
    for node in calls(gm, nn.GELU):
        replace(node, F.gelu, node.args[0], approximate="tanh")
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: x.clamp(-0.5, 0.5), (2, 3)))
def clamp_from_below(gm: fx.GraphModule) -> None:
    """Clamping at both ends becomes clamping at the lower one."""
    for node in calls(gm, "clamp", torch.clamp):
        low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
        if low is not None:
            replace(node, torch.clamp_min, node.args[0], low)
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(
    lambda m, x: m.conv(x), (1, 2, 5, 5), conv=nn.Conv2d(2, 3, 3, stride=2, padding=1)
))  # fmt: skip
def conv_by_function(gm: fx.GraphModule) -> None:
    """Stride, padding, dilation and groups of the module are not passed on to the function."""
    for node in calls(gm, nn.Conv2d):
        weight, bias = fetched(gm, node, "weight", "bias")
        replace(node, F.conv2d, node.args[0], weight, bias)
    gm.recompile()


@wrong("dropped keyword", "contract", on=of(lambda m, x: torch.div(x, 0.7, rounding_mode="floor"), (2, 3)))
def div_as_operator(gm: fx.GraphModule) -> None:
    """A division that rounds becomes one that does not."""
    for node in calls(gm, torch.div, "div"):
        replace(node, operator.truediv, *node.args[:2])
    gm.recompile()


# Constants and formulas.


@wrong("wrong epsilon", "contract", on=of(lambda m, x: m.norm(x), numbers(2, 4) / 100, norm=nn.LayerNorm(4, eps=0.1)))
def layer_norm_by_function(gm: fx.GraphModule) -> None:
    """The module's epsilon is forgotten."""
    for node, layer in layers(gm, nn.LayerNorm):
        if layer.elementwise_affine and layer.bias is not None:
            weight, bias = fetched(gm, node, "weight", "bias")
            replace(node, F.layer_norm, node.args[0], layer.normalized_shape, weight, bias)
        else:
            replace(node, F.layer_norm, node.args[0], layer.normalized_shape)
    gm.recompile()


@wrong("wrong epsilon", "contract", on=of(lambda m, x: m.norm(x), (2, 4), norm=settled(nn.LayerNorm(4))))
def layer_norm_by_parts(gm: fx.GraphModule) -> None:
    """torch.var divides by one less than layer norm does."""
    for node, layer in layers(gm, nn.LayerNorm):
        dims = tuple(range(-len(layer.normalized_shape), 0))
        x, graph = node.args[0], gm.graph
        with graph.inserting_before(node):
            centred = graph.call_function(operator.sub, (x, graph.call_method("mean", (x, dims), {"keepdim": True})))
            variance = graph.call_method("var", (x, dims), {"keepdim": True})
            root = graph.call_function(torch.sqrt, (graph.call_function(operator.add, (variance, layer.eps)),))
            call = graph.call_function(operator.truediv, (centred, root))
            if layer.weight is not None:
                call = graph.call_function(operator.mul, (call, graph.get_attr(f"{node.target}.weight")))
            if layer.bias is not None:
                call = graph.call_function(operator.add, (call, graph.get_attr(f"{node.target}.bias")))
        substitute(node, call)
    gm.recompile()


@wrong("forgotten bias", "contract", on=of(lambda m, x: m.linear(x), (2, 3), linear=nn.Linear(3, 4)))
def linear_as_matmul(gm: fx.GraphModule) -> None:
    """The bias of the linear layer is forgotten."""
    for node in calls(gm, nn.Linear):
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(f"{node.target}.weight")
            transposed = gm.graph.call_method("t", (weight,))
        replace(node, torch.matmul, node.args[0], transposed)
    gm.recompile()


@wrong("forgotten bias", "contract", on=of(lambda m, x: m.b(m.a(x)), (2, 3), a=nn.Linear(3, 4), b=nn.Linear(4, 2)))
def merge_linear_layers(gm: fx.GraphModule) -> None:
    """The first layer's bias does not go through the second layer's weight."""
    for number, (node, outer) in enumerate(layers(gm, nn.Linear)):
        source = node.args[0]
        inner = gm.get_submodule(source.target) if source.op == "call_module" else None
        if type(inner) is not nn.Linear or len(source.users) > 1 or inner is outer:
            continue
        merged = nn.Linear(inner.in_features, outer.out_features, outer.bias is not None, dtype=outer.weight.dtype)
        with torch.no_grad():
            merged.weight.copy_(outer.weight @ inner.weight)
            if outer.bias is not None:
                merged.bias.copy_(outer.bias)
        gm.add_submodule(f"merged_{number}", merged)
        node.target, node.args = f"merged_{number}", source.args
        gm.graph.erase_node(source)
    gm.recompile()


@wrong("wrong commutation", "contract", on=of(lambda m, x: torch.relu(x) * -2.0, (2, 3)), modes=BOTH)
def scale_before_relu(gm: fx.GraphModule) -> None:
    """relu(x) * c is relu(x * c) only where c is not negative."""
    for node in calls(gm, operator.mul):
        relu, factor = node.args
        rectified = isinstance(relu, fx.Node) and relu.target in (torch.relu, F.relu) and len(relu.users) == 1
        if rectified and isinstance(factor, (int, float)):
            with gm.graph.inserting_before(node):
                scaled = gm.graph.call_function(operator.mul, (relu.args[0], factor))
            replace(node, torch.relu, scaled)
            gm.graph.erase_node(relu)
    gm.recompile()


@wrong("integer division", "contract", on=of(lambda m, x: x // 2, (2, 3)), modes=BOTH)
def floor_division_as_division(gm: fx.GraphModule) -> None:
    """The quotient is no longer rounded."""
    for node in calls(gm, operator.floordiv, torch.floor_divide):
        node.target = operator.truediv
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: x / 3, (7, 9)), contract=exact, modes=BOTH)
def division_as_multiplication(gm: fx.GraphModule) -> None:
    """Multiplying by the reciprocal rounds twice, which is not exact."""
    for node in calls(gm, operator.truediv):
        divisor = node.args[1]
        if isinstance(divisor, (int, float)) and divisor:
            replace(node, operator.mul, node.args[0], 1 / divisor)
    gm.recompile()


@wrong("unchecked operand", "contract", on=of(lambda m, x, y: torch.sigmoid(x) * y, (3,), numbers(3) + 1))
def sigmoid_times_anything_as_silu(gm: fx.GraphModule) -> None:
    """That the gate and the gated value are the same is not checked."""
    for node in calls(gm, operator.mul):
        gate = node.args[0]
        if isinstance(gate, fx.Node) and gate.target is torch.sigmoid and isinstance(node.args[1], fx.Node):
            replace(node, F.silu, gate.args[0])
            if not gate.users:
                gm.graph.erase_node(gate)
    gm.recompile()


@wrong("unchecked operand", "contract", on=of(lambda m, x: torch.pow(x, 3) + x**3, (2, 3)), modes=BOTH)
def power_as_product(gm: fx.GraphModule) -> None:
    """Every power becomes a square."""
    for node in calls(gm, operator.pow, torch.pow):
        base, exponent = node.args
        if isinstance(base, fx.Node) and isinstance(exponent, (int, float)):
            replace(node, operator.mul, base, base)
    gm.recompile()


@wrong("mean vs sum", "contract", on=of(lambda m, x: x.mean(0), (2, 3)))
def mean_as_sum(gm: fx.GraphModule) -> None:
    """The sum is divided by the size of the last dimension, not of the one that is summed."""
    for node in calls(gm, "mean"):
        x, dim = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if not isinstance(dim, int):
            continue
        keep = {"keepdim": node.kwargs["keepdim"]} if "keepdim" in node.kwargs else {}
        with gm.graph.inserting_before(node):
            total = gm.graph.call_method("sum", (x, dim, *node.args[2:]), keep)
            size = gm.graph.call_method("size", (x, -1))
        replace(node, operator.truediv, total, size)
    gm.recompile()


@wrong("wrong broadcasting", "contract", on=of(lambda m, x: x * x.sum(1, keepdim=True), (3, 3)))
def reductions_broadcast_anyway(gm: fx.GraphModule) -> None:
    """The kept dimension is dropped as if broadcasting would restore it; a square value then mixes up its axes."""
    for node in gm.graph.nodes:
        if node.target in ("sum", "mean", "amax", torch.sum, torch.mean, torch.amax) and node.kwargs.get("keepdim"):
            node.kwargs = {**node.kwargs, "keepdim": False}
    gm.recompile()
