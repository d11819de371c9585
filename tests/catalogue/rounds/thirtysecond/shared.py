"""Helpers that the passes of the thirtysecond round share."""

import operator

IN_PLACE_OPERATORS = {
    getattr(operator, name) for name in operator.__all__ if name.startswith("i") and name[1:] in operator.__all__
}
IN_PLACE_OPERATORS |= {operator.setitem, operator.delitem}


def argument(node, position, name, default=None):
    """Return the argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def calls(node, functions=(), methods=()):
    """Return whether the value is a node that calls one of the functions or methods."""
    op = getattr(node, "op", None)
    return (op == "call_function" and node.target in functions) or (op == "call_method" and node.target in methods)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def has_writes(graph_module):
    """Return whether some operation of the program writes to one of its inputs."""
    for node in graph_module.graph.nodes:
        if node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None:
            return True
        if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
            return True
        if node.op == "call_method" and node.target in (
            "__setitem__",
            "__iadd__",
            "__isub__",
            "__imul__",
            "__itruediv__",
        ):
            return True
        if node.op == "call_function":
            name = getattr(node.target, "__name__", "")
            if node.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
                return True
        if node.op == "call_module" and getattr(graph_module.get_submodule(node.target), "inplace", False):
            return True
    return False


def replace(node, new):
    """Put a node in the place of another one."""
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def erase_unused(*nodes):
    for node in nodes:
        if not node.users:
            node.graph.erase_node(node)


def free_name(graph_module, prefix):
    number = 0
    while hasattr(graph_module, f"{prefix}_{number}"):
        number += 1
    return f"{prefix}_{number}"


def calls_of(graph_module, module):
    """Return how many nodes call this very module, under any name."""
    return sum(
        node.op == "call_module" and graph_module.get_submodule(node.target) is module
        for node in graph_module.graph.nodes
    )


def follows_at_once(node, earlier):
    """Return whether no operation runs between the two nodes, so that nothing is written in between."""
    return earlier.next is node
