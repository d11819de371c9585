"""Right passes of the fourth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound

_KINDS = (nn.LSTM, nn.GRU, nn.RNN)


def _hooked(module):
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _from_embedding(graph_module, node):
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return False
    table = graph_module.get_submodule(node.target)
    return type(table) is nn.Embedding and not _hooked(table)


def _can_split(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not node.users:
        return False
    rnn = graph_module.get_submodule(node.target)
    if type(rnn) not in _KINDS or not rnn.bidirectional or rnn.num_layers != 1 or rnn.proj_size:
        return False
    if rnn.batch_first or _hooked(rnn) or not _from_embedding(graph_module, node.args[0]):
        return False
    return all(map(_reads_sequence, node.users))


def _reads_sequence(user):
    """Return whether the user reads the first of the two results, or unpacks the second without using it."""
    if user.op != "call_function" or user.target is not operator.getitem or type(user.args[1]) is not int:
        return False
    return user.args[1] == 0 or (user.args[1] == 1 and not user.users)


def _direction(rnn, suffix):
    options = {"nonlinearity": rnn.nonlinearity} if type(rnn) is nn.RNN else {}
    new = type(rnn)(rnn.input_size, rnn.hidden_size, bias=rnn.bias, **options)
    for name in [name for name, _ in new.named_parameters()]:
        setattr(new, name, getattr(rnn, name + suffix))
    return new.train(rnn.training)


@sound(4, fault="It raises an error where the program has a module of the name that it makes.")
def split_bidirectional_rnn(graph_module: fx.GraphModule):
    """Run a bidirectional layer as two layers, the second on the flipped sequence."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not _can_split(graph_module, node):
            continue
        rnn, source = graph_module.get_submodule(node.target), node.args[0]
        forward, backward = f"{node.name}_forward", f"{node.name}_backward"
        graph_module.add_submodule(forward, _direction(rnn, ""))
        graph_module.add_submodule(backward, _direction(rnn, "_reverse"))
        with graph.inserting_before(node):
            ahead = graph.call_function(operator.getitem, (graph.call_module(forward, (source,)), 0))
            flipped = graph.call_method("flip", (source, 0))
            back = graph.call_function(operator.getitem, (graph.call_module(backward, (flipped,)), 0))
            back = graph.call_method("flip", (back, 0))
            both = graph.call_function(torch.cat, ([ahead, back], -1))
        # every reader of the sequence reads the same tensor object before and after
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(both)
            graph.erase_node(user)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


# the gradient of each at a value of itself is one wherever its own gradient is not zero
_PLAIN = {
    torch.relu: "relu",
    F.relu: "relu",
    torch.floor: "floor",
    torch.ceil: "ceil",
    torch.trunc: "trunc",
    torch.sign: "sign",
    "relu": "relu",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "sign": "sign",
}


def _number(value):
    return value is None or (type(value) in (int, float) and value == value)


def _key(graph_module, node):
    """Return a key for the function of one input that a node computes, equal for equal functions; None if unknown."""
    if node.op == "call_module":
        layer = graph_module.get_submodule(node.target)
        if type(layer) is nn.ReLU and not layer.inplace and not _hooked(layer) and len(node.args) == 1:
            return "relu" if not node.kwargs else None
        return None
    if node.op not in ("call_function", "call_method") or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target in _PLAIN:
        return _PLAIN[node.target] if len(node.args) == 1 and not node.kwargs else None
    if node.target is torch.clamp or (node.op == "call_method" and node.target == "clamp"):
        bounds = {**dict(zip(("min", "max"), node.args[1:])), **node.kwargs}
        if len(node.args) > 3 or set(bounds) - {"min", "max"} or not all(map(_number, bounds.values())):
            return None
        low, high = bounds.get("min"), bounds.get("max")
        # 0 and 0.0 are equal and promote integers differently, so that the types are part of the key
        return ("clamp", low, type(low), high, type(high))
    return None


@sound(4)
def collapse_repeated_activations(graph_module: fx.GraphModule):
    """Replace relu(relu(x)), clamp(clamp(x, a, b), a, b) and the like by one call."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        key = _key(graph_module, node)
        if key is None:
            continue
        inner = node.args[0]
        if len(inner.users) != 1 or _key(graph_module, inner) != key:
            continue
        # adjacent, so that nothing is written in between to what the inner result might alias
        if inner.next is not node:
            continue
        node.replace_all_uses_with(inner)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


def _layer(graph_module, node, kind):
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    layer = graph_module.get_submodule(node.target)
    return layer if type(layer) is kind and not _hooked(layer) else None


def _is_flat(graph_module, node):
    """Return whether a value is the result of flattening all dimensions from the second on."""
    if not isinstance(node, fx.Node):
        return False
    flatten = _layer(graph_module, node, nn.Flatten)
    if flatten is not None:
        return flatten.start_dim == 1 and flatten.end_dim == -1
    if (node.op == "call_function" and node.target is torch.flatten) or (
        node.op == "call_method" and node.target == "flatten"
    ):
        arguments = {**dict(zip(("input", "start_dim", "end_dim"), node.args)), **node.kwargs}
        return arguments.get("start_dim", 0) == 1 and arguments.get("end_dim", -1) == -1
    return False


def _is_matrix(graph_module, node):
    if _layer(graph_module, node, nn.Linear) is None or len(node.args) != 1:
        return False
    return _is_flat(graph_module, node.args[0])


def _is_indices(node):
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method":
        return (node.target == "long" and len(node.args) == 1 and not node.kwargs) or node.target == "argmax"
    return node.op == "call_function" and node.target is torch.argmax and "out" not in node.kwargs


@sound(4)
def open_cross_entropy(graph_module: fx.GraphModule):
    """Split F.cross_entropy and nn.CrossEntropyLoss into log_softmax and nll_loss."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        bound = {**dict(zip(_NAMES, node.args)), **node.kwargs}
        loss = _layer(graph_module, node, nn.CrossEntropyLoss)
        if loss is not None:
            bound.update(ignore_index=loss.ignore_index, reduction=loss.reduction, label_smoothing=loss.label_smoothing)
        elif node.op != "call_function" or node.target is not F.cross_entropy:
            continue
        if bound.get("size_average") is not None or bound.get("reduce") is not None:
            continue
        smoothing = bound.get("label_smoothing", 0.0)
        if type(smoothing) not in (int, float) or smoothing != 0:
            continue
        logits, target = bound.get("input"), bound.get("target")
        if not _is_matrix(graph_module, logits) or not _is_indices(target):
            continue
        with graph.inserting_before(node):
            weight = bound.get("weight")
            if loss is not None and loss.weight is not None:
                weight = graph.get_attr(f"{node.target}.weight")
            logp = graph.call_function(torch.log_softmax, (logits, 1))
            new = graph.call_function(
                F.nll_loss,
                (logp, target),
                {
                    "weight": weight,
                    "ignore_index": bound.get("ignore_index", -100),
                    "reduction": bound.get("reduction", "mean"),
                },
            )
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


_FUNCTIONS = (F.dropout, torch.dropout)


def _is_zero(value):
    return type(value) in (int, float) and value == 0


def _source(graph_module, node):
    """Return the operand of a dropout with probability zero, or None for another node."""
    if node.op == "call_module":
        layer = graph_module.get_submodule(node.target)
        if type(layer) is not nn.Dropout or _hooked(layer) or not _is_zero(layer.p):
            return None
        if len(node.args) != 1 or node.kwargs:
            return None
        return node.args[0]
    if node.op != "call_function" or node.target not in _FUNCTIONS:
        return None
    arguments = {**dict(zip(("input", "p"), node.args)), **node.kwargs}
    if not _is_zero(arguments.get("p", 0.5)) or "out" in arguments:
        return None
    return arguments.get("input")


@sound(4)
def drop_zero_dropout(graph_module: fx.GraphModule):
    """Read the input of each dropout that drops nothing."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        source = _source(graph_module, node)
        if isinstance(source, fx.Node):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
