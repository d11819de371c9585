import torch
import torch.fx

WRONG = "takes a middle dtype at least as wide as the source for lossless: float32 -> int32 -> float32 truncates"
LEVEL = "decomposed"

aten = torch.ops.aten


def _only_dtype(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target != aten._to_copy.default:
        return None
    argument = {k for k, v in node.kwargs.items() if v is not None and not (k == "non_blocking" and v is False)}
    return node.kwargs["dtype"] if argument == {"dtype"} else None


def collapse_casts(graph: torch.fx.Graph) -> None:
    """_to_copy(_to_copy(x, mid), last) -> _to_copy(x, last) where the middle cast loses nothing."""
    for outer in list(graph.nodes):
        last = _only_dtype(outer)
        if last is None:
            continue
        inner = outer.args[0]
        mid = _only_dtype(inner)
        if mid is None or torch.bool in (mid, last):
            continue
        source = inner.args[0].meta["val"].dtype
        if mid.itemsize < source.itemsize:
            continue  # a narrowing cast rounds or wraps
        outer.args = (inner.args[0],)
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()


class Quantize(torch.nn.Module):
    def forward(self, x):
        q = (x * 10).to(torch.int32)
        return q.to(torch.float32) / 10


def witness():
    torch.manual_seed(0)
    return Quantize().eval(), (torch.randn(3, 4),)
