"""A wrong pass of the eighth round."""

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, replace_pattern

from ...rows import fault


def _may_write(module):
    for node in module.graph.nodes:
        if node.op == "call_module":
            for inner in module.get_submodule(node.target).modules():
                trusted = type(inner).__module__.startswith("torch.nn.")
                if not trusted or inner._forward_hooks or inner._forward_pre_hooks or getattr(inner, "inplace", False):
                    return True
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            origin = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
            if (
                name.split(".")[0].endswith("_")
                or name.startswith("_")
                or name == "setitem"
                or node.kwargs.get("inplace")
            ):
                return True
            if "out" in node.kwargs or origin not in ("torch", "_operator", "math", "builtins"):
                return True
            if origin == "_operator" and name[0] == "i" and name not in ("invert", "index"):
                return True
    return False


def _rewrite(module, normalize):
    if not _may_write(module):
        replace_pattern(module, lambda x: x / x.norm(dim=-1, keepdim=True), normalize)
        replace_pattern(module, lambda x: x / x.norm(p=2, dim=-1, keepdim=True), normalize)
        replace_pattern(module, lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True), normalize)
    return module


@fault(
    8,
    wrong="F.normalize divides by 1e-12 at least: rows of zeros are zeros then, not NaN, and tiny rows keep their length.",
)
def fuse_l2_normalize(module: GraphModule) -> GraphModule:
    """Replace `x / x.norm(dim=-1, keepdim=True)` by `F.normalize`."""
    return _rewrite(module, lambda x: F.normalize(x, dim=-1))
