import torch
import torch.fx

WRONG = (
    "drops the scale factors for the output size: with align_corners=False the given scale, not the size "
    "ratio, sets the sample points when size * scale is not whole"
)
LEVEL = "exported"

aten = torch.ops.aten


def resolve_upsample_size(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """upsample_bilinear2d.vec(x, None, align, scales) -> the form with an explicit output size."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.upsample_bilinear2d.vec:
            continue
        x, size, align_corners, scales = node.args
        if size is not None or scales is None:
            continue
        shape = x.meta["val"].shape
        if not all(isinstance(s, int) for s in shape[-2:]):
            continue
        out_size = [int(shape[-2] * scales[0]), int(shape[-1] * scales[1])]
        with graph.inserting_before(node):
            new = graph.call_function(aten.upsample_bilinear2d.default, (x, out_size, align_corners))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class Zoom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=False)

    def forward(self, x):
        return self.up(x)


def witness():
    torch.manual_seed(0)
    return Zoom().eval(), (torch.randn(1, 2, 5, 7),)
