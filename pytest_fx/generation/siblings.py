"""Siblings of formulas: rows that differ from a formula in one detail, and that no pass may take for it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_fx.generation.operands import ANOTHER
from pytest_fx.generation.productions import NAMESPACE, Argument, Operand, Production
from pytest_fx.generation.unnamed_arguments import further_arguments

FORMULA = frozenset({"formula"})
"""The tag of rows that have siblings."""
_HOLE, _NAME, _OPERAND = re.compile(r"\{(\w+)\}"), re.compile(r"\b_([a-z0-9]+)_\b"), re.compile(r"\b_\d+_\b")
_CASTS = ("{}.double()", "{}.half()", "{}.half().float()")
_MASKS = (
    "(part := {}).masked_fill(part > 0, float('-inf'))",
    "(part := {}).masked_fill(part > 0, -100.0)",
    "(part := {}).where(part < 1, 0.5)",
    "(part := {}).masked_fill(torch.ones_like(part).triu(1).bool(), -100.0)",
    "(part := {}).masked_fill(torch.ones_like(part).tril(diagonal=1) == 0, -100.0)",
)
_INERT = ("F.dropout({}, 0.1, training=False)", "{}.contiguous()")
"""Operations without effect that still separate two others."""
_TAGS = {
    "between": frozenset({"view"}),
    "cast": frozenset({"cast"}),
    "layout": frozenset({"view"}),
    "use": frozenset({"view"}),
}
"""Kinds of siblings that may return the memory of an operand, with their tags."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """A replacement of a part of a formula."""

    kind: str
    """The changed detail: ``"number"``, ``"argument"``, ``"order"``, ``"operand"``, ``"cast"``, ``"mask"``,
    ``"layout"``, ``"between"``, ``"use"``."""
    text: str
    """The text of the replacement."""
    arguments: tuple[Argument, ...] = ()
    """Further constants, beside those of the formula."""
    operands: tuple[Operand, ...] = ()
    """Further values, beside those of the formula."""


@functools.lru_cache(maxsize=4096)
def siblings(row: Production, spelling: str) -> tuple[tuple[Production, ...], ...]:
    """Return the siblings of a formula in one of its spellings, grouped by kind of change; two kinds occur twice.

    Eager need not accept all of them.

    >>> from .operands import FLOAT
    >>> formula = Production(("{0} * torch.sigmoid({0})",), (FLOAT,))
    >>> for kind in siblings(formula, formula.spellings[0]):
    ...     print(kind[0].spellings[0])
    torch.sigmoid({0}) * {0}
    {1} * torch.sigmoid({0})
    {0}.double() * torch.sigmoid({0})
    {0} * torch.sigmoid((part := {0}).masked_fill(part > 0, float('-inf')))
    {0} * F.dropout(torch.sigmoid({0}), 0.1, training=False)
    {0} * (inner := torch.sigmoid({0})), inner
    """
    text = _HOLE.sub(r"_\1_", spelling)
    root = _SignedNumbers().visit(ast.parse(text, mode="eval").body)
    by_kind: dict[str, list[Production]] = {}
    for node in ast.walk(root):
        if not isinstance(node, ast.expr):
            continue
        edits = [*_numbers(node), *_arguments(node, row), *_orders(node), *_reads(node, row, text), *_masks(node, text)]
        edits += _around(node, text) if node is not root else ()
        for edit in edits:
            edited = text[: node.col_offset] + edit.text + text[node.end_col_offset :]
            if edited == text:  # both operands are the same
                continue
            edited += ", inner" if edit.kind == "use" else ""
            tags = row.tags | {f"another {edit.kind}"} | _TAGS.get(edit.kind, frozenset())
            sibling = replace(
                row,
                spellings=(_NAME.sub(r"{\1}", edited),),
                arguments=(*row.arguments, *edit.arguments),
                operands=(*row.operands, *edit.operands),
                tags=tags,
            )
            by_kind.setdefault(edit.kind, []).append(sibling)
    often = [kind for kind in by_kind if kind in ("number", "argument")]  # passes check these least
    return tuple(tuple(by_kind[kind]) for kind in (*by_kind, *often))


class _SignedNumbers(ast.NodeTransformer):
    """A transformer that makes ``-1`` one number."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Replace a positive number with a sign by a negative one."""
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))):
                return ast.copy_location(ast.Constant(-value), node)
            case _:
                return self.generic_visit(node)


def _numbers(node: ast.expr) -> Iterator[_Edit]:
    """Yield edits to another number, dimensions and bounds among them."""
    match node:
        case ast.Constant(value=int(value) | float(value)) if type(value) is not bool:
            others = dict.fromkeys((2 * value, value + 1, -value))
            yield from (_Edit("number", repr(round(other, 6))) for other in others if other != value)
        case _:
            pass


def _arguments(node: ast.expr, row: Production) -> Iterator[_Edit]:
    """Yield a call without one of its keywords, or with one more."""
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        rest = [each for each in node.keywords if each is not keyword]
        yield _Edit("argument", ast.unparse(ast.Call(node.func, node.args, rest)))
    present = frozenset(each.arg for each in node.keywords if each.arg) | {each.name for each in row.arguments}
    name = ast.unparse(node.func)
    if isinstance(node.func, ast.Attribute) and not _is_of_module(node.func):
        name = f"{{0}}.{node.func.attr}"
    for argument in further_arguments(f"{name}({{0}}{{*}})", present):
        more = ast.keyword(argument.name, ast.Name(f"_{argument.name}_"))
        yield _Edit("argument", ast.unparse(ast.Call(node.func, node.args, [*node.keywords, more])), (argument,))


def _is_of_module(function: ast.Attribute) -> bool:
    return ast.unparse(function).partition(".")[0] in NAMESPACE


def _orders(node: ast.expr) -> Iterator[_Edit]:
    """Yield two operands in the other order."""
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            yield _Edit("order", ast.unparse(ast.BinOp(right, sign, left)))
        case ast.Compare(left=left, ops=signs, comparators=[right]):
            yield _Edit("order", ast.unparse(ast.Compare(right, signs, [left])))
        case ast.Call(func=ast.Attribute() as function, args=[*rest, first, second]) if _is_of_module(function):
            yield _Edit("order", ast.unparse(ast.Call(function, [*rest, second, first], node.keywords)))
        case _:
            pass


def _reads(node: ast.expr, row: Production, text: str) -> Iterator[_Edit]:
    """Yield another value in one of the places where the same value or number is read."""
    if not isinstance(node, ast.Name) or len(re.findall(rf"\b{node.id}\b", text)) < 2:
        return
    if _OPERAND.fullmatch(node.id):
        yield _Edit("operand", f"_{len(row.operands)}_", operands=(ANOTHER,))
    for argument in row.arguments:
        if node.id == f"_{argument.name}_":
            yield _Edit("number", "_other_", (replace(argument, name="other"),))


def _masks(node: ast.expr, text: str) -> Iterator[_Edit]:
    """Yield a call, of the softmax if there is one, on a masked operand."""
    match node:
        case ast.Call(func=ast.Attribute() as function, args=[part, *rest]) if (
            _is_of_module(function) and (function.attr == "softmax" or "softmax(" not in text) and _is_value(part)
        ):
            for form in _MASKS:
                masked = ast.parse(form.format(ast.unparse(part)), mode="eval").body
                yield _Edit("mask", ast.unparse(ast.Call(function, [masked, *rest], node.keywords)))
        case _:
            pass


def _around(node: ast.expr, text: str) -> Iterator[_Edit]:
    """Yield a part with a cast, with a transpose more or less, with something around it, or with another use."""
    if not _is_value(node):
        return
    if not isinstance(node, ast.Name):
        for form in _INERT:
            yield _Edit("between", form.format(ast.unparse(node) if form[0] == "F" else _closed(node)))
    for form in _CASTS:
        yield _Edit("cast", form.format(_closed(node)))
    if re.search(r" @ |mm\(|matmul\(", text):
        yield _Edit("layout", f"{_closed(node)}.mT")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "transpose":
            yield _Edit("layout", ast.unparse(node.func.value))
    if not isinstance(node, ast.Name):
        yield _Edit("use", f"(inner := {ast.unparse(node)})")


def _is_value(node: ast.expr) -> bool:
    """Return whether a part is an operand or computed from operands."""
    return isinstance(node, ast.BinOp | ast.Call | ast.Subscript | ast.Name) and bool(
        _OPERAND.search(ast.unparse(node))
    )


def _closed(node: ast.expr) -> str:
    """Return the text of a part, for use before a dot."""
    return f"({ast.unparse(node)})" if isinstance(node, ast.BinOp) else ast.unparse(node)
