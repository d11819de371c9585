"""Passes in the style of those that vLLM, ExecuTorch and users of Inductor ship, written before any of them was tried."""

import operator

import torch
from torch.export import ExportedProgram
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ...rows import fault, sound
from . import ROUND, argument, aten, calls, decomposed, done, is_call, value


@fault(
    ROUND,
    "wrong condition",
    wrong="A view may keep the last size and the number of elements, and change the other sizes.",
)
@decomposed
def remove_noop_reshapes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A view, reshape or expand to as many elements changes nothing."""
    for node in calls(gm.graph, aten.view.default, aten.expand.default, aten.repeat.default):
        if (
            value(node).numel() == value(node.args[0]).numel()
            and value(node).shape[-1:] == value(node.args[0]).shape[-1:]
        ):
            node.replace_all_uses_with(node.args[0])
    return done(gm)


@fault(ROUND, "wrong operand", wrong="The smaller part of the split is activated, but it need not be the first one.")
@decomposed
def silu_and_mul(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A gated activation of two halves of one tensor: slices of it are activated and multiplied."""
    for node in calls(gm.graph, aten.mul.Tensor):
        first, second = node.args
        if not all(is_call(each, aten.sigmoid.default, aten.slice.Tensor) for each in (first, second)):
            continue
        gates = [each for each in (first, second) if is_call(each, aten.sigmoid.default)]
        if len(gates) != 1:
            continue
        gate, up = gates[0], second if gates[0] is first else first
        half = gate.args[0]
        if not is_call(half, aten.slice.Tensor) or half.args[0] is not up.args[0]:
            continue
        size = value(half).shape[-1]
        if value(half).shape != value(up).shape:
            continue
        with gm.graph.inserting_before(node):
            first = gm.graph.call_function(aten.slice.Tensor, (half.args[0], -1, 0, size))
            second = gm.graph.call_function(aten.slice.Tensor, (half.args[0], -1, size, 2 * size))
            first.meta, second.meta = dict(half.meta), dict(up.meta)
            gated = gm.graph.call_function(aten.sigmoid.default, (first,))
            gated.meta = dict(gate.meta)
        node.args = (gated, second)
    return done(gm)


@fault(ROUND, "lost argument", wrong="A mean that keeps its dimensions has another shape than one that drops them.")
class ConvertMeanToSum(PassBase):
    """A mean over known sizes is a sum times a number, as some delegates want it."""

    def call(self, graph_module):
        modified = False
        for node in calls(graph_module.graph, aten.mean.dim):
            dims = node.args[1]
            shape = value(node.args[0]).shape
            if not dims or not all(type(size) is int for size in shape):
                continue
            count = 1
            for dim in dims:
                count *= shape[dim]
            with graph_module.graph.inserting_before(node):
                total = graph_module.graph.call_function(aten.sum.dim_IntList, (node.args[0], dims, len(dims) == 1))
                total.meta = dict(node.meta)
                scaled = graph_module.graph.call_function(aten.mul.Tensor, (total, 1.0 / count))
                scaled.meta = dict(node.meta)
            node.replace_all_uses_with(scaled)
            graph_module.graph.erase_node(node)
            modified = True
        graph_module.recompile()
        return PassResult(graph_module, modified)


@fault(
    ROUND, "wrong order", wrong="Rounding to an integer after a clamp differs from a clamp of the integer at the ends."
)
def fold_quantize_clamp(graph: torch.fx.Graph) -> None:
    """Post-grad pass: the clamp before a rounding moves behind it, where a kernel of int8 saturates."""
    for node in graph.find_nodes(op="call_function", target=aten.round.default):
        clamp = node.args[0]
        if not is_call(clamp, aten.clamp.default) or len(clamp.users) != 1:
            continue
        low, high = argument(clamp, 1, "min"), argument(clamp, 2, "max")
        with graph.inserting_before(node):
            rounded = graph.call_function(aten.round.default, (clamp.args[0],))
            rounded.meta = dict(node.meta)
        node.target, node.args = aten.clamp.default, (rounded, low, high)


@fault(ROUND, "tie", wrong="Topk need not return equal elements in the order in which a stable sort does.")
@decomposed
def topk_of_sorted(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The first parts of a descending sort are its topk."""
    for node in calls(gm.graph, aten.slice.Tensor):
        item = node.args[0]
        if not is_call(item, operator.getitem) or not is_call(item.args[0], aten.sort.default):
            continue
        sort = item.args[0]
        dim, descending = argument(sort, 1, "dim", -1), argument(sort, 2, "descending", False)
        start, end = argument(node, 2, "start", 0), argument(node, 3, "end")
        rank = value(item).dim()
        if (
            (argument(node, 1, "dim", 0) % rank) != dim % rank
            or start not in (0, None)
            or argument(node, 4, "step", 1) != 1
        ):
            continue
        if type(end) is not int or not 0 < end < value(item).shape[dim]:
            continue
        with gm.graph.inserting_before(node):
            top = gm.graph.call_function(aten.topk.default, (sort.args[0], end, dim, not descending))
            top.meta = {**sort.meta, "val": tuple(value(node) if place == item.args[1] else None for place in (0, 1))}
        node.target, node.args = operator.getitem, (top, item.args[1])
    return done(gm)


@fault(ROUND, "lost cast", wrong="A sum of float16 with float32 is float32 already, and that with an integer is not.")
def drop_casts_of_sums(exported: ExportedProgram) -> ExportedProgram:
    """A cast before an addition is not needed, as the addition promotes its operands itself."""
    for node in exported.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        for operand in node.all_input_nodes:
            if is_call(operand, aten._to_copy.default) and len(operand.kwargs) == 1 and len(node.all_input_nodes) == 2:
                other = next(each for each in node.all_input_nodes if each is not operand)
                if value(other).is_floating_point() and value(operand.args[0]).is_floating_point():
                    node.replace_input_with(operand, operand.args[0])
                    break
    exported.graph.eliminate_dead_code()
    return exported


drop_casts_of_sums.levels = ("decomposed",)


@sound(ROUND)
@decomposed
def remove_noop_expands(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """An expand to the shape that a value has is an alias of it."""
    for node in calls(gm.graph, aten.expand.default):
        if value(node).shape == value(node.args[0]).shape:
            node.target, node.args, node.kwargs = aten.alias.default, (node.args[0],), {}
    return done(gm)


@sound(ROUND)
class ConvertLastMeanToSum(PassBase):
    """A mean over the last dimension is a sum over it, divided by its size."""

    levels = ("decomposed",)

    def call(self, graph_module):
        modified = False
        for node in calls(graph_module.graph, aten.mean.dim):
            source = value(node.args[0])
            dims, keep = node.args[1], argument(node, 2, "keepdim", False)
            if node.kwargs or list(dims or ()) not in ([-1], [source.dim() - 1]) or not source.dtype.is_floating_point:
                continue
            size = source.shape[-1]
            if type(size) is not int:
                continue
            with graph_module.graph.inserting_before(node):
                total = graph_module.graph.call_function(aten.sum.dim_IntList, (node.args[0], [-1], keep))
                total.meta = dict(node.meta)
            node.target, node.args = aten.div.Tensor, (total, size)
            modified = True
        graph_module.recompile()
        return PassResult(graph_module, modified)


@sound(ROUND)
def clamp_as_max_and_min(graph: torch.fx.Graph) -> None:
    """Post-grad pass: a clamp by two numbers is a maximum and then a minimum."""
    for node in graph.find_nodes(op="call_function", target=aten.clamp.default):
        low, high = argument(node, 1, "min"), argument(node, 2, "max")
        if type(low) is not float or type(high) is not float or value(node).dtype != value(node.args[0]).dtype:
            continue
        with graph.inserting_before(node):
            above = graph.call_function(aten.clamp_min.default, (node.args[0], low))
            above.meta = dict(node.meta)
        node.target, node.args, node.kwargs = aten.clamp_max.default, (above, high), {}
