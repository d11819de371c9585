import torch
import torch.fx

WRONG = "does not check that the tensor scaled by the reciprocal root is the tensor whose mean square was taken"
LEVEL = "exported"

aten = torch.ops.aten


def _is(node, target):
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target == target


def fuse_rms_norm(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x * rsqrt(mean(x ** 2, -1, keepdim=True) + eps) -> rms_norm(x, [D], None, eps)."""
    graph = graph_module.graph
    for mul in list(graph.nodes):
        if not _is(mul, aten.mul.Tensor):
            continue
        for x, inv in (mul.args, mul.args[::-1]):
            if not _is(inv, aten.rsqrt.default):
                continue
            add = inv.args[0]
            if not _is(add, aten.add.Tensor) or not isinstance(add.args[1], float) or add.kwargs:
                continue
            mean = add.args[0]
            if not _is(mean, aten.mean.dim) or mean.kwargs:
                continue
            if len(mean.args) < 3 or mean.args[2] is not True:
                continue
            square = mean.args[0]
            if not _is(square, aten.pow.Tensor_Scalar) or square.args[1] != 2:
                continue
            val = x.meta["val"]
            if list(mean.args[1]) not in ([-1], [val.dim() - 1]):
                continue
            if not val.dtype.is_floating_point or val.shape != square.meta["val"].shape:
                continue
            with graph.inserting_before(mul):
                fused = graph.call_function(aten.rms_norm.default, (x, [val.shape[-1]], None, add.args[1]))
            fused.meta = dict(mul.meta)
            mul.replace_all_uses_with(fused)
            graph.erase_node(mul)
            break
    graph.eliminate_dead_code()
    graph.lint()
    graph_module.recompile()
    return graph_module


class ScaledResidual(torch.nn.Module):
    """Scales the branch by the RMS of the stream it is added to."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)

    def forward(self, x):
        inv = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + self.proj(x) * inv


def witness():
    torch.manual_seed(0)
    return ScaledResidual().eval(), (3 * torch.randn(2, 5, 8),)
