import torch
import torch.fx

RIGHT = (
    "a slice of a slice is the slice Python's range arithmetic gives (clamped, negative and open bounds, "
    "steps), where the size is known: the same view"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _parse(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target != aten.slice.Tensor:
        return None
    if node.kwargs:
        return None
    dim, start, end, step = list(node.args[1:]) + [0, None, None, 1][len(node.args) - 1 :]
    if not all(b is None or type(b) is int for b in (start, end)) or type(step) is not int or step < 1:
        return None
    return dim, slice(start, end, step)


def compose_slices(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """slice(slice(x)) -> slice(x) along one dim."""
    graph_module = exported.graph_module
    graph = graph_module.graph
    for n in graph.nodes:
        if isinstance(n.target, torch._ops.OpOverload) and torch.Tag.inplace_view in n.target.tags:
            return exported
    for outer in list(graph.nodes):
        second = _parse(outer)
        if second is None:
            continue
        inner = outer.args[0]
        first = _parse(inner)
        if first is None:
            continue
        x = inner.args[0]
        val = x.meta.get("val")
        if val is None or first[0] % val.dim() != second[0] % val.dim():
            continue
        dim = first[0] % val.dim()
        size = val.shape[dim]
        if type(size) is not int:
            continue
        remaining = range(size)[first[1]][second[1]]
        if len(remaining) == 0:
            continue
        outer.args = (x, dim, remaining.start, min(remaining.stop, size), remaining.step)
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return exported


class Windows(torch.nn.Module):
    def forward(self, x):
        a = x[:, 1:4][:, :9]
        b = x[:, ::3][:, 1:]
        c = x[:, -6:][:, :-1][:, ::2]
        d = x[:, 2:][1:]
        return a * 2, b, c + 1, d, x[:, 1:4][:, 5:]


def witness():
    torch.manual_seed(0)
    return Windows().eval(), (torch.randn(3, 10),)
