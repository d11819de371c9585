"""Right passes of the first round on calls that compute with tensors."""

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


# Readers whose result is a tensor of its own, whatever their input is.
_READERS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    F.relu,
    F.gelu,
    F.silu,
    "add",
    "sub",
    "mul",
    "div",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
}


_SPELLINGS = {
    torch.transpose: "transpose",
    torch.permute: "permute",
    torch.squeeze: "squeeze",
    torch.unsqueeze: "unsqueeze",
}


def _shuffle(node):
    """(name, source, dims) of a call that only rearranges dimensions, with literal positional dims."""
    if (
        not isinstance(node, fx.Node)
        or node.op not in ("call_method", "call_function")
        or node.kwargs
        or len(node.args) < 2
    ):
        return None
    name = _SPELLINGS.get(node.target) if node.op == "call_function" else node.target
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    if name not in _SPELLINGS.values() or not all(type(dim) is int for dim in dims):
        return None
    return name, node.args[0], tuple(dims)


def _undoes(outer, inner):
    if outer[0] == inner[0] == "transpose":
        return len(outer[2]) == len(inner[2]) == 2 and set(outer[2]) == set(inner[2])
    if outer[0] == inner[0] == "permute":
        size = len(inner[2])
        if len(outer[2]) != size:
            return False
        return [inner[2][dim % size] % size for dim in outer[2]] == list(range(size))
    return (inner[0], outer[0]) == ("unsqueeze", "squeeze") and len(inner[2]) == 1 and inner[2] == outer[2]


@sound(1)
def cancel_undone_transposes(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Let readers of a transpose, permute or unsqueeze that the next call undoes take the tensor before both.

    Only readers that compute a new tensor: the result of the two calls is a view, with an identity of its own, which
    may be returned. And only in programs that write nothing.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    if not all(_only_reads(node, modules) for node in graph.nodes):
        return graph_module
    for node in list(graph.nodes):
        outer = _shuffle(node)
        inner = _shuffle(outer[1]) if outer else None
        if inner is None or not _undoes(outer, inner):
            continue
        for user in list(node.users):
            if user.op in ("call_function", "call_method") and user.target in _READERS:
                user.replace_input_with(node, inner[1])
    for node in reversed(list(graph.nodes)):
        if not node.users and _shuffle(node):
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module


_OPPOSITE = {
    torch.eq: torch.ne,
    torch.ne: torch.eq,
    operator.eq: operator.ne,
    operator.ne: operator.eq,
    "eq": "ne",
    "ne": "eq",
}


_LOGICAL = {torch.logical_not, "logical_not"}


_BITWISE = {operator.invert, torch.bitwise_not, "bitwise_not"}


@sound(1)
def negated_equality(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`~(a == b)` and `logical_not(a == b)` become `a != b`, and the other way round.

    Not for `<` and its like: `~(a < b)` is not `a >= b` where one is NaN.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method") or node.target not in _LOGICAL | _BITWISE:
            continue
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        equal = node.args[0]
        if equal.op not in ("call_function", "call_method") or equal.target not in _OPPOSITE:
            continue
        if len(equal.args) != 2 or equal.kwargs or len(equal.users) != 1:
            continue
        if equal.target in (operator.eq, operator.ne) and node.target is operator.invert:
            continue  # of two sizes this is a Python bool, whose complement is -1 or -2
        with graph.inserting_before(equal):
            opposite = graph.create_node(equal.op, _OPPOSITE[equal.target], equal.args)
        node.replace_all_uses_with(opposite)
        graph.erase_node(node)
        graph.erase_node(equal)
    graph_module.recompile()
    return graph_module


_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "bool": torch.bool,
}


_BOOLEAN = {
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.isnan,
    torch.isfinite,
    torch.logical_not,
    torch.logical_and,
    torch.logical_or,
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "logical_not",
    "logical_and",
    "logical_or",
}


_INDICES = {torch.argmax, torch.argmin, "argmax", "argmin"}


def _cast_to(node):
    """The dtype that a call converts to, if it does nothing else (no copy, device or memory format)."""
    if node.op != "call_method":
        return None
    if node.target in _CASTS and len(node.args) == 1 and not node.kwargs:
        return _CASTS[node.target]
    if node.target == "to":
        arguments = [*node.args[1:], *node.kwargs.values()]
        if len(arguments) == 1 and isinstance(arguments[0], torch.dtype) and set(node.kwargs) <= {"dtype"}:
            return arguments[0]
    return None


def _dtype(node):
    """The dtype of a node where it is certain."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return None
    if node.op == "call_method" and _cast_to(node) is not None:
        return _cast_to(node)
    if node.kwargs.get("out") is not None:
        return None
    if node.target in _BOOLEAN:
        return torch.bool
    return torch.int64 if node.target in _INDICES else None


@sound(1)
def drop_repeated_casts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Drop a conversion to the dtype that an earlier conversion or the producing operation already gives.

    `x.half().float()` stays: it rounds.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        wanted = _cast_to(node)
        if wanted is None or _dtype(node.args[0]) != wanted:
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module
