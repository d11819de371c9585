"""A wrong pass of the twelfth round."""

import torch
import torch.nn.functional as F

from ...rows import fault

INDICES = (torch.argmax, torch.argmin, torch.argsort, "argmax", "argmin", "argsort", F.one_hot)


def _whole(value):
    """Return whether the value is surely an int."""
    if isinstance(value, torch.fx.Node):
        return value.op == "call_method" and value.target == "size" and len(value.args) == 2
    return type(value) is int


def _is_int64(node, look_at_args):
    if node.target in INDICES:
        return "out" not in node.kwargs
    if node.target is torch.arange and not {"dtype", "out"} & set(node.kwargs):
        values = [*node.args, *(node.kwargs[k] for k in ("start", "end", "step") if k in node.kwargs)]
        return not look_at_args or all(_whole(value) for value in values)
    return False


def _casts_to_long(node):
    if node.op != "call_method" or node.kwargs:
        return False
    return (node.target == "long" and len(node.args) == 1) or (node.target == "to" and node.args[1:] == (torch.int64,))


def _run(gm, look_at_args):
    for node in list(gm.graph.nodes):
        if not _casts_to_long(node):
            continue
        source = node.args[0]
        if source.op not in ("call_function", "call_method") or not _is_int64(source, look_at_args):
            continue
        node.replace_all_uses_with(source)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(12, wrong="arange without a dtype passes for int64, also with a start, end or step that is a float.")
def drop_redundant_long(module):
    """Drop casts to int64 of what is int64 already: indices that torch found, and ranges."""
    return _run(module, False)
