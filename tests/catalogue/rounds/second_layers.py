"""Passes of the second round on layers and their weights."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

from ..rows import fault


def _hooked(module):
    return any(
        getattr(module, name, None)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ) or "forward" in vars(module)


def _writes(graph):
    return any(
        n.op == "call_method"
        and n.target.endswith("_")
        and not n.target.endswith("__")
        or n.kwargs.get("inplace")
        or n.op == "call_function"
        and n.target in (operator.iadd, operator.imul, operator.isub, operator.itruediv)
        for n in graph.nodes
    )


def _projections(graph_module):
    """Triples of plain Linear calls on the same value."""
    calls = {}
    modules = dict(graph_module.named_modules())
    counts = {}
    for node in graph_module.graph.nodes:
        if node.op == "call_module":
            counts[node.target] = counts.get(node.target, 0) + 1
    for node in graph_module.graph.nodes:
        if node.op != "call_module" or type(modules[node.target]) is not nn.Linear or _hooked(modules[node.target]):
            continue
        if len(node.args) == 1 and not node.kwargs and counts[node.target] == 1:
            calls.setdefault(node.args[0], []).append(node)
    for value, nodes in calls.items():
        layers = [modules[n.target] for n in nodes]
        traits = {(m.in_features, m.bias is None, m.weight.dtype, m.weight.requires_grad, m.training) for m in layers}
        if len(nodes) == 3 and len(traits) == 1 and len({id(m.weight) for m in layers}) == 3:
            yield value, nodes, layers


def _merge(graph_module, divide):
    graph = graph_module.graph
    if _writes(graph):
        return graph_module
    for number, (value, nodes, layers) in enumerate(list(_projections(graph_module))):
        first = layers[0]
        merged = nn.Linear(
            first.in_features,
            sum(m.out_features for m in layers),
            bias=first.bias is not None,
            dtype=first.weight.dtype,
        )
        with torch.no_grad():
            merged.weight.copy_(torch.cat([m.weight for m in layers]))
            if first.bias is not None:
                merged.bias.copy_(torch.cat([m.bias for m in layers]))
        merged.requires_grad_(first.weight.requires_grad)
        merged.train(first.training)
        graph_module.add_submodule(f"qkv_{number}", merged)
        with graph.inserting_before(nodes[0]):
            together = graph.call_module(f"qkv_{number}", (value,))
            pieces = divide(graph, together, layers)
            for index, node in enumerate(nodes):
                piece = graph.call_function(operator.getitem, (pieces, index))
                piece = graph.call_method("contiguous", (piece,))
                node.replace_all_uses_with(piece)
        for node in nodes:
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _thirds(graph, together, layers):
    return graph.call_method("chunk", (together, len(layers)), {"dim": -1})


@fault(
    2,
    "equal sizes",
    "contract",
    "structure",
    "refusal",
    wrong="Takes the three projections as equally wide (chunk(3)): with grouped-query attention keys and values "
    "are narrower than queries.",
)
def merge_qkv(graph_module):
    """Compute the query, key and value projections of an attention layer with one Linear.

    One large matrix product keeps the cores busier than three small ones. The layers must read the same value, be
    called once, and agree on bias, dtype and whether they train.
    """
    return _merge(graph_module, _thirds)


def _is(node, function, *names):
    if not hasattr(node, "op"):
        return False
    return node.op == "call_function" and node.target in function or node.op == "call_method" and node.target in names


def _square_of(node):
    if _is(node, (torch.pow, operator.pow), "pow") and node.args[1:] == (2,) and not node.kwargs:
        return node.args[0]
    if (
        _is(node, (torch.mul, operator.mul), "mul")
        and len(node.args) == 2
        and node.args[0] is node.args[1]
        and not node.kwargs
    ):
        return node.args[0]
    if _is(node, (torch.square,), "square") and len(node.args) == 1:
        return node.args[0]
    return None


def _normalized(node):
    """(x, eps, nodes) of x * rsqrt(mean(x ** 2, -1, keepdim=True) + eps)."""
    if not _is(node, (torch.mul, operator.mul), "mul") or len(node.args) != 2 or node.kwargs or len(node.users) != 1:
        return None
    for x, factor in (node.args, node.args[::-1]):
        if not _is(factor, (torch.rsqrt,), "rsqrt") or len(factor.args) != 1 or len(factor.users) != 1:
            continue
        total = factor.args[0]
        if (
            not _is(total, (torch.add, operator.add), "add")
            or total.kwargs
            or len(total.args) != 2
            or type(total.args[1]) is not float
            or len(total.users) != 1
        ):
            continue
        mean, eps = total.args
        if not _is(mean, (torch.mean,), "mean") or len(mean.users) != 1:
            continue
        rest = dict(zip(("dim", "keepdim"), mean.args[1:]), **mean.kwargs)
        if rest not in ({"dim": -1, "keepdim": True}, {"dim": [-1], "keepdim": True}, {"dim": (-1,), "keepdim": True}):
            continue
        square = mean.args[0]
        if _square_of(square) is x and len(square.users) == 1:
            return x, eps, (node, factor, total, mean, square)
    return None


def _fuse(graph_module, call):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not _is(node, (torch.mul, operator.mul), "mul") or len(node.args) != 2 or node.kwargs:
            continue
        for weight, inner in (node.args, node.args[::-1]):
            if not hasattr(weight, "op") or weight.op != "get_attr" or not hasattr(inner, "op"):
                continue
            match = _normalized(inner)
            if match is None:
                continue
            x, eps, nodes = match
            with graph.inserting_before(node):
                fused = call(graph_module, x, weight, eps)
            node.replace_all_uses_with(fused)
            for old in (node, *nodes):
                graph.erase_node(old)
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


def _fetch(graph_module, target):
    value = graph_module
    for name in target.split("."):
        value = getattr(value, name)
    return value


def _by_weight(graph_module, x, weight, eps):
    shape = tuple(_fetch(graph_module, weight.target).shape)
    return graph_module.graph.call_function(F.rms_norm, (x, shape, weight, eps))


@fault(
    2,
    "wrong axis",
    "contract",
    "structure",
    "gradients",
    wrong="Takes the shape of the weight for the normalized shape: a weight per head (heads, features) makes it "
    "normalize over both dimensions, the program over the last only.",
)
def fuse_rms_norm(graph_module):
    """Replace x * rsqrt(mean(x ** 2) + eps) * weight by the fused rms_norm.

    The mean has to be over the last dimension, the weight a parameter or buffer, in either order, and nothing else may
    read what is in between.
    """
    return _fuse(graph_module, _by_weight)


def _tables(graph_module):
    for node in graph_module.graph.nodes:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = graph_module.get_submodule(node.target)
        hooks = (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        if type(module) is nn.Embedding and not hooks and module.max_norm is None:
            yield node, module


def _rewrite(graph_module, options):
    graph = graph_module.graph
    for node, module in list(_tables(graph_module)):
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            rows = graph.call_function(F.embedding, (node.args[0], weight), options(module))
        node.replace_all_uses_with(rows)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "dropped setting",
    "gradients",
    wrong="Leaves out padding_idx, which changes no value but keeps the gradient of the padding row at zero.",
)
def functional_embedding(graph_module):
    """Look tokens up with torch.nn.functional.embedding, with the table as an attribute of the graph.

    So that later passes (sharding, tying, quantizing of tables) see the weight. Tables with max_norm, which the look-up
    writes to, and those with hooks are left.
    """
    return _rewrite(graph_module, lambda m: {"scale_grad_by_freq": m.scale_grad_by_freq, "sparse": m.sparse})
