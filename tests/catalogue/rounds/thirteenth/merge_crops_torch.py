"""A wrong pass of the thirteenth round."""

import operator

from torch.fx import GraphModule

from ...rows import fault
from .shared import finish


def _crop(node):
    """(leading full slices, start, stop) of x[:, :, a:b] with literal non-negative ends."""
    if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], tuple):
        return None
    *leading, last = node.args[1]
    if not leading or any(s != slice(None) for s in leading) or not isinstance(last, slice) or last.step is not None:
        return None
    start = 0 if last.start is None else last.start
    if type(start) is not int or type(last.stop) is not int or start < 0 or last.stop < 0:
        return None
    return len(leading), start, last.stop


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        second = _crop(node)
        first = _crop(node.args[0]) if second and hasattr(node.args[0], "op") else None
        if not first or first[0] != second[0] or len(node.args[0].users) != 1:
            continue
        inner = node.args[0]
        start, stop = first[1] + second[1], first[1] + second[2]
        if careful:
            stop = min(stop, first[2])
        node.args = (inner.args[0], (*[slice(None)] * first[0], slice(start, stop)))
        gm.graph.erase_node(inner)
    return finish(gm)


@fault(13, wrong="The end of the first slice is forgotten where the second one reaches beyond it.")
def merge_crops(graph_module: GraphModule) -> GraphModule:
    """Makes one slice of two slices of the same dimension in a row."""
    return _rewrite(graph_module, careful=False)
