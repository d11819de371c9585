import operator

import torch
import torch.fx

WRONG = "checks that all pieces of a split are concatenated, but not in which order"
LEVEL = "decomposed"

aten = torch.ops.aten
SPLITS = (aten.split_with_sizes.default, aten.split.Tensor)


def fold_split_cat(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """cat of every piece of a split along the same dim -> the tensor that was split."""
    sig = exported.graph_signature
    graph_module = exported.graph_module
    graph = graph_module.graph
    with graph_module._set_replace_hook(sig.get_replace_hook()):
        for cat in list(graph.nodes):
            if cat.op != "call_function" or cat.target != aten.cat.default:
                continue
            pieces = cat.args[0]
            dim = cat.args[1] if len(cat.args) > 1 else 0
            if not all(p.target is operator.getitem for p in pieces):
                continue
            split = pieces[0].args[0]
            if split.target not in SPLITS or any(p.args[0] is not split for p in pieces):
                continue
            rank = cat.meta["val"].dim()
            split_dim = split.args[2] if len(split.args) > 2 else 0
            if split_dim % rank != dim % rank:
                continue
            count = len(split.meta["val"])
            if len(pieces) != count or {p.args[1] for p in pieces} != set(range(count)):
                continue
            source = split.args[0]
            if source.op == "placeholder" and any(u.op == "output" for u in cat.users):
                continue
            cat.replace_all_uses_with(source)
            graph.erase_node(cat)
        graph.eliminate_dead_code()
    graph.lint()
    graph_module.recompile()
    return exported


class SwapHalves(torch.nn.Module):
    """Gated unit with the gate moved in front of the value."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(4, 8)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, dim=-1)
        return torch.tanh(torch.cat([gate, value], dim=-1))


def witness():
    torch.manual_seed(0)
    return SwapHalves().eval(), (torch.randn(3, 4),)
