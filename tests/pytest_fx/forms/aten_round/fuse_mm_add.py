import torch
import torch.fx

WRONG = (
    "passes add's alpha on as addmm's alpha also where the product is add's first operand, when alpha scales "
    "the other operand (addmm's beta)"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _val(node):
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _can_be_addmm_bias(bias, product):
    b, p = _val(bias), _val(product)
    if b is None or p is None or b.dtype != p.dtype or b.dim() > 2:
        return False
    tail = p.shape[p.dim() - b.dim() :]
    return all(bs == ps or bs == 1 for bs, ps in zip(b.shape, tail, strict=False))


def fuse_mm_add(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """add(mm(a, b), bias) / add(bias, mm(a, b)) -> addmm(bias, a, b)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.add.Tensor:
            continue
        lhs, rhs = node.args
        for mm, bias in ((lhs, rhs), (rhs, lhs)):
            if not isinstance(mm, torch.fx.Node) or mm.target != aten.mm.default:
                continue
            if len(mm.users) != 1 or not _can_be_addmm_bias(bias, mm):
                continue
            alpha = node.kwargs.get("alpha", 1)
            with graph.inserting_before(node):
                fused = graph.call_function(
                    aten.addmm.default,
                    (bias, mm.args[0], mm.args[1]),
                    {"alpha": alpha} if alpha != 1 else {},
                )
            fused.meta = dict(node.meta)
            node.replace_all_uses_with(fused)
            graph.erase_node(node)
            graph.erase_node(mm)
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


class LowRankResidual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return torch.add(torch.mm(x, self.down), x, alpha=0.5)


def witness():
    torch.manual_seed(0)
    return LowRankResidual().eval(), (torch.randn(4, 6),)
