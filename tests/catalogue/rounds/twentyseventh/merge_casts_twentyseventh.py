"""A wrong pass of the twentyseventh round."""

import torch

from ...rows import fault

SHORT = {
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "char": torch.int8,
}


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _cast(node):
    """The dtype that a call casts to, or None."""
    if node.op != "call_method" or node.kwargs:
        return None
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1] if node.args[1] in SHORT.values() else None
    return SHORT.get(node.target) if len(node.args) == 1 else None


def _merge(gm, loses_nothing):
    for node in list(gm.graph.nodes):
        last = _cast(node)
        if last not in FLOATS:
            continue
        inner = node.args[0]
        middle = _cast(inner)
        if middle is None or middle is last or len(inner.users) != 1 or node.prev is not inner:
            continue
        if not loses_nothing(middle):
            continue
        with gm.graph.inserting_before(node):  # one of the two casts makes a copy whatever comes in
            merged = gm.graph.call_method("to", (inner.args[0], last), {"copy": True})
        node.replace_all_uses_with(merged)
        gm.graph.erase_node(node)
        gm.graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(
    27, wrong="The cast in the middle may be the narrower one: it rounds, on purpose, and what it cut off comes back."
)
def merge_casts_twentyseventh(gm):
    """Two casts in a row become one, to the last dtype."""
    return _merge(gm, lambda middle: True)
