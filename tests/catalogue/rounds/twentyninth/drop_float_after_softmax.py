"""A wrong pass of the twentyninth round."""

import torch

from fx.subgraph_rewriter import replace_pattern

from ...rows import fault

INPLACE_OPERATORS = {
    "i" + name for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift concat".split()
}


def _plain(x):
    return torch.softmax(x, -1).float()


def _plain_after(x):
    return torch.softmax(x, -1)


def _typed(x):
    return torch.softmax(x, -1, dtype=torch.float32).float()


def _typed_after(x):
    return torch.softmax(x, -1, dtype=torch.float32)


def _writes(gm, node):
    """Return whether the node may write a tensor in place."""
    if node.op == "call_module":
        return getattr(gm.get_submodule(node.target), "inplace", False)
    if node.op not in ("call_method", "call_function"):
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "_")
    inplace = name.endswith("_") or name == "setitem" or name in INPLACE_OPERATORS
    return inplace or bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None


def _drop(gm, pairs):
    if any(_writes(gm, node) for node in gm.graph.nodes):
        return gm  # the pattern's softmax might move past a write
    for pattern, replacement in pairs:
        replace_pattern(gm, pattern, replacement)
    gm.recompile()
    return gm


@fault(29, wrong="A softmax keeps the type of its input: of float16, bfloat16 and float64 the cast makes another type.")
def drop_float_after_softmax(gm):
    """Drop the cast to float32 after a softmax, whose result is float already."""
    return _drop(gm, [(_typed, _typed_after), (_plain, _plain_after)])
