import torch
import torch.fx

RIGHT = (
    "addmm(b, x, w.T) with alpha = beta = 1, a 2-d x and a full 1-d bias is linear(x, w, b); any scaled, 2-d "
    "or broadcast bias stays"
)
LEVEL = "decomposed"

aten = torch.ops.aten


def _transposed(node):
    """w where node is the 2-d transpose of w, else None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.kwargs:
        return None
    if (
        (node.target == aten.permute.default and [d % 2 for d in node.args[1]] == [1, 0])
        or node.target == aten.t.default
        or (node.target == aten.transpose.int and sorted(d % 2 for d in node.args[1:]) == [0, 1])
    ):
        w = node.args[0]
    else:
        return None
    val = w.meta.get("val")
    return w if val is not None and val.dim() == 2 else None


def addmm_to_linear(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Give back linear to a backend that has it."""
    sig = exported.graph_signature
    graph_module = exported.graph_module
    graph = graph_module.graph
    for n in graph.nodes:
        if isinstance(n.target, torch._ops.OpOverload) and torch.Tag.inplace_view in n.target.tags:
            return exported
    with graph_module._set_replace_hook(sig.get_replace_hook()):
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target != aten.addmm.default or len(node.args) != 3:
                continue
            if node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
                continue
            bias, x, mat2 = node.args
            w = _transposed(mat2)
            if w is None:
                continue
            vals = [n.meta.get("val") for n in (bias, x, w)]
            if any(v is None for v in vals) or len({v.dtype for v in vals}) != 1:
                continue
            if not vals[0].dtype.is_floating_point or vals[1].dim() != 2 or vals[0].dim() != 1:
                continue
            out_features = vals[2].shape[0]
            if not isinstance(out_features, int) or not isinstance(vals[0].shape[0], int):
                continue
            if vals[0].shape[0] != out_features:
                continue
            with graph.inserting_before(node):
                linear = graph.call_function(aten.linear.default, (x, w, bias))
            linear.meta = dict(node.meta)
            node.replace_all_uses_with(linear)
            graph.erase_node(node)
            if not mat2.users:
                graph.erase_node(mat2)
    graph.lint()
    graph_module.recompile()
    return exported


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 6)
        self.w = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        h = torch.tanh(self.a(x))
        h = torch.addmm(h, h, self.w.t())
        return torch.addmm(self.a.bias, h, self.w.t(), beta=0.5), self.a(x)


def witness():
    torch.manual_seed(0)
    return Mlp().eval(), (torch.randn(3, 4),)
