import torch
import torch.fx

WRONG = "x == amax(x) marks every maximum, the one-hot of argmax only the first: wrong on ties"
LEVEL = "exported"

aten = torch.ops.aten


def argmax_mask(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """eq(x, amax(x, d, keepdim=True)) -> arange == argmax(x, d), free of a float comparison."""
    graph = graph_module.graph
    for eq in list(graph.nodes):
        if eq.op != "call_function" or eq.target != aten.eq.Tensor:
            continue
        for x, top in (eq.args, eq.args[::-1]):
            if top.target != aten.amax.default or top.args[0] is not x:
                continue
            dims = top.args[1] if len(top.args) > 1 else []
            keepdim = top.args[2] if len(top.args) > 2 else False
            if len(dims) != 1 or not keepdim:
                continue
            val = x.meta["val"]
            dim = dims[0] % val.dim()
            size = val.shape[dim]
            if not isinstance(size, int):
                continue
            shape = [1] * val.dim()
            shape[dim] = size
            with graph.inserting_before(eq):
                index = graph.call_function(aten.argmax.default, (x, dim, True))
                ramp = graph.call_function(aten.arange.default, (size,), {"device": val.device})
                ramp = graph.call_function(aten.view.default, (ramp, shape))
                mask = graph.call_function(aten.eq.Tensor, (ramp, index))
            mask.meta = dict(eq.meta)
            eq.replace_all_uses_with(mask)
            graph.erase_node(eq)
            if not top.users:
                graph.erase_node(top)
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


class WinnerTakesAll(torch.nn.Module):
    def forward(self, x):
        x = torch.relu(x)
        return torch.where(x == x.amax(-1, keepdim=True), 1.0, x)


def witness():
    return WinnerTakesAll().eval(), (torch.tensor([[0.2, 1.5, -1.0, 0.3], [-1.0, -0.1, -3.0, -0.4]]),)
