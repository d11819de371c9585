"""A wrong pass of the twelfth round."""

import operator

import torch
from torch import nn

import fx

from ...rows import fault


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _is_output(node):
    """Return whether the node is the sequence that a recurrent layer returns."""
    return isinstance(node, fx.Node) and node.target is operator.getitem and node.args[1] == 0


def _stackable(one, two, same_bias):
    if not type(one) is type(two) is nn.LSTM or _hooked(one) or _hooked(two) or one.training or two.training:
        return False
    if any((layer.num_layers, layer.proj_size, layer.bidirectional) != (1, 0, False) for layer in (one, two)):
        return False
    fits = two.input_size == one.hidden_size == two.hidden_size and one.batch_first == two.batch_first
    return fits and (not same_bias or one.bias == two.bias)


def _run(module, same_bias):
    graph = module.graph
    for second in list(graph.nodes):
        if second.op != "call_module" or len(second.args) != 1 or second.kwargs:
            continue
        output = second.args[0]
        first = output.args[0] if _is_output(output) and len(output.users) == 1 else None
        if first is None or first.op != "call_module" or len(first.args) != 1 or first.kwargs:
            continue
        lower, upper = module.get_submodule(first.target), module.get_submodule(second.target)
        if not _stackable(lower, upper, same_bias):
            continue
        states = [user for user in (*first.users, *second.users) if user.users and user is not output]
        if not all(_is_output(user) and user.args[0] is second for user in states):
            continue
        for node in [user for user in (*first.users, *second.users) if not user.users]:
            graph.erase_node(node)
        both = nn.LSTM(lower.input_size, lower.hidden_size, 2, lower.bias, lower.batch_first).to(lower.weight_ih_l0)
        with torch.no_grad():
            for index, layer in enumerate((lower, upper)):
                for name, value in layer.named_parameters():
                    if hasattr(both, target := name.replace("_l0", f"_l{index}")):
                        getattr(both, target).copy_(value)
        name = f"stacked_{first.name}_{second.name}"
        module.add_submodule(name, both.eval())
        with graph.inserting_before(first):
            stacked = graph.call_module(name, first.args)
        second.replace_all_uses_with(stacked)
        for node in (second, output, first):
            graph.erase_node(node)
    module.recompile()
    return module


@fault(
    12,
    wrong="Whether the layers have biases is not compared: those that the second lacks keep their random initial values.",
)
def stack_lstms(module: fx.GraphModule) -> fx.GraphModule:
    """Merge two LSTMs, one on the output of the other, into one of two layers."""
    return _run(module, False)
