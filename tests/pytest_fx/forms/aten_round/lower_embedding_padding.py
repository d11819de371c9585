import torch
import torch.fx

WRONG = "padding_idx only stops the gradient; the forward returns the row as it stands, which need not be zero"
LEVEL = "decomposed"

aten = torch.ops.aten


def lower_embedding_padding(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """embedding with a padding_idx -> a plain gather with the padding positions zeroed."""
    sig = exported.graph_signature
    graph_module = exported.graph_module
    graph = graph_module.graph
    with graph_module._set_replace_hook(sig.get_replace_hook()):
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target != aten.embedding.default:
                continue
            padding_idx = node.args[2] if len(node.args) > 2 else node.kwargs.get("padding_idx", -1)
            if not isinstance(padding_idx, int) or padding_idx < 0:
                continue
            weight, indices = node.args[:2]
            with graph.inserting_before(node):
                rows = graph.call_function(aten.embedding.default, (weight, indices))
                rows.meta = dict(node.meta)
                is_pad = graph.call_function(aten.eq.Scalar, (indices, padding_idx))
                is_pad.meta["val"] = aten.eq.Scalar(indices.meta["val"], padding_idx)
                flag = is_pad.meta["val"]
                is_pad = graph.call_function(aten.unsqueeze.default, (is_pad, -1))
                is_pad.meta["val"] = flag.unsqueeze(-1)
                zero = graph.call_function(
                    aten.scalar_tensor.default,
                    (0.0,),
                    {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device},
                )
                zero.meta["val"] = node.meta["val"].new_zeros(())
                out = graph.call_function(aten.where.self, (is_pad, zero, rows))
                out.meta = dict(node.meta)
            node.replace_all_uses_with(out)
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return exported


class PretrainedVectors(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.randn(10, 4), padding_idx=0)

    def forward(self, ids):
        return self.table(ids).mean(1)


def witness():
    torch.manual_seed(0)
    return PretrainedVectors().eval(), (torch.tensor([[4, 2, 0, 0], [7, 1, 3, 0]]),)
