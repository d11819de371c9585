"""Passes that are right: the harness must not flag one of them on any program."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.errors import PassError
from fx.interop import adapt
from fx.passes import Contract, Edit, RewritingPass, exact

from .rows import EVAL, calls, fetched, folded, layers, of, replace, retarget, right, settled, substitute

activations = of(lambda m, x: m.b(torch.relu(m.a(x)).tanh()) * 2, (2, 3), a=nn.Sigmoid(), b=nn.ReLU())
methods = of(lambda m, x: x.relu().permute(1, 0).flatten() + x.sigmoid().t().flatten(), (2, 3))
network = of(
    lambda m, x: m.head(m.drop(m.net(x))),
    (2, 2, 4, 4),
    net=nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), settled(nn.BatchNorm2d(3)), nn.ReLU(), nn.Flatten()),
    head=nn.Sequential(nn.Linear(12, 4), nn.Identity(), nn.Linear(4, 2, bias=False)),
    drop=nn.Dropout(),
)
arithmetic = of(lambda m, x, y: (x - 2) * 3 + y.pow(2) + torch.relu(torch.relu(x + 1)), (2, 3), (3,))
sizes = of(lambda m, x: x.reshape(x.size(0), -1) + x.size(-1), (2, 3, 2))
permutes = of(lambda m, x: x.permute(1, 2, 0).permute((0, -1, 1)) * 2, (2, 3, 4))


def plain(nodes: Any) -> list[Any]:
    """Those calls that have one argument, which is given by position."""
    firsts = [node[0] if isinstance(node, tuple) else node for node in nodes]
    return [node for node in firsts if len(node.args) == 1 and not node.kwargs]


# Other spellings of the same call.


@right(activations, methods, contract=exact)
def methods_as_functions(gm: fx.GraphModule) -> None:
    """Methods that are the same function of torch are called as that."""
    for name in ("relu", "sigmoid", "tanh", "exp", "abs", "softmax"):
        for node in calls(gm, name):
            replace(node, getattr(torch, name), *node.args, **node.kwargs)
    gm.recompile()


@right(activations, arithmetic, contract=exact)
@adapt
def functions_as_methods(gm: torch.fx.GraphModule) -> None:
    """Functions of one tensor are called as its methods."""
    for node in plain(gm.graph.nodes):
        if node.target in (torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.abs):
            node.op, node.target = "call_method", node.target.__name__
    gm.recompile()


@right(activations, network, contract=exact)
def activations_by_function(gm: fx.GraphModule) -> None:
    """Activation modules that do not write in place become functions."""
    for node, layer in layers(gm, nn.ReLU):
        if not layer.inplace:
            replace(node, torch.relu, *node.args, **node.kwargs)
    for kind, function in ((nn.Sigmoid, torch.sigmoid), (nn.Tanh, torch.tanh)):
        for node in calls(gm, kind):
            replace(node, function, *node.args, **node.kwargs)
    gm.recompile()


@dataclass(frozen=True)
class ReluByName:
    """The two functions called relu are one where nothing is written in place."""

    functional: bool = True
    """Whether the relu of torch.nn.functional is the one to keep."""

    def __call__(self, gm: fx.GraphModule) -> fx.GraphModule:
        old, new = (torch.relu, F.relu) if self.functional else (F.relu, torch.relu)
        for node in plain(calls(gm, old)):
            node.target = new
        gm.recompile()
        return gm


right(activations, arithmetic, contract=exact)(ReluByName())


@right(network, of(lambda m, x: m.fc(x) + m.fc(x), (3,), fc=nn.Linear(3, 3)), contract=exact)
def linear_by_function(gm: fx.GraphModule) -> None:
    """Linear layers become functions of the same parameters."""
    for node in plain(layers(gm, nn.Linear)):
        weight, bias = fetched(gm, node, "weight", "bias")
        replace(node, F.linear, *node.args, weight, bias)
    gm.recompile()


@right(network, contract=exact)
def conv_with_all_settings(gm: fx.GraphModule) -> None:
    """Convolutions that pad with zeros become functions with all their settings."""
    for node in plain(layers(gm, nn.Conv2d)):
        conv = gm.get_submodule(node.target)
        if conv.padding_mode == "zeros":
            weight, bias = fetched(gm, node, "weight", "bias")
            settings = (conv.stride, conv.padding, conv.dilation, conv.groups)
            replace(node, F.conv2d, *node.args, weight, bias, *settings)
    gm.recompile()


@right(sizes, contract=exact)
def sizes_by_shape(gm: fx.GraphModule) -> None:
    """x.size(d) is read from x.shape, at the same place."""
    for node in calls(gm, "size"):
        if len(node.args) == 2 and not node.kwargs:
            with gm.graph.inserting_before(node):
                shape = gm.graph.call_function(getattr, (node.args[0], "shape"))
            replace(node, operator.getitem, shape, node.args[1])
    gm.recompile()


@right(arithmetic, of(lambda m, x: x.pow(2) + 1, (3,)), contract=exact)
def square_by_function(gm: fx.GraphModule) -> None:
    """The second power is a square."""
    for node in calls(gm, "pow"):
        if len(node.args) == 2 and type(node.args[1]) is int and node.args[1] == 2:
            replace(node, torch.square, node.args[0])
    gm.recompile()


@right(of(lambda m, x: torch.cat([x, x + 1], 1), (2, 3)), contract=exact)
def cat_by_its_other_name(gm: fx.GraphModule) -> None:
    """torch.cat and torch.concat are the same."""
    retarget(gm, torch.cat, torch.concat)


# Arithmetic.


@right(arithmetic, contract=exact)
def constants_first(gm: fx.GraphModule) -> None:
    """Numbers are added and multiplied from the left, which is the same to the bit."""
    for kind in (operator.add, operator.mul):
        for node in calls(gm, kind):
            if type(node.args[1]) in (int, float) and isinstance(node.args[0], fx.Node):
                node.args = (node.args[1], node.args[0])
    gm.recompile()


@right(arithmetic, contract=exact)
@adapt
def subtract_by_adding(gm: torch.fx.GraphModule) -> None:
    """Subtracting an integer is adding its negative."""
    for node in gm.graph.nodes:
        if node.target is operator.sub and type(node.args[1]) is int and node.args[1] > 0:
            node.target, node.args = operator.add, (node.args[0], -node.args[1])
    gm.recompile()


@right(network, of(lambda m, x: m.fc(x), (3,), fc=nn.Linear(3, 3)))
def linear_by_matmul(gm: fx.GraphModule) -> None:
    """A linear layer is a product and a sum, whatever the rank of its input."""
    for node in plain(layers(gm, nn.Linear)):
        layer = gm.get_submodule(node.target)
        with gm.graph.inserting_before(node):
            transposed = gm.graph.call_function(torch.t, (gm.graph.get_attr(f"{node.target}.weight"),))
            product = gm.graph.call_function(torch.matmul, (node.args[0], transposed))
            bias = None if layer.bias is None else gm.graph.get_attr(f"{node.target}.bias")
        product.meta = dict(node.meta)
        if bias is None:
            substitute(node, product)
        else:
            replace(node, torch.add, product, bias)
    gm.recompile()


@right(arithmetic, contract=exact)
def relu_once(gm: fx.GraphModule) -> None:
    """A relu of a relu that nothing else uses is one relu."""
    for node in plain(calls(gm, torch.relu)):
        inner = node.args[0]
        if inner.target is torch.relu and len(inner.users) == 1:  # the inner one stays: writes may come between
            substitute(node, inner)
    gm.recompile()


@right(permutes, contract=exact)
def compose_permutes_rightly(gm: fx.GraphModule) -> None:
    """Two permutations are one."""

    def order(node: Any) -> list[int]:
        dims = node.args[1] if isinstance(node.args[1], (list, tuple)) else node.args[1:]
        return [dim % len(dims) for dim in dims]

    for node in calls(gm, "permute"):
        inner = node.args[0]
        literal = all(isinstance(n, fx.Node) and len(n.all_input_nodes) == 1 and not n.kwargs for n in (node, inner))
        if literal and inner.op == "call_method" and inner.target == "permute" and len(inner.users) == 1:
            first = order(inner)
            inner.args = (inner.args[0], *(first[dim] for dim in order(node)))
            substitute(node, inner)
    gm.recompile()


# Layers.


@right(network, contract=exact)
def drop_dropout_in_evaluation(gm: fx.GraphModule) -> None:
    """A dropout that is in evaluation mode returns its input."""
    for node in plain(layers(gm, nn.Dropout)):
        if not gm.get_submodule(node.target).training:
            substitute(node, node.args[0])
    gm.recompile()


@right(network, contract=exact)
def drop_identities(gm: fx.GraphModule) -> None:
    """Identities are left out, and their modules where nothing calls them any more."""
    for node in plain(layers(gm, nn.Identity)):
        substitute(node, node.args[0])
    gm.delete_all_unused_submodules()
    gm.recompile()


@right(network, modes=EVAL)
def fold_norm_with_care(gm: fx.GraphModule) -> None:
    """A batch norm is folded into a copy of a layer that it alone uses, in evaluation mode."""
    if any(node.op == "get_attr" for node in gm.graph.nodes):  # the program may write to the folded tensors
        return
    for node in plain(layers(gm, nn.BatchNorm2d)):
        source, norm = node.args[0], gm.get_submodule(node.target)
        conv = gm.get_submodule(source.target) if source.op == "call_module" else None
        if type(conv) is not nn.Conv2d or len(source.users) > 1 or norm.training or norm.running_var is None:
            continue
        if conv.weight.dtype != norm.running_var.dtype or conv.weight.dtype not in (torch.float32, torch.float64):
            continue
        gm.add_submodule(f"_folded_{node.name}", folded(conv, norm))
        source.target = f"_folded_{node.name}"
        substitute(node, source)
    gm.delete_all_unused_submodules()
    gm.recompile()


@right(network, contract=exact)
def observe_linear(gm: fx.GraphModule) -> None:
    """An identity that an observer could replace follows each linear layer."""
    for node in calls(gm, nn.Linear):
        gm.add_submodule(f"_observer_{node.name}", nn.Identity())
        with gm.graph.inserting_after(node):
            call = gm.graph.call_module(f"_observer_{node.name}", (node,))
        node.replace_all_uses_with(call, delete_user_cb=lambda user, made=call: user is not made)
    gm.recompile()


# Whole programs.


@right(arithmetic, network, contract=exact)
def rename_values(gm: fx.GraphModule) -> None:
    """Values get new names."""
    names = {node.name for node in gm.graph.nodes}
    for number, node in enumerate(gm.graph.nodes):
        if node.op.startswith("call") and f"value_{number}" not in names:
            node.name = f"value_{number}"
    gm.recompile()


@right(arithmetic, contract=exact)
def copy_the_program(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the program is edited, and the program left alone."""
    copied = copy.deepcopy(gm)
    for node in plain(calls(copied, torch.relu)):
        replace(node, F.relu, *node.args)
    copied.recompile()
    return copied


@right(of(lambda m, x: (torch.relu(x), x.sum(), x * 2)[2], (3,)), contract=exact)
def drop_dead_code(gm: fx.GraphModule) -> None:
    """Unused operations without effects are removed."""
    gm.graph.eliminate_dead_code()
    gm.recompile()


@dataclass(frozen=True)
class ReluSteps(RewritingPass):
    """Edits are announced one by one, and a relu becomes a method."""

    contract: ClassVar[Contract] = exact

    def rewrites(self, graph_module: fx.GraphModule) -> Any:
        for node in plain(calls(graph_module, torch.relu)):
            yield Edit(f"{node} becomes a method", node.source)
            node.op, node.target = "call_method", "relu"


right(activations, arithmetic, contract=exact)(ReluSteps())


@right(arithmetic, contract=exact)
def refuse_convolutions(gm: fx.GraphModule) -> None:
    """Programs with convolutions are refused as a pass should; in others relu is spelled differently."""
    if layers(gm, nn.Conv2d):
        raise PassError("programs with convolutions are not supported", remedy="take them apart first")
    for node in plain(calls(gm, torch.relu)):
        node.target = F.relu
    gm.recompile()


@right(activations, of(lambda m, x: m.t(x) + x.tanh(), (5,), t=nn.Tanh()), contract=exact)
def tanh_by_pattern(gm: fx.GraphModule) -> None:
    """Every spelling of tanh becomes a function, found as a pattern."""

    def pattern(x: Any) -> Any:
        return x.tanh()

    def replacement(x: Any) -> Any:
        return torch.tanh(x)

    fx.replace_pattern(gm, pattern, replacement)


@right(activations, arithmetic, contract=exact)
def through_a_transformer(gm: fx.GraphModule) -> fx.GraphModule:
    """Every node is visited and made again by an interpreter."""

    class Respell(fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(F.relu if target is torch.relu else target, args, kwargs)

    return Respell(gm).transform()
