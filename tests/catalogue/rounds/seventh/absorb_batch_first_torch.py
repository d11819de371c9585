"""A wrong pass of the seventh round."""

import copy
import operator
import re

import torch
import torch.fx
from torch import nn

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def calm(module):
    """Return whether nothing in the program writes in place, switches a mode or hooks into a value."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            layer = module.get_submodule(node.target)
            if not type(layer).__module__.startswith("torch.nn.") or getattr(layer, "inplace", False):
                return False
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            home = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
            if home not in ("torch", "_operator", "builtins", "math") and node.op == "call_function":
                return False
            if re.search(r"_$|^__i|^i(add|sub|mul|truediv|pow|or|and|xor)|setitem|grad|hook|autocast|backward", name):
                return False
            if "out" in node.kwargs or node.kwargs.get("inplace") or any(a is True for a in node.args):
                return False
    return True


def swapped(node):
    """Return the operand of a permute by (1, 0, 2), which then has three dimensions; None for other nodes."""
    if node.kwargs or not node.args:
        return None
    if (
        node.op == "call_method"
        and node.target == "permute"
        or node.op == "call_function"
        and node.target is torch.permute
    ):
        dims = node.args[1:] if len(node.args) == 4 else node.args[1] if len(node.args) == 2 else ()
        return node.args[0] if tuple(dims) == (1, 0, 2) else None
    return None


def rewrite(module, layout):
    graph = module.graph
    if not calm(module):
        return module
    for node in list(graph.nodes):
        if node.op != "call_module" or not node.args or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
            continue
        layer, source = module.get_submodule(node.target), swapped(node.args[0])
        if source is None or not plain(layer, nn.LSTM, nn.GRU):
            continue
        parts = list(node.users)
        if any(part.op != "call_function" or part.target is not operator.getitem for part in parts):
            continue
        outputs = [part for part in parts if part.args[1] == 0]
        if len(outputs) != 1 or any(part.args[1] not in (0, 1) for part in parts):
            continue
        if len(outputs[0].users) != 1 or swapped(back := next(iter(outputs[0].users))) is not outputs[0]:
            continue
        turned = copy.deepcopy(layer)
        turned.batch_first = layout(layer.batch_first)
        name, before = f"{node.name}_turned", node.args[0]
        module.add_submodule(name, turned)
        node.target, node.args = name, (source, *node.args[1:])
        back.replace_all_uses_with(outputs[0])
        graph.erase_node(back)
        if not before.users:
            graph.erase_node(before)
    module.recompile()
    return module


@fault(
    7,
    wrong="batch_first is set and not turned round: a layer that has it already (it runs along the other axis, as in axial models) keeps it, but loses the permutation.",
)
def absorb_batch_first(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop `permute(1, 0, 2)` in front of and behind an `LSTM`/`GRU`, and let the layer have the batch first instead."""
    return rewrite(module, lambda batch_first: True)
