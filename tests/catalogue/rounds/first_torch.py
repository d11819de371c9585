"""Passes of the first round that are written for torch.fx."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ..rows import fault

_REDUCTIONS = {torch.max: torch.amax, torch.min: torch.amin, "max": torch.amax, "min": torch.amin}


def _dimension(node):
    """(dim, keepdim) of max(x, dim, keepdim), None when the call is another overload."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    if type(dim) is not int or type(keepdim) is not bool or not node.args:
        return None
    return dim, keepdim


def _takes_values(user, node):
    if user.op != "call_function" or user.args[0] is not node:
        return False
    return (user.target is operator.getitem and user.args[1] == 0) or (
        user.target is getattr and user.args[1] == "values"
    )


@fault(
    1,
    "ties",
    "gradients",
    wrong="Where several elements tie, max(dim) sends the gradient to one of them and amax spreads it over all.",
)
def max_values_to_amax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`x.max(dim)` of which only the values are read becomes `torch.amax`, which computes no indices."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method") or node.target not in _REDUCTIONS:
            continue
        dimension = _dimension(node)
        if dimension is None or not node.users or not all(_takes_values(user, node) for user in node.users):
            continue
        with graph.inserting_before(node):
            values = graph.call_function(_REDUCTIONS[node.target], (node.args[0], *dimension))
        for user in list(node.users):
            user.replace_all_uses_with(values)
            graph.erase_node(user)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _pattern_positive(scores, target):
    return F.nll_loss(F.log_softmax(scores, dim=1), target)


def _pattern_negative(scores, target):
    return F.nll_loss(F.log_softmax(scores, dim=-1), target)


def _cross_entropy(scores, target):
    return F.cross_entropy(scores, target)


@fault(
    1,
    "wrong axis",
    "contract",
    "structure",
    "refusal",
    "gradients",
    wrong="Dim=-1 is the dimension of the classes only for scores of two dimensions (cross_entropy always takes "
    "dimension 1).",
)
def nll_to_cross_entropy(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`nll_loss(log_softmax(scores), target)` over the classes becomes one call of `cross_entropy`.

    The dimension of the classes is written as 1 or, as most classifiers do, as -1.
    """
    for pattern in (_pattern_positive, _pattern_negative):
        torch.fx.replace_pattern(graph_module, pattern, _cross_entropy)
    graph_module.recompile()
    return graph_module


def _factor(mode, size, scale):
    """The whole factor by which nearest upsampling enlarges, None when it is something else."""
    if mode != "nearest" or size is not None or not isinstance(scale, (int, float)):
        return None
    return int(scale) if scale == int(scale) and scale >= 1 else None


def _of_call(args, kwargs):
    if len(args) != 1:
        return None
    return _factor(kwargs.get("mode", "nearest"), kwargs.get("size"), kwargs.get("scale_factor"))


class _Repeat(torch.fx.Transformer):
    def call_function(self, target, args, kwargs):
        factor = _of_call(args, kwargs) if target is F.interpolate else None
        if factor is None:
            return super().call_function(target, args, kwargs)
        return args[0].repeat_interleave(factor, dim=-2).repeat_interleave(factor, dim=-1)

    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        if isinstance(module, nn.Upsample) and len(args) == 1 and not module._forward_hooks:
            factor = _factor(module.mode, module.size, module.scale_factor)
            if factor is not None:
                return args[0].repeat_interleave(factor, dim=-2).repeat_interleave(factor, dim=-1)
        return super().call_module(target, args, kwargs)


@fault(
    1,
    "rank",
    "structure",
    "contract",
    wrong="The last two dimensions are repeated, also where the input has one spatial dimension or three.",
)
def upsample_to_repeat(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Nearest upsampling by a whole factor becomes two `repeat_interleave`, for devices that have no resize.

    For `F.interpolate` and `nn.Upsample` with a scale factor; other modes and sizes stay.
    """
    return _Repeat(graph_module).transform()


_PURE_FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sqrt,
    torch.matmul,
    F.relu,
    F.gelu,
    F.silu,
    F.softmax,
}


_PURE_METHODS = {
    "add",
    "sub",
    "mul",
    "div",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "sqrt",
    "mean",
    "sum",
    "softmax",
    "matmul",
}


def _writes(graph, modules):
    """Return whether anything may be written in place: then two equal calls need not give equal results."""
    for node in graph.nodes:
        if node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
            return True
        if node.op == "call_module" and (
            modules[node.target].training or getattr(modules[node.target], "inplace", False)
        ):
            return True
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function") and (
            name.endswith("_") or name == "setitem" or name.startswith("i") and name[1:] in dir(operator)
        ):
            return True
    return False


def _frozen(value):
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    return value


@fault(
    1,
    "dtype",
    "dtype",
    "contract",
    wrong="2, 2.0 and True are the same key of a dict, but they promote an integer tensor differently.",
)
def share_common_arithmetic(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Common subexpressions: a call of a pure function on the same arguments as an earlier one takes its result.

    Programs that write in place are left alone, as are results with readers that might return them (they would be one
    tensor).
    """
    graph = graph_module.graph
    if _writes(graph, dict(graph_module.named_modules(remove_duplicate=False))):
        return graph_module
    first_of_key = {}
    for node in list(graph.nodes):
        pure = (
            node.op == "call_function"
            and node.target in _PURE_FUNCTIONS
            or node.op == "call_method"
            and node.target in _PURE_METHODS
        )
        if not pure or not all(user.target in _PURE_FUNCTIONS | _PURE_METHODS for user in node.users):
            continue
        try:
            earlier = first_of_key.setdefault((node.op, node.target, _frozen(node.args), _frozen(node.kwargs)), node)
        except TypeError:
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _call(module, x):
    """The call of a function that does what an activation module does, None for other modules."""
    kind = type(module)
    if kind is nn.ReLU:
        return F.relu, {"inplace": module.inplace}
    if kind is nn.LeakyReLU:
        return F.leaky_relu, {"negative_slope": module.negative_slope, "inplace": module.inplace}
    if kind is nn.GELU:
        return F.gelu, {"approximate": module.approximate}
    if kind is nn.Hardtanh or kind is nn.ReLU6:
        return F.hardtanh, {"min_val": module.min_val, "max_val": module.max_val, "inplace": module.inplace}
    if kind is nn.Softmax and module.dim is not None:
        return F.softmax, {"dim": module.dim}
    if kind is nn.SiLU:
        return F.silu, {"inplace": module.inplace}
    return None


class Inliner(torch.fx.Transformer):
    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        if len(args) == 1 and not kwargs:
            call = _call(module, args[0])
            if call is not None:
                return self.call_function(call[0], args, call[1])
        return super().call_module(target, args, kwargs)


@fault(1, "hooks", "contract", "state", wrong="A forward hook registered on the activation does not run any more.")
def inline_activations(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Calls of activation modules become calls of functions, which later passes match more easily (and which cost no
    dispatch through `nn.Module.__call__`)."""
    return Inliner(graph_module).transform()
