import torch
import torch.fx

RIGHT = (
    "permute(permute(x, p), q) is permute(x, [p[i] for i in q]): the same view of the same storage, so also "
    "writes through it agree"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _changes_sizes_in_place(graph):
    return any(
        isinstance(n.target, torch._ops.OpOverload) and torch.Tag.inplace_view in n.target.tags for n in graph.nodes
    )


def merge_permutes(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Read through a chain of permutes; an inner permute goes where nobody else uses it."""
    graph = graph_module.graph
    if _changes_sizes_in_place(graph):  # t_(), squeeze_() ... between the two
        return graph_module
    for outer in list(graph.nodes):
        if outer.op != "call_function" or outer.target != aten.permute.default:
            continue
        inner = outer.args[0]
        if inner.op != "call_function" or inner.target != aten.permute.default:
            continue
        if outer.kwargs or inner.kwargs or len(outer.args) != 2 or len(inner.args) != 2:
            continue
        p, q = inner.args[1], outer.args[1]
        rank = len(p)
        if len(q) != rank:
            continue
        outer.args = (inner.args[0], [p[i % rank] % rank for i in q])
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Rotate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        y = x.permute(1, 2, 0).permute(-1, 0, 1)
        z = x.permute(2, 0, 1).permute(2, 1, 0)
        return y * 2, z @ self.weight


def witness():
    torch.manual_seed(0)
    return Rotate().eval(), (torch.randn(2, 3, 4),)
