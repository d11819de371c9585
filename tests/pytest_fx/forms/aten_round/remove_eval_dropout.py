import torch
import torch.fx

RIGHT = (
    "with train=False every dropout variant returns its very input, so its node can go, whatever p, users or "
    "later writes"
)
LEVEL = "exported"

aten = torch.ops.aten
DROPOUTS = (
    aten.dropout.default,
    aten.alpha_dropout.default,
    aten.feature_dropout.default,
    aten.feature_alpha_dropout.default,
)


def remove_eval_dropout(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """dropout(x, p, train=False) -> x; a dropout that is active stays."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in DROPOUTS:
            continue
        if len(node.args) != 3 or node.kwargs or node.args[2] is not False:
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)
        self.drop = torch.nn.Dropout(0.3)
        self.alpha = torch.nn.AlphaDropout(0.1)

    def forward(self, x):
        h = self.drop(self.fc(x))
        h.mul_(2)
        return x + self.alpha(h), self.drop(h)


def witness():
    torch.manual_seed(0)
    return Block().eval(), (torch.randn(3, 6),)
