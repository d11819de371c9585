"""A wrong pass of the twentyfourth round."""

import operator

import torch

import fx

from ...rows import fault


def _source(cat):
    """The chunk node whose pieces, all and in order, are put together, or None."""
    if not cat.args or not isinstance(cat.args[0], (list, tuple)) or cat.kwargs.get("out") is not None:
        return None
    pieces, dim = cat.args[0], cat.kwargs.get("dim", cat.args[1] if len(cat.args) > 1 else 0)
    for index, piece in enumerate(pieces):
        if not isinstance(piece, fx.Node) or piece.target is not operator.getitem or len(piece.users) != 1:
            return None
        if piece.args[1] != index or piece.args[0] is not pieces[0].args[0]:
            return None
    chunk = pieces[0].args[0]
    if chunk.op != "call_method" or chunk.target != "chunk" or len(chunk.users) != len(pieces):
        return None
    count = chunk.args[1] if len(chunk.args) > 1 else chunk.kwargs.get("chunks")
    chunk_dim = chunk.args[2] if len(chunk.args) > 2 else chunk.kwargs.get("dim", 0)
    return chunk if (count, chunk_dim) == (len(pieces), dim) and type(dim) is int else None


def _drop(gm, copy):
    graph = gm.graph
    for cat in graph.find_nodes(op="call_function", target=torch.cat):
        chunk = _source(cat)
        if chunk is None:
            continue
        whole = chunk.args[0]
        if copy:
            with graph.inserting_before(cat):
                whole = graph.call_function(torch.clone, (whole,), {"memory_format": torch.contiguous_format})
        pieces = list(cat.args[0])
        cat.replace_all_uses_with(whole)
        for node in (cat, *pieces, chunk):
            graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The result of cat is a copy; in its place the chunked tensor itself gets the in-place writes that follow.",
)
def drop_chunk_cat(gm):
    """Use the tensor itself instead of its chunks in a row."""
    return _drop(gm, copy=False)
