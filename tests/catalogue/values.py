"""Rewrites that hold for common values: not for NaN, infinities, negative or large numbers, or other dtypes."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, bypass, calls, layers, numbers, of, replace, substitute, wrong

NAN, INF = torch.tensor([-1.0, 2.0, torch.nan]), torch.tensor([1.0, -1.0, -torch.inf])

# Values.


@wrong("only some values", "contract", "non-finite inputs", "inputs untouched", on=of(
    lambda m, x: torch.relu(x), NAN
), contract=exact)  # fmt: skip
def relu_by_where(gm: fx.GraphModule) -> None:
    """NaN is not greater than zero, so it becomes zero."""
    for node in calls(gm, torch.relu, F.relu):
        x = node.args[0]
        with gm.graph.inserting_before(node):
            positive = gm.graph.call_function(operator.gt, (x, 0))
            zeros = gm.graph.call_function(torch.zeros_like, (x,))
        replace(node, torch.where, positive, x, zeros)
    gm.recompile()


@wrong("only some values", "contract", "non-finite inputs", on=of(lambda m, x: m.act(x), INF, act=nn.ReLU()))
def relu_by_absolute_value(gm: fx.GraphModule) -> None:
    """Minus infinity plus its absolute value is NaN."""
    for node in [node for node, _ in layers(gm, nn.ReLU)] + calls(gm, torch.relu):
        with gm.graph.inserting_before(node):
            magnitude = gm.graph.call_function(torch.abs, (node.args[0],))
            doubled = gm.graph.call_function(operator.add, (node.args[0], magnitude))
        replace(node, operator.mul, doubled, 0.5)
    gm.recompile()


@wrong("only some values", "contract", "non-finite inputs", on=of(lambda m, x: F.softmax(x, -1), numbers(2, 3) * 200))
def softmax_by_exponentials(gm: fx.GraphModule) -> None:
    """The exponentials of large numbers are infinite unless the largest is subtracted."""
    for node in calls(gm, F.softmax, torch.softmax):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if dim is None or node.kwargs.get("dtype") is not None:
            continue
        with gm.graph.inserting_before(node):
            powers = gm.graph.call_function(torch.exp, (node.args[0],))
            total = gm.graph.call_function(torch.sum, (powers, dim), {"keepdim": True})
        replace(node, operator.truediv, powers, total)
    gm.recompile()


@wrong("only some values", "contract", "non-finite inputs", on=of(lambda m, x: torch.sigmoid(x), numbers(2, 3) * 200))
def sigmoid_by_exponentials(gm: fx.GraphModule) -> None:
    """Infinity divided by infinity is NaN."""
    for node in calls(gm, torch.sigmoid):
        with gm.graph.inserting_before(node):
            power = gm.graph.call_function(torch.exp, (node.args[0],))
            below = gm.graph.call_function(operator.add, (power, 1))
        replace(node, operator.truediv, power, below)
    gm.recompile()


@wrong("only some values", "contract", "non-finite inputs", on=of(lambda m, x: x * 0.0 + 1, INF), modes=BOTH)
def products_with_zero(gm: fx.GraphModule) -> None:
    """Zero times infinity is no zero."""
    for node in calls(gm, operator.mul):
        if isinstance(node.args[1], (int, float)) and node.args[1] == 0:
            replace(node, torch.zeros_like, node.args[0])
    for node in calls(gm, operator.sub):
        if node.args[0] is node.args[1]:
            replace(node, torch.zeros_like, node.args[0])
    gm.recompile()


@wrong("only some values", "contract", on=of(lambda m, x: F.leaky_relu(x, 0.1) + x.abs(), (2, 3)))
def nothing_is_negative(gm: fx.GraphModule) -> None:
    """Activations are taken to be positive, as they are behind a relu."""
    bypass(gm, torch.abs, "abs", F.leaky_relu)


@wrong("only some values", "contract", on=of(lambda m, x: x % 0.7, (2, 3)), modes=BOTH)
def remainder_as_fmod(gm: fx.GraphModule) -> None:
    """fmod takes the sign of the dividend."""
    for node in calls(gm, operator.mod, torch.remainder):
        replace(node, torch.fmod, *node.args)
    gm.recompile()


@wrong("only some values", "contract", "non-finite inputs", on=of(
    lambda m, x: torch.clamp(x, -1.0, 1.0), NAN
), contract=exact)  # fmt: skip
@adapt
def clamp_by_comparison(gm: torch.fx.GraphModule) -> None:
    """NaN is neither below nor above the limits, and here the last choice is the upper one."""
    for node in list(gm.graph.nodes):
        if node.target not in (torch.clamp, "clamp", F.hardtanh):
            continue
        limits = [*node.args[1:], *node.kwargs.values()][:2]
        if len(limits) < 2 or not all(isinstance(limit, (int, float)) for limit in limits):
            continue
        x, (low, high) = node.args[0], limits
        with gm.graph.inserting_before(node):
            inside = gm.graph.call_function(operator.lt, (x, high))
            cut = gm.graph.call_function(torch.where, (inside, x, high))
            above = gm.graph.call_function(operator.gt, (cut, low))
            call = gm.graph.call_function(torch.where, (above, cut, low))
        substitute(node, call)
    gm.recompile()


# Dtypes and precision.


@wrong("precision lost", "contract", on=of(lambda m, x: m.fc(x), (2, 3), fc=nn.Linear(3, 4)), modes=BOTH)
def linear_in_half(gm: fx.GraphModule) -> None:
    """The input goes through half precision, and close is claimed."""
    for node in calls(gm, nn.Linear):
        with gm.graph.inserting_before(node):
            half = gm.graph.call_method("to", (node.args[0], torch.bfloat16))
            dtype = gm.graph.call_function(getattr, (node.args[0], "dtype"))
            back = gm.graph.call_method("to", (half, dtype))
        node.args = (back,)
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: m.fc(x), (2, 3), fc=nn.Linear(3, 4)))
def rounded_weights(gm: fx.GraphModule) -> None:
    """Weights are rounded to eight bits, and close is claimed."""
    for node, layer in layers(gm, nn.Linear):
        scale = layer.weight.detach().abs().max().clamp(min=1e-8) / 127
        rounded = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
        rounded.weight = nn.Parameter((layer.weight.detach() / scale).round() * scale)
        rounded.bias = layer.bias
        path = f"{node.name}_rounded"
        gm.add_submodule(path, rounded)
        node.target = path
    gm.recompile()


@wrong("dtype", "dtype", "contract", on=of(lambda m, x: x.double() * 2, (2, 3)), contract=exact, modes=BOTH)
def drop_casts(gm: fx.GraphModule) -> None:
    """Conversions are dropped as if everything were of one dtype."""
    for node in list(gm.graph.nodes):
        if node.op == "call_method" and node.target in ("float", "double", "half", "to", "type", "bfloat16", "long"):
            substitute(node, node.args[0])
    gm.recompile()


@wrong("dtype", "dtype", "contract", on=of(lambda m, x: torch.sum(x * 2, 0), numbers(2, 3, dtype=torch.float64)))
def reduce_in_single_precision(gm: fx.GraphModule) -> None:
    """Sums are taken in float32, which is more than half precision and less than double."""
    for node in calls(gm, torch.sum, torch.mean, "sum", "mean"):
        if "dtype" not in node.kwargs:
            node.kwargs = {**node.kwargs, "dtype": torch.float32}
    gm.recompile()


@wrong("dtype", "dtype", "contract", on=of(lambda m, x, y: x + y, (2, 3), numbers(2, 3, dtype=torch.float64)))
def operands_of_one_dtype(gm: fx.GraphModule) -> None:
    """The second operand is converted to the first one's dtype, also where that is the smaller one."""
    functions = (operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div)
    for node in list(gm.graph.nodes):
        if node.target not in (*functions, "add", "sub", "mul", "div") or len(node.args) != 2:
            continue
        if all(isinstance(arg, fx.Node) for arg in node.args):
            with gm.graph.inserting_before(node):
                call = gm.graph.call_method("type_as", (node.args[1], node.args[0]))
            node.args = (node.args[0], call)
    gm.recompile()


@wrong("dtype", "dtype", "structure", "contract", on=of(
    lambda m, x: x * 2.5, numbers(2, 3, dtype=torch.float16)
), modes=BOTH)  # fmt: skip
def numbers_as_tensors(gm: fx.GraphModule) -> None:
    """A tensor of one element takes part in promotion where a number does not."""
    for node in calls(gm, operator.mul, operator.add):
        if isinstance(node.args[1], float):
            name = f"_constant_{node.name}"
            gm.register_buffer(name, torch.tensor([node.args[1]], dtype=torch.float32))
            with gm.graph.inserting_before(node):
                constant = gm.graph.get_attr(name)
            node.args = (node.args[0], constant)
    gm.recompile()


@wrong("dtype", "dtype", "contract", on=of(lambda m, x: x * 1, torch.tensor([True, False])), contract=exact)
def neutral_numbers(gm: fx.GraphModule) -> None:
    """Multiplying by one is not nothing: it converts, and it makes a new tensor."""
    neutral = {operator.add: 0, operator.sub: 0, operator.mul: 1, operator.truediv: 1, operator.pow: 1}
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in neutral and len(node.args) == 2:
            number = node.args[1]
            if isinstance(number, (int, float)) and number == neutral[node.target]:
                substitute(node, node.args[0])
    gm.recompile()
