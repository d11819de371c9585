import torch
import torch.fx

WRONG = "casts the result back to the input's dtype, but cumsum of bool and small integers is int64"
LEVEL = "decomposed"

aten = torch.ops.aten


def cumsum_to_matmul(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """cumsum over the last dim -> matmul with an upper triangle of ones."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.cumsum.default:
            continue
        x, dim = node.args
        val = x.meta["val"]
        if node.kwargs.get("dtype") is not None or val.dim() < 2:
            continue
        if dim % val.dim() != val.dim() - 1:
            continue
        size = val.shape[-1]
        if not isinstance(size, int):
            continue
        work = val.dtype if val.dtype in (torch.float32, torch.float64) else torch.float64
        with graph.inserting_before(node):
            source = x
            if work != val.dtype:
                source = graph.call_function(aten._to_copy.default, (x,), {"dtype": work})
            ones = graph.call_function(aten.full.default, ([size, size], 1), {"dtype": work, "device": val.device})
            tri = graph.call_function(aten.triu.default, (ones,))
            out = graph.call_function(aten.matmul.default, (source, tri))
            if work != val.dtype:
                out = graph.call_function(aten._to_copy.default, (out,), {"dtype": val.dtype})
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class PositionIds(torch.nn.Module):
    def forward(self, attention_mask):
        keep = attention_mask != 0
        return keep.cumsum(-1) - 1


def witness():
    return PositionIds().eval(), (torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]),)
