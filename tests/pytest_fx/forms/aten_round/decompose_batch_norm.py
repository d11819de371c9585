import torch
import torch.fx

WRONG = (
    "ignores the training flag: with training=True the batch's own statistics are used and the running ones are updated"
)
LEVEL = "exported"

aten = torch.ops.aten


def decompose_batch_norm(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """batch_norm -> (x - mean) * rsqrt(var + eps) * weight + bias."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.batch_norm.default:
            continue
        x, weight, bias, mean, var = node.args[:5]
        eps = node.args[7]
        if mean is None or var is None:
            continue  # no running statistics: an instance of batch statistics
        rank = x.meta["val"].dim()
        shape = [1, -1] + [1] * (rank - 2)

        def call(target, *args):
            return graph.call_function(target, args)

        with graph.inserting_before(node):
            inv = call(aten.rsqrt.default, call(aten.add.Tensor, var, eps))
            out = call(aten.sub.Tensor, x, call(aten.view.default, mean, shape))
            out = call(aten.mul.Tensor, out, call(aten.view.default, inv, shape))
            if weight is not None:
                out = call(aten.mul.Tensor, out, call(aten.view.default, weight, shape))
            if bias is not None:
                out = call(aten.add.Tensor, out, call(aten.view.default, bias, shape))
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class TestTimeAdaptation(torch.nn.Module):
    """A batch norm that keeps on using (and tracking) batch statistics when deployed."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 1)
        self.bn = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        bn = self.bn
        return torch.nn.functional.batch_norm(
            self.conv(x), bn.running_mean, bn.running_var, bn.weight, bn.bias, training=True, momentum=0.05
        )


def witness():
    torch.manual_seed(0)
    return TestTimeAdaptation().eval(), (2 + 3 * torch.randn(4, 3, 5, 5),)
