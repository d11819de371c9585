"""A wrong pass of the twentysixth round."""

import operator

import fx

from ...rows import fault


def _method(node, name):
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == name


def _dimension(node):
    """The one dimension of x.sum(d) or x.size(d), or None."""
    dims = list(node.args[1:]) + [node.kwargs[k] for k in ("dim",) if k in node.kwargs]
    return dims[0] if len(dims) == 1 and type(dims[0]) is int else None


def _rewrite(gm, accepted):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv:
            continue
        total, count = node.args
        if not _method(total, "sum") or not _method(count, "size") or total.args[0] is not count.args[0]:
            continue
        dim = _dimension(total)
        if dim is None or dim != _dimension(count) or not set(total.kwargs) <= {"dim", "keepdim"}:
            continue
        if len(total.users) != 1 or not accepted(gm, total.args[0]):
            continue
        with gm.graph.inserting_before(total):
            mean = gm.graph.call_method("mean", total.args, total.kwargs)
        node.replace_all_uses_with(mean)
        gm.graph.erase_node(node)
        gm.graph.erase_node(total)
        if not count.users:
            gm.graph.erase_node(count)
    gm.recompile()
    return gm


@fault(26, wrong="A sum of booleans or integers can be divided, but there is no mean of them.")
def sum_over_size_to_mean(gm: fx.GraphModule):
    """x.sum(d) / x.size(d) is x.mean(d): one kernel less."""
    return _rewrite(gm, lambda gm, node: True)
