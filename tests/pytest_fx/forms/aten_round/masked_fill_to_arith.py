import torch
import torch.fx

WRONG = "x * (1 - m) + v * m leaves NaN where the masked-out element of x is infinite or NaN"
LEVEL = "exported"

aten = torch.ops.aten


def masked_fill_to_arith(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """masked_fill(x, mask, v) -> x * (1 - m) + v * m, for backends without select."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.masked_fill.Scalar:
            continue
        x, mask, value = node.args
        val = x.meta["val"]
        if not val.dtype.is_floating_point:
            continue
        if not isinstance(value, (int, float)) or abs(value) == float("inf") or value != value:
            continue  # inf * 0 is NaN
        with graph.inserting_before(node):
            m = graph.call_function(aten._to_copy.default, (mask,), {"dtype": val.dtype})
            keep = graph.call_function(aten.rsub.Scalar, (m, 1))
            out = graph.call_function(aten.mul.Tensor, (x, keep))
            if value != 0:
                fill = graph.call_function(aten.mul.Tensor, (m, value))
                out = graph.call_function(aten.add.Tensor, (out, fill))
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class SafeLog(torch.nn.Module):
    def forward(self, x):
        y = torch.log(x)
        return y.masked_fill(x <= 0, 0.0)


def witness():
    return SafeLog().eval(), (torch.tensor([[0.5, 1.0, 0.0], [2.0, 0.0, 4.0]]),)
