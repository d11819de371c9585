"""Passes on ATen, in three forms, on a small model in which every fault shows: 6 right and 6 wrong ones of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

aten = torch.ops.aten


class Net(nn.Module):
    """Convolution and batch norm, sums with factors, reshapes, a counter, and a write to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, eps=0.1)
        self.linear = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return three tensors of different values and equal shapes."""
        self.calls.add_(1)
        seen.add_(1)
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        flat = features.reshape(x.size(0), -1) * 1
        scaled = torch.add(flat, features, alpha=3) / 4
        return self.linear(scaled), self.linear(torch.sub(1, flat)), self.linear(flat) + self.calls.sum()


def net() -> Any:
    """A model in evaluation mode."""
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.norm.running_var.fill_(0.2)
        model.norm.running_mean.fill_(0.1)
    return model, (torch.randn(3, 2, 6, 6), torch.zeros(3))


class Elementwise(nn.Module):
    """Expressions that Inductor's patterns look for."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return one tensor for each of them."""
        return (
            torch.relu(x) + 1,
            x * 2 + y,
            torch.nn.functional.gelu(y),
            x / (y.abs() + 0.001),
            torch.sigmoid(x) * x,
            (x * y).sum(-1),
            (x - y) - x,
        )


def elementwise() -> Any:
    """A model without state."""
    torch.manual_seed(0)
    return Elementwise(), (torch.randn(4, 5), torch.randn(4, 5))


def _calls(graph: torch.fx.Graph, *targets: Any) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target in targets]


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, target: Any, *args: Any) -> torch.fx.Node:
    with graph.inserting_before(node):
        call = graph.call_function(target, args)
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)
    return call


# On torch.fx.GraphModule.


def right_clamp(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """ReLU is a clamp."""
    for node in _calls(graph_module.graph, aten.relu.default):
        _replace(graph_module.graph, node, aten.clamp_min.default, node.args[0], 0)
    graph_module.recompile()
    return graph_module


def right_no_factor(graph_module: torch.fx.GraphModule) -> None:
    """A product with 1 is the value."""
    for node in _calls(graph_module.graph, aten.mul.Tensor):
        if node.args[1] == 1:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def right_product(graph_module: torch.fx.GraphModule) -> None:
    """A division by 4 is a product, bit by bit."""
    for node in _calls(graph_module.graph, aten.div.Tensor):
        if node.args[1] == 4:
            _replace(graph_module.graph, node, aten.mul.Tensor, node.args[0], 0.25)


def right_subtraction(graph_module: torch.fx.GraphModule) -> None:
    """A difference is a sum with the negative."""
    for node in _calls(graph_module.graph, aten.sub.Tensor):
        with graph_module.graph.inserting_before(node):
            negative = graph_module.graph.call_function(aten.neg.default, (node.args[1],))
        _replace(graph_module.graph, node, aten.add.Tensor, negative, node.args[0])


def right_addmm(graph_module: torch.fx.GraphModule) -> None:
    """A linear layer on a matrix is ``addmm``."""
    graph = graph_module.graph
    for node in _calls(graph, aten.linear.default):
        x, weight, bias = node.args
        with graph.inserting_before(node):
            turned = graph.call_function(aten.t.default, (weight,))
        _replace(graph, node, aten.addmm.default, bias, x, turned)


def right_fold(graph_module: torch.fx.GraphModule) -> None:
    """Fold a batch norm into the convolution before it, with ``eps``."""
    _fold(graph_module, with_eps=True)


def _fold(graph_module: torch.fx.GraphModule, with_eps: bool) -> None:
    graph = graph_module.graph
    for node in _calls(graph, aten.batch_norm.default):
        conv, gamma, beta, mean, var, training, _, eps, _ = node.args
        if training or conv.target is not aten.conv2d.default:
            continue
        weight, bias, gamma, beta, mean, var = (
            graph_module.get_parameter(each.target)
            if "running" not in each.target
            else graph_module.get_buffer(each.target)
            for each in (conv.args[1], conv.args[2], gamma, beta, mean, var)
        )
        factor = gamma / torch.sqrt(var + (eps if with_eps else 0))
        graph_module.folded_weight = nn.Parameter((weight * factor.reshape(-1, 1, 1, 1)).detach())
        graph_module.folded_bias = nn.Parameter(((bias - mean) * factor + beta).detach())
        with graph.inserting_before(conv):
            new = [graph.get_attr("folded_weight"), graph.get_attr("folded_bias")]
        conv.args = (conv.args[0], *new, *conv.args[3:])
        node.replace_all_uses_with(conv)
        graph.erase_node(node)
    graph_module.recompile()


def wrong_clamp(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """ReLU is no clamp at a hundredth."""
    for node in _calls(graph_module.graph, aten.relu.default):
        _replace(graph_module.graph, node, aten.clamp_min.default, node.args[0], 0.01)
    return graph_module


def wrong_alpha(graph_module: torch.fx.GraphModule) -> None:
    """``alpha`` is lost."""
    for node in _calls(graph_module.graph, aten.add.Tensor):
        node.kwargs = {}


def wrong_batch(graph_module: torch.fx.GraphModule) -> None:
    """The number of samples of the example is built in."""
    for node in _calls(graph_module.graph, aten.reshape.default):
        node.args = (node.args[0], [3, -1])


def wrong_counter(graph_module: torch.fx.GraphModule) -> None:
    """The counter is read, and no longer written."""
    for node in _calls(graph_module.graph, aten.add_.Tensor):
        if node.args[0].op == "get_attr":
            node.target = aten.add.Tensor


def wrong_fold(graph_module: torch.fx.GraphModule) -> None:
    """Fold a batch norm without ``eps``."""
    _fold(graph_module, with_eps=False)


def wrong_gradient(graph_module: torch.fx.GraphModule) -> None:
    """No gradient flows back from here."""
    for node in _calls(graph_module.graph, aten.mean.dim):
        with graph_module.graph.inserting_after(node):
            constant = graph_module.graph.call_function(aten.detach.default, (node,))
        node.replace_all_uses_with(constant, lambda user, constant=constant: user is not constant)


# On torch.export.ExportedProgram.


def right_exported_clamp(exported: ExportedProgram) -> ExportedProgram:
    """ReLU is a clamp."""
    right_clamp(exported.graph_module)
    return exported


def right_exported_product(exported: ExportedProgram) -> None:
    """A division by 4 is a product; the program is edited."""
    right_product(exported.graph_module)


def right_exported_factor(exported: ExportedProgram) -> ExportedProgram:
    """A product with 1 is the value."""
    right_no_factor(exported.graph_module)
    return exported


def right_decomposed(exported: ExportedProgram) -> ExportedProgram:
    """Torch's own decompositions."""
    return exported.run_decompositions()


def right_permute(exported: ExportedProgram) -> ExportedProgram:
    """A permutation of two dimensions is a transposition."""
    for node in _calls(exported.graph, aten.permute.default):
        if list(node.args[1]) == [1, 0]:
            _replace(exported.graph, node, aten.transpose.int, node.args[0], 0, 1)
    return exported


def right_moved_constant(exported: ExportedProgram) -> ExportedProgram:
    """The mean is a sum and a division by the number of elements."""
    for node in _calls(exported.graph, aten.mean.dim):
        with exported.graph.inserting_before(node):
            total = exported.graph.call_function(aten.sum.dim_IntList, node.args)
        total.meta = dict(node.meta)
        _replace(exported.graph, node, aten.div.Tensor, total, 16)
    return exported


def wrong_exported_clamp(exported: ExportedProgram) -> ExportedProgram:
    """ReLU is no clamp at a hundredth."""
    wrong_clamp(exported.graph_module)
    return exported


def wrong_lost_counter(exported: ExportedProgram) -> ExportedProgram:
    """The counter keeps its value, as the signature states."""
    return _without_writes(exported, OutputKind.BUFFER_MUTATION)


def wrong_lost_write(exported: ExportedProgram) -> ExportedProgram:
    """An input keeps its value."""
    return _without_writes(exported, OutputKind.USER_INPUT_MUTATION)


def _without_writes(exported: ExportedProgram, kind: OutputKind) -> ExportedProgram:
    specs = exported.graph_signature.output_specs
    places = [place for place, spec in enumerate(specs) if spec.kind is not kind]
    output = exported.graph.output_node()
    output.args = (tuple(output.args[0][place] for place in places),)
    exported.graph_signature.output_specs[:] = [specs[place] for place in places]
    return exported


def wrong_order(exported: ExportedProgram) -> None:
    """Two results are swapped."""
    output = exported.graph.output_node()
    *first, second, last = output.args[0]
    output.args = ((*first, last, second),)


def wrong_weight(exported: ExportedProgram) -> None:
    """The model's own weights are written to."""
    with torch.no_grad():
        exported.state_dict["linear.weight"].mul_(2)


def wrong_half(exported: ExportedProgram) -> ExportedProgram:
    """The result of a layer has the digits of half precision."""
    for node in _calls(exported.graph, aten.linear.default):
        with exported.graph.inserting_after(node):
            half = exported.graph.call_function(aten.to.dtype, (node, torch.float16))
            back = exported.graph.call_function(aten.to.dtype, (half, torch.float32))
        node.replace_all_uses_with(back, lambda user, half=half: user is not half)
        half.meta, back.meta = dict(node.meta), dict(node.meta)
    return exported


# Sets of patterns of Inductor.


def _patterns(pattern: Any, replacement: Any, count: int = 1) -> PatternMatcherPass:
    patterns = PatternMatcherPass()
    register_replacement(pattern, replacement, [torch.randn(4, 5) for _ in range(count)], fwd_only, patterns)
    return patterns


right_pattern_clamp = _patterns(lambda x: torch.relu(x) + 1, lambda x: torch.clamp(x, min=0) + 1)
right_pattern_sum = _patterns(lambda x, y: x * 2 + y, lambda x, y: y + x + x, 2)
right_pattern_silu = _patterns(lambda x: torch.sigmoid(x) * x, lambda x: x / (1 + torch.exp(-x)))
right_pattern_dot = _patterns(lambda x, y: (x * y).sum(-1), lambda x, y: (x * y).mean(-1) * 5, 2)
right_pattern_quotient = _patterns(
    lambda x, y: x / (y.abs() + 0.001), lambda x, y: x * torch.reciprocal(y.abs() + 0.001), 2
)
right_pattern_negative = _patterns(lambda x: torch.relu(x), lambda x: torch.maximum(x, torch.zeros_like(x)))

wrong_pattern_clamp = _patterns(lambda x: torch.relu(x) + 1, lambda x: torch.clamp(x, min=0.01) + 1)
wrong_pattern_factor = _patterns(lambda x, y: x * 2 + y, lambda x, y: x + y * 2, 2)
wrong_pattern_gelu = _patterns(
    lambda x: torch.nn.functional.gelu(x), lambda x: torch.nn.functional.gelu(x, approximate="tanh")
)
wrong_pattern_epsilon = _patterns(lambda x, y: x / (y.abs() + 0.001), lambda x, y: x / y.abs(), 2)
wrong_pattern_silu = _patterns(lambda x: torch.sigmoid(x) * x, lambda x: torch.relu(x))
wrong_pattern_dimension = _patterns(lambda x, y: (x * y).sum(-1), lambda x, y: (x * y)[:, 1:].sum(-1) + x[:, 0], 2)
