"""Removals and simplifications of parts of a program's text, each alone with the parts that must go with it.

Their effect is not checked here: the program may do something else, or not run any more.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_fx.generation.record import load
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.search.simplifications import ELEMENTS, of_dtypes, of_parameters, of_tensors, tensors_in, within
from pytest_fx.search.syntax import (
    NAMESPACES,
    Edits,
    Parameter,
    Tree,
    WrittenCall,
    attribute_of,
    children_of,
    edited,
    expression,
    loaded,
    methods,
    name_of,
    operands_of,
    stored,
    uses_of,
)

_BUILD = ast.parse("def build():\n    torch.default_generator.manual_seed(0)\n    return Program().eval()").body[0]


def removals(tree: ast.Module) -> Iterator[Edits]:
    """Yield possible removals in a program that defines ``build()`` and ``inputs()``, the largest first."""
    forwards, inits = methods(tree, "forward"), methods(tree, "__init__")
    call = WrittenCall.of(tree)
    if call is not None:
        yield from slices(call.forward)
        yield from _windows(call.forward)
    yield from _unused(tree, call)
    for forward in reversed(forwards):
        yield from _without_statements(forward)
    # Once more, since the search goes on from its present place: a removed part may have been the last reader of some.
    yield from _unused(tree, call)
    if call is not None:
        yield from _cuts(tree, call)
    yield from _inlined(tree)
    for init in inits:
        yield {init: []}
        yield from ({statement: []} for statement in init.body[1:])
    for forward in forwards:
        yield from within(forward.body)
    if call is not None:
        yield from of_parameters(call)
    for init in inits:
        yield from within(init.body[1:])
    yield from of_dtypes(tree)
    yield from of_tensors(tree, call)
    yield from ({part: [_BUILD]} for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "build")
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield from ({decorator: []} for decorator in part.decorator_list)


def renaming(tree: ast.Module) -> Edits:
    """Return edits that give the values of ``forward`` consecutive names: ``a``, ``b``, …"""
    edits: dict[Any, list[ast.AST]] = {}
    for forward in methods(tree, "forward"):
        reserved = {part.arg for part in ast.walk(forward) if isinstance(part, ast.arg)} | NAMESPACES
        names = [part for part in ast.walk(forward) if isinstance(part, ast.Name)]
        assigned = [name for statement in forward.body for name in sorted(stored(statement))]
        letters = (f"{letter}{number}" for number in ("", *range(1, 10)) for letter in "abcdefghijklmnopqrst")
        free = [name for name in letters if name not in reserved]
        new = dict(zip(dict.fromkeys(name for name in assigned if name not in reserved), free, strict=False))
        edits |= {part: [ast.Name(new[part.id], part.ctx)] for part in names if part.id in new}
    return edits


def slices(forward: ast.FunctionDef) -> Iterator[Edits]:
    """Yield each value of ``forward`` alone, with the statements that it needs."""
    *body, last = forward.body
    if not isinstance(last, ast.Return) or last.value is None:
        return
    for name in [name for statement in body for name in stored(statement)]:
        needed, needed_lines = {name}, set[ast.stmt]()
        for statement in reversed(body):
            if needed & (stored(statement) or loaded(statement)):
                needed |= loaded(statement)
                needed_lines.add(statement)
        unneeded: Edits = {statement: [] for statement in body if statement not in needed_lines}
        yield {**unneeded, last.value: [name_of(name)]}


def _windows(forward: ast.FunctionDef) -> Iterator[Edits]:
    """Yield half of the statements, a quarter, and so on, with the statements that depend on them."""
    *body, last = forward.body
    size = len(body) // 2
    while size > 1:
        for start in range(0, len(body), size):
            gone = set(body[start : start + size])
            lost = {name for statement in gone for name in stored(statement)}
            for statement in body:
                if statement not in gone and loaded(statement) & lost:
                    gone.add(statement)
                    lost |= stored(statement)
            results = _without_names(last.value, lost) if isinstance(last, ast.Return) and last.value else {}
            if results is not None:
                yield {**{statement: [] for statement in gone}, **results}
        size //= 2


def _without_names(value: ast.expr, lost: set[str]) -> dict[Any, list[ast.AST]] | None:
    """Return edits that remove the elements of a result with a lost name in them; None if nothing would remain."""
    if not loaded(value) & lost:
        return {}
    keys = value.keys if isinstance(value, ast.Dict) else itertools.repeat(None)
    edits: dict[Any, list[ast.AST]] = {}
    count = 0
    for key, element in zip(keys, children_of(value), strict=False):
        inner = _without_names(element, lost)
        count += inner is not None
        edits |= {**({key: []} if key else {}), element: []} if inner is None else inner
    return edits if count else None


def _without_statements(forward: ast.FunctionDef) -> Iterator[Edits]:
    """Yield each statement, its result replaced by one of its operands or by an input."""
    parameters = [part.arg for part in (*forward.args.args[1:], *forward.args.kwonlyargs)]
    names = {*parameters, *(name for statement in forward.body for name in stored(statement))}
    for statement in reversed([part for part in ast.walk(forward) if isinstance(part, ast.stmt)]):
        if isinstance(statement, ast.Return | ast.FunctionDef):
            continue
        uses = uses_of(forward, stored(statement))
        if not uses:
            yield {statement: []}
        for other in dict.fromkeys([*operands_of(statement, names), *parameters]) if uses else ():
            yield {statement: [], **{use: [expression(other)] for use in uses}}
        if isinstance(statement, ast.If | ast.For | ast.While | ast.With):
            yield {statement: statement.body}
        if isinstance(statement, ast.Assign):
            yield from _without_targets(forward, statement, names)


def _without_targets(forward: ast.FunctionDef, statement: ast.Assign, names: set[str]) -> Iterator[Edits]:
    """Yield each of several values that are computed side by side, ``a, b = x + 1, y + 1``."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            pass
        case _:
            return
    for gone, (target, value) in enumerate(zip(targets, values, strict=True)):
        rest = [pair for place, pair in enumerate(zip(targets, values, strict=True)) if place != gone]
        other_targets, other_values = (
            ast.Tuple([*part]) if len(rest) > 1 else part[0] for part in zip(*rest, strict=True)
        )
        uses = uses_of(forward, {part.id for part in ast.walk(target) if isinstance(part, ast.Name)})
        for other in operands_of(value, names) or [""]:
            yield {
                statement: [ast.Assign([other_targets], other_values, lineno=0)],
                **{use: [expression(other)] for use in uses},
            }


def _cuts(tree: ast.Module, call: WrittenCall) -> Iterator[Edits]:
    """Yield each tensor value, and each tensor of the module, as an input."""
    values = _values(tree, call)
    passed = [part for part in call.parameters if part.value]
    free = next((name for name in "xyzwvu" if name not in {part.name for part in passed}), "")
    for statement in reversed(call.forward.body if free else []):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if isinstance(value := values.get(name), torch.Tensor):
                for elements in ELEMENTS[:2]:
                    text = TensorRecipe(tuple(value.shape), value.dtype, elements).text
                    input_edits = call.edits([*passed, Parameter(free, expression(text))])
                    uses = uses_of(call.forward, {name})
                    yield {statement: [], **input_edits, **{use: [name_of(free)] for use in uses}}
            case _:
                pass
    for line in [line for init in methods(tree, "__init__") for line in init.body[1:] if free]:
        attribute = attribute_of(line)
        reads = [part for part in ast.walk(call.forward) if isinstance(part, ast.Attribute)]
        uses = [part for part in reads if ast.unparse(part) == f"self.{attribute}"]
        for tensor, _ in list(tensors_in(line))[:1] if uses else ():
            input_edits = call.edits([*passed, Parameter(free, tensor)])
            yield {line: [], **input_edits, **{use: [name_of(free)] for use in uses}}


def _values(tree: ast.Module, call: WrittenCall) -> dict[str, Any]:
    """Return the values that the program computes, by name."""
    returns = [part for part in ast.walk(call.forward) if isinstance(part, ast.Return) and part.value is not None]
    edits = {part.value: [expression("locals()")] for part in returns if part.value}
    text = ast.unparse(ast.fix_missing_locations(edited(tree, edits)))
    try:
        program = load(text, frozenset(), (), 0)
        inputs = program.inputs.copies()
        with torch.no_grad():
            return program.build()(*inputs.args, **inputs.kwargs)
    except Exception:  # a program that has lost a part may raise anything
        return {}


def _unused(tree: ast.Module, call: WrittenCall | None) -> Iterator[Edits]:
    """Yield all unused attributes and inputs at once."""
    read = {part.attr for part in ast.walk(tree) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load)}
    lines = [line for init in methods(tree, "__init__") for line in init.body[1:] if attribute_of(line) not in read]
    yield {line: [] for line in lines}
    if call is not None:
        used = [part for part in call.parameters if uses_of(call.forward, {part.name})] or call.parameters[:1]
        yield call.edits(used)
        yield {**{line: [] for line in lines}, **call.edits(used)}


def _inlined(tree: ast.Module) -> Iterator[Edits]:
    """Yield each module of the program's own that another one holds, with its lines in place of its calls."""
    classes = {part.name: part for part in tree.body if isinstance(part, ast.ClassDef)}
    for outer in classes.values():
        for line in [line for init in methods(outer, "__init__") for line in init.body[1:]]:
            match line:
                case ast.Assign(value=ast.Call(func=ast.Name(id=name), args=[], keywords=[])) if name in classes:
                    edits = _inlined_calls(outer, attribute_of(line), classes[name])
                    init = [part for method in methods(classes[name], "__init__") for part in method.body[1:]]
                    if edits is not None:
                        yield {**edits, line: [_renamed(part, {}, f"{attribute_of(line)}_") for part in init]}
                case _:
                    pass


def _inlined_calls(outer: ast.ClassDef, attribute: str, inner: ast.ClassDef) -> dict[Any, list[ast.AST]] | None:
    """Return the lines in place of each line that calls the module; None if it is also used in other ways."""
    (forward,) = methods(inner, "forward")
    reads = [part for part in ast.walk(outer) if isinstance(part, ast.Attribute) and part.attr == attribute]
    edits: dict[Any, list[ast.AST]] = {}
    last = forward.body[-1]
    if len(forward.args.args) != 2 or not isinstance(last, ast.Return) or last.value is None:
        return None
    for statement in [line for method in methods(outer, "forward") for line in method.body]:
        match statement:
            case ast.Assign(targets=[target], value=ast.Call(func=called, args=[argument], keywords=[])) if (
                called in reads
            ):
                local = {name for line in forward.body for name in stored(line)}
                names: dict[str, ast.expr] = {name: name_of(f"{name}_{attribute}_{len(edits)}") for name in local}
                names[forward.args.args[1].arg] = argument
                lines = [_renamed(line, names, f"{attribute}_") for line in forward.body[:-1]]
                value = _renamed(last.value, names, f"{attribute}_")
                edits[statement] = [*lines, ast.Assign([target], value, lineno=0)]
            case _:
                pass
    calls = sum(isinstance(part.ctx, ast.Load) for part in reads)
    return edits if len(edits) == calls else None


def _renamed(tree: Tree, names: Mapping[str, ast.expr], prefix: str) -> Tree:
    """Return the tree with other names for values, and ``prefix`` before the names of the module's attributes."""
    edits: dict[Any, list[ast.AST]] = {}
    for part in ast.walk(tree):
        match part:
            case ast.Name(id=name) if name in names:
                new = names[name]
                edits[part] = [ast.Name(new.id, part.ctx) if isinstance(new, ast.Name) else new]
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if attr != "register_buffer":
                edits[part] = [ast.Attribute(name_of("self"), prefix + attr, part.ctx)]
            case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=str(name)) as text, *_]):
                edits[text] = [ast.Constant(prefix + name)]
            case _:
                pass
    return edited(tree, edits)
