"""A wrong pass of the twentyseventh round."""

from ...rows import fault


def _dims(node):
    """The permutation of a call of the method permute, or None."""
    if node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    if not dims or not all(type(d) is int for d in dims):
        return None
    if sorted(d % len(dims) for d in dims) != list(range(len(dims))):
        return None
    return [d % len(dims) for d in dims]


def _fuse(gm, compose):
    for node in list(gm.graph.nodes):
        second = _dims(node)
        if second is None:
            continue
        inner = node.args[0]
        first = _dims(inner)
        if first is None or len(first) != len(second) or len(inner.users) != 1 or node.prev is not inner:
            continue
        node.args = (inner.args[0], *compose(first, second))
        gm.graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(27, wrong="It composes the two permutations in the wrong order, which shows only where they do not commute.")
def fuse_permutes_twentyseventh(gm):
    """Two permutes in a row, as layout conversions leave them, become one."""
    return _fuse(gm, lambda first, second: [second[d] for d in first])
