"""Passes of the first round on layers and their weights."""

import copy
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault


def _hooked(module):
    return any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


def _mergeable(wide, point):
    if type(wide) is not nn.Conv2d or type(point) is not nn.Conv2d or point.kernel_size != (1, 1):
        return False
    if wide.kernel_size[0] % 2 == 0 or wide.kernel_size[1] % 2 == 0 or wide.dilation != (1, 1):
        return False
    if wide.padding != (wide.kernel_size[0] // 2, wide.kernel_size[1] // 2) or point.padding != (0, 0):
        return False
    if wide.padding_mode != "zeros" or wide.weight.dtype != point.weight.dtype:
        return False
    if _hooked(wide) or _hooked(point):
        return False
    return all(
        getattr(wide, name) == getattr(point, name) for name in ("in_channels", "out_channels", "stride", "groups")
    )


def _like(wide, bias):
    return nn.Conv2d(
        wide.in_channels,
        wide.out_channels,
        wide.kernel_size,
        wide.stride,
        wide.padding,
        groups=wide.groups,
        bias=bias,
        device=wide.weight.device,
        dtype=wide.weight.dtype,
    ).requires_grad_(wide.weight.requires_grad)


def _centred(wide, point):
    rows, columns = wide.padding
    return wide.weight + F.pad(point.weight, (columns, columns, rows, rows))


@fault(
    1,
    "forgotten bias",
    "contract",
    "gradients",
    wrong="When the k x k convolution has no bias, the bias of the 1 x 1 convolution is lost.",
)
def reparam_branches(graph_module: fx.GraphModule) -> fx.GraphModule:
    """RepVGG at inference: a k x k convolution and a 1 x 1 convolution of the same input, added, are one convolution.

    The 1 x 1 weight goes into the centre of the other. Strided and grouped branches are merged as well.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if (
            node.op != "call_function"
            or node.target not in (operator.add, torch.add)
            or len(node.args) != 2
            or node.kwargs
        ):
            continue
        branches = [
            arg for arg in node.args if isinstance(arg, fx.Node) and arg.op == "call_module" and len(arg.users) == 1
        ]
        if len(branches) != 2 or branches[0].args != branches[1].args or {node.prev, node.prev.prev} != set(branches):
            continue
        first, second = branches
        if not _mergeable(modules.get(first.target), modules.get(second.target)):
            first, second = second, first
        wide, point = modules.get(first.target), modules.get(second.target)
        if not _mergeable(wide, point):
            continue
        with torch.no_grad():
            merged = _like(wide, bias=wide.bias is not None)
            merged.weight.copy_(_centred(wide, point))
            if wide.bias is not None:
                merged.bias.copy_(wide.bias if point.bias is None else wide.bias + point.bias)
        name = first.target.replace(".", "_") + "_merged"
        graph_module.add_submodule(name, merged)
        with graph.inserting_before(node):
            result = graph.call_module(name, first.args)
        node.replace_all_uses_with(result)
        for old in (node, first, second):
            graph.erase_node(old)
    graph_module.recompile()
    return graph_module


def _run_of_linears(node, modules):
    """The calls of linear layers on the same input that follow one another from here."""
    run = []
    while (
        node.op == "call_module"
        and type(modules.get(node.target)) is nn.Linear
        and len(node.args) == 1
        and not _hooked(modules[node.target])
        and (not run or node.args[0] is run[0].args[0])
    ):
        run.append(node)
        node = node.next
    return run


def _merged(layers):
    first = layers[0]
    result = nn.Linear(
        first.in_features,
        sum(layer.out_features for layer in layers),
        device=first.weight.device,
        dtype=first.weight.dtype,
    )
    with torch.no_grad():
        result.weight.copy_(torch.cat([layer.weight for layer in layers]))
        result.bias.copy_(
            torch.cat([torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias for layer in layers])
        )
    return result.requires_grad_(any(layer.weight.requires_grad for layer in layers))


@fault(
    1,
    "aliasing",
    "contract",
    "gradients",
    "aliasing",
    "checks",
    "calls in a row",
    wrong="The pieces of a split are views of one tensor, which autograd forbids to write in place, where each "
    "layer had a result of its own.",
)
def merge_parallel_linears(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Linear layers that read the same input (query, key, value; several heads) become one wide layer and a split."""
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    visited = set()
    for node in list(graph.nodes):
        run = [] if node in visited else _run_of_linears(node, modules)
        visited.update(run)
        if len(run) < 2:
            continue
        layers = [modules[call.target] for call in run]
        if len({layer.weight.dtype for layer in layers}) > 1:
            continue
        name = "_".join(call.target.replace(".", "_") for call in run) + "_merged"
        graph_module.add_submodule(name, _merged(layers))
        with graph.inserting_before(node):
            wide = graph.call_module(name, (node.args[0],))
            pieces = graph.call_method("split", (wide, [layer.out_features for layer in layers]), {"dim": -1})
            for index, call in enumerate(run):
                call.replace_all_uses_with(graph.call_function(operator.getitem, (pieces, index)))
        for call in run:
            graph.erase_node(call)
    graph_module.recompile()
    return graph_module


def _swaps(node):
    """Return whether a node exchanges the first two dimensions."""
    if not isinstance(node, fx.Node) or node.kwargs or len(node.args) != 3:
        return False
    called = (
        node.op == "call_method"
        and node.target == "transpose"
        or node.op == "call_function"
        and node.target is torch.transpose
    )
    return called and set(node.args[1:]) == {0, 1}


def _batch_first(module):
    result = copy.copy(module)
    result.batch_first = True
    return result


def _sequence(call):
    """The node that takes the sequence of outputs from the call, when it is transposed back."""
    for user in call.users:
        if user.op == "call_function" and user.target is operator.getitem and user.args[1] == 0:
            return user
    return None


@fault(
    1,
    "several users",
    "structure",
    "contract",
    wrong="The sequence of outputs may have readers besides the transpose back, which now get the batch where "
    "the time was.",
)
def rnn_batch_first(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A recurrent layer between two transposes of time and batch becomes one with `batch_first=True`, without them.

    States going in and out are laid out the same in both, so these stay.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        module = modules.get(node.target) if node.op == "call_module" else None
        if not isinstance(module, (nn.LSTM, nn.GRU, nn.RNN)) or module.batch_first or _hooked(module) or not node.args:
            continue
        before = node.args[0]
        if not _swaps(before) or len(before.users) != 1:
            continue
        outputs = _sequence(node)
        after = [user for user in outputs.users if _swaps(user)] if outputs else []
        if not after:
            continue
        name = node.target.replace(".", "_") + "_batch_first"
        graph_module.add_submodule(name, _batch_first(module))
        node.target = name
        node.args = (before.args[0], *node.args[1:])
        graph.erase_node(before)
        for back in after:
            back.replace_all_uses_with(outputs)
            graph.erase_node(back)
    graph_module.recompile()
    return graph_module
