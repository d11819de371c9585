"""Products of matrices, sums with factors, quotients, and numbers that change nothing."""

import torch

from ...rows import fault, replace, sound
from . import ROUND, aten, calls, decomposed, done, is_call, value


@fault(ROUND, "dropped keyword", wrong="beta scales the matrix that is added.")
def open_baddbmm(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The accelerator has no fused product and sum of batches: bmm, then add."""
    for node in calls(gm.graph, aten.baddbmm.default):
        bias, first, second = node.args
        with gm.graph.inserting_before(node):
            product = gm.graph.call_function(aten.bmm.default, (first, second))
            scaled = gm.graph.call_function(aten.mul.Tensor, (product, node.kwargs.get("alpha", 1)))
        replace(node, aten.add.Tensor, scaled, bias)
    return done(gm)


@sound(ROUND)
@decomposed
def open_plain_addmm(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A product and a sum instead of addmm without factors."""
    for node in calls(gm.graph, aten.addmm.default):
        bias, first, second = node.args
        if node.kwargs.get("beta", 1) == 1 and node.kwargs.get("alpha", 1) == 1:
            with gm.graph.inserting_before(node):
                product = gm.graph.call_function(aten.mm.default, (first, second))
            replace(node, aten.add.Tensor, product, bias)
    return done(gm)


@fault(ROUND, "dropped keyword", wrong="The factor of the subtrahend is lost.")
@decomposed
def differences_as_sums(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A difference of tensors is a sum with the negative."""
    for node in calls(gm.graph, aten.sub.Tensor):
        first, second = node.args
        if isinstance(first, torch.fx.Node) and isinstance(second, torch.fx.Node):
            with gm.graph.inserting_before(node):
                negative = gm.graph.call_function(aten.neg.default, (second,))
            replace(node, aten.add.Tensor, first, negative)
    return done(gm)


@sound(ROUND)
@decomposed
def floating_differences_as_sums(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A difference of floating tensors is a sum with the negative, times the same factor."""
    for node in calls(gm.graph, aten.sub.Tensor):
        first, second = node.args
        if isinstance(first, torch.fx.Node) and isinstance(second, torch.fx.Node):
            if not (value(first).is_floating_point() and value(second).is_floating_point()):
                continue
            with gm.graph.inserting_before(node):
                negative = gm.graph.call_function(aten.neg.default, (second,))
            replace(node, aten.add.Tensor, first, negative, **node.kwargs)
    return done(gm)


@fault(ROUND, "rounding mode", wrong="A quotient that is truncated rounds negative values up, not down.")
@decomposed
def rounded_quotients(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A quotient that is rounded is the floor of a quotient."""
    for node in calls(gm.graph, aten.div.Tensor_mode):
        if node.kwargs.get("rounding_mode") is not None and value(node).is_floating_point():
            with gm.graph.inserting_before(node):
                quotient = gm.graph.call_function(aten.div.Tensor, tuple(node.args))
            replace(node, aten.floor.default, quotient)
    return done(gm)


@sound(ROUND)
@decomposed
def truncated_quotients(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A floating quotient that is truncated is the truncated quotient."""
    for node in calls(gm.graph, aten.div.Tensor_mode):
        first, second = node.args
        operands = [each for each in node.args if isinstance(each, torch.fx.Node)]
        if node.kwargs.get("rounding_mode") == "trunc" and all(value(x).dtype == value(node).dtype for x in operands):
            if value(node).dtype in (torch.float32, torch.float64):
                with gm.graph.inserting_before(node):
                    quotient = gm.graph.call_function(aten.div.Tensor, (first, second))
                replace(node, aten.trunc.default, quotient)
    return done(gm)


truncated_quotients.may_change = ("gradients",)  # those at a divisor of 0


@fault(ROUND, "dtype", wrong="An integer tensor to the power of 1.0 is floating.")
@decomposed
def simplify_powers(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Squares are products, and a power of 1 is the value."""
    for node in calls(gm.graph, aten.pow.Tensor_Scalar):
        x, exponent = node.args
        if exponent == 2:
            replace(node, aten.mul.Tensor, x, x)
        elif exponent == 1:
            replace(node, aten.clone.default, x)
    return done(gm)


@sound(ROUND)
@decomposed
def simplify_powers_of_floats(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Squares are products, and a power of 1 is the value, for floating tensors."""
    for node in calls(gm.graph, aten.pow.Tensor_Scalar):
        x, exponent = node.args
        if not value(x).is_floating_point():
            continue
        if exponent == 2:
            replace(node, aten.mul.Tensor, x, x)
        elif exponent == 1:
            replace(node, aten.clone.default, x)
    return done(gm)


@fault(ROUND, "dtype", wrong="A full tensor takes part in the promotion of dtypes, a number does not.")
@decomposed
def full_tensors_as_numbers(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A product with a tensor of equal elements that broadcasts is one with the number."""
    for node in calls(gm.graph, aten.mul.Tensor):
        x, other = node.args
        if not is_call(other, aten.full.default, aten.full_like.default) or not isinstance(x, torch.fx.Node):
            continue
        if isinstance(other.args[1], torch.fx.Node) or value(x).shape != value(node).shape:
            continue
        node.args = (x, other.args[1])
    return done(gm)


@fault(ROUND, "negative zero", wrong="0 - 0 is 0, and the negative of 0 is -0, whose reciprocal is minus infinity.")
@decomposed
def differences_from_zero(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A difference from 0 is a negative."""
    for node in calls(gm.graph, aten.sub.Tensor, aten.rsub.Scalar):
        first, second = node.args[:2] if node.target is aten.sub.Tensor else (node.args[1], node.args[0])
        if not isinstance(first, torch.fx.Node) and first == 0 and not node.kwargs and len(node.args) == 2:
            if value(second).is_floating_point():
                replace(node, aten.neg.default, second)
    return done(gm)
