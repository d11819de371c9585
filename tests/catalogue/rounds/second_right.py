"""Right passes of the second round."""

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@sound(2)
def remove_identities(graph_module):
    """Let what reads the result of nn.Identity read its input.

    Identities are what is left of dropouts, norms and heads that a model was built without.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        module = graph_module.get_submodule(node.target)
        if type(module) is not nn.Identity or "forward" in vars(module) or "__call__" in vars(module):
            continue
        if any(getattr(module, name, None) for name in HOOKS):
            continue
        if len(node.args) == 1 and not node.kwargs:
            value = node.args[0]
        elif not node.args and set(node.kwargs) == {"input"}:
            value = node.kwargs["input"]
        else:
            continue
        if not isinstance(value, fx.Node):
            continue
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _layer(graph_module, node):
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        return None
    module = graph_module.get_submodule(node.target)
    if type(module) is not nn.Linear or "forward" in vars(module) or any(getattr(module, name, None) for name in HOOKS):
        return None
    if type(module.weight) is not nn.Parameter or not (module.bias is None or type(module.bias) is nn.Parameter):
        return None
    if module.weight.dtype not in (torch.float32, torch.float64):
        return None
    return module


def _trait(module):
    biased = module.bias is not None
    return (
        module.weight.shape[1],
        module.weight.dtype,
        module.weight.device,
        module.weight.requires_grad,
        biased,
        module.bias.dtype if biased else None,
        module.bias.device if biased else None,
        module.bias.requires_grad if biased else None,
    )


def _runs(graph_module):
    """Lists of calls that follow one another and read the same value."""
    run = []
    for node in graph_module.graph.nodes:
        module = _layer(graph_module, node)
        if run and module is not None and node.args[0] is run[0][0].args[0] and _trait(module) == _trait(run[0][1]):
            run.append((node, module))
            continue
        if len(run) > 1:
            yield run
        run = [(node, module)] if module is not None else []
    if len(run) > 1:
        yield run


@sound(2)
def merge_consecutive_linears(graph_module):
    """Compute Linear layers that stand in a row and read the same value with one matrix product.

    Projections to query, key and value, gates and their values, heads of several tasks.
    """
    graph = graph_module.graph
    for run in list(_runs(graph_module)):
        first = run[0][0]
        with graph.inserting_before(first):
            weights = [graph.get_attr(f"{node.target}.weight") for node, _ in run]
            weight = graph.call_function(torch.cat, (weights, 0))
            bias = None
            if run[0][1].bias is not None:
                bias = graph.call_function(torch.cat, ([graph.get_attr(f"{node.target}.bias") for node, _ in run], 0))
            together = graph.call_function(F.linear, (first.args[0], weight, bias))
            start = 0
            for node, module in run:
                piece = graph.call_method("narrow", (together, -1, start, module.weight.shape[0]))
                piece = graph.call_method("clone", (piece,), {"memory_format": torch.contiguous_format})
                node.replace_all_uses_with(piece)
                start += module.weight.shape[0]
        for node, _ in run:
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _fill(node):
    """(x, mask, number) of a masked_fill out of place."""
    if (
        node.op == "call_method"
        and node.target == "masked_fill"
        or node.op == "call_function"
        and node.target is torch.masked_fill
    ):
        names = ("input" if node.op == "call_function" else "self", "mask", "value")
        if len(node.args) > 3:
            return None
        arguments = dict(zip(names, node.args))
        if set(arguments) & set(node.kwargs) or set(node.kwargs) - set(names):
            return None
        arguments.update(node.kwargs)
        if len(arguments) == 3:
            x, mask, value = (arguments[name] for name in names)
            if isinstance(x, fx.Node) and isinstance(mask, fx.Node) and type(value) in (int, float, bool):
                return x, mask, value
    return None


def _same(a, b):
    if type(a) is not type(b) or a != b:
        return False
    return not isinstance(a, float) or math.copysign(1.0, a) == math.copysign(1.0, b)


@sound(2)
def merge_masked_fills(graph_module):
    """Fill once where the program fills twice with the same number.

    Attention scores are filled with -inf for the future and then for padding.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        second = _fill(node)
        if second is None or second[0] is not node.prev or len(second[0].users) != 1 or second[1] is second[0]:
            continue
        first = _fill(second[0])
        if first is None or not _same(first[2], second[2]):
            continue
        with graph.inserting_before(node):
            either = graph.call_method("masked_fill", (first[1], second[1], True))
            filled = graph.call_method("masked_fill", (first[0], either, second[2]))
        node.replace_all_uses_with(filled)
        graph.erase_node(node)
        graph.erase_node(second[0])
    graph.lint()
    graph_module.recompile()
    return graph_module


def _bound(node):
    """(x, 'min' or 'max', number) of a clamp out of place with one bound."""
    if node.op == "call_function":
        name = next((n for n in ("clamp", "clip", "clamp_min", "clamp_max") if node.target is getattr(torch, n)), None)
    else:
        name = (
            node.target
            if node.op == "call_method" and node.target in ("clamp", "clip", "clamp_min", "clamp_max")
            else None
        )
    if name is None or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if name in ("clamp", "clip"):
        sides = ("min", "max")
    else:
        sides = (name[-3:],)
    if len(node.args) > 1 + len(sides):
        return None
    bounds = dict(zip(sides, node.args[1:]))
    if set(bounds) & set(node.kwargs) or set(node.kwargs) - set(sides):
        return None
    bounds.update(node.kwargs)
    bounds = {side: value for side, value in bounds.items() if value is not None}
    if len(bounds) != 1:
        return None
    ((side, value),) = bounds.items()
    if type(value) not in (int, float) or math.isnan(value) or type(value) is int and value < 0:
        return None  # -1 is 255 for uint8, and no longer the lower of the two
    return node.args[0], side, value


@sound(2)
def fuse_clamps(graph_module):
    """Bound a value from below and above with one clamp, where the program does it with two."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        second = _bound(node)
        if second is None or second[0] is not node.prev or len(second[0].users) != 1:
            continue
        first = _bound(second[0])
        if first is None or first[1] == second[1] or type(first[2]) is not type(second[2]):
            continue
        bounds = {first[1]: first[2], second[1]: second[2]}
        if not bounds["min"] < bounds["max"]:
            continue
        with graph.inserting_before(node):
            both = graph.call_function(torch.clamp, (first[0],), {"min": bounds["min"], "max": bounds["max"]})
        node.replace_all_uses_with(both)
        graph.erase_node(node)
        graph.erase_node(second[0])
    graph.lint()
    graph_module.recompile()
    return graph_module


TENSOR_METHODS = (
    "relu",
    "reshape",
    "view",
    "transpose",
    "permute",
    "contiguous",
    "float",
    "tanh",
    "sigmoid",
    "flatten",
    "add_",
    "mul_",
)


TENSOR_FUNCTIONS = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.matmul,
    torch.cat,
    torch.stack,
    torch.flatten,
    torch.add,
    torch.mul,
    torch.sub,
    torch.softmax,
    torch.transpose,
    torch.permute,
    nn.functional.relu,
    nn.functional.gelu,
    nn.functional.linear,
)


TENSOR_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ReLU, nn.GELU, nn.LayerNorm, nn.Embedding, nn.BatchNorm2d)


def _is_tensor(graph_module, node):
    if node.op == "placeholder":
        return True
    if node.op == "call_method":
        return node.target in TENSOR_METHODS
    if node.op == "call_function":
        return node.target in TENSOR_FUNCTIONS
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        return type(module) in TENSOR_MODULES and not module._forward_hooks
    return False


def _shape_of(node):
    """x of x.shape and x.size()."""
    if node.op == "call_function" and node.target is getattr and len(node.args) == 2 and node.args[1] == "shape":
        return node.args[0]
    if node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs:
        return node.args[0]
    return None


@sound(2)
def read_sizes(graph_module):
    """Ask a tensor for the one size that is needed instead of indexing its shape.

    One form for both spellings, which later passes and exporters look for.
    """
    graph = graph_module.graph
    for shape in list(graph.nodes):
        x = _shape_of(shape)
        if not isinstance(x, fx.Node) or not _is_tensor(graph_module, x):
            continue
        sizes = {}
        for node in list(graph.nodes):
            if node not in shape.users or node.op != "call_function" or node.target is not operator.getitem:
                continue
            if len(node.args) != 2 or node.args[0] is not shape or type(node.args[1]) is not int or node.kwargs:
                continue
            index = node.args[1]
            if index not in sizes:
                with graph.inserting_before(shape):
                    sizes[index] = graph.call_method("size", (x, index))
            node.replace_all_uses_with(sizes[index])
            graph.erase_node(node)
        if not shape.users and sizes:
            graph.erase_node(shape)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _parameter(graph_module, node):
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = dict(graph_module.named_parameters(remove_duplicate=False)).get(node.target)
    return value if type(value) is nn.Parameter else None


def _product(node):
    """(x, weight) of a call of mm."""
    if not isinstance(node, fx.Node) or len(node.args) != 2 or node.kwargs or len(node.users) != 1:
        return None
    if node.op == "call_function" and node.target is torch.mm or node.op == "call_method" and node.target == "mm":
        return node.args
    return None


def _sum(node):
    """The two sides of an addition out of place with alpha 1."""
    if (
        node.op == "call_function"
        and node.target is operator.add
        or node.op == "call_function"
        and node.target is torch.add
        or node.op == "call_method"
        and node.target == "add"
    ):
        if len(node.args) == 2 and (
            not node.kwargs
            or set(node.kwargs) == {"alpha"}
            and type(node.kwargs["alpha"]) is int
            and node.kwargs["alpha"] == 1
        ):
            return node.args
    return None


def _between(first, last):
    """Return whether there are only attribute reads between two nodes."""
    node = first.next
    while node is not last:
        if node.op != "get_attr":
            return False
        node = node.next
    return True


@sound(2)
def mm_to_addmm(graph_module):
    """Fuse mm(x, weight) + bias to addmm(bias, x, weight).

    Layers that were converted from other frameworks write the affine map in two steps.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        sides = _sum(node)
        for product, other in (sides, sides[::-1]) if sides else ():
            match, bias = _product(product), _parameter(graph_module, other)
            if match is None or bias is None:
                continue
            weight = _parameter(graph_module, match[1])
            if (
                weight is None
                or weight.dim() != 2
                or bias.dim() != 1
                or weight.dtype != bias.dtype
                or weight.device != bias.device
            ):
                continue
            if weight.dtype not in (torch.float32, torch.float64) or bias.shape[0] not in (1, weight.shape[1]):
                continue
            if not isinstance(match[0], fx.Node) or not _between(product, node):
                continue
            with graph.inserting_before(node):
                fused = graph.call_function(torch.addmm, (other, *match))
            node.replace_all_uses_with(fused)
            graph.erase_node(node)
            graph.erase_node(product)
            break
    graph.lint()
    graph_module.recompile()
    return graph_module
