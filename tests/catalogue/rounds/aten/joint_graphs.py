"""Passes on the joint graph of forward and backward."""

import operator

import torch

from ...rows import fault, replace, sound
from . import ROUND, aten, calls, done, value


@fault(
    ROUND,
    "other results",
    form="joint",
    wrong="The third result is the reciprocal of the deviation, which the backward pass reads, not the variance.",
)
def statistics_of_layer_norms(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Statistics of layer norms by var_mean, so that they can be computed again in the backward pass."""
    for node in calls(joint.graph, aten.native_layer_norm.default):
        x, shape, _, _, eps = node.args
        dims = [*range(value(x).dim() - len(shape), value(x).dim())]
        with joint.graph.inserting_after(node):
            both = joint.graph.call_function(aten.var_mean.correction, (x, dims), {"correction": 0, "keepdim": True})
        for part in list(node.users):
            if part.args[1] == 1:
                replace(part, operator.getitem, both, 1)
            elif part.args[1] == 2:
                with joint.graph.inserting_before(part):
                    variance = joint.graph.call_function(operator.getitem, (both, 0))
                variance.meta = dict(part.meta)
                replace(part, aten.add.Tensor, variance, eps)
    return done(joint)


def _choose_gradients(joint, comparison):
    for node in calls(joint.graph, aten.threshold_backward.default):
        gradient, result, threshold = node.args
        if isinstance(threshold, torch.fx.Node):
            continue
        with joint.graph.inserting_before(node):
            passes = joint.graph.call_function(comparison, (result, threshold))
            zero = joint.graph.call_function(aten.full_like.default, (gradient, 0))
        replace(node, aten.where.self, passes, gradient, zero)
    return done(joint)


@fault(ROUND, "comparison", form="joint", wrong="At the threshold itself the gradient is 0.")
def gradients_from_threshold_on(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The gradient of a ReLU is chosen where its result is positive."""
    return _choose_gradients(joint, aten.ge.Scalar)


@sound(ROUND, form="joint")
def gradients_above_threshold(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The gradient of a ReLU is chosen where its result is above the threshold."""
    return _choose_gradients(joint, aten.gt.Scalar)
