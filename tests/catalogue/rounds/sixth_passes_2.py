"""Wrong passes of the sixth round for fx, part 2."""

import operator

import torch
import torch.nn.functional as F

from ..rows import fault


def usable_w08(graph_module, node, modules):
    if node.op != "call_module" or type(modules[node.target]) is not torch.nn.BatchNorm1d:
        return False
    before = node.args[0] if node.args else None
    if before is None or before.op != "call_module" or len(before.users) != 1:
        return False
    linear, norm = modules[before.target], modules[node.target]
    if type(linear) is not torch.nn.Linear or norm.training or norm.running_mean is None:
        return False
    for module in (linear, norm):
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
    return linear.out_features == norm.num_features and linear.weight.is_floating_point()


@torch.no_grad()
def folded_w08(linear, norm):
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    new = torch.nn.Linear(linear.in_features, linear.out_features).to(linear.weight)
    new.weight.copy_(linear.weight * scale[:, None])
    bias = -norm.running_mean * scale if linear.bias is None else (linear.bias - norm.running_mean) * scale
    new.bias.copy_(bias if norm.bias is None else bias + norm.bias)
    trained = any(p.requires_grad for module in (linear, norm) for p in module.parameters())
    return new.train(linear.training).requires_grad_(trained)


def replace_w08(graph_module, node, modules):
    before = node.args[0]
    name = f"{before.target}_{node.target}folded_w08".replace(".", "_")
    graph_module.add_submodule(name, folded_w08(modules[before.target], modules[node.target]))
    with graph_module.graph.inserting_before(before):
        new = graph_module.graph.call_module(name, before.args, before.kwargs)
    node.replace_all_uses_with(new)
    graph_module.graph.erase_node(node)
    graph_module.graph.erase_node(before)


@fault(
    6,
    wrong="It forgot inputs of three dimensions, where the norm is over dimension 1 and the linear layer over the last.",
)
def fold_norm_into_linear_sixth(graph_module):
    """Inference: a BatchNorm1d after a Linear becomes part of its weight and bias (the modules themselves stay as they are)."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if usable_w08(graph_module, node, modules):
            replace_w08(graph_module, node, modules)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


IN_PLACE_W09 = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv}


def is_clone_w09(node):
    if node.kwargs or len(node.args) != 1:
        return False
    return (node.op == "call_method" and node.target == "clone") or (
        node.op == "call_function" and node.target is torch.clone
    )


def writes_w09(node):
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        return (
            node.target in IN_PLACE_W09
            or bool(node.kwargs.get("inplace"))
            or "out" in node.kwargs
            or (name.endswith("_") and not name.endswith("__"))
        )
    return node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__")


@fault(6, wrong="It forgot that a clone may be written through a view of it.")
def drop_clones_sixth(graph_module):
    """Memory planning: a clone that nobody writes to is a copy for nothing, so its users may read the original."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not is_clone_w09(node):
            continue
        original = node.args[0]
        readers = list(node.users) + list(original.users)
        if any(writes_w09(user) or user.op in ("output", "call_module") for user in readers):
            continue
        node.replace_all_uses_with(original)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


OWN_MEMORY_W10 = {
    torch.add,
    torch.sub,
    torch.matmul,
    operator.add,
    operator.sub,
    operator.matmul,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
}


def plain_relu_w10(node):
    if node.op != "call_function" or node.target not in (F.relu, torch.relu) or len(node.args) != 1:
        return False
    return not node.kwargs or node.kwargs == {"inplace": False}


def result_of_w10(node, kinds, modules):
    if len(node.users) != 1 or node.kwargs.get("out") is not None:
        return False
    if node.op == "call_function":
        return node.target in kinds and any(isinstance(a, type(node)) for a in node.args)
    if node.op == "call_module":
        module = modules[node.target]
        return type(module) in (torch.nn.Linear, torch.nn.Conv2d) and not (
            module._forward_hooks or module._backward_hooks or module._forward_pre_hooks or module._backward_pre_hooks
        )
    return False


@fault(6, wrong="It forgot that the backward of exp, tanh and sigmoid needs their result, which the ReLU overwrites.")
def relu_in_place_sixth(graph_module):
    """Peak memory: a ReLU whose input is a fresh result that nobody else reads works in that memory."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        if plain_relu_w10(node) and result_of_w10(node.args[0], OWN_MEMORY_W10, modules):
            node.target = F.relu
            node.kwargs = {"inplace": True}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def parts_w12(node):
    """The letters of both vectors, of the result, and the vectors; None for another equation."""
    equation = node.args[0] if node.args else None
    if not isinstance(equation, str) or "." in equation or "->" not in equation or node.kwargs:
        return None
    operands = node.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    inputs, output = equation.replace(" ", "").split("->")
    letters = inputs.split(",")
    if len(letters) != 2 or len(operands) != 2 or any(len(item) != 1 for item in letters):
        return None
    return letters[0], letters[1], output, operands


@fault(6, wrong="It forgot the order of the letters in the result: 'i,j->ji' is the transposed product.")
def einsum_as_outer(graph_module):
    """TFLite falls back to Flex on einsum: outer products (rotary frequencies, masks of lengths) become a product by broadcast."""
    graph = graph_module.graph
    for node in list(graph.find_nodes(op="call_function", target=torch.einsum)):
        parts = parts_w12(node)
        if parts is None:
            continue
        first, second, output, (left, right) = parts
        if first == second or set(output) != {first, second}:
            continue  # an inner product, a diagonal, or a sum
        with graph.inserting_before(node):
            column = graph.call_method("unsqueeze", (left, 1))
            product = graph.call_function(torch.mul, (column, right))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def narrow_w13(node):
    """(tensor, dim, start, length) of a narrow with literal arguments, or None."""
    if node.op == "call_method" and node.target == "narrow":
        names = ("self", "dim", "start", "length")
    elif node.op == "call_function" and node.target is torch.narrow:
        names = ("input", "dim", "start", "length")
    else:
        return None
    arguments = dict(zip(names, node.args), **node.kwargs)
    if set(arguments) != set(names):
        return None
    x, dim, start, length = (arguments[name] for name in names)
    return (x, dim, start, length) if all(isinstance(v, int) for v in (dim, start, length)) else None


@fault(6, wrong="It forgot a negative start of the second crop, which counts from the end of the first.")
def merge_narrows(graph_module):
    """Crops of crops (box post-processing makes many): one narrow of the first tensor does."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = narrow_w13(node)
        inner = narrow_w13(outer[0]) if outer else None
        if inner is None or inner[1] != outer[1]:
            continue
        x, dim, offset, size = inner
        _, _, start, length = outer
        if start + length > size:
            continue  # raises, leave it to raise
        with graph.inserting_before(node):
            merged = graph.call_function(torch.narrow, (x, dim, offset + start, length))
        before = outer[0]
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        if not before.users:
            graph.erase_node(before)
    graph.lint()
    graph_module.recompile()
    return graph_module
