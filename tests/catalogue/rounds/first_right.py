"""Right passes of the first round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound

_MODULES = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
    nn.Identity,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Softmax,
    nn.BatchNorm2d,
)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


_FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.matmul,
    operator.getitem,
    operator.pow,
    operator.lt,
    operator.gt,
    operator.le,
    operator.ge,
    operator.eq,
    operator.ne,
    getattr,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.matmul,
    torch.cat,
    torch.flatten,
    torch.transpose,
    torch.permute,
    torch.squeeze,
    torch.unsqueeze,
    torch.sum,
    torch.mean,
    torch.abs,
    torch.stack,
    F.relu,
    F.gelu,
    F.silu,
    F.softmax,
    F.linear,
    F.conv2d,
    F.layer_norm,
    torch.softmax,
    torch.sqrt,
    torch.neg,
}


_METHODS = {
    "add",
    "sub",
    "mul",
    "div",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "matmul",
    "flatten",
    "transpose",
    "permute",
    "squeeze",
    "unsqueeze",
    "sum",
    "mean",
    "abs",
    "view",
    "reshape",
    "size",
    "dim",
    "softmax",
    "sqrt",
    "neg",
    "contiguous",
    "float",
    "to",
}


def _only_reads(node, modules):
    """Return whether a node is known to write nothing: no tensor, no state, no mode of autograd."""
    if node.op == "call_module":
        module = modules[node.target]
        if type(module) is nn.BatchNorm2d and (module.training or not module.track_running_stats):
            return False
        return (
            type(module) in _MODULES
            and not getattr(module, "inplace", False)
            and not any(getattr(module, name) for name in _HOOKS)
        )
    if node.op == "call_function":
        return (
            node.target in _FUNCTIONS
            and node.kwargs.get("out") is None
            and not node.kwargs.get("inplace")
            and not any(arg is True for arg in node.args[1:])
        )
    if node.op == "call_method":
        return node.target in _METHODS
    return True


def _is_relu(node, modules):
    if not isinstance(node, fx.Node) or len(node.args) != 1:
        return False
    if node.op == "call_module":
        return type(modules[node.target]) is nn.ReLU and not node.kwargs
    if node.op == "call_method":
        return node.target == "relu" and not node.kwargs
    return node.op == "call_function" and node.target in (F.relu, torch.relu) and set(node.kwargs) <= {"inplace"}


def _is_pool(node, modules):
    """A max pooling each of whose windows holds an element of the input: padding is at most half the window."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    pool = modules[node.target]
    return type(pool) is nn.MaxPool2d and pool.dilation in (1, (1, 1)) and not pool.return_indices


@sound(1)
def sink_relu_below_max_pool(graph_module: fx.GraphModule) -> fx.GraphModule:
    """max_pool(relu(x)) is relu(max_pool(x)): the ReLU then runs on a quarter of the elements.

    Only in programs that write nothing in place, and where nothing but the pooling reads the ReLU.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    if not all(_only_reads(node, modules) for node in graph.nodes):
        return graph_module
    for node in list(graph.nodes):
        if not _is_pool(node, modules):
            continue
        relu = node.args[0]
        if not _is_relu(relu, modules) or len(relu.users) != 1:
            continue
        source = relu.args[0]
        with graph.inserting_before(node):
            pooled = graph.call_module(node.target, (source,))
            result = graph.create_node(relu.op, relu.target, (pooled,), dict(relu.kwargs))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(relu)
    graph_module.recompile()
    return graph_module


def _is_relu_relu(node, modules):
    """Return whether a node is a ReLU that allocates its result."""
    if not isinstance(node, fx.Node) or len(node.args) != 1:
        return False
    if node.op == "call_module":
        module = modules[node.target]
        if node.kwargs or getattr(module, "inplace", True) or any(getattr(module, name) for name in _HOOKS):
            return False
        return type(module) is nn.ReLU
    if node.op == "call_method":
        return node.target == "relu" and not node.kwargs
    if node.op == "call_function" and set(node.kwargs) <= {"inplace"} and node.kwargs.get("inplace", False) is False:
        return node.target in (F.relu, torch.relu)
    return False


@sound(1)
def drop_redundant_relu(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A ReLU of what has been through a ReLU already does nothing.

    The inner result must have no other reader: it and the outer one are two tensors, which would become one.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if not _is_relu_relu(node, modules):
            continue
        inner = node.args[0]
        if not _is_relu_relu(inner, modules) or len(inner.users) != 1:
            continue
        node.replace_all_uses_with(inner)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _tensor(graph_module, node):
    """The parameter or buffer that a node fetches."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = graph_module
    for atom in node.target.split("."):
        value = getattr(value, atom)
    return value if isinstance(value, torch.Tensor) else None


def _is_bias_of(bias, weight):
    return (
        type(weight) in (nn.Parameter, torch.Tensor)
        and type(bias) in (nn.Parameter, torch.Tensor)
        and weight.dim() == 2
        and tuple(bias.shape) == (weight.shape[0],)
        and weight.dtype == bias.dtype
        and weight.dtype in (torch.float32, torch.float64)
        and weight.device == bias.device
        and weight.layout == bias.layout == torch.strided
    )


@sound(1)
def bias_into_linear(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`F.linear(x, weight) + bias` becomes `F.linear(x, weight, bias)`, one kernel.

    Only with a weight and a bias that the module holds, so that shape and dtype are known: something broader would be
    broadcast, something of another dtype promoted. Not in half precision: there the product rounds, or overflows, on
    its own.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        if (
            node.op != "call_function"
            or node.target not in (operator.add, torch.add)
            or len(node.args) != 2
            or node.kwargs
        ):
            continue
        for linear, shift in (node.args, node.args[::-1]):
            if not isinstance(linear, fx.Node) or linear.op != "call_function" or linear.target is not F.linear:
                continue
            if len(linear.args) < 2 or linear.args[2:] not in ((), (None,)) or len(linear.users) != 1:
                continue
            if set(linear.kwargs) - {"bias"} or linear.kwargs.get("bias") is not None:
                continue
            if not _is_bias_of(_tensor(graph_module, shift), _tensor(graph_module, linear.args[1])):
                continue
            between = linear.next
            while between is not node and between.op == "get_attr":
                between = between.next
            if between is not node:
                continue  # what runs in between might write to one of the three
            with graph.inserting_before(node):
                fused = graph.call_function(F.linear, (linear.args[0], linear.args[1], shift))
            node.replace_all_uses_with(fused)
            graph.erase_node(node)
            graph.erase_node(linear)
            break
    graph_module.recompile()
    return graph_module
