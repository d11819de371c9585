"""Passes of the first round that fold into layers, or open them."""

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


def _per_input(conv: nn.Conv2d, values: torch.Tensor) -> torch.Tensor:
    """One value per input channel, laid out as the convolution's weight is."""
    per_group = conv.in_channels // conv.groups
    values = values.reshape(conv.groups, 1, per_group)
    values = values.expand(conv.groups, conv.out_channels // conv.groups, per_group)
    return values.reshape(conv.out_channels, per_group, 1, 1)


def _folded(norm: nn.BatchNorm2d, conv: nn.Conv2d) -> nn.Conv2d:
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        shift = -norm.running_mean * scale
        if norm.bias is not None:
            shift = shift + norm.bias
        result = nn.Conv2d(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
            True,
            conv.padding_mode,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
        )
        bias = (conv.weight * _per_input(conv, shift)).sum((1, 2, 3))
        result.bias.copy_(bias if conv.bias is None else bias + conv.bias)
        result.weight.copy_(conv.weight * _per_input(conv, scale))
    result.requires_grad_(conv.weight.requires_grad)
    return result.train(conv.training)


@fault(
    1,
    "padding",
    "contract",
    "gradients",
    wrong="The convolution pads with zeros after the norm, so at the border the shift must not be counted: "
    "padding is not looked at.",
)
def fold_norm_into_next_conv(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Pre-activation networks: a batch norm in eval mode that feeds a convolution directly becomes part of it.

    The scale of each channel goes into the convolution's weight, the shift into its bias, for grouped ones as well.
    """
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph_module.graph.nodes):
        conv = modules.get(node.target) if node.op == "call_module" else None
        if type(conv) is not nn.Conv2d or not node.args or _hooked(conv):
            continue
        source = node.args[0]
        norm = modules.get(source.target) if source.op == "call_module" else None
        if type(norm) is not nn.BatchNorm2d or norm.training or norm.running_mean is None or _hooked(norm):
            continue
        if len(source.users) != 1:
            continue
        name = f"{node.target}_folded".replace(".", "_")
        graph_module.add_submodule(name, _folded(norm, conv))
        node.target = name
        node.args = (source.args[0],)
        graph_module.graph.erase_node(source)
    graph_module.recompile()
    return graph_module


def _tensor(graph_module, node):
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = graph_module
    for atom in node.target.split("."):
        value = getattr(value, atom)
    return value if isinstance(value, torch.Tensor) else None


def _scaled(conv, gamma):
    result = copy.deepcopy(conv)
    with torch.no_grad():
        result.weight.mul_(gamma.reshape(-1, 1, 1, 1))
        if result.bias is not None:
            result.bias.mul_(gamma.reshape(-1))
    return result


@fault(
    1,
    "wrong axis",
    "contract",
    "gradients",
    "structure",
    "batch sizes",
    wrong="A gamma with as many elements as there are channels need not lie along the channels: one of shape "
    "(C,) broadcasts along the width.",
)
def fold_layer_scale(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Layer scale (ConvNeXt, CaiT): `conv(x) * gamma` with one gamma per channel is one with scaled weights."""
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.target not in (operator.mul, torch.mul, "mul") or len(node.args) != 2:
            continue
        for source, factor in (node.args, node.args[::-1]):
            gamma = _tensor(graph_module, factor)
            if gamma is None or not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
                continue
            conv = modules.get(source.target)
            if type(conv) is not nn.Conv2d or _hooked(conv) or gamma.dtype != conv.weight.dtype:
                continue
            if gamma.numel() != conv.out_channels:
                continue
            name = source.target.replace(".", "_") + "_scaled"
            graph_module.add_submodule(name, _scaled(conv, gamma))
            source.target = name
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            if not factor.users:
                graph.erase_node(factor)
            break
    graph_module.recompile()
    return graph_module


_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish)


def _padding(node, modules):
    """The width of a zero padding that is the same on all four sides."""
    if (
        node.op == "call_module"
        and type(modules.get(node.target)) is nn.ZeroPad2d
        and not _hooked(modules[node.target])
    ):
        sides = modules[node.target].padding
    elif node.op == "call_function" and node.target is F.pad:
        if node.kwargs.get("mode", "constant") != "constant" or node.kwargs.get("value") not in (None, 0, 0.0):
            return None
        sides = node.args[1] if len(node.args) == 2 else node.kwargs.get("pad")
    else:
        return None
    sides = tuple(sides) if isinstance(sides, (tuple, list)) else ()
    return sides[0] if len(sides) == 4 and len(set(sides)) == 1 and type(sides[0]) is int and sides[0] > 0 else None


def _pads(pool, width):
    return (
        type(pool) is nn.MaxPool2d
        and not _hooked(pool)
        and isinstance(pool.kernel_size, int)
        and 2 * width <= pool.kernel_size
        and pool.padding == 0
        and pool.dilation == 1
        and not pool.ceil_mode
        and not pool.return_indices
    )


@fault(
    1,
    "padding",
    "contract",
    "gradients",
    "non-finite inputs",
    wrong="SiLU and Hardswish have a negative dip, where a zero from the padding wins the maximum.",
)
def fold_zero_pad_into_max_pool(graph_module: fx.GraphModule) -> fx.GraphModule:
    """An explicit zero padding between an activation and a max pooling (models converted from TensorFlow) becomes the
    pooling's own. A pooling pads with -inf; behind an activation that cuts off negative values this is the same.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        pool, pad = modules.get(node.target), node.args[0]
        width = _padding(pad, modules)
        if width is None or not _pads(pool, width) or len(pad.users) != 1:
            continue
        source = pad.args[0]
        if (
            not isinstance(source, fx.Node)
            or source.op != "call_module"
            or not isinstance(modules.get(source.target), _ACTIVATIONS)
        ):
            continue
        name = node.target.replace(".", "_") + "_padded"
        graph_module.add_submodule(name, nn.MaxPool2d(pool.kernel_size, pool.stride, width))
        node.target, node.args = name, (source,)
        graph.erase_node(pad)
    graph_module.recompile()
    return graph_module


class NormAct2d(nn.BatchNorm2d):
    """A batch norm and a ReLU in one module, with the parameters and statistics of the norm it replaces."""

    def __init__(self, norm: nn.BatchNorm2d):
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine)
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)

    def forward(self, x):
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return F.relu(x)


def _place(graph_module, target, module):
    parent, _, name = target.rpartition(".")
    setattr(graph_module.get_submodule(parent), name, module)


def _norm_of(node, graph, modules):
    """The norm that this ReLU follows, when both calls can be one."""
    is_relu = (
        node.op == "call_module"
        and type(modules.get(node.target)) is nn.ReLU
        and not _hooked(modules[node.target])
        or node.op == "call_function"
        and node.target in (F.relu, torch.relu)
        or node.op == "call_method"
        and node.target == "relu"
    )
    source = node.args[0] if is_relu and node.args else None
    norm = modules.get(source.target) if isinstance(source, fx.Node) and source.op == "call_module" else None
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return None
    if len(source.users) != 1 or _hooked(norm):
        return None
    return norm if len(list(graph.find_nodes(op="call_module", target=source.target))) == 1 else None


@fault(
    1,
    "training mode",
    "state",
    wrong="In training a batch norm counts its batches in num_batches_tracked; the fused module does not.",
)
def fuse_norm_act(graph_module: fx.GraphModule) -> fx.GraphModule:
    """As timm's BatchNormAct2d: a batch norm and the ReLU after it become one module, for training and inference alike.

    The module sits where the norm was and has its parameters and buffers, so that checkpoints still load.
    """
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        norm = _norm_of(node, graph, modules)
        if norm is None:
            continue
        source = node.args[0]
        _place(graph_module, source.target, NormAct2d(norm))
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _scaled_embeddings(graph_module):
    """Pairs of a call of an embedding and the multiplication by a number that alone reads it."""
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (operator.mul, torch.mul) or len(node.args) != 2:
            continue
        for source, factor in (node.args, node.args[::-1]):
            if type(factor) is not float or not isinstance(source, fx.Node) or source.op != "call_module":
                continue
            embedding = modules[source.target]
            calls = [call for call in graph.find_nodes(op="call_module") if modules[call.target] is embedding]
            if embedding._forward_hooks or type(embedding) is not nn.Embedding:
                continue
            if embedding.max_norm is None and calls == [source] and len(source.users) == 1:
                yield source, node, factor, embedding


@fault(
    1,
    "shared module",
    "contract",
    "structure",
    "state",
    "gradients",
    wrong="A table that is tied to the weight of the output layer is scaled there too.",
)
def fold_embedding_scale(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`embedding(tokens) * sqrt(width)` as in the Transformer: the factor goes into the table, once and for all.

    Returns a new module; the one given keeps its weights.
    """
    graph_module = copy.deepcopy(graph_module)
    for source, node, factor, embedding in list(_scaled_embeddings(graph_module)):
        with torch.no_grad():
            embedding.weight.mul_(factor)
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module
