"""A wrong pass of the twentysixth round."""

import operator

import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


def _method(node, name):
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == name


def _long(node):
    return _method(node, "long") and len(node.args) == 1 and not node.kwargs


def _clamped(node):
    """Whole numbers from .long(), then clamped from below at a number that is not negative."""
    if not _method(node, "clamp") or not _long(node.args[0]) or len(node.args) > 3:
        return False
    bounds = dict(zip(("min", "max"), node.args[1:])) | dict(node.kwargs)
    return type(bounds.get("min")) is int and bounds["min"] >= 0 and type(bounds.get("max", 0)) is int


def _read_by_linear(gm, node):
    """Only linear layers without hooks read it: the layout that the lookup leaves is not seen by anyone."""
    layers = [gm.get_submodule(u.target) if u.op == "call_module" else None for u in node.users]
    return all(type(layer) is nn.Linear and not _hooked(layer) for layer in layers)


def _rewrite(gm, accepted):
    tables = dict(gm.named_parameters(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
            continue
        table, index = node.args
        if table.op != "get_attr" or table.target not in tables or not accepted(index) or not _read_by_linear(gm, node):
            continue
        if tables[table.target].dim() != 2 or not tables[table.target].is_floating_point():
            continue
        with gm.graph.inserting_before(node):
            lookup = gm.graph.call_function(F.embedding, (index, table))
        node.replace_all_uses_with(lookup)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(26, wrong="Indexing counts negative indices from the end of the table, an embedding refuses them.")
def lookup_to_embedding(gm: fx.GraphModule):
    """Turn the indexing of a parameter table, before a projection, into F.embedding, which backends know."""
    return _rewrite(gm, lambda index: _long(index) or _clamped(index))
