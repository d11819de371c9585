"""A wrong pass of the eleventh round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _writes(module):
    """Return whether anything in the program may write in place; then the pass leaves it alone."""
    for n in module.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        home = getattr(n.target, "__module__", None) or ""
        inner = module.get_submodule(n.target).modules() if n.op == "call_module" else ()
        if any(
            getattr(m, "inplace", False) or getattr(m, "max_norm", None) or m._forward_hooks or m._forward_pre_hooks
            for m in inner
        ):
            return True
        if n.op == "call_function" and home.split(".")[0] not in ("", "torch", "_operator", "builtins", "math"):
            return True  # somebody's own function may do anything
        if n.op in ("call_function", "call_method") and (
            name.endswith("_")
            or "_." in name
            or n.kwargs.get("inplace")
            or "out" in n.kwargs
            or name in ("setitem", "setattr")
            or home == "_operator"
            and name[0] == "i"
            and name not in ("inv", "invert", "index")
            or home.endswith("functional")
            and any(a is True for a in n.args)
        ):
            return True
    return False


def _pattern(eps):
    def pattern(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    return pattern


def _by_weight(eps):
    return lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)


@fault(
    11,
    wrong="The weight's shape is taken for the normalized shape without asking that it is a vector: with a weight for each head and channel, (H, D), the mean is taken over heads as well.",
)
def fuse_rms_norm_eleventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace x * rsqrt(mean(x ** 2) + eps) * weight by F.rms_norm."""
    if not _writes(module):
        for eps in (1e-5, 1e-6, 1e-8):
            torch.fx.replace_pattern(module, _pattern(eps), _by_weight(eps))
    return module
