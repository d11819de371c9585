"""A program with one call a line, the values that its lines compute, and the functions that it calls."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.productions import NAMESPACE
from pytest_fx.generation.record import load
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.harness.subject import in_mode
from pytest_fx.search.reduction import written
from pytest_fx.search.syntax import NAMESPACES, Edits, Parameter, WrittenCall, edited, expression, loaded, methods


@dataclass(frozen=True, slots=True)
class Variation:
    """A change of a program in one property."""

    name: str
    """The property."""
    edits: Edits
    """The replaced parts of its tree."""
    of_values: bool = False
    """True if the property concerns values or state."""
    callee: str = ""
    """The name of the call, for the property of an argument."""
    parameter: str = ""
    """The parameter of the argument."""
    passed: str = ""
    """The argument as text."""
    call: ast.AST | None = None
    """The call."""
    of_rank: bool = False
    """True if tensors have another number of dimensions."""
    operation: str = ""
    """For a replaced operation: its name, if the pass mentions it."""
    draw: Callable[[], Edits | None] | None = None
    """Draws the edits when they are needed, instead of ``edits``: most variations are never tried."""

    def drawn(self) -> Edits | None:
        """Return the edits; None if none can be drawn."""
        return self.edits if self.draw is None else self.draw()


@dataclass(frozen=True, eq=False)
class Observed:
    """A program, with the values of its names after a call."""

    tree: ast.Module
    """The text as a tree, with one call a line."""
    call: WrittenCall
    """The call."""
    module: nn.Module
    """The module."""
    mode: str
    """The mode in which it was called."""
    values: Mapping[str, Any]
    """The value of each name of ``forward`` at its end."""

    @classmethod
    def of(cls, text: str, mode: str) -> Observed | None:
        """Run a program and record its values; None for a text that :mod:`pytest_fx.generation` does not write."""
        return cls.of_tree(ast.parse(text), mode)

    @classmethod
    def of_tree(cls, tree: ast.Module, mode: str) -> Observed | None:
        """Run a parsed program and record its values, in the same way."""
        tree = _with_init(flattened(tree))
        call = WrittenCall.of(tree)
        returned = getattr(call.forward.body[-1], "value", None) if call is not None else None
        if call is None or returned is None:
            return None
        watched = edited(tree, {returned: [ast.parse("dict(locals())", mode="eval").body]})
        try:
            program = load(written(watched), frozenset(), (), 0)
            inputs = program.inputs.copies()
            with torch.no_grad():
                values = in_mode(program.build(), mode)(*inputs.args, **inputs.kwargs)
        except Exception:  # a text that is no program may raise anything
            return None
        return cls(tree, call, program.module, mode, {name: value for name, value in values.items() if name != "self"})

    @property
    def lines(self) -> list[ast.stmt]:
        """Return the statements of ``forward`` before its ``return``."""
        return self.call.forward.body[:-1]

    def lines_before(self, line: ast.stmt) -> list[ast.stmt]:
        """Return the statements of ``forward`` before one of them, or before its ``return``."""
        return self.lines[: self.lines.index(line)] if line in self.lines else self.lines

    def construction(self, function: ast.expr) -> ast.expr | None:
        """Return the expression that made the module called here; None if it is not in ``__init__``."""
        text = ast.unparse(function)
        lines = [
            line for line in self.init.body if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == text
        ]
        return lines[-1].value if lines and text.startswith("self.") else None

    @property
    def returned(self) -> ast.expr:
        """Return the expression that ``forward`` returns."""
        last = self.call.forward.body[-1]
        assert isinstance(last, ast.Return)
        return last.value or ast.Constant(None)

    @property
    def init(self) -> ast.FunctionDef:
        """Return the ``__init__`` of the program's own class."""
        return next(part for part in methods(_owner(self.tree, self.call), "__init__"))

    def value_of(self, part: ast.expr) -> Any:
        """Return the value of an expression that is a name or an attribute; None otherwise."""
        text = ast.unparse(part)
        if text not in self._evaluated:
            try:
                value = eval(text, {**NAMESPACE, "self": self.module}, dict(self.values))
            except Exception:  # a part of a text may raise anything by itself
                value = None
            self._evaluated[text] = value
        return self._evaluated[text]

    @functools.cached_property
    def _evaluated(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, in the order of their names' definition."""
        return {name: value for name, value in self.values.items() if isinstance(value, torch.Tensor)}

    def fresh(self, count: int = 1) -> list[str]:
        """Return names that the program does not use."""
        free = (f"more{number}" for number in itertools.count(1))
        return list(itertools.islice((name for name in free if name not in self._used), count))

    @functools.cached_property
    def _used(self) -> set[str]:
        return {part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)} | self.values.keys()

    def with_state(self, lines: str) -> Edits:
        """Return edits that add lines at the end of ``__init__``."""
        last = self.init.body[-1]
        return {last: [last, *statements(lines)]}

    def with_input(self, place: ast.Name) -> Edits:
        """Return edits that replace a tensor at a place by a further input of its shape and dtype."""
        (more,) = self.fresh()
        parameters = [*self.call.parameters, Parameter(more, expression(self._recipe(place).text))]
        return {place: [ast.Name(more, ast.Load())], **self.call.edits(parameters)}

    def with_tensor(self, place: ast.Name, *, buffer: bool) -> Edits:
        """Return edits that replace a tensor at a place by a parameter, or by a buffer, as integers always are."""
        (more,), recipe = self.fresh(), self._recipe(place)
        line = f"self.{more} = nn.Parameter({recipe.text})"
        if buffer or not recipe.dtype.is_floating_point:
            line = f'self.register_buffer("{more}", {recipe.text})'
        return {place: [expression(f"self.{more}")], **self.with_state(line)}

    def _recipe(self, place: ast.Name) -> TensorRecipe:
        value = self.values[place.id]
        return TensorRecipe(tuple(value.shape), value.dtype, "waves")

    def returning(self, text: str) -> Edits:
        """Return edits that let ``forward`` return another expression."""
        return {self.returned: [expression(text)]}


def _owner(tree: ast.Module, call: WrittenCall) -> ast.ClassDef:
    """Return the class of a program."""
    return next(part for part in tree.body if isinstance(part, ast.ClassDef) and call.forward in part.body)


def _with_init(tree: ast.Module) -> ast.Module:
    """Return a program whose class has an ``__init__``, to which lines can be added."""
    call = WrittenCall.of(tree)
    if call is None or methods(_owner(tree, call), "__init__"):
        return tree
    init = statements("def __init__(self):\n    super().__init__()")
    return edited(tree, {call.forward: [*init, call.forward]})


def statements(text: str) -> list[ast.stmt]:
    """Parse lines of code, into new nodes in each call."""
    return ast.parse(text).body


def assigned(name: str, value: ast.expr) -> ast.Assign:
    """Return an assignment of a value to a name."""
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)


def path_of_tensor(owner: str, name: str) -> str:
    """Return the expression of a parameter or a buffer: ``module.layers[0].weight``."""
    return owner + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))


def called_by(observed: Observed, call: ast.Call) -> Any:
    """Return the callee of a call: a function, a method of tensors, a class of modules, a module; None if unknown."""
    function = call.func
    if is_named(function):
        return observed.value_of(function)
    if isinstance(function, ast.Attribute):
        name = function.attr
        return getattr(torch, name, None) or getattr(torch.ops.aten, name, None) or getattr(torch.Tensor, name, None)
    return None


def is_named(function: ast.expr) -> bool:
    """Return whether an expression is a dotted name that is no value of ``forward``."""
    while isinstance(function, ast.Attribute | ast.Subscript):
        function = function.value
    return isinstance(function, ast.Name) and function.id in NAMESPACES


def flattened(tree: ast.Module, *, state: bool = False) -> ast.Module:
    """Return the program with each call and operator of the outermost ``forward`` on a line of its own.

    With ``state`` each attribute of the module in an argument is on such a line, too.
    """
    call = WrittenCall.of(tree)
    if call is None:
        return tree
    used = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    names = (name for name in (f"t{number}" for number in itertools.count()) if name not in used)
    body = [line for statement in call.forward.body for line in _lines_of(copy.deepcopy(statement), names, state)]
    flat = copy.copy(call.forward)
    flat.body = body
    return edited(tree, {call.forward: [flat]})


def _lines_of(statement: ast.stmt, names: Iterator[str], state: bool) -> list[ast.stmt]:
    """Return the statement after one line for each call and operator inside its expression."""
    hoist = _Hoist(names, state)
    match statement:
        case ast.Assign() | ast.AugAssign() | ast.Expr():
            statement.value = hoist.parts(statement.value)
        case ast.Return(value=ast.expr() as value):
            statement.value = hoist.visit(value)
        case _:
            pass
    return [*hoist.before, statement]


def _sliced(index: ast.expr) -> ast.expr:
    """Return an index with its slices written with colons."""
    match index:
        case ast.Tuple(elts=parts):
            index.elts = [_sliced(part) for part in parts]
        case ast.Call(func=ast.Name("slice"), args=[ast.expr() as start, ast.expr() as stop, ast.expr() as step]):
            ends = (None if isinstance(end, ast.Constant) and end.value is None else end for end in (start, stop, step))
            return ast.Slice(*ends)
        case _:
            pass
    return index


class _Hoist(ast.NodeTransformer):
    """Moves calls and operators out of an expression, into lines before it."""

    def __init__(self, names: Iterator[str], state: bool) -> None:
        self._names, self._state = names, state
        self.before: list[ast.stmt] = []
        """The lines that were moved out."""

    def parts(self, value: Any) -> Any:
        """Move out the parts of an expression, which itself stays."""
        match value:
            case ast.Lambda() | ast.ListComp() | ast.GeneratorExp() | ast.IfExp() | ast.BoolOp() | ast.JoinedStr():
                return value  # these decide themselves which parts are evaluated
            case ast.Subscript():
                value.slice = _sliced(value.slice)
                return super().generic_visit(value)
            case ast.Call(func=function) if is_named(function):
                value.args = [self.visit(part) for part in value.args]
                value.keywords = [self.visit(part) for part in value.keywords]
                return value
            case _:
                return super().generic_visit(value)

    def generic_visit(self, node: ast.AST) -> Any:
        """Move out an expression that computes a value."""
        value = self.parts(node)
        if isinstance(value, ast.NamedExpr):
            return self._moved(value.target.id, value.value)
        if isinstance(value, ast.Attribute) and is_named(value):
            is_state = self._state and set(loaded(value)) == {"self"}
            return self._moved(next(self._names), value) if is_state else value
        computes = isinstance(value, ast.Call | ast.BinOp | ast.Compare | ast.UnaryOp | ast.Subscript)
        if computes and loaded(value) - NAMESPACES | loaded(value) & {"self"}:
            return self._moved(next(self._names), value)
        return value

    def _moved(self, name: str, value: ast.expr) -> ast.Name:
        self.before.append(assigned(name, value))
        return ast.Name(name, ast.Load())
