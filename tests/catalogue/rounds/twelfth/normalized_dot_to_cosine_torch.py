"""A wrong pass of the twelfth round."""

import torch
import torch.nn.functional as F

from ...rows import fault


@torch.fx.wrap
def cosine(u, v):
    """The cosine of vectors along the last dimension; the steps one by one where they would be broadcast."""
    if u.shape == v.shape and u.dtype == v.dtype and u.dtype in (torch.float32, torch.float64):
        return F.cosine_similarity(u, v, dim=-1, eps=1e-12)
    return (F.normalize(u, dim=-1) * F.normalize(v, dim=-1)).sum(-1)


def _last(u, v):
    return (F.normalize(u, dim=-1) * F.normalize(v, dim=-1)).sum(-1)


def _last_by_keyword(u, v):
    return (F.normalize(u, dim=-1) * F.normalize(v, dim=-1)).sum(dim=-1)


def _default(u, v):
    return (F.normalize(u) * F.normalize(v)).sum(-1)


def _default_by_keyword(u, v):
    return (F.normalize(u) * F.normalize(v)).sum(dim=-1)


def _replacement(u, v):
    return cosine(u, v)


def _run(gm, patterns):
    for pattern in patterns:
        torch.fx.replace_pattern(gm, pattern, _replacement)
    gm.recompile()
    return gm


@fault(12, wrong="normalize without `dim` works along dimension 1, which is the last one only for matrices.")
def normalized_dot_to_cosine(module):
    """Write the dot product of two normalized embeddings, the score of a retrieval model, as cosine_similarity."""
    return _run(module, (_last, _last_by_keyword, _default, _default_by_keyword))
