import torch
import torch.fx

WRONG = (
    "takes the intersection of two clamp ranges also where they are disjoint (min > max), where the second "
    "clamp must win"
)
LEVEL = "exported"

aten = torch.ops.aten


def _bounds(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return None
    if node.target == aten.relu.default:
        return 0, None
    if node.target in (aten.clamp.default, aten.hardtanh.default):
        lo = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
        hi = node.args[2] if len(node.args) > 2 else node.kwargs.get("max")
        return (lo, hi) if node.target == aten.clamp.default or hi is not None else None
    if node.target == aten.clamp_min.default:
        return node.args[1], None
    if node.target == aten.clamp_max.default:
        return None, node.args[1]
    return None


def _pick(f, a, b):
    return b if a is None else a if b is None else f(a, b)


def combine_clamps(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """clamp / relu / hardtanh of each other -> one clamp."""
    graph = graph_module.graph
    for outer in list(graph.nodes):
        second = _bounds(outer)
        if second is None:
            continue
        inner = outer.args[0]
        first = _bounds(inner)
        if first is None or len(inner.users) != 1:
            continue
        x = inner.args[0]
        if not x.meta["val"].dtype.is_floating_point:
            continue
        with graph.inserting_before(outer):
            fused = graph.call_function(
                aten.clamp.default,
                (x, _pick(max, first[0], second[0]), _pick(min, first[1], second[1])),
            )
        fused.meta = dict(outer.meta)
        outer.replace_all_uses_with(fused)
        graph.erase_node(outer)
        graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


class LogScale(torch.nn.Module):
    """Attenuation only (at most -1 dB), then a floor for the divider behind it."""

    def forward(self, x):
        y = torch.clamp(x, max=-1.0)
        return torch.clamp(y, min=-0.5, max=3.0)


def witness():
    torch.manual_seed(0)
    return LogScale().eval(), (torch.randn(3, 5),)
