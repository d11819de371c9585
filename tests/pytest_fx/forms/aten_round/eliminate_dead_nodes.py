import torch
import torch.fx

WRONG = (
    "looks through only one view to find the tensor an in-place op writes, so a write through a view of a "
    "view is taken for dead"
)
LEVEL = "exported"

aten = torch.ops.aten
VIEWS = {
    aten.slice.Tensor,
    aten.select.int,
    aten.view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.expand.default,
    aten.narrow.default,
    aten.t.default,
    aten.diagonal.default,
}


def eliminate_dead_nodes(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Erase calls nobody uses, also in-place writes to temporaries nobody reads afterwards."""
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.users:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable:
            written = node.args[0]
            base = written.args[0] if written.target in VIEWS else written
            if base.op in ("placeholder", "get_attr"):
                continue
            # somebody besides this write (and the view it writes through) looks at the storage
            if len(base.users) > 1 or (written is not base and len(written.users) > 1):
                continue
        elif node.is_impure():
            continue
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class PadIntoGrid(torch.nn.Module):
    def forward(self, x):
        out = torch.zeros(x.shape[0], 3, 6)
        out[:, 0, 1:5] = x
        return out * 2


def witness():
    torch.manual_seed(0)
    return PadIntoGrid().eval(), (torch.randn(2, 4),)
