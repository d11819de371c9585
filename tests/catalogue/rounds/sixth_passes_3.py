"""Wrong passes of the sixth round for fx, part 3."""

import operator

import torch
import torch.nn.functional as F

from ..rows import fault


def zero_pad_w17(node):
    """The four amounts of a constant padding by zero of an image, or None."""
    if node.op != "call_function" or node.target is not F.pad:
        return None
    arguments = dict(zip(("input", "pad", "mode", "value"), node.args), **node.kwargs)
    amounts = arguments.get("pad")
    if arguments.get("mode", "constant") != "constant" or arguments.get("value") not in (None, 0):
        return None
    if not isinstance(amounts, (tuple, list)) or len(amounts) != 4:
        return None
    return tuple(amounts) if all(isinstance(a, int) and a >= 0 for a in amounts) else None


def plain_conv_w17(module):
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return (
        type(module) is torch.nn.Conv2d
        and not hooks
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def candidates_w17(graph_module):
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or not plain_conv_w17(modules[node.target]) or len(node.args) != 1:
            continue
        amounts = zero_pad_w17(node.args[0])
        if amounts and len(node.args[0].users) == 1 and amounts[0] == amounts[1] and amounts[2] == amounts[3]:
            yield node, modules[node.target], amounts


def absorb_w17(graph_module, node, conv, padding):
    graph, pad = graph_module.graph, node.args[0]
    x = pad.args[0] if pad.args else pad.kwargs["input"]
    if pad.next is not node:
        return
    with graph.inserting_before(node):
        weight = graph.get_attr(node.target + ".weight")
        bias = None if conv.bias is None else graph.get_attr(node.target + ".bias")
        new = graph.call_function(F.conv2d, (x, weight, bias, conv.stride, padding, conv.dilation, conv.groups))
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    graph.erase_node(pad)


@fault(6, wrong="It forgot that F.pad lists the last dimension first, so that (2, 2, 1, 1) is 1 row and 2 columns.")
def absorb_padding(graph_module):
    """TF-style models pad before each convolution: symmetric zero padding becomes the convolution's own."""
    for node, conv, amounts in candidates_w17(graph_module):
        padding = (conv.padding[0] + amounts[0], conv.padding[1] + amounts[2])
        absorb_w17(graph_module, node, conv, padding)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def pair_w18(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def tiles_w18(module):
    """Pools whose windows lie side by side, without padding and with the plain divisor."""
    if (
        type(module) is not torch.nn.AvgPool2d
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
    ):
        return False
    return (
        pair_w18(module.kernel_size) == pair_w18(module.stride)
        and pair_w18(module.padding) == (0, 0)
        and module.divisor_override is None
    )


def merge_w18(graph_module, node, first, second):
    before = node.args[0]
    kernel = tuple(a * b for a, b in zip(pair_w18(first.kernel_size), pair_w18(second.kernel_size)))
    name = f"{before.target}_{node.target}_merged".replace(".", "_")
    graph_module.add_submodule(name, torch.nn.AvgPool2d(kernel).train(first.training))
    with graph_module.graph.inserting_before(before):
        new = graph_module.graph.call_module(name, before.args, before.kwargs)
    node.replace_all_uses_with(new)
    graph_module.graph.erase_node(node)
    graph_module.graph.erase_node(before)


@fault(6, wrong="It forgot ceil_mode, with which the last window is smaller and the result larger.")
def merge_average_pools(graph_module):
    """Two average pools on end, each without overlap, are one with the product of the windows."""
    for node in list(graph_module.graph.nodes):
        modules = dict(graph_module.named_modules())
        if node.op != "call_module" or len(node.args) != 1 or node.args[0].op != "call_module":
            continue
        before = node.args[0]
        first, second = modules[before.target], modules[node.target]
        if tiles_w18(first) and tiles_w18(second) and len(before.users) == 1:
            merge_w18(graph_module, node, first, second)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


RECURRENT_W19 = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)


def last_steps_w19(graph_module):
    """(recurrent call, its output, the pick of the last step, module) where nothing else of the call is read."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or type(modules[node.target]) not in RECURRENT_W19 or len(node.users) != 1:
            continue
        output = next(iter(node.users))
        if output.op != "call_function" or output.target is not operator.getitem or output.args[1] != 0:
            continue
        if len(output.users) != 1:
            continue
        last = next(iter(output.users))
        if (
            last.op == "call_function"
            and last.target is operator.getitem
            and last.args[0] is output
            and last.args[1] == -1
        ):
            if type(last.args[1]) is int and not modules[node.target].batch_first:
                yield node, output, last, modules[node.target]


def read_state_w19(graph, node, output, last, module):
    with graph.inserting_before(output):
        state = graph.call_function(operator.getitem, (node, 1))
        if type(module) is torch.nn.LSTM:
            state = graph.call_function(operator.getitem, (state, 0))
        top = graph.call_function(operator.getitem, (state, -1))
    last.replace_all_uses_with(top)
    graph.erase_node(last)
    graph.erase_node(output)


@fault(
    6,
    wrong="It forgot bidirectional layers, whose output joins both directions and whose last state is that of the backward one.",
)
def last_step_from_state_sixth(graph_module):
    """A classifier that reads only the last step of a recurrent layer takes the final state, so that the runtime need not keep the sequence."""
    for last_step in last_steps_w19(graph_module):
        read_state_w19(graph_module.graph, *last_step)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
