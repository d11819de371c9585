import torch
import torch.fx

WRONG = "index.Tensor takes negative indices, index_select does not"
LEVEL = "decomposed"

aten = torch.ops.aten


def index_to_index_select(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x[:, :, idx] with one 1-d integer index -> index_select(x, dim, idx)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.index.Tensor:
            continue
        x, indices = node.args
        argument = [(dim, i) for dim, i in enumerate(indices) if i is not None]
        if len(argument) != 1:
            continue
        dim, index = argument[0]
        val = index.meta.get("val")
        if val is None or val.dim() != 1 or val.dtype not in (torch.int32, torch.int64):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(aten.index_select.default, (x, dim, index))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Ends(torch.nn.Module):
    """First and last step of every sequence."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ends", torch.tensor([0, -1]))

    def forward(self, x):
        return x[:, self.ends]


def witness():
    torch.manual_seed(0)
    return Ends().eval(), (torch.randn(2, 5, 3),)
