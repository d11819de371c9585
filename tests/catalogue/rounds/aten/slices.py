"""Slices, concatenations and parts of them."""

import operator

import torch

from ...rows import fault, replace, sound
from . import ROUND, argument, aten, calls, decomposed, done, is_call, value

MAXINT = 2**63 - 1


def _bounds(node):
    """Dimension, start, end and step of a slice."""
    return tuple(argument(node, place, name, default) for place, name, default in _NAMES)


_NAMES = ((1, "dim", 0), (2, "start", 0), (3, "end", MAXINT), (4, "step", 1))


def _is_known(*numbers):
    return all(type(number) is int for number in numbers)


@fault(ROUND, "step", wrong="A slice from 0 to the end is no whole dimension if it has a step.")
@decomposed
def drop_whole_slices(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A slice from 0 to the largest integer changes nothing."""
    for node in calls(gm.graph, aten.slice.Tensor):
        _, start, end, _ = _bounds(node)
        if start in (0, None) and type(end) is int and end == MAXINT:
            replace(node, aten.alias.default, node.args[0])
    return done(gm)


@sound(ROUND)
@decomposed
def drop_whole_slices_of_step_one(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A slice from 0 to the largest integer by one changes nothing."""
    for node in calls(gm.graph, aten.slice.Tensor):
        _, start, end, step = _bounds(node)
        if start in (0, None) and type(end) is int and end == MAXINT and type(step) is int and step == 1:
            replace(node, aten.alias.default, node.args[0])
    return done(gm)


@fault(ROUND, "negative end", wrong="A negative end counts from the end of the inner slice, not from its start.")
@decomposed
def slices_of_slices(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A slice of a slice along the same dimension, both by one, is a slice."""
    for node in calls(gm.graph, aten.slice.Tensor):
        inner = node.args[0]
        if not is_call(inner, aten.slice.Tensor):
            continue
        (dim, start, end, step), (dim_, start_, end_, step_) = _bounds(node), _bounds(inner)
        if not _is_known(dim, start, end, step, dim_, start_, end_, step_) or dim != dim_ or step != 1 or step_ != 1:
            continue
        if start < 0 or start_ < 0 or end_ < 0:
            continue
        node.args = (inner.args[0], dim, start_ + start, min(end_, start_ + min(end, MAXINT - start_)))
    return done(gm)


def _take_from_part(gm, fits):
    for node in calls(gm.graph, aten.slice.Tensor):
        cat = node.args[0]
        if not is_call(cat, aten.cat.default):
            continue
        dim, start, end, step = _bounds(node)
        parts, rank = cat.args[0], value(cat).dim()
        if not _is_known(start, end, step) or not 0 <= start <= end or dim % rank != argument(cat, 1, "dim", 0) % rank:
            continue
        offset = 0
        for part in parts:
            size = value(part).shape[dim] if value(part).dim() == rank else 0
            if type(size) is not int or value(part).dtype != value(cat).dtype:
                break
            if offset <= start < offset + size and fits(end, offset + size):
                node.args = (part, dim, start - offset, end - offset, step)
                break
            offset += size
    return done(gm)


@fault(ROUND, "boundary", wrong="A slice that begins in one part of a concatenation may end in another.")
@decomposed
def slice_of_one_part(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A slice of a concatenation is one of the part in which it begins."""
    return _take_from_part(gm, lambda end, end_of_part: True)


@sound(ROUND)
@decomposed
def slice_within_one_part(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A slice of a concatenation that ends in the part in which it begins is one of that part."""
    return _take_from_part(gm, lambda end, end_of_part: end <= end_of_part)


@fault(ROUND, "negative index", wrong="A negative index counts from the end of the slice.")
@decomposed
def select_of_slice(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A row of a slice is a row of the tensor."""
    for node in calls(gm.graph, aten.select.int):
        inner, dim, index = node.args
        if not is_call(inner, aten.slice.Tensor):
            continue
        dim_, start, end, step = _bounds(inner)
        if dim == dim_ and _is_known(index, start, end, step) and start >= 0:
            node.args = (inner.args[0], dim, start + index * step)
    return done(gm)


@sound(ROUND)
@decomposed
def select_of_slice_from_start(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A row of a slice, counted from its start, is a row of the tensor."""
    for node in calls(gm.graph, aten.select.int):
        inner, dim, index = node.args
        if not is_call(inner, aten.slice.Tensor):
            continue
        dim_, start, end, step = _bounds(inner)
        size = value(inner.args[0]).shape[dim_]
        if dim == dim_ and _is_known(index, start, end, step, size) and 0 <= start < size and index >= 0:
            node.args = (inner.args[0], dim, start + index * step)
    return done(gm)


@fault(ROUND, "other dimension", wrong="The inner concatenation may be along another dimension.")
@decomposed
def flatten_concatenations(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A concatenation that is read once, by another one, becomes part of it."""
    for cat in calls(gm.graph, aten.cat.default):
        parts = []
        for part in cat.args[0]:
            is_nested = is_call(part, aten.cat.default) and len(part.users) == 1
            parts.extend(part.args[0] if is_nested and value(part).dtype == value(cat).dtype else [part])
        cat.args = (parts, *cat.args[1:])
    return done(gm)


@fault(
    ROUND,
    "uneven parts",
    wrong="The parts of a split have sizes of their own; the place of each follows from all before.",
)
@decomposed
def parts_as_slices(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The parts of a split are slices."""
    for split in calls(gm.graph, aten.split_with_sizes.default):
        x, sizes = split.args[:2]
        dim = argument(split, 2, "dim", 0)
        if not _is_known(*sizes):
            continue
        for part in list(split.users):
            if part.target is operator.getitem:
                start = part.args[1] * sizes[0]
                replace(part, aten.slice.Tensor, x, dim, start, start + sizes[part.args[1]])
    return done(gm)


@sound(ROUND)
@decomposed
def parts_as_slices_by_all_sizes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The parts of a split are slices, each behind those before it."""
    for split in calls(gm.graph, aten.split_with_sizes.default):
        x, sizes = split.args[:2]
        dim = argument(split, 2, "dim", 0)
        if not _is_known(*sizes):
            continue
        for part in list(split.users):
            if part.target is operator.getitem and part.args[1] >= 0:
                start = sum(sizes[: part.args[1]])
                replace(part, aten.slice.Tensor, x, dim, start, start + sizes[part.args[1]])
    return done(gm)


@fault(ROUND, "pads", wrong="A pad that cuts and a pad that adds do not cancel each other: what was cut is zero then.")
@decomposed
def sum_pads(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two pads with the same value add up."""
    for node in calls(gm.graph, aten.constant_pad_nd.default):
        inner = node.args[0]
        if not is_call(inner, aten.constant_pad_nd.default):
            continue
        first, second = (list(each.args[1]) for each in (inner, node))
        if argument(node, 2, "value", 0) != argument(inner, 2, "value", 0) or not _is_known(*first, *second):
            continue
        length = max(len(first), len(second))
        first, second = (each + [0] * (length - len(each)) for each in (first, second))
        node.args = (inner.args[0], [a + b for a, b in zip(first, second)], argument(node, 2, "value", 0))
    return done(gm)


@sound(ROUND)
@decomposed
def sum_widening_pads(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two pads that add borders of the same value add up."""
    for node in calls(gm.graph, aten.constant_pad_nd.default):
        inner = node.args[0]
        if not is_call(inner, aten.constant_pad_nd.default):
            continue
        first, second = (list(each.args[1]) for each in (inner, node))
        if argument(node, 2, "value", 0) != argument(inner, 2, "value", 0) or not _is_known(*first, *second):
            continue
        if min(*first, *second) < 0:
            continue
        length = max(len(first), len(second))
        first, second = (each + [0] * (length - len(each)) for each in (first, second))
        node.args = (inner.args[0], [a + b for a, b in zip(first, second)], argument(node, 2, "value", 0))
    return done(gm)
