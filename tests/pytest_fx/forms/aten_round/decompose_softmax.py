import torch
import torch.fx

RIGHT = (
    "softmax is exp(x - max) over its sum, also with -inf entries and with rows that give NaN; only "
    "float32/float64 without a cast, over a dim known not to be empty; the contiguous copy keeps softmax's "
    "output layout"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def decompose_softmax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """_softmax -> amax, sub, exp, sum, div."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten._softmax.default or len(node.args) != 3:
            continue
        x, dim, half_to_float = node.args
        val = x.meta.get("val")
        if half_to_float or val is None or val.dtype not in (torch.float32, torch.float64):
            continue
        if val.dim() == 0:
            continue
        size = val.shape[dim]
        if not isinstance(size, int) or size == 0:
            continue
        with graph.inserting_before(node):
            x = graph.call_function(aten.clone.default, (x,), {"memory_format": torch.contiguous_format})
            top = graph.call_function(aten.amax.default, (x, [dim], True))
            shifted = graph.call_function(aten.sub.Tensor, (x, top))
            powers = graph.call_function(aten.exp.default, (shifted,))
            total = graph.call_function(aten.sum.dim_IntList, (powers, [dim], True))
            out = graph.call_function(aten.div.Tensor, (powers, total))
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class MaskedScores(torch.nn.Module):
    def forward(self, x):
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        scores = (50 * x @ x.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ x, torch.softmax(x.transpose(0, 1), 1)


def witness():
    torch.manual_seed(0)
    return MaskedScores().eval(), (torch.randn(2, 4, 3),)
