"""Simplifications in the text of a program: of expressions, inputs, tensors and their sizes."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.search.syntax import Edits, Parameter, WrittenCall, children_of, expression, methods, name_of, uses_of

ELEMENTS = ("ones", "counts", "waves")
"""The values of tensors, plain ones first."""
_WAVE = re.compile(r"\.sin\(\)\.mul\(([-+.e\d]+)\)\.add\(([-+.e\d]+)\)")


def within(statements: Iterable[ast.AST]) -> Iterator[Edits]:
    """Yield edits that remove each argument and element, or replace an expression by one of its parts."""
    parts = [part for statement in statements for part in ast.walk(statement)]
    yield {part: [] for part in parts if isinstance(part, ast.keyword)}
    for part in parts:
        if isinstance(getattr(part, "ctx", None), ast.Store):
            continue
        yield from ({part: [child]} for child in children_of(part))
        match part:
            # The positional arguments of these are the tensor and its name, and required.
            case ast.Call(func=ast.Attribute(attr="Parameter" | "register_buffer")):
                yield from ({gone: []} for gone in part.keywords)
            case ast.Call():
                yield from ({gone: []} for gone in (*part.args, *part.keywords))
            case ast.List(elts=[_, _, *_]) | ast.Tuple(elts=[_, _, *_]) | ast.Set(elts=[_, _, *_]):
                yield from ({gone: []} for gone in part.elts)
            case ast.Dict(keys=keys, values=values):
                yield {part: [ast.Tuple(values, ast.Load())]}
                yield from ({key: [], value: []} for key, value in zip(keys, values, strict=True) if key and keys[1:])
            case ast.Slice():
                yield from ({bound: []} for bound in (part.lower, part.upper, part.step) if bound)
            case _:
                pass


def of_dtypes(tree: ast.Module) -> Iterator[Edits]:
    """Yield each dtype keyword with all its occurrences of one dtype."""
    named: dict[str, list[ast.keyword]] = {}
    for part in ast.walk(tree):
        if isinstance(part, ast.keyword) and part.arg == "dtype":
            named.setdefault(ast.unparse(part.value), []).append(part)
    yield from ({keyword: [] for keyword in keywords} for keywords in named.values())


def of_parameters(call: WrittenCall) -> Iterator[Edits]:
    """Yield edits of each parameter: removed, replaced by another one or its default, positional, or taken apart."""
    for part in call.parameters:
        others = [other for other in call.parameters if other is not part]
        uses = uses_of(call.forward, {part.name})
        replacements = [name_of(other.name) for other in others] + ([part.default] if part.default else [])
        for replacement in replacements if uses else [name_of(part.name)]:
            if others:
                yield {**call.edits(others), **{use: [replacement] for use in uses}}
        if part.value is not None and (part.keyword or part.default is not None):
            yield call.edits([replace(part, default=None, keyword=False), *others])
            yield call.edits([replace(part, default=None), *others])
        if isinstance(part.value, ast.Tuple | ast.List | ast.Dict):
            yield from _of_container(call, part, others)


def _of_container(call: WrittenCall, part: Parameter, others: list[Parameter]) -> Iterator[Edits]:
    subscripts = [
        node
        for node in ast.walk(call.forward)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == part.name
    ]
    keys = part.value.keys if isinstance(part.value, ast.Dict) else itertools.repeat(None)
    for key, element in zip(keys, children_of(part.value) if part.value else (), strict=False):
        yield {element: [], **({key: []} if key else {})}
        alone = call.edits([replace(part, value=element), *others])
        yield {**alone, **{subscript: [name_of(part.name)] for subscript in subscripts}}


def of_tensors(tree: ast.Module, call: WrittenCall | None) -> Iterator[Edits]:
    """Yield each tensor with plainer values or fewer elements, and each size changed wherever it occurs."""
    for part, recipe in _tensors_made(lines_making_tensors(tree, call)).items():
        shape, axes = recipe.shape, range(len(recipe.shape))
        shapes = [shape, *((*shape[:axis], *shape[axis + 1 :]) for axis in axes if len(axes) > 1)]
        shapes += [(*shape[:axis], 1, *shape[axis + 1 :]) for axis in axes]
        kinds = dict.fromkeys([*ELEMENTS, recipe.elements])
        for shape, elements in itertools.product(dict.fromkeys(shapes), kinds):
            yield {part: [expression(replace(recipe, shape=shape, elements=elements).text)]}
    yield from of_sizes(tree, call, lambda old, sizes: [new for new in (1, 2) if new < old])


def of_sizes(
    tree: ast.Module, call: WrittenCall | None, others_of: Callable[[int, set[int]], Iterable[int]]
) -> Iterator[Edits]:
    """Yield edits that change each size, wherever it occurs, to each of ``others_of`` it and all sizes."""
    lines = lines_making_tensors(tree, call)
    tensors = _tensors_made(lines)
    # Sizes in the expression of a tensor change with its shape, not one by one.
    inside = {constant for part in tensors for constant in ast.walk(part)}
    constants = [part for line in lines for part in ast.walk(line) if isinstance(part, ast.Constant)]
    sizes = {part.value for part in constants if type(part.value) is int and part not in inside}
    sizes |= {size for recipe in tensors.values() for size in recipe.shape}
    everywhere = [part for part in ast.walk(tree) if isinstance(part, ast.Constant)]
    for old, new in [(size, other) for size in sorted(sizes, reverse=True) for other in others_of(size, sizes)]:
        # A number in `forward` may be such a size, as in `x.view(-1, 8)`, or have another meaning: both are tried.
        for places in (constants, everywhere):
            edits: dict[Any, list[ast.AST]] = {
                part: [ast.Constant(new)] for part in places if part not in inside and part.value == old
            }
            for part, recipe in tensors.items():
                if old in recipe.shape:
                    shape = tuple(new if size == old else size for size in recipe.shape)
                    edits[part] = [expression(replace(recipe, shape=shape).text)]
            yield edits


def lines_making_tensors(tree: ast.Module, call: WrittenCall | None) -> list[ast.stmt]:
    """Return the lines that make tensors and layers."""
    # The first line of `__init__` is `super().__init__()`, without which no attribute can be set.
    return [*(line for init in methods(tree, "__init__") for line in init.body[1:]), *([call.inputs] if call else [])]


def _tensors_made(lines: Iterable[ast.stmt]) -> dict[ast.expr, TensorRecipe]:
    return dict(pair for line in lines for pair in tensors_in(line))


def tensors_in(tree: ast.AST) -> Iterator[tuple[ast.expr, TensorRecipe]]:
    """Yield the largest expressions that are tensors, with recipes for nearly the same tensors."""
    for child in ast.iter_child_nodes(tree):
        recipe = _recipe(child) if isinstance(child, ast.Call | ast.Attribute | ast.Subscript) else None
        if recipe is None:
            yield from tensors_in(child)
        else:
            assert isinstance(child, ast.expr)
            yield child, recipe


def _recipe(expression: ast.expr) -> TensorRecipe | None:
    text = ast.unparse(expression)
    try:
        tensor: Any = eval(text, {"torch": torch})
    except Exception:  # it uses other names
        return None
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, nn.Parameter):
        return None
    if "torch.full(" in text:
        return TensorRecipe.like(tensor)
    values = tensor.flatten().tolist()
    names = {"torch.ones(": "ones", ".mul(150": "swings", ".sin()": "waves", "torch.arange(": "counts"}
    elements: Any = next((name for mark, name in names.items() if mark in text), tuple(values[:6]) or "ones")
    is_integral = not (tensor.is_floating_point() or tensor.is_complex())
    limit = int(max(values)) + 1 if values and is_integral else 4
    wave = _WAVE.search(text)
    numbers = (float(wave[1]), float(wave[2])) if wave else (1.0, 0.0)
    return TensorRecipe(tuple(tensor.shape), tensor.dtype, elements, limit=limit, wave=numbers)
