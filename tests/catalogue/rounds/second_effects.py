"""Passes of the second round that drop, move or share what a program does."""

import builtins
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

VIEWS = ("view", "reshape", "flatten", "unflatten", "transpose", "permute", "squeeze", "unsqueeze")


LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def _activation(node):
    """The value that a relu out of place reads."""
    if node.op == "call_function" and node.target in (torch.relu, F.relu):
        if len(node.args) == 1 and not node.kwargs.get("inplace", False) and set(node.kwargs) <= {"inplace"}:
            return node.args[0]
    if node.op == "call_method" and node.target == "relu" and len(node.args) == 1 and not node.kwargs:
        return node.args[0]
    return None


def _is_view(node):
    return (
        node.op == "call_method"
        and node.target in VIEWS
        or node.op == "call_function"
        and node.target in (torch.flatten, torch.reshape, torch.transpose, torch.permute)
    )


def _owner(node):
    """The value whose memory a chain of views shows."""
    while _is_view(node):
        node = node.args[0]
    return node


def _fresh(graph_module, node):
    """Return whether the value is a layer's output, which no backward needs."""
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in LAYERS and not hooks


def _rewrite(graph_module, read_once):
    graph = graph_module.graph
    for node in list(graph.nodes):
        value = _activation(node)
        if (
            value is None
            or not hasattr(value, "users")
            or not read_once(value)
            or not _fresh(graph_module, _owner(value))
        ):
            continue
        with graph.inserting_before(node):
            written = graph.call_method("relu_", (value,))
        node.replace_all_uses_with(written)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "in-place on a value still needed",
    "contract",
    "gradients",
    "aliasing",
    wrong="Looks at the users of the reshaped value only, not at those of the layer's output that it is a view of.",
)
def activations_over_results(graph_module):
    """Write the result of a ReLU over its input, where that is the output of a layer and nothing else reads it.

    Saves an activation's memory for each layer. Linear and convolution do not keep their output for the backward, so
    training stays possible. Views between layer and activation are seen through.
    """
    return _rewrite(graph_module, lambda value: len(value.users) == 1)


PURE = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.neg,
    torch.matmul,
    torch.abs,
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.matmul,
}


def _quiet(graph_module):
    """Return whether no node of the graph can write to the value of another."""
    for node in graph_module.graph.nodes:
        if node.op == "call_method" or node.op == "call_function" and node.target not in PURE or "out" in node.kwargs:
            return False
        if node.op == "call_module":
            module = graph_module.get_submodule(node.target)
            if type(module) not in (nn.Linear, nn.LayerNorm, nn.Conv1d, nn.Conv2d, nn.GELU, nn.Tanh):
                return False
    return True


def _plain(value):
    return isinstance(value, (fx.Node, int, float))


def _share(graph_module, literal):
    graph = graph_module.graph
    if not _quiet(graph_module):
        return graph_module
    first_of_key = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if any(user.op != "call_function" for user in node.users):
            continue
        if not all(_plain(a) for a in (*node.args, *node.kwargs.values())):
            continue
        key = (
            node.target,
            tuple(map(literal, node.args)),
            tuple((k, literal(v)) for k, v in sorted(node.kwargs.items())),
        )
        if key in first_of_key:
            node.replace_all_uses_with(first_of_key[key])
            graph.erase_node(node)
        else:
            first_of_key[key] = node
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "dtype",
    "dtype",
    "contract",
    wrong="1, 1.0 and True are equal and hash alike in Python: x * 2 and x * 2.0 count as one expression though "
    "they promote integers differently.",
)
def share_common(graph_module):
    """Compute an expression that occurs several times only once.

    Two calls are the same if they call the same function on the same values and numbers, by position and by keyword.
    Graphs in which anything could be written in place are left, and what the program returns stays apart.
    """
    return _share(graph_module, lambda value: value)


INPLACE = {
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.ipow,
    operator.imod,
    operator.iand,
    operator.ior,
    operator.ixor,
    operator.imatmul,
    operator.setitem,
    operator.delitem,
    builtins.setattr,
}


STATEFUL = (
    "dropout",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "batch_norm",
    "instance_norm",
    "embedding",
    "set_",
    "seed",
    "assert",
    "gumbel",
    "rrelu",
    "backward",
    "hook",
    "retain",
    "print",
    "resize",
    "numpy",
    "fractional",
)


def _has_effect(node):
    if node.op in ("placeholder", "output", "call_module"):
        return True
    if node.op == "get_attr":
        return False
    if node.target in INPLACE or node.kwargs.get("out") is not None:
        return True
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "_")
    if name.endswith("_") and not name.endswith("__"):
        return True
    if any(word in name for word in STATEFUL):
        return True
    if node.op == "call_function":
        return not (
            getattr(torch, name, None) is node.target
            or getattr(F, name, None) is node.target
            or getattr(operator, name, None) is node.target
            or node.target is getattr
        )
    return False


def _remove(graph_module, has_effect):
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "effect dropped",
    "contract",
    "inputs untouched",
    "gradients",
    wrong="A function with inplace=True writes to its input: its result may be unread and its effect is not.",
)
def remove_unread(graph_module):
    """Remove calls whose result nothing reads, last first, so that whole chains go.

    Calls of modules stay, as does what draws random numbers, keeps statistics, writes in place (a trailing underscore,
    `out`, the operators that assign) or is not known.
    """
    return _remove(graph_module, _has_effect)


ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div)


def _number(graph_module, node):
    """The value of an attribute that is a buffer of no dimension in the default dtype."""
    if not hasattr(node, "op") or node.op != "get_attr":
        return None
    value = dict(graph_module.named_buffers()).get(node.target)
    if value is None or value.dim() != 0 or value.dtype != torch.get_default_dtype() or value.requires_grad:
        return None
    return value.item()


def _inline(graph_module, constant):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in ARITHMETIC or len(node.args) != 2 or node.kwargs:
            continue
        x, buffer = node.args
        if not hasattr(x, "op") or x.op == "get_attr":
            continue
        number = _number(graph_module, buffer)
        if number is None or not constant(graph, buffer):
            continue
        node.args = (x, number)
        if not buffer.users:
            graph.erase_node(buffer)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "folding of what is written",
    "contract",
    "state",
    "calls in a row",
    wrong="The forward itself may update the buffer (an observer's running scale): the number is the one it "
    "held when the pass ran.",
)
def inline_scalars(graph_module):
    """Write the numbers of 0-dimensional buffers into the arithmetic that reads them.

    Scales and offsets are often registered as buffers so that they move with the model; as plain numbers they cost no
    read and the compiler can fold them. Only buffers, never parameters, and only in the default dtype, so that
    promotion is the same.
    """
    return _inline(graph_module, lambda graph, buffer: True)
