import math

import torch
import torch.fx

WRONG = (
    "aligns the causal mask at the bottom right (diagonal S - L); torch aligns it at the top left, so it is "
    "wrong where query and key lengths differ"
)
LEVEL = "exported"

aten = torch.ops.aten


def decompose_sdpa(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """scaled_dot_product_attention -> matmul, softmax, matmul."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.scaled_dot_product_attention.default:
            continue
        args = list(node.args) + [None, 0.0, False][len(node.args) - 3 :]
        q, k, v, mask, dropout_p, is_causal = args
        if dropout_p != 0.0 or node.kwargs.get("enable_gqa", False):
            continue
        qv, kv = q.meta["val"], k.meta["val"]
        scale = node.kwargs.get("scale")
        if scale is None:
            scale = 1.0 / math.sqrt(qv.shape[-1])
        with graph.inserting_before(node):
            kt = graph.call_function(aten.transpose.int, (k, -2, -1))
            scores = graph.call_function(aten.matmul.default, (q, kt))
            scores = graph.call_function(aten.mul.Tensor, (scores, scale))
            if is_causal:
                lq, lk = qv.shape[-2], kv.shape[-2]
                ones = graph.call_function(aten.ones.default, ([lq, lk],), {"dtype": torch.bool, "device": qv.device})
                keep = graph.call_function(aten.tril.default, (ones, lk - lq))
                drop = graph.call_function(aten.logical_not.default, (keep,))
                scores = graph.call_function(aten.masked_fill.Scalar, (scores, drop, float("-inf")))
            elif mask is not None:
                if mask.meta["val"].dtype == torch.bool:
                    drop = graph.call_function(aten.logical_not.default, (mask,))
                    scores = graph.call_function(aten.masked_fill.Scalar, (scores, drop, float("-inf")))
                else:
                    scores = graph.call_function(aten.add.Tensor, (scores, mask))
            probs = graph.call_function(aten.softmax.int, (scores, -1))
            out = graph.call_function(aten.matmul.default, (probs, v))
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class ChunkedDecoderAttention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def witness():
    torch.manual_seed(0)
    return ChunkedDecoderAttention().eval(), (
        torch.randn(1, 2, 3, 8),
        torch.randn(1, 2, 5, 8),
        torch.randn(1, 2, 5, 8),
    )
