"""A right pass of the twentysixth round."""

import fx

from ...rows import sound
from .shared import _hooked


def _usual(m):
    """A layer of torch.nn that writes its attributes in place, if at all."""
    return type(m).__module__.startswith("torch.nn.modules.") and not _hooked(m)


@sound(26)
def merge_attribute_reads(gm: fx.GraphModule):
    """Read each parameter and buffer once."""
    for node in gm.graph.nodes:
        if node.op == "call_module" and any(not _usual(m) for m in gm.get_submodule(node.target).modules()):
            return gm  # a hook can put another tensor in the place of an attribute
    tensors = dict(gm.named_parameters(remove_duplicate=False)) | dict(gm.named_buffers(remove_duplicate=False))
    first = {}
    for node in list(gm.graph.nodes):
        if node.op != "get_attr" or node.target not in tensors:
            continue
        if node.target in first:
            node.replace_all_uses_with(first[node.target])
            gm.graph.erase_node(node)
        else:
            first[node.target] = node
    gm.recompile()
    return gm
