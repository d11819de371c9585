"""A wrong pass of the ninth round."""

import operator

import fx

from ...rows import fault


def _slice(node):
    """Start, stop, and the number of whole dimensions before the one that is sliced; bare slices have -1."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index, depth = node.args[1], -1
    if isinstance(index, tuple):
        if not index or any(part != slice(None) if isinstance(part, slice) else True for part in index[:-1]):
            return None
        index, depth = index[-1], len(index) - 1
    if not isinstance(index, slice) or index.step not in (None, 1) or isinstance(index.step, fx.Node):
        return None
    start = 0 if index.start is None else index.start
    if type(start) is not int or start < 0:
        return None
    if index.stop is not None and (type(index.stop) is not int or index.stop < 0):
        return None
    return start, index.stop, depth


def _run(module, right):
    graph = module.graph
    for outer in list(graph.nodes):
        second = _slice(outer)
        inner = outer.args[0] if second else None
        first = _slice(inner)
        if first is None or first[2] != second[2] or list(inner.users) != [outer]:
            continue
        stop = first[1] if second[1] is None else first[0] + second[1]
        if right and first[1] is not None and stop is not None:
            stop = min(stop, first[1])
        whole = slice(first[0] + second[0], stop)
        depth = first[2]
        inner.args = (inner.args[0], whole if depth < 0 else (*[slice(None)] * depth, whole))
        outer.replace_all_uses_with(inner)
        graph.erase_node(outer)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes the stop of the second slice as it is, though it may lie behind the end of the first slice.")
def compose_slices(module: fx.GraphModule) -> fx.GraphModule:
    """Take a slice of a slice at once."""
    return _run(module, False)
