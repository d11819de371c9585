"""Rows: views and copies with other shapes, parts of tensors, reductions, and products of matrices."""

from __future__ import annotations

from typing import Any

import torch

from pytest_fx.generation.operands import (
    ANY,
    BATCHED_FACTOR,
    BIAS,
    DIM,
    DIM_OF_PARTS,
    DIMENSIONED,
    EXPANDABLE,
    FACTOR,
    FLAT,
    FLOAT,
    IMAGES,
    INDICES,
    KEEPDIM,
    LINE,
    MASK,
    MATRICES,
    NUMBER,
    OTHER,
    OTHER_FLOAT,
    PLACE_OF_EACH,
    PLACES,
    POSITIONS,
    ROWS,
    SAME,
    SAME_FLOAT,
    SAME_KIND,
    SCORES,
    SEQUENCES,
    SEVERAL,
    SQUARE,
    TABLE,
    VECTORS,
    WEIGHT,
    argument,
    dimension,
    dimensions,
    last_size,
    leading,
    number,
    one_of,
    order,
    shape_beside,
)
from pytest_fx.generation.productions import Drawing, Production, row

VIEW, SIZE = frozenset({"view"}), frozenset({"size"})
_PARTS = (
    *(slice(None),) * 5,  # most dimensions of a subscript are whole
    *(slice(1, None), slice(None, -1), slice(None, 2), slice(None, None, 2), slice(None, None, 2), slice(1, 2)),
    *(0, -1, slice(-1, None), None, [0, 1]),
)
"""The parts of subscripts."""


def _index(builder: Drawing, objects: list[Any]) -> Any:
    """Return a subscript: slices, integers, an ellipsis, None."""
    choices, rank = builder.choices, objects[0].dim()
    if choices.sometimes(6):
        return (..., *(choices.pick(_PARTS) for _ in range(1 + choices.below(min(2, rank)))))
    parts = [choices.pick(_PARTS) for _ in range(1 + choices.below(rank))]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _shape(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    """Return sizes for as many elements: some neighbours merged, or one split."""
    sizes, choices = list(objects[0].shape), builder.choices
    if len(sizes) > 1 and choices.mostly(3):
        at = choices.below(len(sizes) - 1)
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    elif sizes:
        at = choices.below(len(sizes))
        sizes[at : at + 1] = [sizes[at] // 2, 2] if sizes[at] % 2 == 0 else [1, sizes[at]]
    if sizes and choices.mostly(2):
        sizes[0 if choices.mostly(3) else choices.below(len(sizes))] = -1  # mostly the batch
    return tuple(sizes)


def _pads(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    pads = ((1, 1), (0, 1), (1, 1, 1, 1), (2, 0), (2, 2, 1, 1), (1, 0, 0, 1), (-1, 0))
    return builder.choices.pick(pads)[: 2 * objects[0].dim()]


def _splits(builder: Drawing, objects: list[Any]) -> Any:
    """Return the size of equal parts, or the sizes of two or three parts, which are mostly unequal."""
    size, choices = objects[0].shape[-1], builder.choices
    if size > 2 and choices.sometimes(3):
        first = 1 + choices.below(size - 2)
        second = 1 + choices.below(size - first - 1)
        return [first, second, size - first - second]
    return [1, size - 1] if size > 1 and choices.sometimes(2) else max(1, (size + 1) // choices.pick((2, 2, 3)))


def _expanded(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    """Return sizes to expand to: other ones for single elements, and sometimes a new first dimension."""
    sizes = [builder.choices.pick((2, 3, 1)) if size == 1 else -1 for size in objects[0].shape]
    return (*([2] if not sizes or builder.choices.sometimes(3) else []), *sizes)


def _times(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    """Return the repetitions in each dimension: mostly in one of them, sometimes in a new first dimension."""
    times = [1] * (objects[0].dim() or 1) + [1] * builder.choices.sometimes(4)
    times[builder.choices.below(len(times))] = builder.choices.pick((2, 3))
    return tuple(times)


def _equation(builder: Drawing, objects: list[Any]) -> str:
    """Return letters for the dimensions of two tensors: equal sizes often share one, which the result may lack."""
    letters, names = iter("ijklmnpqrs"), list[str]()
    sizes: dict[str, int] = {}
    for tensor in objects:
        name = ""
        for size in tensor.shape:
            shared = [letter for letter in sizes if sizes[letter] == size and letter not in name]
            letter = shared[-1] if names and shared and builder.choices.mostly(3) else next(letters)
            sizes[letter] = size
            name += letter
        names.append(name)
    chosen = [letter for letter in sizes if not all(letter in name for name in names) or builder.choices.sometimes(3)]
    if builder.choices.sometimes(3):
        chosen = chosen[::-1]
    return f"{','.join(names)}->{''.join(chosen)}"


SHAPE = argument("shape", _shape)
TIMES = argument("times", _times)
_KEPT = argument("keepdim", one_of(True), 3)
"""The argument where it does not follow the dimension."""
ORDER = argument("order", order)
INDEX = argument("index", _index)
_CAUSAL = argument("causal", lambda builder, objects: (objects[0].shape[1],) * 2)
TWO = (argument("one", dimension), argument("two", dimension))


# A row reads better in two lines than in eight.
# fmt: off
VIEWS = [
    Production(
        ("{0}.transpose({one}, {two})", "torch.transpose({0}, {one}, {two})", "torch.swapaxes({0}, {one}, {two})"),
        (DIMENSIONED,),
        TWO,
        VIEW,
        3,
    ),
    row("{0}.permute({order}); {0}.permute(*{order}); torch.permute({0}, {order})", DIMENSIONED, ORDER, VIEW, weight=3),
    row("{0}.t(); torch.t({0}); {0}.T", ROWS, VIEW, weight=2),
    row("{0}.t(); torch.t({0})", FLAT, VIEW),
    row("{0}.mT", MATRICES, VIEW),
    row("{0}.reshape({shape}); {0}.reshape(*{shape}); torch.reshape({0}, {shape}); {0}.view({shape}); "
        "{0}.view(*{shape})", DIMENSIONED, SHAPE, VIEW, weight=5),
    row("{0}.view({0}.size(0), -1); {0}.reshape({0}.shape[0], -1); {0}.reshape(-1, {0}.shape[-1])", MATRICES,
        VIEW | SIZE, weight=4),
    row("torch.flatten; .flatten; nn.Flatten", DIMENSIONED, leading("start_dim", one_of(1, 1, 0, -2)),
        leading("end_dim", one_of(-2, 1), 8), VIEW, weight=3),
    row(".unsqueeze; torch.unsqueeze", ANY, DIM, VIEW, weight=2),
    row(".squeeze; torch.squeeze", DIMENSIONED, DIM, VIEW, weight=2),
    row(".squeeze; .ravel", ANY, VIEW),
    row("{0}.expand({0}.shape); {0}.broadcast_to({0}.size()); {0}.unsqueeze(0).expand_as({0}.unsqueeze(0))", ANY,
        VIEW | SIZE),
    row(".expand_as; .view_as; .reshape_as", ANY, SAME, VIEW),
    row("{1}.expand_as({0}); {1}.expand({0}.shape); torch.broadcast_to({1}, {0}.shape)", ANY, EXPANDABLE),
    row("{0}.expand(*{sizes}); {0}.expand({sizes})", ANY, argument("sizes", _expanded), VIEW),
    row("{0}[{index}]", DIMENSIONED, INDEX, VIEW, weight=6),
    row("{0}[:, -1, :]; {0}[:, 0, :]; {0}[:, -1]; {0}[:, :2]", SEQUENCES, VIEW),
    row("{0}[-1]; {0}[-1:]; {0}[..., -1, :]; {0}[{0}.size(0) - 1]; {0}.select(0, -1)", MATRICES, VIEW | SIZE),
    row("{0}[{1}]", DIMENSIONED, NUMBER, VIEW | SIZE),
    row("{0}.narrow({dim}, 0, 1); torch.select({0}, {dim}, 0); {0}.select({dim}, -1)", DIMENSIONED, DIM, VIEW,
        weight=2),
    row("{0}.unfold({dim}, 2, 1)", DIMENSIONED, DIM, VIEW),
    row("torch.diagonal; .diagonal", MATRICES, VIEW),
    row("{0}.movedim(0, -1); torch.movedim({0}, -1, 0)", DIMENSIONED, VIEW),
    row("nn.Unflatten({dim}, (-1, 1)); {0}.unflatten({dim}, (-1, 1))", DIMENSIONED, DIM, VIEW),
    row("torch.flip({0}, ({dim},)); torch.roll({0}, 1, {dim}); {0}.roll(-1, {dim}); {0}.flip({dim})", DIMENSIONED, DIM),
    row("{0}.repeat_interleave(2, {dim})", DIMENSIONED, DIM),
    row("{0}.repeat(*{times}); {0}.repeat({times}); torch.tile({0}, {times})", ANY, TIMES),
    row("F.pad({0}, {pads}{*})", VECTORS, argument("pads", _pads), argument("value", one_of(1.0, -2.0), 3)),
    row("F.pad({0}, (1, 1){*})", SEQUENCES, leading("mode", one_of("reflect", "replicate", "circular"))),
    row("torch.tril; torch.triu; .tril; .triu", MATRICES, leading("diagonal", one_of(1, -1, 2), 2)),
    row("{0}[:, {index}]", MATRICES,
        argument("index", one_of(0, slice(None, 1), slice(1, 3), slice(1, None), None, slice(1, -1), -1)), VIEW,
        weight=2),
    row("{0}.to(memory_format=torch.channels_last); {0}.contiguous(memory_format=torch.channels_last)", IMAGES,
        frozenset({"copy"})),
]

JOINS = [
    row("torch.cat([{0}, {1}]{*}); torch.cat(({0}, {1}){*}); torch.concat([{1}, {0}]{*})", DIMENSIONED, SAME_KIND,
        DIM, weight=4),
    row("torch.stack([{0}, {1}]{*}); torch.stack(({1}, {0}){*})", DIMENSIONED, SAME_KIND,
        leading("dim", dimension, 2), weight=2),
    row("torch.cat([{0}, {0}]{*}); torch.cat([{0}]{*})", DIMENSIONED, leading("dim", dimension, 2)),
    row("torch.split({0}, {sizes}, dim=-1); {0}.split({sizes}, dim=-1); torch.split({0}, {sizes}, -1); "
        "{0}.split({sizes}, -1)", VECTORS, argument("sizes", _splits), VIEW, weight=3),
    row("{0}.chunk({count}{*}); torch.chunk({0}, {count}{*})", DIMENSIONED, argument("count", one_of(2, 2, 3)), DIM,
        VIEW, weight=3),
    row("{0}.unbind({dim}); torch.unbind({0}, {dim})", DIMENSIONED, DIM, VIEW),
    row("{0}[0]; {0}[-1]", SEVERAL, weight=3),
    row("torch.cat({0}{*}); torch.cat({0}[::-1]{*}); torch.cat({0}[-1:] + {0}[:-1]{*}); torch.cat({0}[1:]{*}); "
        "torch.cat([{0}[1], {0}[0]]{*}); torch.cat([{0}[0], {0}[0]]{*})", SEVERAL, DIM_OF_PARTS, weight=3),
    row("torch.broadcast_tensors({0}, {1})", ANY, OTHER, VIEW),
    # for passes that look for it: of two nearly equal values, rounding decides on the size
    row("torch.unique({0}); torch.unique_consecutive({0}); {0}.unique()", FLOAT, weight=0),
    row("torch.hstack([{0}, {1}]); torch.vstack(({0}, {1}))", DIMENSIONED, SAME),
]

REDUCTIONS = [
    row("torch.sum; .sum; torch.mean; .mean", VECTORS, DIM, KEEPDIM, weight=4),
    row(".sum; torch.sum; .mean; torch.mean", FLOAT, weight=2),
    row("{0}.mean({dims}{*}); {0}.sum({dims}{*}); torch.amax({0}, {dims}{*})", VECTORS, argument("dims", dimensions),
        KEEPDIM, weight=2),
    row(".amax; torch.amax; torch.amin; .logsumexp; torch.var; .std; .prod; .cumsum", VECTORS, DIM),
    row("torch.var; .var", VECTORS, DIM, argument("correction", one_of(0)), KEEPDIM),
    row("torch.max; .min; .max; torch.topk({0}, 1{*}); .sort; torch.sort; torch.median", VECTORS, DIM, weight=2),
    row("torch.max({0}{*})[0]; torch.min({0}{*})[1]; {0}.max({*})[0]", VECTORS, DIM, leading("keepdim", one_of(True))),
    row("torch.max({0}, {dim}{*})[0]; {0}.max({dim}{*})[0]; torch.min({0}, {dim}{*})[1]; "
        "torch.max({0}, dim={dim}{*}).values; {0}.sort({dim}{*})[0]; torch.topk({0}, 1, {dim}{*})[0]; "
        "torch.topk({0}, 2, {dim}{*})[1]", VECTORS, DIM, weight=2),
    row(".argmax; torch.argmax; torch.argmin; .argsort; torch.argsort", VECTORS, DIM),
    row("torch.norm({0}, dim={dim}{*}); {0}.norm(dim={dim}{*}); torch.linalg.vector_norm({0}, dim={dim}{*})", VECTORS,
        DIM, _KEPT),
    row("torch.var_mean({0}, {dim}{*}); torch.std_mean({0}, {dim}{*})", VECTORS, DIM, _KEPT),
    row(".max; torch.min; .norm; torch.linalg.vector_norm; .numel", FLOAT),
    row("F.softmax; .softmax; torch.softmax; F.log_softmax; nn.Softmax; nn.LogSoftmax; F.softmin", VECTORS, DIM,
        weight=4),
    row("F.softmax", VECTORS, DIM, argument("dtype", one_of(torch.float64))),
    row('F.softmax({0}.masked_fill({1}, float("-inf")), dim=-1); torch.where({1}, {0}, -math.inf).softmax(-1); '
        "({0} + torch.where({1}, -1e9, 0.0)).softmax(-1)", VECTORS, MASK),
    row("F.normalize", VECTORS, argument("dim", dimension), argument("eps", one_of(0.1, 1e-6), 2),
        argument("p", one_of(1.0), 3)),
    row("F.glu", VECTORS, DIM),
    row(".any; .all; torch.count_nonzero", DIMENSIONED, DIM),
    row("F.cosine_similarity", VECTORS, SAME_FLOAT, leading("dim", dimension, 2)),
]

PRODUCTS = [
    row("{0} @ {1}; torch.matmul; .matmul", VECTORS, FACTOR, weight=4),
    row("torch.mm; .mm", ROWS, FACTOR),
    row("torch.bmm; .bmm", SEQUENCES, BATCHED_FACTOR, weight=2),
    row("F.linear", VECTORS, WEIGHT, weight=2),
    row("F.linear", VECTORS, WEIGHT, BIAS, weight=2),
    row("torch.addmm({2}, {0}, {1}.t(){*})", ROWS, WEIGHT, BIAS),
    row("torch.addmm", ROWS, ROWS, ROWS),
    row("torch.addmv({2}, {1}, {0}{*}); {2}.addmv({1}, {0}{*}); {2}.clone().addmv_({1}, {0}{*})", LINE, WEIGHT, BIAS),
    row("torch.addbmm({0}[0] @ {1}[0], {0}, {1}{*}); ({0}[0] @ {1}[0]).addbmm({0}, {1}{*}); "
        "({0}[0] @ {1}[0]).addbmm_({0}, {1}{*}); torch.baddbmm({0} @ {1}, {0}, {1}{*})", SEQUENCES, BATCHED_FACTOR),
    row("torch.linalg.lu_solve(torch.linalg.lu_factor({0})[0], torch.linalg.lu_factor({0})[1], {0}); "
        "torch.linalg.ldl_solve(torch.linalg.ldl_factor({0})[0], torch.linalg.ldl_factor({0})[1], {0}); "
        "torch.lu_unpack(torch.linalg.lu_factor({0})[0], torch.linalg.lu_factor({0})[1]); "
        "torch.ormqr(torch.geqrf({0})[0], torch.geqrf({0})[1], {0}); {0}.ormqr({0}[0], {0})", SQUARE),
    row("torch.istft(torch.stft({0}, 4, window=torch.ones(4), return_complex=True), 4, window=torch.ones(4)); "
        "torch.stft({0}, 4, window=torch.ones(4), return_complex=True).istft(4, window=torch.ones(4)); "
        "torch.view_as_real({0}.stft(4, window=torch.ones(4), return_complex=True))", FLAT),
    row("{0} @ {0}.mT; {0}.mT @ {0}; torch.matmul({0}, {0}.transpose(-1, -2))", MATRICES, weight=2),
    row("torch.einsum({equation}, {0}, {1})", FLOAT, OTHER_FLOAT, argument("equation", _equation), weight=2),
    row("torch.einsum(\"...i,...i->...\", {0}, {1}); ({0} * {1}).sum(-1); torch.einsum('...i,...j->...ij', {0}, {1})",
        VECTORS, SAME_FLOAT),
    row('torch.einsum("ij,jk->ik", {0}, {1}); torch.einsum("ij,jk", {0}, {1})', ROWS, FACTOR),
    row('torch.einsum("ij,kj->ik", {0}, {1})', ROWS, WEIGHT),
    row('torch.einsum("bij,bjk->bik", {0}, {1})', SEQUENCES, BATCHED_FACTOR),
    row('torch.einsum("bij,bkj->bik", {0}, {1}); torch.einsum("bid,bjd->bij", {0}, {1})', SEQUENCES, SAME_FLOAT),
    row("F.scaled_dot_product_attention({0}, {1}, {1}{*})", SEQUENCES, SAME_FLOAT,
        argument("is_causal", one_of(True), 2), argument("scale", one_of(0.3), 3)),
    row("F.scaled_dot_product_attention({0}, {1}, {1}, attn_mask={2}{*}); "
        "F.scaled_dot_product_attention({0}, {1}, {1}, {2}{*})", SEQUENCES, SAME_FLOAT, SCORES,
        argument("scale", one_of(0.3), 3)),
    row("F.scaled_dot_product_attention({0}, {1}, {1}, attn_mask=torch.ones({causal}, dtype=torch.bool).tril())",
        SEQUENCES, SAME_FLOAT, _CAUSAL),
    row("F.scaled_dot_product_attention({0}, {1}, {1}, attn_mask=torch.ones({causal}, dtype=torch.bool)"
        ".tril(diagonal={diagonal}))", SEQUENCES, SAME_FLOAT, _CAUSAL, argument("diagonal", one_of(1, 2, -1))),
    row("{0}.index_select(-1, {1}); {0}[..., {1}]", VECTORS, POSITIONS),
    row("{0}[..., {1}]", VECTORS, PLACES),
    row("{1}[{0}]; F.embedding({0}, {1}); {1}.index_select(0, {0}.flatten()); {1}[{0}] * 2", INDICES, TABLE, weight=5),
    row("torch.gather({0}, -1, {1}); {0}.gather(-1, {1})", VECTORS, PLACE_OF_EACH),
    row("torch.index_select({0}, {dim}, {1}); {0}.index_select({dim}, {1})", MATRICES, POSITIONS, DIM),
]

FACTORIES = [
    row("torch.zeros({shape}); torch.ones({shape}); torch.zeros(*{shape}); torch.ones(*{shape}); "
        "torch.zeros({shape}, dtype=torch.float64)", argument("shape", shape_beside), weight=3),
    row("torch.full({shape}, {number})", argument("shape", shape_beside), argument("number", number)),
    row("torch.arange({count}); torch.arange(1, {count} + 1); torch.arange({count}, dtype=torch.float32); "
        "torch.linspace(0, 1, {count}); torch.zeros({count}); torch.ones({count}); torch.eye({count})",
        argument("count", last_size), weight=2),
    row("torch.tensor({numbers})", argument("numbers", one_of([0.5], [1.0, -2.0], [2]))),
    row("{0}.new_zeros({shape}); {0}.new_ones({shape})", FLOAT, argument("shape", shape_beside)),
    row("{0}.new_full({shape}, {number})", FLOAT, argument("shape", shape_beside), argument("number", number)),
]

SIZES = [
    row("{0}.size(0); {0}.shape[0]; {0}.size(-1); {0}.shape[-1]; {0}.dim(); {0}.numel()", DIMENSIONED, SIZE, weight=3),
    row(".size; {0}.shape; {0}.shape[1:]", DIMENSIONED, SIZE),
    row("{0} + 1; {0} * 2; {0} // 2; {0} - 1; -{0}", NUMBER, SIZE),
    row("1 / {0}; {0} / 2; {0} % 2; {0} != 2; {0} // 3 * 3", NUMBER, SIZE),
    row("{0} / {0}.size(-1); {0} * {0}.shape[0]; {0} / math.sqrt({0}.size(-1)); {0}.sum(0) / {0}.size(0); "
        "{0}.sum(0) / {0}.size(-1); {0}.sum(-1) / {0}.size(0); {0}[: {0}.shape[0] // 2]; "
        "{0} + {0}.new_ones({0}.size(-1))", VECTORS, SIZE, weight=3),
    row("{0}.new_zeros({0}.shape); torch.zeros_like; torch.ones_like; torch.full_like({0}, 0.5)", FLOAT),
    row("torch.zeros({0}.shape); torch.full({0}.shape, 0.5); torch.full_like({0}, 2)", DIMENSIONED, SIZE),
    row("torch.ones({0}.size({dim})); torch.arange({0}.size({dim})); torch.eye({0}.size({dim})); "
        "torch.linspace(0, 1, {0}.shape[{dim}])", DIMENSIONED, SIZE, argument("dim", dimension)),
]
