"""Passes of the second round that fold into layers, or open them."""

import copy
import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from ..rows import fault


def _hooked(module):
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _factor(node):
    """The (linear call, number) of a product of both."""
    is_product = (
        node.op == "call_function"
        and node.target in (operator.mul, torch.mul)
        or node.op == "call_method"
        and node.target == "mul"
    )
    if not is_product or len(node.args) != 2 or node.kwargs:
        return None
    for value, number in (node.args, node.args[::-1]):
        if (
            type(number) in (int, float)
            and math.isfinite(number)
            and hasattr(value, "op")
            and value.op == "call_module"
        ):
            return value, number
    return None


def _fold(graph_module, allowed):
    graph_module = copy.deepcopy(graph_module)
    graph = graph_module.graph
    for node in list(graph.nodes):
        match = _factor(node)
        if match is None:
            continue
        call, number = match
        layer = graph_module.get_submodule(call.target)
        calls = [n for n in graph.nodes if n.op == "call_module" and graph_module.get_submodule(n.target) is layer]
        reads = [n for n in graph.nodes if n.op == "get_attr" and n.target.startswith(call.target + ".")]
        if type(layer) is not nn.Linear or _hooked(layer) or len(calls) != 1 or reads or len(call.users) != 1:
            continue
        if not layer.weight.is_floating_point() or not allowed(graph_module, layer):
            continue
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(number)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "shared module",
    "contract",
    "gradients",
    "state",
    wrong="The weight may be tied: scaling the head's weight in place also scales the embedding that shares it.",
)
def fold_output_scale(graph_module):
    """Multiply a Linear's weight and bias by the number that its output is multiplied by.

    Attention scales its queries and language models their logits: with the scale in the weights it costs nothing. Works
    on a copy. The layer is called once, its parameters are not read otherwise, and only the product reads its output.
    """
    return _fold(graph_module, lambda graph_module, layer: True)


def _layer(graph_module, node, bias=None):
    """The plain Linear that a node calls, if nothing else does."""
    if (
        not hasattr(node, "op")
        or node.op != "call_module"
        or len(node.users) != 1
        or len(node.args) != 1
        or node.kwargs
    ):
        return None
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    calls = [
        n for n in graph_module.graph.nodes if n.op == "call_module" and graph_module.get_submodule(n.target) is module
    ]
    if type(module) is not nn.Linear or hooks or len(calls) != 1 or bias is False and module.bias is not None:
        return None
    return module


def _adapter(graph_module, node):
    """(x, up, down, scale, nodes) of up(down(x)) * scale."""
    if not hasattr(node, "op"):
        return None
    scale, nodes = 1.0, []
    if (
        node.op == "call_function"
        and node.target in (operator.mul, torch.mul)
        and len(node.args) == 2
        and type(node.args[1]) in (int, float)
        and len(node.users) == 1
        and not node.kwargs
    ):
        nodes.append(node)
        node, scale = node.args
    up = _layer(graph_module, node, bias=False)
    down = _layer(graph_module, node.args[0], bias=False) if up is not None else None
    if down is None:
        return None
    return node.args[0].args[0], up, down, scale, [*nodes, node, node.args[0]]


def _merge(graph_module, alpha_of):
    graph = graph_module.graph
    number = 0
    for node in list(graph.nodes):
        is_sum = (
            node.op == "call_function"
            and node.target in (operator.add, torch.add)
            or node.op == "call_method"
            and node.target == "add"
        )
        if not is_sum or len(node.args) != 2 or "out" in node.kwargs:
            continue
        alpha = alpha_of(node)
        if alpha is None:
            continue
        for first, second in (node.args, node.args[::-1]):
            base, adapter = _layer(graph_module, first), _adapter(graph_module, second)
            if base is None or adapter is None or adapter[0] is not first.args[0]:
                continue
            x, up, down, scale, nodes = adapter
            if len({m.weight.dtype for m in (base, up, down)}) != 1 or up.out_features != base.out_features:
                continue
            merged = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, dtype=base.weight.dtype)
            with torch.no_grad():
                merged.weight.copy_(base.weight + (up.weight @ down.weight) * (scale * alpha))
                if base.bias is not None:
                    merged.bias.copy_(base.bias)
            merged.train(base.training)
            graph_module.add_submodule(f"merged_{number}", merged)
            with graph.inserting_before(node):
                call = graph.call_module(f"merged_{number}", (x,))
            node.replace_all_uses_with(call)
            for old in (node, *nodes, first):
                graph.erase_node(old)
            number += 1
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "keyword dropped",
    "contract",
    "gradients",
    wrong="Torch.add has an alpha, by which the adapter may be scaled; it is dropped.",
)
def merge_lora(graph_module):
    """Replace base(x) + up(down(x)) * scale by one Linear with the weight W + scale * up @ down.

    For serving a fine-tuned model at the speed of the original. Layers that are called elsewhere, have hooks or, in the
    adapter, a bias, are left.
    """
    return _merge(graph_module, lambda node: 1.0)


def _padding(node):
    """(x, pads) of a zero padding of the last two dimensions, equal on both sides of each."""
    if not hasattr(node, "op") or node.op != "call_function" or node.target is not F.pad:
        return None
    rest = dict(zip(("input", "pad", "mode", "value"), node.args), **node.kwargs)
    pads = rest.get("pad")
    if (
        rest.get("mode", "constant") != "constant"
        or rest.get("value") not in (None, 0)
        or not isinstance(pads, (tuple, list))
    ):
        return None
    if len(pads) != 4 or not all(type(p) is int and p >= 0 for p in pads) or pads[0] != pads[1] or pads[2] != pads[3]:
        return None
    return rest["input"], pads


def _foldable(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    calls = [
        n for n in graph_module.graph.nodes if n.op == "call_module" and graph_module.get_submodule(n.target) is module
    ]
    if (
        type(module) is nn.Conv2d
        and not hooks
        and module.padding == (0, 0)
        and module.padding_mode == "zeros"
        and len(calls) == 1
    ):
        return module
    return None


def _fold_pad(graph_module, pair):
    graph = graph_module.graph
    number = 0
    for node in list(graph.nodes):
        conv = _foldable(graph_module, node)
        match = _padding(node.args[0]) if conv is not None else None
        if match is None or len(node.args[0].users) != 1:
            continue
        x, pads = match
        padded = copy.copy(conv)
        padded._parameters = dict(conv._parameters)
        padded.padding = pair(pads)
        graph_module.add_submodule(f"padded_{number}", padded)
        old = node.args[0]
        node.args = (x,)
        node.target = f"padded_{number}"
        graph.erase_node(old)
        number += 1
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "operand order",
    "structure",
    "contract",
    wrong="F.pad counts from the last dimension, Conv2d.padding from the first: width and height are swapped.",
)
def fold_pad(graph_module):
    """Let Conv2d pad, where the program pads with zeros before it.

    Exporters from frameworks with "same" padding write a pad of their own before each convolution. Only symmetrical,
    non-negative zero padding that nothing else reads is folded, and only into layers without padding.
    """
    return _fold_pad(graph_module, lambda pads: (pads[0], pads[2]))


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def _merge_recurrent(graph_module, kinds):
    graph = graph_module.graph
    merged = {}
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        module = graph_module.get_submodule(node.target)
        hooks = (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        if type(module) not in kinds or not module.bias or hooks:
            continue
        if id(module) not in merged:
            copied = copy.deepcopy(module)
            with torch.no_grad():
                for name, bias in copied.named_parameters():
                    if name.startswith("bias_ih"):
                        hidden = getattr(copied, name.replace("bias_ih", "bias_hh"))
                        bias.add_(hidden)
                        hidden.zero_()
            merged[id(module)] = f"{node.target.replace('.', '_')}_one_bias"
            graph_module.add_submodule(merged[id(module)], copied)
        node.target = merged[id(module)]
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "wrong bias",
    "contract",
    "gradients",
    wrong="In a GRU the hidden bias of the new gate is inside the product with the reset gate: it cannot move "
    "to the input bias as in RNN and LSTM.",
)
def merge_recurrent_bias(graph_module):
    """Add the hidden bias of recurrent layers to their input bias, and leave zeros in its place.

    Exported runtimes know one bias a gate; PyTorch keeps two for the sake of cuDNN. All layers and both directions; the
    original module is not touched, and a module that is called several times is copied once.
    """
    return _merge_recurrent(graph_module, RECURRENT)
