import torch
import torch.fx

WRONG = "forgets type promotion: an integer tensor times 1.0, plus 0.0 or divided by 1 becomes floating"
LEVEL = "decomposed"

aten = torch.ops.aten
NEUTRAL = {
    aten.add.Tensor: 0,
    aten.sub.Tensor: 0,
    aten.mul.Tensor: 1,
    aten.div.Tensor: 1,
    aten.add.Scalar: 0,
    aten.mul.Scalar: 1,
    aten.div.Scalar: 1,
}


def remove_identity_arith(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x + 0, x - 0, x * 1, x / 1 -> x, for Python scalars (no broadcasting to mind)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in NEUTRAL:
            continue
        x, other = node.args[:2]
        if not isinstance(x, torch.fx.Node) or isinstance(other, (torch.fx.Node, bool)):
            continue
        if other != NEUTRAL[node.target]:
            continue
        if any(user.op == "output" for user in node.users):
            continue  # the caller expects a fresh tensor
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Histogram(torch.nn.Module):
    def __init__(self, temperature=1.0):
        super().__init__()
        self.temperature = temperature

    def forward(self, counts):
        rates = counts / self.temperature
        return torch.cat([rates, rates.flip(0)])


def witness():
    return Histogram().eval(), (torch.tensor([3, 1, 4, 1, 5]),)
