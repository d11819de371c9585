"""Twenty faults, each planted in one block: ten by passes of ``torch.fx``, ten by passes of ours.

Each is a mistake that engineers make. Beside it is the expected report: words of the printed operation that goes wrong,
and the user's line.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.nn import functional

from fx.passes import Edit, RewritingPass


@dataclass(frozen=True)
class Planted:
    """One fault."""

    model: str
    """The factory of its model, or a model of the zoo."""
    nodes: tuple[str, ...]
    """Words of the node that goes wrong first; more than one where either is right."""
    lines: tuple[str, ...]
    """The user's line that has to be named, likewise."""
    pass_: Callable[..., Any]


PLANTED: dict[str, Planted] = {}


def planted(model: str, node: str | tuple[str, ...], line: str | tuple[str, ...]) -> Callable[[Any], Any]:
    """Enter a fault by the name of its pass."""

    def enter(pass_: Any) -> Any:
        nodes, lines = ((each,) if isinstance(each, str) else each for each in (node, line))
        PLANTED[pass_.__name__] = Planted(model, nodes, lines, pass_)
        return pass_

    return enter


# Passes of torch.fx.


def _the(graph_module: torch.fx.GraphModule, target: Any) -> torch.fx.Node:
    """The only node that calls a function, or a method or module by its name."""
    (node,) = [node for node in graph_module.graph.nodes if node.target == target]
    return node


def _replace(node: torch.fx.Node, new: torch.fx.Node) -> None:
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    if not node.users:
        node.graph.erase_node(node)
    node.graph.owning_module.recompile()


def _replace_by_call(node: torch.fx.Node, function: Any, *args: Any, **kwargs: Any) -> None:
    with node.graph.inserting_after(node):
        new = node.graph.call_function(function, args, kwargs)
    _replace(node, new)


@planted("planted_models:convnext", "torch.nn.functional.gelu", "x = self.act(x)")
def approximate_gelu(graph_module: torch.fx.GraphModule) -> None:
    """A module becomes a function, with another formula."""
    node = _the(graph_module, "act")
    _replace_by_call(node, functional.gelu, *node.args, approximate="tanh")


@planted("planted_models:residual", "%conv2 = call_module[conv2]", "out = self.bn2(self.conv2(out))")
def fuse_with_default_epsilon(graph_module: torch.fx.GraphModule) -> None:
    """Batch norms are folded as if all of them had the default epsilon."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and isinstance(norm := modules[node.target], nn.BatchNorm2d):
            conv = modules[node.args[0].target]
            folded = nn.Conv2d(
                conv.in_channels, conv.out_channels, conv.kernel_size, padding=conv.padding, groups=conv.groups
            )
            factor = norm.weight * torch.rsqrt(norm.running_var + 1e-5)
            folded.weight = nn.Parameter((conv.weight * factor[:, None, None, None]).detach())
            folded.bias = nn.Parameter((norm.bias - norm.running_mean * factor).detach())
            setattr(graph_module, node.args[0].target, folded)
            _replace(node, node.args[0])


@planted("planted_models:squeeze_excite", "torch.conv2d", "gate = self.expand(squeezed)")
def convolve_without_bias(graph_module: torch.fx.GraphModule) -> None:
    """A layer becomes a function of its weight, and its bias is forgotten."""
    node = _the(graph_module, "expand")
    graph_module.weight_of_gate = graph_module.expand.weight
    with graph_module.graph.inserting_before(node):
        weight = graph_module.graph.get_attr("weight_of_gate")
    _replace_by_call(node, functional.conv2d, node.args[0], weight)


@planted("planted_models:attention", ("call_method[softmax]", "torch.softmax", "operator.truediv"), "weights = scores")
def softmax_over_queries(graph_module: torch.fx.GraphModule) -> None:
    """A softmax is taken apart, over another dimension."""

    def pattern(scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(dim=-1)

    def replacement(scores: torch.Tensor) -> torch.Tensor:
        exponentials = torch.exp(scores - scores.amax(-2, True))
        return exponentials / exponentials.sum(-2, True)

    torch.fx.replace_pattern(graph_module, pattern, replacement)


@planted("planted_models:in_place", "call_method[mul_]", "hidden.mul_(0.5)")
def clean_up(graph_module: torch.fx.GraphModule) -> None:
    """Remove as dead code, as torch.fx does, a statement that writes in place."""
    node = _the(graph_module, torch.sigmoid)
    with graph_module.graph.inserting_after(node):
        new = graph_module.graph.call_method("sigmoid", node.args)
    _replace(node, new)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


@planted("planted_models:inverted", ("operator.add", "torch.add"), "return x - out")
def capture_again(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The whole program is written anew, and a difference becomes a sum."""

    class Sums(torch.fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(operator.add if target is operator.sub else target, args, kwargs)

    return Sums(graph_module).transform()


@planted("planted_models:attention", "operator.mul", "hidden = functional.gelu(hidden)")
def decompose_gelu(graph_module: torch.fx.GraphModule) -> None:
    """A GELU becomes elementary operations, with the logistic approximation."""
    node = _the(graph_module, functional.gelu)
    with graph_module.graph.inserting_before(node):
        scaled = graph_module.graph.call_function(operator.mul, (node.args[0], 1.702))
        gate = graph_module.graph.call_function(torch.sigmoid, (scaled,))
    _replace_by_call(node, operator.mul, node.args[0], gate)


@planted("planted_models:squeeze_excite", "call_method[mean]", "squeezed = x.mean((2, 3), keepdim=True)")
def mean_of_rows(graph_module: torch.fx.GraphModule) -> None:
    """A mean over the image is taken of its first column only."""
    node = _the(graph_module, "mean")
    with graph_module.graph.inserting_before(node):
        column = graph_module.graph.call_function(operator.getitem, (node.args[0], (..., slice(0, 1))))
        new = graph_module.graph.call_method("mean", (column, (2, 3)), {"keepdim": True})
    _replace(node, new)


@planted("planted_models:inception", "torch.cat", "joined = torch.cat(")
def sort_branches(graph_module: torch.fx.GraphModule) -> None:
    """Branches are concatenated in another order."""
    node = _the(graph_module, torch.cat)
    by_one, three, five, pooled = node.args[0]
    _replace_by_call(node, torch.cat, [by_one, five, three, pooled], 1)


@planted("resnet_tiny", "%mul = call_function[torch.mul](%layer2_0_downsample_1, 1.01)", "else self.downsample(x)")
def rescale_projection(graph_module: torch.fx.GraphModule) -> None:
    """A new operation after one layer, as calibration leaves one."""
    node = _the(graph_module, "layer2.0.downsample.1")
    _replace_by_call(node, torch.mul, node, 1.01)


# Passes of ours.


def _read_instead(node, new):
    """Let the users of a node read another one, without telling the graph that it is a replacement."""
    for user in list(node.users):
        user.args = tuple(new if argument is node else argument for argument in user.args)
    node.graph.erase_node(node)


@planted("planted_models:residual", "%project = call_module[project]", "shortcut = self.norm(self.project(x))")
class FoldWithoutMean(RewritingPass):
    """A batch norm is folded, and its mean forgotten."""

    def rewrites(self, graph_module):
        for name, layer in (("bn1", "conv1"), ("norm", "project")):
            norm, conv = graph_module.get_submodule(name), graph_module.get_submodule(layer)
            (node,) = graph_module.graph.find_nodes(op="call_module", target=name)
            yield Edit(f"{name} into {layer}", node.source)
            folded = nn.utils.fuse_conv_bn_eval(conv, norm)
            if layer == "project":
                folded.bias = nn.Parameter(norm.bias.detach().clone())
            graph_module.add_submodule(layer, folded)
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)


@planted("planted_models:in_place", "call_method[relu_]", "hidden.relu_()")
class DropStatements(RewritingPass):
    """An unused statement is dropped, and it wrote in place."""

    def rewrites(self, graph_module):
        (node,) = graph_module.graph.find_nodes(op="call_method", target="relu_")
        yield Edit("relu_ is dead", node.source)
        graph_module.graph.erase_node(node)


@planted("planted_models:inverted", "operator.sub", "return x - out")
class SwapOperands(RewritingPass):
    """The operands of a difference are swapped."""

    def rewrites(self, graph_module):
        (node,) = graph_module.graph.find_nodes(op="call_function", target=operator.sub)
        yield Edit("operands in the order of their names", node.source)
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_function(operator.sub, node.args[::-1])
        _read_instead(node, new)


@planted("planted_models:convnext", "call_function[torch.matmul]", "x = self.down(x)")
class LinearToMatmul(RewritingPass):
    """A linear layer becomes a product of matrices, and its bias is forgotten."""

    def rewrites(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_module", target="down"):
            yield Edit(f"{node.target} becomes a product", node.source)
            with graph_module.graph.inserting_before(node):
                weight = graph_module.graph.get_attr(f"{node.target}.weight")
                turned = graph_module.graph.call_function(torch.t, (weight,))
                new = graph_module.graph.call_function(torch.matmul, (node.args[0], turned))
            _read_instead(node, new)


@planted(
    "planted_models:inception", ("torch.cat", "torch.relu"), ("joined = torch.cat(", "five = torch.relu(self.five(x))")
)
def merge_equal_branches(graph_module):
    """Two activations are taken for one, since the same function makes both."""
    _, three, five, _ = graph_module.graph.find_nodes(op="call_function", target=torch.cat)[0].args[0]
    five.replace_all_uses_with(three)
    graph_module.graph.erase_node(five)
    graph_module.recompile()


@planted("planted_models:attention", "call_method[transpose]", "scores = query @ key.transpose(-2, -1)")
class TransposeQueries(RewritingPass):
    """A transposition is made of the wrong dimensions, of a square matrix of heads and tokens."""

    def rewrites(self, graph_module):
        (node, *_) = graph_module.graph.find_nodes(op="call_method", target="transpose")
        yield Edit("transposed in memory", node.source)
        with graph_module.graph.inserting_before(node):
            flipped = graph_module.graph.call_function(torch.flip, (node.args[0], [-2]))
            new = graph_module.graph.call_method("transpose", (flipped, -2, -1))
        _read_instead(node, new)


@planted(
    "planted_models:squeeze_excite",
    ("call_module[reduce]", "torch.relu", "functional.relu"),
    "squeezed = self.reduce(squeezed)",
)
def fold_gain(graph_module):
    """A gain is moved into a layer, by its weight and not by its bias."""
    layer = graph_module.get_submodule("reduce")
    scaled = nn.Conv2d(8, 4, 1)
    scaled.weight = nn.Parameter(layer.weight.detach() * 2)
    scaled.bias = layer.bias
    graph_module.add_submodule("reduce", scaled)
    (node,) = graph_module.graph.find_nodes(op="call_module", target="expand")
    with graph_module.graph.inserting_before(node):
        halved = graph_module.graph.call_function(torch.mul, (node.args[0], 0.5))
    node.args = (halved,)
    graph_module.recompile()


@planted(
    "planted_models:in_place",
    ("call_method[relu_]", "torch.sigmoid"),
    ("hidden.relu_()", "gated = torch.sigmoid(hidden)"),
)
def write_earlier(graph_module):
    """A write in place is moved to where the value is made, before it is read."""
    (write,) = graph_module.graph.find_nodes(op="call_method", target="relu_")
    write.args[0].append(write)
    graph_module.recompile()


@planted("mlp", "torch.relu", "return self.layers(x)")
def other_activation(graph_module):
    """Every activation becomes the same one."""
    (node,) = graph_module.graph.find_nodes(op="call_module", target="layers.3")
    with graph_module.graph.inserting_before(node):
        new = graph_module.graph.call_function(torch.relu, node.args)
    node.replace_all_uses_with(new)
    graph_module.graph.erase_node(node)
    graph_module.recompile()


@planted(
    "transformer_encoder_small",
    "%add = call_function[operator.add](%tokens_1, %tokens_1)",
    "x = self.tokens(tokens) + self.positions",
)
def post_norm(graph_module):
    """A shortcut is added to the wrong value."""
    (node, *_) = graph_module.graph.find_nodes(op="call_function", target=operator.add)
    node.args = (node.args[0], node.args[0])
    graph_module.recompile()
