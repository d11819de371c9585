"""A wrong pass of the twentyninth round."""

import torch

import fx

from ...rows import fault


def _sum_over(node):
    """(source, dimension) of x.sum(d) or torch.sum(x, d), keepdim and dtype not given; else None."""
    if (node.op, node.target) not in (("call_method", "sum"), ("call_function", torch.sum)):
        return None
    args = list(node.args)
    kwargs = dict(node.kwargs)
    if len(args) == 1 and list(kwargs) == ["dim"]:
        args.append(kwargs.pop("dim"))
    if len(args) != 2 or kwargs or type(args[1]) is not int or args[1] < 0 or not isinstance(args[0], fx.Node):
        return None
    return tuple(args)


def _merge(gm, shift):
    for second in list(gm.graph.nodes):
        outer = _sum_over(second)
        if outer is None or outer[0] is not second.prev or len(outer[0].users) != 1:
            continue
        first, b = outer
        inner = _sum_over(first)
        if inner is None:
            continue
        source, a = inner
        if a == b == 0:
            continue  # a vector's sum may be summed again
        dims = shift(a, b)
        if len(set(dims)) != 2:
            continue
        with gm.graph.inserting_before(second):
            both = gm.graph.call_function(torch.sum, (source,), {"dim": dims})
        second.replace_all_uses_with(both)
        gm.graph.erase_node(second)
        gm.graph.erase_node(first)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="The second dimension counts what the first sum left; from the first one on, the original's number is one higher.",
)
def merge_sums(gm):
    """Merge two sums in a row over one dimension each into one sum over both."""
    return _merge(gm, lambda a, b: (a, b))
