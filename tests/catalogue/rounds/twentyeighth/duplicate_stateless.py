"""A wrong pass of the twentyeighth round."""

import copy

from ...rows import fault


def without_parameters(gm, node):
    return not list(gm.get_submodule(node.target).parameters())


def duplicate(gm, accept):
    called = set()
    for node in gm.graph.nodes:
        if node.op != "call_module" or not accept(gm, node):
            continue
        module = gm.get_submodule(node.target)
        if id(module) not in called:
            called.add(id(module))
            continue
        number = 1
        while hasattr(gm, f"{node.target.replace('.', '_')}_{number}"):
            number += 1
        name = f"{node.target.replace('.', '_')}_{number}"
        gm.add_submodule(name, copy.deepcopy(module))
        node.target = name
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Takes a module without parameters for stateless: a batch norm without affine keeps running statistics in buffers.",
)
def duplicate_stateless(gm):
    """Gives each call of a shared stateless module a module of its own, so that each gets its own observer later."""
    return duplicate(gm, without_parameters)
