"""Variations of tensors: sizes, dtypes, values and layouts of inputs, parameters and buffers."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.search.argument_variations import inputs_in
from pytest_fx.search.observed import Observed, Variation, path_of_tensor, statements
from pytest_fx.search.simplifications import lines_making_tensors, of_sizes, tensors_in
from pytest_fx.search.syntax import Edits, expression, methods, name_of

_SIZES = {"size 1": (1,), "odd size": (3, 5, 7), "even size": (2, 4, 6), "large size": (16, 9)}
_DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
_NAN, _INFINITY = float("nan"), float("inf")
_VALUES: dict[str, tuple[float, ...]] = {
    "zeros": (0.0,),
    "negative values": (-1.0, -0.25, -3.0, -2.5),
    "positive values": (1.5, 0.25, 3.0, 0.75),
    "large values": (3e4, -2e4, 1e4, 6e4),
    "huge values": (1e30, -3e30, 2e30),
    "tiny values": (1e-8, -3e-8, 2e-8, 0.0),
    "ties": (1.0, 1.0, 2.0, 2.0, 1.0),
    "halves": (0.5, 1.5, -0.5, -1.5, 2.5),
    "rows of zeros": (0.0, 0.0, 0.0, 1.0, -1.0, 2.0),
    "a NaN": (1.0, _NAN, -2.0, 0.5, 3.0),
    "infinities": (1.0, _INFINITY, -2.0, -_INFINITY, 0.5),
}
_NOT_FINITE = ("a NaN", "infinities")
_WEIGHTS = {
    "zeros": "{0}.zero_()",
    "rows of zeros": "{0}[:1].zero_()",
    "negative values": "{0}.abs_().neg_()",
    "ties": "{0}.fill_(0.5)",
    "large values": "{0}.mul_(1000)",
}
"""The write to a parameter or a buffer of a module, by property."""
_LAYOUTS = {
    "transposed": "{0}.mT.contiguous().mT",
    "columns first": "{0}.transpose(0, -1).contiguous().transpose(0, -1)",
    "channels last": "{0}.to(memory_format=torch.channels_last)",
    "storage offset": "torch.cat([{0}[:1], {0}])[1:]",
    "stepped": "{0}.repeat_interleave(2, -1)[..., ::2]",
    "expanded": "{0}[:1].expand_as({0})",
}


def tensor_variations(observed: Observed) -> Iterator[Variation]:
    """Yield the program with another tensor, or with another size wherever it occurs."""
    yield from _of_sizes(observed)
    lines = lines_making_tensors(observed.tree, observed.call)
    tensors = [each for line in lines for each in tensors_in(line)]
    sizes = dict.fromkeys(size for _, recipe in tensors for size in recipe.shape if size > 1)
    for (part, recipe), size, ones in itertools.product(tensors[1:], sizes, range(3)):
        shape = (size, *(1,) * ones)
        yield Variation("another broadcast", {part: [expression(replace(recipe, shape=shape).text)]})
    inside = set(ast.walk(observed.call.inputs))
    for part, recipe in tensors:
        yield from _of_tensor(part, recipe, part in inside)
    inputs = [(part, recipe) for part, recipe in tensors if part in inside]
    yield from _of_all(observed)
    yield from _of_ranks("rank of all inputs", inputs)
    yield from _of_ranks("rank of all tensors", tensors if len(tensors) > len(inputs) else [])
    yield from _of_weights(observed)


def _of_sizes(observed: Observed) -> Iterator[Variation]:
    for name, sizes in _SIZES.items():
        for edits in of_sizes(observed.tree, observed.call, lambda old, known: [new for new in sizes if new != old]):  # noqa: B023
            yield Variation(name, edits)
    yield from (
        Variation("equal sizes", edits)
        for edits in of_sizes(observed.tree, observed.call, lambda old, known: known - {old})
    )


def _of_tensor(part: ast.expr, recipe: TensorRecipe, is_input: bool) -> Iterator[Variation]:
    def other(name: str, **changes: Any) -> Variation:
        return Variation(name, {part: [expression(replace(recipe, **changes).text)]})

    shape, is_float = recipe.shape, recipe.dtype.is_floating_point
    for axis in range(len(shape)):
        yield other("size of one tensor", shape=(*shape[:axis], 1, *shape[axis + 1 :]))
        yield other("rank", shape=(*shape[:axis], *shape[axis + 1 :]))
        yield other("size of one tensor", shape=(*shape[:axis], shape[axis] + 1, *shape[axis + 1 :]))
    yield from (other("rank", shape=each) for each in ((2, *shape), (1, *shape), (*shape, 1)))
    yield from (
        other("a scalar tensor", shape=(), dtype=dtype) for dtype in dict.fromkeys((recipe.dtype, *_DTYPES[:2]))
    )
    if recipe.dtype is not torch.bool:
        for dtype in _DTYPES if is_input else _DTYPES[:2]:
            yield other(f"{_name_of(dtype)} of one tensor", dtype=dtype)
        if is_input:  # none of these is exact in the next narrower floating-point type
            yield other("large integers", dtype=torch.int64, elements=(2049, -4099, 16777217, 3))
    if is_float:
        for name, values in _VALUES.items():
            if is_input or name not in _NOT_FINITE:  # weights are finite as long as a model works
                yield replace(other(name, elements=values), of_values=True)
    elif recipe.dtype is torch.bool:
        yield from (other("values", elements=values) for values in ((True,), (False,)))
    else:
        yield from (
            other("values", elements=values) for values in ((0,), (max(0, recipe.limit - 1),), (-1,), (1, 1, 0))
        )
    if is_input and len(shape) > 0:
        for name, form in _LAYOUTS.items():
            yield Variation(name, {part: [expression(form.format(ast.unparse(part)))]})
    if is_float and recipe.layout == "contiguous":
        dtype = f".to({recipe.dtype})"
        yield Variation("integral values", {part: [expression(f"torch.round(3 * {ast.unparse(part)}){dtype}")]})


def _of_all(observed: Observed) -> Iterator[Variation]:
    """Yield the program in another dtype as a whole, and on integers."""
    build = next(iter(methods(observed.tree, "build")), None)
    last = None if build is None else build.body[-1]
    if isinstance(last, ast.Return) and last.value is not None:
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            cast = {last.value: [expression(f"{ast.unparse(last.value)}.to({dtype})")]}
            yield Variation(_name_of(dtype), {**inputs_in(observed, dtype), **cast})
    yield from (
        Variation(_name_of(dtype), inputs_in(observed, dtype)) for dtype in (torch.int32, torch.int64, torch.uint8)
    )


def _of_ranks(name: str, tensors: Sequence[tuple[ast.expr, TensorRecipe]]) -> Iterator[Variation]:
    """Yield the program on tensors with one more dimension, the first or the last."""
    for size, is_first in itertools.product((1, 2, 3) if tensors else (), (True, False)):
        wider = {
            part: replace(recipe, shape=(size, *recipe.shape) if is_first else (*recipe.shape, size))
            for part, recipe in tensors
        }
        yield Variation(name, {part: [expression(recipe.text)] for part, recipe in wider.items()}, of_rank=True)


def wider(observed: Observed) -> Edits:
    """Return edits that give inputs one more dimension, if they are matrices and a call names all their dimensions.

    The call names the new dimension, too.
    """
    inputs = list(tensors_in(observed.call.inputs))
    edits: Edits = {}
    for part in [each for line in observed.lines for each in ast.walk(line)]:
        match part:
            case ast.Call(args=args, func=ast.Attribute()):
                numbers = [each for each in args if isinstance(each, ast.Constant)]
                dims = [each.value for each in numbers]
                if dims in ([0, 1], [1, 0]) and args[-2:] == numbers:
                    edits = {**edits, args[-1]: [args[-1], ast.Constant(2)]}
            case ast.Tuple(elts=[ast.Constant(0), ast.Constant(1)] | [ast.Constant(1), ast.Constant(0)] as numbers):
                edits = {**edits, part: [ast.Tuple([*numbers, ast.Constant(2)], ast.Load())]}
            case _:
                pass
    if not edits or any(len(recipe.shape) != 2 for _, recipe in inputs):
        return {}
    shapes = {part: replace(recipe, shape=(*recipe.shape, 4)) for part, recipe in inputs}
    return {**edits, **{part: [expression(recipe.text)] for part, recipe in shapes.items()}}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _of_weights(observed: Observed) -> Iterator[Variation]:
    """Yield other values of the parameters and buffers that modules make themselves."""
    build = next((part for part in methods(observed.tree, "build")), None)
    if build is None:
        return
    tensors = [*observed.module.named_parameters(), *observed.module.named_buffers()]
    for name, tensor in tensors:
        if not tensor.is_floating_point() or not tensor.dim():
            continue
        path, _, own = name.rpartition(".")
        owner = f"{own} of {type(observed.module.get_submodule(path)).__name__}" if path else "weights"
        for kind, form in _WEIGHTS.items():
            line = f"with torch.no_grad():\n    {form.format(path_of_tensor('module', name))}"
            yield Variation(f"{kind} of {owner}", after_build(build, line))


def after_build(build: ast.FunctionDef, line: str) -> Edits:
    """Return edits that add a line to ``build``, about the module that it returns, which is called ``module``."""
    last = build.body[-1]
    assert isinstance(last, ast.Return), "build() returns a module"
    module = ast.unparse(last.value or ast.Constant(None))
    return {last: [*statements(f"module = {module}\n{line}"), ast.Return(name_of("module"))]}
