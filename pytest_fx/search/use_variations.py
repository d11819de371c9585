"""Variations of uses: further readers of a value, writes and results, and operations between two lines."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

import torch
from torch import nn

from pytest_fx.search.argument_variations import variations_of
from pytest_fx.search.observed import Observed, Variation, assigned, called_by, path_of_tensor, statements
from pytest_fx.search.syntax import Edits, Parameter, edited, expression, loaded, name_of, stored, uses_of

_WRITES = {
    "written": "{0}.mul_(2)",
    "written in part": "{0}[..., :1].neg_()",
    "assigned in part": "{0}[..., :1] = 0",
    "augmented": "{0} += 1",
    "written through a view": "{0}.view(-1)[::2].add_(1)",
    "written through a transposed view": "{0}.transpose(0, -1)[:1].zero_()",
    "written by a function": "torch.nn.functional.leaky_relu({0}, 2.0, inplace=True)",
    "written as a given result": "torch.neg({0}, out={0})",
}
_BETWEEN = {
    "relu between": "{0}.relu()",
    "scaling between": "{0} * 2",
    "shift between": "{0} + 1",
    "negation between": "-{0}",
    "copy between": "{0}.clone()",
    "contiguous between": "{0}.contiguous()",
    "detach between": "{0}.detach()",
    "cast between": "{0}.double()",
    "casts between": "{0}.half().float()",
    "transpose between": "{0}.transpose(0, -1)",
    "strides between": "{0}.transpose(0, -1).contiguous().transpose(0, -1)",
    "dropout between": "torch.nn.functional.dropout({0}, 0.5, self.training)",
    "view between": "{0}.view({0}.shape)",
    "flip between": "{0}.flip(0)",
    "masked between": "{0}.masked_fill({0} > 0.5, -1.0)",
}

_KEPT_FOR_GRADIENTS = {
    "sigmoid between": "torch.sigmoid({0})",
    "exponential between": "torch.exp({0})",
    "tangent between": "{0}.tanh()",
    "softmax between": "torch.softmax({0}, -1)",
}
"""Operations whose gradients need their results, so that nothing may write to these."""
_MODULES = ("nn.Identity()", "nn.Dropout(0.5)", "nn.ReLU()")


def use_variations(observed: Observed) -> Iterator[Variation]:
    """Yield the program with a further or a changed use of a value."""
    for line in observed.lines:
        for name in sorted(stored(line)):
            if isinstance(observed.values.get(name), torch.Tensor):
                yield from _of_value(observed, line, name)
        yield from _of_line(observed, line)
    for name in (part.name for part in observed.call.parameters):
        if isinstance(observed.values.get(name), torch.Tensor):
            yield from _of_value(observed, None, name)
    for part in [each for line in (*observed.lines, observed.call.forward.body[-1]) for each in ast.walk(line)]:
        yield from _of_expression(observed, part)
    yield from _of_inputs(observed)
    yield from _of_order(observed)
    yield from _of_state(observed)


def _of_value(observed: Observed, line: ast.stmt | None, name: str) -> Iterator[Variation]:
    """Yield further uses of a value: it is returned, read, or written before and after it is read."""
    result, (more,) = ast.unparse(observed.returned), observed.fresh()
    last = observed.call.forward.body[-1]
    lines = observed.lines
    start = 0 if line is None else lines.index(line) + 1
    readers = [each for each in lines[start:] if name in loaded(each)]

    def inserted(at: int, text: str, returned: str = "") -> Edits:
        edits: dict[ast.AST, list[ast.AST]] = {}
        place = (*lines, last)[at]
        rest = ast.Return(expression(f"({result}, {returned})")) if returned and place is last else place
        edits[place] = [*statements(text), rest]
        if returned and place is not last:
            edits[observed.returned] = [expression(f"({result}, {returned})")]
        return edits

    if line is not None:
        yield Variation("returned", observed.returning(f"({result}, {name})"))
        yield Variation("alone returned", observed.returning(name))
    yield Variation("a view returned", observed.returning(f"({result}, {name}.view_as({name}))"))
    yield Variation("read again", observed.returning(f"({result}, {name} * 2)"))
    yield Variation("read before", inserted(start, f"{more} = {name} + 1", more))
    equal = f"{more} * 2 + 1, {more} * 2.0 + 1"
    yield Variation("equal numbers of two types", inserted(len(lines), f"{more} = {name}.long()", equal))
    for kind, form in _WRITES.items():
        text = form.format(name)
        yield Variation(f"{kind} at once", inserted(start, text))
        yield Variation(f"{kind} at the end", inserted(len(lines), text, name))
        for reader in readers:
            yield Variation(f"{kind} after a read", inserted(lines.index(reader) + 1, text))
            yield Variation(f"{kind} after a read", inserted(lines.index(reader) + 1, text, name))
    (attribute,) = (each for each in observed.fresh(2) if each != more)
    by_module = observed.with_state(f"self.{attribute} = nn.ReLU(inplace=True)")
    for at in dict.fromkeys((start, len(lines), *(lines.index(reader) + 1 for reader in readers))):
        yield Variation("written by a module", {**inserted(at, f"self.{attribute}({name})"), **by_module})
    yield from (
        Variation("a view kept", inserted(start, f"{more} = {form.format(name)}", more))
        for form in ("{0}[:1]", "{0}.transpose(0, -1)", "{0}.view(-1)")
    )
    view = f"{more} = {name}[:1]"
    if len(lines) > start:
        yield Variation(
            "a view kept over a write",
            {**inserted(start, view, more), **inserted(len(lines), f"{name}.mul_(2)", more)},
        )
        yield Variation(
            "written through an earlier view",
            {lines[start]: [*statements(view), lines[start]], last: [*statements(f"{more}.mul_(2)"), last]},
        )
        for reader in readers[:-1] or readers:
            at = lines.index(reader)
            if at > start:
                yield Variation(
                    "written through an earlier view",
                    {lines[start]: [*statements(view), lines[start]], reader: [*statements(f"{more}.mul_(2)"), reader]},
                )


def _of_inputs(observed: Observed) -> Iterator[Variation]:
    """Yield a further input: of the shape and dtype of a value, to be read instead of it, or of integers."""
    (more,), result = observed.fresh(), ast.unparse(observed.returned)
    integers = observed.call.edits([*observed.call.parameters, Parameter(more, expression("torch.arange(4)"))])
    returned = f"({result}, {more} * 2 + 1, {more} * 2.0 + 1)"
    yield Variation("integers with equal numbers of two types", {**integers, **observed.returning(returned)})
    for line in observed.lines:
        for part in uses_of(line, observed.tensors().keys()):
            yield Variation("an input instead", observed.with_input(part))


def _of_state(observed: Observed) -> Iterator[Variation]:
    """Yield a parameter or a buffer with another reader, or with a write by the program."""
    result, last, (more,) = ast.unparse(observed.returned), observed.call.forward.body[-1], observed.fresh()
    for name, tensor in itertools.chain(observed.module.named_parameters(), observed.module.named_buffers()):
        path = path_of_tensor("self", name)
        uses = [line for line in observed.lines if path in ast.unparse(line)]
        for line in uses[:-1] if not isinstance(tensor, nn.Parameter) else ():
            read = {line: [line, *statements(f"{more} = {path} * 2")]}
            yield Variation("a buffer read between", {**read, **observed.returning(f"({result}, {more})")})
        if not tensor.is_floating_point():
            if not isinstance(tensor, nn.Parameter):
                for place in (observed.lines[0] if observed.lines else last, last):
                    yield Variation("a buffer written", {place: [*statements(f"{path}.fill_(1)"), place]})
            continue
        yield Variation("a weight read again", observed.returning(f"({result}, {path} * 2)"))
        if isinstance(tensor, nn.Parameter):
            continue
        for place in (observed.lines[0] if observed.lines else last, last):
            yield Variation("a buffer written", {place: [*statements(f"{path}.add_(1)"), place]})
        yield from (Variation("a buffer written", {line: [line, *statements(f"{path}.mul_(2)")]}) for line in uses)


def _of_line(observed: Observed, line: ast.stmt) -> Iterator[Variation]:
    """Yield a line twice, on another value, on its own result, and with its result in a tensor passed to it."""
    match line:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case _:
            return
    result, (more,) = ast.unparse(observed.returned), observed.fresh()
    again = observed.returning(f"({result}, {more})")
    in_turn = observed.returning(f"({result}, {more} * 2)")
    shape = getattr(observed.values.get(name), "shape", None)
    operands = [
        part
        for part in ast.walk(value)
        if isinstance(part, ast.Name) and isinstance(observed.values.get(part.id), torch.Tensor)
    ]

    def with_other(operand: ast.Name, other: ast.expr) -> ast.stmt:
        return assigned(more, edited(value, {operand: [other]}))

    inside = dict.fromkeys(ast.walk(value))
    for part in inside:
        for variation in variations_of(observed, part):
            other = assigned(more, edited(value, variation.edits))
            property_ = variation.parameter or variation.name
            for read in (again, in_turn):
                rest = {part: change for part, change in variation.edits.items() if part not in inside}
                yield Variation(f"again with another {property_}", {line: [line, other], **rest, **read})
    yield from (Variation("computed twice", {line: [line, assigned(more, value)], **read}) for read in (again, in_turn))
    constructor = observed.construction(value.func) if isinstance(value, ast.Call) else None
    if isinstance(value, ast.Call) and constructor is not None:
        (attribute,) = (each for each in observed.fresh(2) if each != more)
        beside = [line, assigned(more, ast.Call(expression(f"self.{attribute}"), value.args, value.keywords))]
        others = [("by another module", constructor)]
        for variation in variations_of(observed, constructor):
            property_ = variation.parameter or variation.name
            others.append((f"again with another {property_}", edited(constructor, variation.edits)))
        for kind, other in others:
            state = observed.with_state(f"self.{attribute} = {ast.unparse(other)}")
            yield Variation(kind, {line: beside, **again, **state})
    for operand in operands:
        if observed.values[operand.id].shape == shape:
            yield Variation("applied to its result", {line: [line, with_other(operand, name_of(name))], **again})
            yield Variation("left out", {line: [assigned(name, operand)]})
        scaled = expression(f"{operand.id} * 2")
        yield Variation("applied to another value", {line: [line, with_other(operand, scaled)], **again})
    for operand in operands:
        if observed.values[operand.id].shape == shape:
            read = assigned(name, name_of(operand.id))
            for written in (value, *_in_place(observed, value)):
                yield Variation("a result unused", {line: [ast.Expr(written), read]})
    if isinstance(value, ast.Call) and not isinstance(called_by(observed, value), nn.Module):
        dtype = getattr(observed.values.get(name), "dtype", None)
        target = statements(f"{name} = torch.empty(0, dtype={dtype})")
        out = ast.Call(value.func, value.args, [*value.keywords, ast.keyword("out", name_of(name))])
        yield Variation("result in a given tensor", {line: [*target, ast.Expr(out)]})
        for written in _in_place(observed, value):
            yield Variation("in place", {line: [assigned(name, written)]})


def _in_place(observed: Observed, value: ast.expr) -> Iterator[ast.expr]:
    """Yield the same operation in place on its operand: by the method with an underscore, or by its argument."""
    if not isinstance(value, ast.Call) or isinstance(called_by(observed, value), nn.Module):
        return
    if isinstance(value.func, ast.Attribute) and not value.func.attr.endswith("_"):
        function = ast.Attribute(value.func.value, f"{value.func.attr}_", ast.Load())
        yield ast.Call(function, value.args, value.keywords)
    yield ast.Call(value.func, value.args, [*value.keywords, ast.keyword("inplace", ast.Constant(True))])


def _of_expression(observed: Observed, part: ast.AST) -> Iterator[Variation]:
    """Yield other operands, in another order, or with something between them and the line that makes them."""
    match part:
        case ast.Name(id=name, ctx=ast.Load()) if isinstance(value := observed.values.get(name), torch.Tensor):
            result, (attribute,) = ast.unparse(observed.returned), observed.fresh()
            inside = part in set(ast.walk(observed.returned))
            for kind, form in _BETWEEN.items():
                yield Variation(kind, {part: [expression(form.format(name))]})
                if not inside:
                    again = observed.returning(f"({result}, {name})")
                    yield Variation(f"{kind}, read before it", {part: [expression(form.format(name))], **again})
            for kind, form in _KEPT_FOR_GRADIENTS.items():
                yield Variation(kind, {part: [expression(form.format(name))]}, of_values=True)
            for module in _MODULES:
                call, state = (
                    expression(f"self.{attribute}({name})"),
                    observed.with_state(f"self.{attribute} = {module}"),
                )
                edits = {part: [call], **state}
                yield Variation("a module between", edits)
                if not inside:
                    again = observed.returning(f"({result}, {name})")
                    yield Variation("a module between, read before it", {**edits, **again})
            for other, tensor in observed.tensors().items():
                if other != name and tensor.dim() == value.dim():
                    yield Variation("another operand", {part: [name_of(other)]})
        case ast.BinOp(left=left, op=sign, right=right):
            yield Variation("operands swapped", {part: [ast.BinOp(right, sign, left)]})
            yield from _without_numbers(observed, part)
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            yield Variation("operands swapped", {part: [ast.Compare(right, [sign], [left])]})
        case ast.Call(args=args):
            tensors = [each for each in args if isinstance(observed.value_of(each), torch.Tensor)]
            for first, second in itertools.combinations(tensors, 2):
                yield Variation("operands swapped", {first: [second], second: [first]})
                yield Variation("the same operand twice", {first: [second]})
            yield from _without_numbers(observed, part)
        case _:
            pass


def _without_numbers(observed: Observed, operation: ast.BinOp | ast.Call) -> Iterator[Variation]:
    """Yield a number as a tensor: of one element, along the last dimension, along the first, or of the whole shape."""
    parts = [operation.left, operation.right] if isinstance(operation, ast.BinOp) else operation.args
    shape = next((value.shape for each in parts if isinstance(value := observed.value_of(each), torch.Tensor)), None)
    if shape is None or not shape:
        return
    (name,) = observed.fresh()
    for each in parts:
        if not isinstance(each, ast.Constant) or type(each.value) not in (int, float):
            continue
        for size in dict.fromkeys(((), tuple(shape[-1:]), (shape[0], *(1,) * (len(shape) - 1)), tuple(shape))):
            count = torch.Size(size).numel()
            tensor = f"torch.arange({count}.0).add({each.value!r}).reshape({size})"
            for kind in (f'self.register_buffer("{name}", {tensor})', f"self.{name} = nn.Parameter({tensor})"):
                edits = {each: [expression(f"self.{name}")], **observed.with_state(kind)}
                yield Variation("a tensor in the place of a number", edits)


def _of_order(observed: Observed) -> Iterator[Variation]:
    """Yield the program with two lines in the other order, if neither depends on the other."""
    for first, second in itertools.pairwise(observed.lines):
        if not stored(first) & (loaded(second) | stored(second)) and not loaded(first) & stored(second):
            yield Variation("order of lines", {first: [second], second: [first]})
    last = observed.call.forward.body[-1]
    for part in observed.call.parameters:
        if uses_of(observed.call.forward, {part.name}) and isinstance(last, ast.Return):
            yield Variation("an input returned", observed.returning(f"({ast.unparse(observed.returned)}, {part.name})"))
