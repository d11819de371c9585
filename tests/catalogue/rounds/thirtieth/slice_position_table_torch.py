"""A wrong pass of the thirtieth round."""

import operator

import torch
import torch.fx

from ...rows import fault


def _whole(node):
    """A number that is surely an int: a literal, or one extent of a tensor."""
    if not isinstance(node, torch.fx.Node):
        return type(node) is int
    if node.op == "call_method" and node.target == "size":
        return len(node.args) == 2
    if node.op == "call_function" and node.target is operator.getitem and type(node.args[1]) is int:
        source = node.args[0]
        return (
            isinstance(source, torch.fx.Node)
            and source.op == "call_function"
            and source.target is getattr
            and source.args[1] == "shape"
        )
    return False


def _slice(gm, copy):
    for node in list(gm.graph.nodes):
        indexing = (("call_function", operator.getitem), ("call_method", "__getitem__"))
        if (node.op, node.target) not in indexing or not isinstance(node.args[1], torch.fx.Node):
            continue
        table, index = node.args
        if (index.op, index.target) != ("call_function", torch.arange) or set(index.kwargs) - {"device"}:
            continue
        start, end = (0, *index.args) if len(index.args) == 1 else index.args if len(index.args) == 2 else (None, None)
        if type(start) is not int or start < 0 or not _whole(end) or not isinstance(table, torch.fx.Node):
            continue
        with gm.graph.inserting_before(node):
            length = gm.graph.call_function(operator.sub, (end, start)) if start else end
            rows = gm.graph.call_method("narrow", (table, 0, start, length))
            if copy:
                rows = gm.graph.call_method("clone", (rows,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(rows)
        gm.graph.erase_node(node)
        if not index.users:
            gm.graph.erase_node(index)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="A gather by torch.arange makes a new tensor, the slice that takes its place is a view of the table: a "
    "program that then writes into the result (scales the rotary angles in place) corrupts the table for the "
    "next call.",
)
def slice_position_table(gm: torch.fx.GraphModule):
    """Read the rows of a position table (rotary or learned) as a slice instead of a gather by arange."""
    return _slice(gm, False)
