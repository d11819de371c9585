"""Right passes of the sixth round for fx, part 1."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ..rows import sound


def logical_not_r02(node):
    if node.kwargs or len(node.args) != 1:
        return False
    return (node.op == "call_function" and node.target is torch.logical_not) or (
        node.op == "call_method" and node.target == "logical_not"
    )


@sound(6)
def double_not(graph_module):
    """Masks that are inverted twice on their way to attention become one comparison."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not logical_not_r02(node):
            continue
        inner = node.args[0]
        if not logical_not_r02(inner) or len(inner.users) != 1 or node.prev is not inner:
            continue
        with graph.inserting_before(inner):
            compared = graph.call_function(torch.ne, (inner.args[0], 0))
        node.replace_all_uses_with(compared)
        graph.erase_node(node)
        graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


def fresh_relu_r04(node):
    if node.op == "call_function" and node.target in (torch.relu, F.relu):
        return len(node.args) == 1 and (not node.kwargs or node.kwargs == {"inplace": False})
    return node.op == "call_method" and node.target == "relu" and len(node.args) == 1 and not node.kwargs


@sound(6)
def relu_once_sixth(graph_module):
    """A ReLU of a ReLU, as blocks that each start and end with one leave, is the first of the two."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if fresh_relu_r04(node) and fresh_relu_r04(node.args[0]) and len(node.args[0].users) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


HOOKS_R05 = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_r05(module):
    if type(module) is not torch.nn.Linear or "forward" in vars(module) or "__call__" in vars(module):
        return False
    if (
        any(getattr(module, hooks, None) for hooks in HOOKS_R05)
        or getattr(module, "_compiled_call_impl", None) is not None
    ):
        return False
    return isinstance(module._parameters.get("weight"), torch.nn.Parameter) and "bias" in module._parameters


@sound(6)
def open_linear(graph_module):
    """For exporters that know functions only: linear layers become F.linear of their parameters."""
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not plain_r05(modules.get(node.target)):
            continue
        if len(node.args) == 1 and not node.kwargs:
            x = node.args[0]
        elif not node.args and set(node.kwargs) == {"input"}:
            x = node.kwargs["input"]
        else:
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(node.target + ".weight")
            bias = None if modules[node.target].bias is None else graph.get_attr(node.target + ".bias")
            result = graph.call_function(F.linear, (x, weight, bias))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def may_reshape_r06(node):
    """Return whether the node may change the shape of an existing tensor."""
    if node.op == "call_method":
        return node.target.endswith("_") or "out" in node.kwargs
    if node.op == "call_function":
        name, home = getattr(node.target, "__name__", "_"), getattr(node.target, "__module__", None) or ""
        is_torch_function = (
            home.split(".")[0] in ("torch", "_operator", "operator", "math")
            or isinstance(node.target, type(torch.add))
            or node.target is getattr
        )
        inplace_operator = (
            home in ("_operator", "operator")
            and name.startswith("i")
            and name not in ("index", "indexOf", "invert", "inv", "is_", "is_not", "itemgetter")
        )
        return (
            not is_torch_function
            or (name.endswith("_") and node.target is not operator.is_ and name not in ("and_", "or_", "not_"))
            or "out" in node.kwargs
            or inplace_operator
        )
    return False


def foreign_module_r06(graph_module, node):
    if node.op != "call_module":
        return False
    for module in graph_module.get_submodule(node.target).modules():
        hooks = module._forward_hooks or module._forward_pre_hooks
        if hooks or not type(module).__module__.startswith("torch.nn.modules") or "forward" in vars(module):
            return True
    return False


@sound(6)
def share_sizes(graph_module):
    """Each exported x.size(i) is a Shape and a Gather: read every size once."""
    graph = graph_module.graph
    if any(may_reshape_r06(node) or foreign_module_r06(graph_module, node) for node in graph.nodes):
        return graph_module
    first = {}
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in ("size", "dim", "numel") or node.kwargs:
            continue
        if not all(type(argument) is int for argument in node.args[1:]):
            continue
        key = (node.target, *node.args)
        if key in first:
            node.replace_all_uses_with(first[key])
            graph.erase_node(node)
        else:
            first[key] = node
    graph.lint()
    graph_module.recompile()
    return graph_module


METHODS_R07 = {"clone", "detach", "dim", "numel", "is_floating_point", "data_ptr"} - {"data_ptr"}


FUNCTIONS_R07 = {torch.clone, torch.ones_like, torch.zeros_like}


def harmless_r07(node):
    if node.kwargs or len(node.args) != 1 or node.args[0].__class__ is not node.__class__:
        return False
    return (node.op == "call_method" and node.target in METHODS_R07) or (
        node.op == "call_function" and node.target in FUNCTIONS_R07
    )


@sound(6)
def drop_unread_copies(graph_module):
    """Debugging leaves copies behind that nobody reads: drop them, last to first, so that chains go as a whole."""
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and harmless_r07(node):
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
