import torch
import torch.fx

RIGHT = (
    "a symmetric, non-negative zero pad of spatial dims before a forward convolution is the convolution's own "
    "padding; every other pad stays"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _only_pure_between(first, last):
    node = first.next
    while node is not last:
        if node.op == "root":
            return False
        if node.op == "call_function":
            if isinstance(node.target, torch._ops.OpOverload):
                if node.target._schema.is_mutable:
                    return False
            elif getattr(node.target, "__name__", "") != "getitem":
                return False
        elif node.op not in ("get_attr", "placeholder"):
            return False
        node = node.next
    return True


def fold_pad_into_conv(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """constant_pad_nd(x, p, 0) + convolution(padding=q) -> convolution(x, padding=p + q)."""
    graph = graph_module.graph
    for conv in list(graph.nodes):
        if conv.op != "call_function" or conv.target != aten.convolution.default or len(conv.args) != 9:
            continue
        pad, padding, transposed = conv.args[0], conv.args[4], conv.args[6]
        if transposed or pad.op != "call_function" or pad.target != aten.constant_pad_nd.default:
            continue
        x, amounts = pad.args[0], list(pad.args[1])
        value = pad.args[2] if len(pad.args) > 2 else pad.kwargs.get("value", 0)
        if isinstance(value, torch.fx.Node) or value != 0:
            continue
        val = x.meta.get("val")
        out = conv.meta.get("val")
        if val is None or out is None or val.dim() != out.dim():
            continue
        spatial = val.dim() - 2
        if spatial < 1 or len(amounts) > 2 * spatial or len(padding) != spatial:
            continue
        if not all(isinstance(a, int) and a >= 0 for a in amounts):
            continue
        if not all(isinstance(p, int) for p in padding):
            continue
        if not all(isinstance(s, int) and s > 0 for s in val.shape[1:]):
            continue
        if not _only_pure_between(pad, conv):
            continue
        # pad counts from the last dim backwards, two numbers a dim
        total = list(padding)
        symmetric = True
        for i in range(len(amounts) // 2):
            before, after = amounts[2 * i], amounts[2 * i + 1]
            symmetric = symmetric and before == after
            total[spatial - 1 - i] += before
        if not symmetric:
            continue
        conv.args = (x, *conv.args[1:4], total, *conv.args[5:])
        if not pad.users:
            graph.erase_node(pad)
    graph.lint()
    graph_module.recompile()
    return graph_module


class PaddedConv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Conv2d(3, 4, (3, 5), stride=2, bias=False)
        self.b = torch.nn.Conv2d(4, 4, 3, padding=1, groups=2)

    def forward(self, x):
        x = self.a(torch.nn.functional.pad(x, (2, 2, 1, 1)))
        x = torch.nn.functional.pad(torch.relu(x), (1, 1))
        return self.b(x) * x.mean()


def witness():
    torch.manual_seed(0)
    return PaddedConv().eval(), (torch.randn(2, 3, 9, 11),)
