"""A wrong pass of the thirtysecond round."""

import torch

import fx

from ...rows import fault
from .shared import argument, has_writes, replace


@fault(
    32,
    wrong="A cast to int64 is no superset of the floats: it drops fractions. Shows in a model that truncates by x.long().float(), to make steps of positions; through float64 it is right.",
)
def merge_casts_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Drop a cast to a 64-bit type that another cast follows at once."""
    methods = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}
    methods |= {"int": torch.int32, "long": torch.int64, "bool": torch.bool}

    def target_of(node):
        if getattr(node, "op", None) != "call_method":
            return None
        if node.target in methods and len(node.args) == 1 and not node.kwargs:
            return methods[node.target]
        if node.target == "to" and len(node.args) + len(node.kwargs) == 2:
            dtype = argument(node, 1, "dtype")
            return dtype if isinstance(dtype, torch.dtype) else None
        return None

    if has_writes(graph_module):
        return graph_module
    for outer in list(graph_module.graph.nodes):
        dtype = target_of(outer)
        if dtype is None:
            continue
        inner = outer.args[0]
        if target_of(inner) not in (torch.float64, torch.int64) or len(inner.users) != 1:
            continue
        with graph_module.graph.inserting_before(outer):
            cast = graph_module.graph.call_method("to", (inner.args[0],), {"dtype": dtype, "copy": True})
        replace(outer, cast)
        graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
