"""A wrong pass of the twentyfourth round."""

import operator

import torch
from torch import nn
from torch.nn import functional as F

import fx

from ...rows import fault

MATMUL = (torch.matmul, operator.matmul)


def _module(gm, node, kind):
    m = gm.get_submodule(node.target) if isinstance(node, fx.Node) and node.op == "call_module" else None
    return m if type(m) is kind and not any(v for k, v in vars(m).items() if k.endswith("_hooks")) else None


def _fuse(gm, with_dropout):
    for out in [n for n in gm.graph.nodes if n.op == "call_function" and n.target in MATMUL and len(n.args) == 2]:
        probs, value = out.args
        chain, rate, scale = [], 0.0, 1.0
        if (drop := _module(gm, probs, nn.Dropout)) is not None:
            if drop.p and not with_dropout:
                continue
            chain, rate, probs = [probs], drop.p, probs.args[0]
        if not isinstance(probs, fx.Node) or probs.target not in (torch.softmax, F.softmax):
            continue
        dim = probs.kwargs.get("dim", probs.args[1] if len(probs.args) > 1 else None)
        if dim != -1 or probs.kwargs.get("dtype") is not None or len(probs.args) > 2:
            continue
        chain.append(probs)
        scores = probs.args[0]
        if scores.target in (operator.mul, operator.truediv) and isinstance(scores.args[1], (int, float)):
            scale = scores.args[1] if scores.target is operator.mul else 1 / scores.args[1]
            chain.append(scores)
            scores = scores.args[0]
        if not isinstance(scores, fx.Node) or scores.target not in MATMUL or len(scores.args) != 2:
            continue
        query, turned = scores.args
        if turned.op != "call_method" or turned.target != "transpose" or turned.args[1:] not in ((-2, -1), (-1, -2)):
            continue
        key = turned.args[0]
        chain += [scores, turned, query, key, value]
        if any(_module(gm, n, nn.Linear) is None or n.args != query.args for n in (query, key, value)):
            continue  # the same rank and batch for all three
        if any(len(n.users) != 1 for n in chain):
            continue
        with gm.graph.inserting_before(out):
            fused = gm.graph.call_function(
                F.scaled_dot_product_attention, (query, key, value), {"dropout_p": rate, "scale": scale}
            )
        out.replace_all_uses_with(fused)
        for node in [out, *chain[: chain.index(query)]]:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The rate of the Dropout module becomes dropout_p, which drops in evaluation too: the fused function knows no mode.",
)
def fuse_attention_twentyfourth(gm):
    """Fuse attention that is written out, with or without dropout of the probabilities."""
    return _fuse(gm, with_dropout=True)
