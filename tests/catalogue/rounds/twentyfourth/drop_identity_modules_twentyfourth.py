"""A right pass of the twentyfourth round."""

from torch import nn

import fx

from ...rows import sound


def _is_plain_identity(module):
    if (
        type(module) is not nn.Identity
        or "forward" in vars(module)
        or vars(module).get("_compiled_call_impl") is not None
    ):
        return False
    return not any(value for name, value in vars(module).items() if name.endswith("_hooks"))


@sound(24)
def drop_identity_modules_twentyfourth(gm):
    """Use the argument of each call of an identity instead of its result."""
    for node in [*gm.graph.nodes]:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        if _is_plain_identity(gm.get_submodule(node.target)):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
