"""Passes of the fourth round on layers and their weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

_REDUCE = {"sum": "sum", "mean": "mean"}


def _is_plain(bag):
    hooks = bag._forward_hooks or bag._forward_pre_hooks or bag._backward_hooks or bag._backward_pre_hooks
    return (
        type(bag) is nn.EmbeddingBag
        and bag.mode in _REDUCE
        and bag.max_norm is None
        and bag.padding_idx is None
        and not bag.scale_grad_by_freq
        and not bag.sparse
        and not hooks
    )


def _open(graph_module, node, bag):
    graph = graph_module.graph
    with graph.inserting_before(node):
        weight = graph.get_attr(f"{node.target}.weight")
        rows = graph.call_function(F.embedding, (node.args[0], weight))
        out = graph.call_method(_REDUCE[bag.mode], (rows, 1))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


@fault(
    4,
    "keyword dropped",
    "contract",
    "gradients",
    wrong="It looks for further arguments of the bag only among the positional ones, so per_sample_weights "
    "given by keyword are dropped.",
)
def embedding_bag_to_gather(graph_module: fx.GraphModule):
    """Open fixed-length bags (two-dimensional ids, no offsets) into a gather and a reduction over the bag."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module":
            continue
        bag = graph_module.get_submodule(node.target)
        if not _is_plain(bag) or len(node.args) != 1:
            continue
        _open(graph_module, node, bag)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def _linear(graph_module, node):
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    layer = graph_module.get_submodule(node.target)
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    return layer if type(layer) is nn.Linear and not hooks else None


def _is_relu(graph_module, node):
    if node.op == "call_module":
        layer = graph_module.get_submodule(node.target)
        return type(layer) is nn.ReLU and not layer._forward_hooks and not layer._forward_pre_hooks
    return node.op == "call_function" and node.target in (F.relu, torch.relu)


def _pairs(graph_module):
    for relu in list(graph_module.graph.nodes):
        if not _is_relu(graph_module, relu) or len(relu.all_input_nodes) != 1 or len(relu.users) != 1:
            continue
        before, after = relu.all_input_nodes[0], next(iter(relu.users))
        first, second = _linear(graph_module, before), _linear(graph_module, after)
        if first is not None and second is not None and len(before.users) == 1:
            yield before, first, after, second


def _apply(graph_module, before, first, after, second, scale):
    first, second = copy.deepcopy(first), copy.deepcopy(second)
    with torch.no_grad():
        first.weight.div_(scale.unsqueeze(1))
        if first.bias is not None:
            first.bias.div_(scale)
        second.weight.mul_(scale)
    for node, layer in ((before, first), (after, second)):
        name = f"{node.name}_equalized"
        graph_module.add_submodule(name, layer)
        node.target = name


@fault(
    4,
    "only some values",
    "contract",
    "gradients",
    "other weights",
    wrong="A hidden channel whose weights are all zero (pruned, or not read by the second layer) has range "
    "zero, and the scale is 0 or infinite.",
)
def equalize_linears(graph_module: fx.GraphModule):
    """Even out the weight ranges of linear, ReLU, linear: each hidden channel is scaled by a power of two."""
    for before, first, after, second in _pairs(graph_module):
        with torch.no_grad():
            out_range = first.weight.abs().amax(dim=1)
            in_range = second.weight.abs().amax(dim=0)
            scale = torch.exp2(torch.log2(out_range / in_range).div(2).round())
        _apply(graph_module, before, first, after, second, scale)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def _linear_pointwise(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1:
        return None
    layer = graph_module.get_submodule(node.target)
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    return None if type(layer) is not nn.Linear or hooks else layer


def _pointwise(linear):
    conv = nn.Conv2d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
    weight = linear.weight.detach().clone()[:, :, None, None]
    conv.weight = nn.Parameter(weight, requires_grad=linear.weight.requires_grad)
    if linear.bias is not None:
        conv.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=linear.bias.requires_grad)
    return conv.train(linear.training)


def _rewrite(graph_module, wanted):
    graph = graph_module.graph
    convs = {}
    for node in list(graph.nodes):
        linear = _linear_pointwise(graph_module, node)
        if linear is None or not wanted(linear):
            continue
        if linear not in convs:
            convs[linear] = f"{node.name}_pointwise"
            graph_module.add_submodule(convs[linear], _pointwise(linear))
        source = node.args[0]
        with graph.inserting_before(node):
            shape = graph.call_function(getattr, (source, "shape"))
            lead = graph.call_function(_leading, (shape,))
            flat = graph.call_method("reshape", (source, -1, linear.in_features, 1, 1))
            out = graph.call_module(convs[linear], (flat,))
            out = graph.call_method("reshape", (out, graph.call_function(_append, (lead, linear.out_features))))
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def _leading(shape):
    return tuple(shape[:-1])


def _append(lead, size):
    return (*lead, size)


@fault(
    4,
    "shared module",
    "gradients",
    "state",
    "contract",
    wrong="A weight that is tied to another layer (output head and embedding) is copied, and the tie is cut.",
)
def linear_to_pointwise(graph_module: fx.GraphModule):
    """Replace every nn.Linear by a 1x1 convolution over all leading dimensions at once."""
    return _rewrite(graph_module, lambda linear: linear.in_features > 0)


def _plain(layer):
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


_AUGMENTED = ("iadd", "isub", "imul", "itruediv", "setitem")


def _has_writes(graph_module):
    """Return whether the program may write in place: then moving a projection is not safe."""
    for node in graph_module.graph.nodes:
        if node.op == "call_module":
            layer = graph_module.get_submodule(node.target)
            if getattr(layer, "inplace", False) or not type(layer).__module__.startswith("torch.nn."):
                return True
        elif node.op in ("call_method", "call_function"):
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "_")
            if name.endswith("_") or name in _AUGMENTED or "out" in node.kwargs or "inplace" in node.kwargs:
                return True
            if any(arg is True for arg in node.args):
                return True
    return False


def _groups(graph_module):
    groups = {}
    for node in graph_module.graph.nodes:
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            layer = graph_module.get_submodule(node.target)
            if _plain(layer):
                key = (
                    node.args[0],
                    layer.in_features,
                    layer.weight.dtype,
                    layer.weight.requires_grad,
                    layer.bias is None,
                )
                groups.setdefault(key, []).append(node)
    return [nodes for nodes in groups.values() if len(nodes) > 1]


def _merged(layers):
    bias = layers[0].bias is not None
    new = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), bias=bias)
    weight = torch.cat([layer.weight.detach() for layer in layers])
    new.weight = nn.Parameter(weight, requires_grad=layers[0].weight.requires_grad)
    if bias:
        new.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
    return new.train(layers[0].training)


def _merge(graph_module, nodes, part):
    graph = graph_module.graph
    layers = [graph_module.get_submodule(node.target) for node in nodes]
    name = "_".join(["merged", *(node.name for node in nodes)])
    graph_module.add_submodule(name, _merged(layers))
    with graph.inserting_before(nodes[0]):
        whole, start, parts = graph.call_module(name, (nodes[0].args[0],)), 0, []
        for layer in layers:
            parts.append(part(graph, whole, start, layer.out_features))
            start += layer.out_features
    for node, value in zip(nodes, parts):
        node.replace_all_uses_with(value)
        graph.erase_node(node)


def _slice(graph, whole, start, size):
    return graph.call_method("narrow", (whole, -1, start, size))


@fault(
    4,
    "layout",
    "contract",
    "refusal",
    "structure",
    wrong="The parts of the merged result are strided slices, which cannot be viewed with their last dimensions "
    "merged.",
)
def merge_projections(graph_module: fx.GraphModule):
    """Merge nn.Linear layers that read the same value into one and slice its output."""
    if not _has_writes(graph_module):
        for nodes in _groups(graph_module):
            _merge(graph_module, nodes, _slice)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def _conv1d(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1:
        return None
    conv = graph_module.get_submodule(node.target)
    hooks = conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks
    return conv if type(conv) is nn.Conv1d and not hooks else None


def _as_conv2d(conv, **options):
    padding = conv.padding if isinstance(conv.padding, str) else (0, *conv.padding)
    new = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        (1, *conv.kernel_size),
        stride=(1, *conv.stride),
        padding=padding,
        dilation=(1, *conv.dilation),
        groups=conv.groups,
        bias=conv.bias is not None,
        **options,
    )
    new.weight = nn.Parameter(conv.weight.detach().unsqueeze(2).clone(), requires_grad=conv.weight.requires_grad)
    if conv.bias is not None:
        new.bias = conv.bias
    return new.train(conv.training)


def _place(graph_module, node, conv):
    graph, name = graph_module.graph, f"{node.name}_2d"
    graph_module.add_submodule(name, conv)
    with graph.inserting_before(node):
        # counted from the end, so that a sequence without a batch dimension works as well
        flat = graph.call_method("unsqueeze", (node.args[0], -2))
        out = graph.call_method("squeeze", (graph.call_module(name, (flat,)), -2))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


@fault(
    4,
    "dropped setting",
    "contract",
    "gradients",
    wrong="Padding_mode is not carried over, so circular, reflected and replicated borders become zeros.",
)
def conv1d_to_conv2d(graph_module: fx.GraphModule):
    """Run nn.Conv1d as an nn.Conv2d over a height of one."""
    for node in list(graph_module.graph.nodes):
        conv = _conv1d(graph_module, node)
        if conv is not None:
            _place(graph_module, node, _as_conv2d(conv))
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module
