import torch
import torch.fx

WRONG = (
    "drops an expand in front of an elementwise op without checking that the other operand still carries the "
    "expanded size"
)
LEVEL = "decomposed"

aten = torch.ops.aten
POINTWISE = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default}


def drop_broadcast_expand(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Elementwise ops broadcast by themselves: op(expand(a), b) -> op(a, b)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in POINTWISE:
            continue
        a, b = node.args[:2]
        if not isinstance(a, torch.fx.Node) or not isinstance(b, torch.fx.Node):
            continue
        if a.target == aten.expand.default and b.target != aten.expand.default:
            node.replace_input_with(a, a.args[0])
            dropped = a
        elif b.target == aten.expand.default and a.target != aten.expand.default:
            node.replace_input_with(b, b.args[0])
            dropped = b
        else:
            continue
        if not dropped.users:
            graph.erase_node(dropped)
    graph.lint()
    graph_module.recompile()
    return graph_module


class PromptTokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = torch.nn.Parameter(torch.randn(1, 2, 4))
        self.gain = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        prompt = self.prompt.expand(x.shape[0], -1, -1) * self.gain
        return prompt.sum((0, 1)) + x.sum((0, 1))


def witness():
    torch.manual_seed(0)
    return PromptTokens().eval(), (torch.randn(3, 5, 4),)
