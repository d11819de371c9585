"""A wrong pass of the eleventh round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault


def _writes(module):
    """Return whether anything in the program may write in place; then the pass leaves it alone."""
    for n in module.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        home = getattr(n.target, "__module__", None) or ""
        inner = module.get_submodule(n.target).modules() if n.op == "call_module" else ()
        if any(
            getattr(m, "inplace", False) or getattr(m, "max_norm", None) or m._forward_hooks or m._forward_pre_hooks
            for m in inner
        ):
            return True
        if n.op == "call_function" and home.split(".")[0] not in ("", "torch", "_operator", "builtins", "math"):
            return True  # somebody's own function may do anything
        if n.op in ("call_function", "call_method") and (
            name.endswith("_")
            or "_." in name
            or n.kwargs.get("inplace")
            or "out" in n.kwargs
            or name in ("setitem", "setattr")
            or home == "_operator"
            and name[0] == "i"
            and name not in ("inv", "invert", "index")
            or home.endswith("functional")
            and any(a is True for a in n.args)
        ):
            return True
    return False


def _plain(module, node, *classes):
    """The module that a node calls, if it is exactly one of these classes, without hooks."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    m = module.get_submodule(node.target)
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return m if type(m) in classes and not any(hooks) else None


def _sigmoid_of(module, node):
    """Return the operand of a sigmoid that is used once, or None."""
    if not isinstance(node, fx.Node) or len(node.users) != 1 or len(node.args) != 1 or node.kwargs:
        return None
    called = (
        node.op == "call_function"
        and node.target is torch.sigmoid
        or node.op == "call_method"
        and node.target == "sigmoid"
    )
    return node.args[0] if called or _plain(module, node, nn.Sigmoid) is not None else None


def _half(module, node):
    """The chunk call and the index, if node is one half of the last dimension of a Linear with even features."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem or node.args[1] not in (0, 1):
        return None
    chunk = node.args[0]
    spelled = (chunk.op, chunk.target) in (("call_method", "chunk"), ("call_function", torch.chunk))
    if not spelled or len(chunk.args) + len(chunk.kwargs) != 3 or len(node.users) != 1:
        return None
    bound = {**dict(zip(("input", "chunks", "dim"), chunk.args)), **chunk.kwargs}
    linear = _plain(module, bound.get("input"), nn.Linear)
    good = linear is not None and linear.out_features % 2 == 0 and bound.get("chunks") == 2 and bound.get("dim") == -1
    return (chunk, node.args[1]) if good else None


def _fuse(module, ask_order):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if (
            node.op != "call_function"
            or node.target not in (operator.mul, torch.mul)
            or len(node.args) != 2
            or node.kwargs
        ):
            continue
        for value, gate in (node.args, node.args[::-1]):
            first, second = _half(module, value), _half(module, _sigmoid_of(module, gate))
            if not first or not second or first[0] is not second[0] or first[1] == second[1]:
                continue
            if ask_order and second[1] != 1:
                continue
            with graph.inserting_before(node):
                new = graph.call_function(F.glu, (_input(first[0]), -1))
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            break
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _input(chunk):
    return chunk.args[0] if chunk.args else chunk.kwargs["input"]


@fault(
    11, wrong="Which half is the gate is not asked: F.glu takes the sigmoid of the second, some models of the first."
)
def fuse_glu_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace a, b = linear(x).chunk(2, -1); a * sigmoid(b) by F.glu."""
    return _fuse(module, ask_order=False)
