import math

import torch
import torch.fx

RIGHT = (
    "two clamps with overlapping ranges are one clamp to the intersection, with the same gradient mask; "
    "disjoint, empty or NaN ranges, promoting dtypes and writes in between are left alone"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _range(node):
    """(low, high) of a clamp with Python bounds, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target != aten.clamp.default:
        return None
    low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
    high = node.args[2] if len(node.args) > 2 else node.kwargs.get("max")
    for bound in (low, high):
        if bound is not None and (type(bound) not in (int, float) or math.isnan(bound)):
            return None
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return (low, high) if low <= high else None


def _only_pure_between(first, last):
    node = first.next
    while node is not last:
        if node.op == "root":
            return False
        if node.op == "call_function":
            if isinstance(node.target, torch._ops.OpOverload):
                if node.target._schema.is_mutable:
                    return False
            elif getattr(node.target, "__name__", "") != "getitem":
                return False
        elif node.op not in ("get_attr", "placeholder"):
            return False
        node = node.next
    return True


def fuse_clamp_chain(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """clamp(clamp(x, a, b), c, d) -> clamp(x, max(a, c), min(b, d)) where that range is not empty."""
    graph = graph_module.graph
    for outer in list(graph.nodes):
        second = _range(outer)
        if second is None:
            continue
        inner = outer.args[0]
        first = _range(inner)
        if first is None:
            continue
        x = inner.args[0]
        vals = [n.meta.get("val") for n in (x, inner, outer)]
        if any(v is None for v in vals) or len({v.dtype for v in vals}) != 1:
            continue
        if vals[0].dtype not in (torch.float32, torch.float64):
            continue
        low, high = max(first[0], second[0]), min(first[1], second[1])
        if low > high or not _only_pure_between(inner, outer):
            continue
        low = None if low == -math.inf else low
        high = None if high == math.inf else high
        if low is None and high is None:
            continue
        outer.args = (x, low, high)
        outer.kwargs = {}
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Limits(torch.nn.Module):
    def forward(self, x):
        a = x.clamp(-1.0, 2.0).clamp(min=0.0)
        b = x.clamp(max=-1.0).clamp(-0.5, 3.0)
        return a.clamp(max=1.5), b


def witness():
    torch.manual_seed(0)
    return Limits().eval(), (2 * torch.randn(4, 6),)
