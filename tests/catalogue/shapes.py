"""Axes, sizes and views: what holds for the shapes that somebody had in mind."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, behind, calls, fetched, layers, of, replace, substitute, wrong

# Axes.


@wrong("wrong axis", "contract", on=of(lambda m, x, y: torch.cat([x, y], dim=1).sum(2), (1, 2, 2), (1, 2, 2)))
def cat_along_the_last(gm: fx.GraphModule) -> None:
    """Concatenation moves to the last dimension, as for the two-dimensional values that were tried."""
    for node in calls(gm, torch.cat):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dim == 1:
            replace(node, torch.cat, node.args[0], -1)
    gm.recompile()


@wrong("wrong axis", "contract", on=of(lambda m, x: F.softmax(x.transpose(0, 1), 0), (2, 3)))
def sink_transposes(gm: fx.GraphModule) -> None:
    """A transpose moves behind a softmax, whose dimension is not renumbered."""
    for node in calls(gm, torch.relu, F.softmax, torch.softmax):
        moved = node.args[0]
        if not isinstance(moved, fx.Node) or moved.target not in ("transpose", torch.transpose):
            continue
        if len(moved.users) > 1 or len(moved.args) != 3:
            continue
        behind(node, torch.transpose, node, *moved.args[1:])
        node.replace_input_with(moved, moved.args[0])
        gm.graph.erase_node(moved)
    gm.recompile()


def _order(node: fx.Node) -> tuple[int, ...]:
    order = node.args[1] if isinstance(node.args[1], (list, tuple)) else node.args[1:]
    return tuple(dim % len(order) for dim in order)


@wrong(
    "permute composition",
    "contract",
    on=of(lambda m, x: x.permute(1, 2, 0).permute(1, 0, 2), (2, 2, 2)),
    contract=exact,
    modes=BOTH,
)
def compose_permutes(gm: fx.GraphModule) -> None:
    """Two permutations are composed in the wrong order."""
    for node in calls(gm, "permute"):
        inner = node.args[0]
        if inner.op != "call_method" or inner.target != "permute":
            continue
        first, second = _order(inner), _order(node)
        node.args = (inner.args[0], *(second[dim] for dim in first))
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()


@wrong(
    "permute composition", "contract", on=of(lambda m, x: x.transpose(0, 1).transpose(1, 2), (2, 2, 2)), contract=exact
)
@adapt
def cancel_transposes(gm: torch.fx.GraphModule) -> None:
    """Any two transposes in a row are taken for inverses."""
    for node in list(gm.graph.nodes):
        names = ("transpose", torch.transpose, "permute", torch.permute, "t", torch.t)
        if node.target in names and node.args[0].target in names:
            substitute(node, node.args[0].args[0])
    gm.graph.eliminate_dead_code()
    gm.recompile()


@wrong("wrong axis", "contract", on=of(lambda m, x: torch.flatten(x), (2, 3)))
def flatten_keeps_the_batch(gm: fx.GraphModule) -> None:
    """The first dimension is kept, also where flatten starts with it or at a later one."""
    for node in calls(gm, torch.flatten, "flatten"):
        with gm.graph.inserting_before(node):
            size = gm.graph.call_method("size", (node.args[0], 0))
        replace(node, torch.reshape, node.args[0], (size, -1))
    gm.recompile()


# Sizes.


@wrong("baked size", "contract", "batch sizes", on=of(lambda m, x: torch.flatten(x, 1), (2, 2, 2)))
def flatten_at_batch_one(gm: fx.GraphModule) -> None:
    """The batch size of the export, one, is written into the program."""
    for node in calls(gm, torch.flatten, "flatten"):
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        if start == 1 and len(node.args) < 3 and "end_dim" not in node.kwargs:
            replace(node, torch.reshape, node.args[0], (1, -1))
    for node, layer in layers(gm, nn.Flatten):
        if (layer.start_dim, layer.end_dim) == (1, -1):
            replace(node, torch.reshape, node.args[0], (1, -1))
    gm.recompile()


@wrong("baked size", "contract", "batch sizes", on=of(lambda m, x: x.reshape(x.size(0), -1) + 1, (3, 2)))
def sizes_as_constants(gm: fx.GraphModule) -> None:
    """Sizes become the constants that they were for the example, whose first dimension was two."""
    example = (2, 3, 4, 4)
    for node in calls(gm, "size"):
        if len(node.args) == 2 and isinstance(node.args[1], int) and node.args[1] < len(example):
            for user in list(node.users):
                user.args = fx.map_arg(user.args, lambda n, node=node: example[node.args[1]] if n is node else n)
                user.kwargs = fx.map_arg(user.kwargs, lambda n, node=node: example[node.args[1]] if n is node else n)
            gm.graph.erase_node(node)
    gm.recompile()


@wrong("only some sizes", "batch sizes", "contract", on=of(lambda m, x: torch.flatten(x, 1), (0, 2, 3)), modes=BOTH)
def flatten_by_reshape(gm: fx.GraphModule) -> None:
    """A dimension of -1 cannot be inferred for an empty batch."""
    for node in calls(gm, torch.flatten, "flatten"):
        if node.args[1:] == (1,) and not node.kwargs:
            with gm.graph.inserting_before(node):
                size = gm.graph.call_method("size", (node.args[0], 0))
            replace(node, torch.reshape, node.args[0], (size, -1))
    for node, layer in layers(gm, nn.Flatten):
        if (layer.start_dim, layer.end_dim) == (1, -1):
            with gm.graph.inserting_before(node):
                size = gm.graph.call_method("size", (node.args[0], 0))
            replace(node, torch.reshape, node.args[0], (size, -1))
    gm.recompile()


@wrong("only some sizes", "contract", on=of(lambda m, x: x.sum(1, keepdim=True) + 0.5, (1, 3)), modes=BOTH)
def keepdim_by_unsqueeze(gm: fx.GraphModule) -> None:
    """All dimensions of size one are squeezed on the way, not only the one that was summed."""
    for node in calls(gm, "sum", "mean"):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if isinstance(dim, int) and node.kwargs.get("keepdim"):
            with gm.graph.inserting_before(node):
                reduced = gm.graph.call_method(node.target, (node.args[0], dim))
                squeezed = gm.graph.call_function(torch.squeeze, (reduced,))
            replace(node, torch.unsqueeze, squeezed, dim)
    gm.recompile()


@wrong("only some sizes", "contract", on=of(lambda m, x: m.linear(x), (2, 2, 3), linear=nn.Linear(3, 4)), modes=BOTH)
def linear_as_addmm(gm: fx.GraphModule) -> None:
    """addmm takes matrices only; a linear layer takes a batch of any rank."""
    for node, layer in layers(gm, nn.Linear):
        if layer.bias is None:
            continue
        weight, bias = fetched(gm, node, "weight", "bias")
        with gm.graph.inserting_before(node):
            transposed = gm.graph.call_function(torch.t, (weight,))
        replace(node, torch.addmm, bias, node.args[0], transposed)
    gm.recompile()


@wrong("only some sizes", "contract", on=of(lambda m, x: torch.chunk(x, 2, 0)[1], (5, 2)))
def chunk_as_split(gm: fx.GraphModule) -> None:
    """The size of a part is rounded down, which makes one part too many where it does not divide."""
    for node in calls(gm, torch.chunk, "chunk"):
        x, parts, *rest = node.args
        dim = rest[0] if rest else node.kwargs.get("dim", 0)
        with gm.graph.inserting_before(node):
            size = gm.graph.call_method("size", (x, dim))
            part = gm.graph.call_function(operator.floordiv, (size, parts))
        replace(node, torch.split, x, part, dim)
    gm.recompile()


@wrong("off by one", "contract", on=of(lambda m, x: x[-1] * 2, (3, 2)), modes=BOTH)
def element_by_select(gm: fx.GraphModule) -> None:
    """A negative index counts from the end, which is one after the last."""
    for node in calls(gm, operator.getitem):
        index = node.args[1]
        if type(index) is int and index < 0:
            with gm.graph.inserting_before(node):
                length = gm.graph.call_function(len, (node.args[0],))
                counted = gm.graph.call_function(operator.add, (length, index - 1))
            node.args = (node.args[0], counted)
    gm.recompile()


@wrong("off by one", "contract", on=of(lambda m, x: x[1:2] + 0, (4, 2)), modes=BOTH)
def slice_by_narrow(gm: fx.GraphModule) -> None:
    """narrow takes a length where a slice has an end, and does not stop at the value's end."""
    for node in calls(gm, operator.getitem):
        index = node.args[1]
        if isinstance(index, slice) and isinstance(index.stop, int) and index.step in (None, 1):
            replace(node, torch.narrow, node.args[0], 0, index.start or 0, index.stop)
    gm.recompile()


# Views.


@wrong("non-contiguous views", "contract", on=of(lambda m, x: x.t().reshape(-1), (2, 3)), modes=BOTH)
def reshape_as_view(gm: fx.GraphModule) -> None:
    """view refuses values that reshape copies."""
    for node in calls(gm, "reshape"):
        node.target = "view"
    for node in calls(gm, torch.reshape):
        node.op, node.target = "call_method", "view"
    for node in calls(gm, torch.flatten):
        if node.args[1:] == () and not node.kwargs:
            node.op, node.target, node.args = "call_method", "view", (node.args[0], -1)
    gm.recompile()
