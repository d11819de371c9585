"""Wrong passes of the sixth round for fx, part 1."""

import operator

import torch
import torch.nn.functional as F

from ..rows import fault


def expand_w01(graph_module, node, x):
    graph = graph_module.graph
    with graph.inserting_before(node):
        shifted = graph.call_function(torch.add, (x, 3.0))
        gate = graph.call_function(F.relu6, (shifted,))
        share = graph.call_function(torch.div, (gate, 6.0))
        result = graph.call_function(torch.mul, (x, share))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


@fault(6, wrong="It forgot the in-place form: with inplace=True the input has to be overwritten too.")
def split_hardswish(graph_module):
    """For opsets without HardSwish: write it as x * (relu6(x + 3) / 6), from modules and from functions."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target is F.hardswish:
            x = node.args[0] if node.args else node.kwargs["input"]
        elif node.op == "call_module" and type(modules[node.target]) is torch.nn.Hardswish:
            x = node.args[0] if node.args else node.kwargs["input"]
        else:
            continue
        expand_w01(graph_module, node, x)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def gather_w02(graph_module, node, module, indices):
    graph = graph_module.graph
    with graph.inserting_before(node):
        weight = graph.get_attr(node.target + ".weight")
        flat = graph.call_method("reshape", (indices, -1))
        rows = graph.call_function(torch.index_select, (weight, 0, flat))
        shape = graph.call_method("size", (indices,))
        last = graph.call_function(operator.add, (shape, (module.embedding_dim,)))
        result = graph.call_method("reshape", (rows, last))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def hooked_w02(module):
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


@fault(6, wrong="It forgot padding_idx, whose row gets no gradient in an embedding but does in index_select.")
def embedding_as_gather(graph_module):
    """The device has GATHER and no EMBEDDING: look the rows up with index_select on the flattened indices."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module":
            continue
        module = modules[node.target]
        if type(module) is not torch.nn.Embedding or hooked_w02(module):
            continue
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            continue  # renormalises the table, or has another kind of gradient
        gather_w02(graph_module, node, module, node.args[0] if node.args else node.kwargs["input"])
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def parts_w03(node):
    """The tensor, mask and value of a masked_fill, method or function; None where it is not one or the value is a tensor."""
    method = node.op == "call_method" and node.target == "masked_fill"
    function = node.op == "call_function" and node.target is torch.masked_fill
    if not (method or function):
        return None
    names = ("self" if method else "input", "mask", "value")
    arguments = dict(zip(names, node.args), **node.kwargs)
    if any(name not in arguments for name in names):
        return None
    x, mask, value = (arguments[name] for name in names)
    return (x, mask, value) if isinstance(value, (int, float)) else None


@fault(
    6, wrong="It forgot that masked_fill keeps the tensor's dtype where torch.where promotes it to the number's kind."
)
def masked_fill_as_where(graph_module):
    """CoreML has `select` and no masked_fill: write masked fills with a number as torch.where."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        parts = parts_w03(node)
        if parts is None:
            continue
        x, mask, value = parts
        with graph.inserting_before(node):
            chosen = graph.call_function(torch.where, (mask, value, x))
        node.replace_all_uses_with(chosen)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def arguments_w05(node):
    """input, target and reduction of a kl_div that can be opened, or None."""
    if node.op != "call_function" or node.target is not F.kl_div or len(node.args) > 2:
        return None
    arguments = dict(zip(("input", "target"), node.args), **node.kwargs)
    if arguments.get("log_target", False) is not False:
        return None
    if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        return None
    reduction = arguments.get("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        return None
    return arguments["input"], arguments["target"], reduction


def reduce_w05(graph, value, reduction):
    if reduction == "none":
        return value
    return graph.call_method(reduction, (value,))


@fault(6, wrong="It forgot targets with zero probability, where target * log(target) counts as zero and not as nan.")
def open_kl_div_sixth(graph_module):
    """ONNX has no KLDiv: open it into target * (log(target) - input) and its reduction."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        arguments = arguments_w05(node)
        if arguments is None:
            continue
        x, target, reduction = arguments
        with graph.inserting_before(node):
            log = graph.call_function(torch.log, (target,))
            gap = graph.call_function(torch.sub, (log, x))
            pointwise = graph.call_function(torch.mul, (target, gap))
            loss = reduce_w05(graph, pointwise, reduction)
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def given_w06(node):
    """input, dim and eps of a 2-norm normalisation with literal arguments, or None."""
    arguments = dict(zip(("input", "p", "dim", "eps"), node.args), **node.kwargs)
    if len(node.args) > 4 or arguments.get("out") is not None or arguments.get("p", 2.0) != 2:
        return None
    dim, eps = arguments.get("dim", 1), arguments.get("eps", 1e-12)
    if not isinstance(dim, int) or not isinstance(eps, float):
        return None
    return arguments["input"], dim, eps


def divide_w06(graph, node, x, length, eps):
    floor = graph.call_method("clamp_min", (length, eps))
    result = graph.call_function(torch.div, (x, floor))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


@fault(6, wrong="It forgot the gradient at a vector of zeros, where the root's is infinite and the norm's is zero.")
def open_normalize(graph_module):
    """Embedding heads end in F.normalize, which the converter lacks: divide by the root of the sum of squares, kept above eps."""
    graph = graph_module.graph
    for node in list(graph.find_nodes(op="call_function", target=F.normalize)):
        arguments = given_w06(node)
        if arguments is None:
            continue
        x, dim, eps = arguments
        with graph.inserting_before(node):
            squares = graph.call_function(torch.mul, (x, x))
            total = graph.call_function(torch.sum, (squares, dim), {"keepdim": True})
            length = graph.call_function(torch.sqrt, (total,))
            divide_w06(graph, node, x, length, eps)
    graph.lint()
    graph_module.recompile()
    return graph_module
