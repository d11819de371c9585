"""Mutants of a pass: the same pass with one small fault in its source, such as a negated condition.

Nothing is written to disk: the file is parsed and one part of the tree is replaced. While a mutant is installed, the
pass's own functions have the code of the changed tree, or a table of its module has another value.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import inspect
import itertools
import linecache
import os
import types
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pytest_fx.forms import unwrapped
from pytest_fx.harness.pass_run import parts_of
from pytest_fx.search.coverage import home_of, is_own
from pytest_fx.search.references import is_open
from pytest_fx.search.syntax import Edits, edited

LONGEST_TEXT = 70
"""The most characters of a changed part that are shown."""
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_NEIGHBOURS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
"""Comparisons that differ only if both sides are equal."""
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_FOR_PEOPLE = frozenset({"__str__", "__repr__", "__format__"})
"""Methods that produce text, and change no program."""


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """A function of a pass, or a value in its module, that a mutant changes."""

    file: str
    """The file."""
    module: ast.Module
    """Its tree."""
    part: ast.AST
    """The function's definition, or the assignment, in that tree."""
    functions: tuple[types.FunctionType, ...]
    """The functions with this code; empty for a table."""
    names: dict[str, Any]
    """The variables of the module."""
    original: Any
    """The code, or the value."""

    def changed(self, edits: Edits) -> Any:
        """Return the code or the value with some parts replaced; None if that is impossible."""
        try:
            if not self.functions:
                _, value = _assigned(self.part)
                tree = ast.fix_missing_locations(edited(ast.Expression(value), edits))
                return eval(compile(tree, self.file, "eval", dont_inherit=True), self.names)
            module = ast.fix_missing_locations(edited(self.module, edits))
            code = _code_like(compile(module, self.file, "exec", dont_inherit=True), self.original)
        except Exception:  # a changed table may raise anything
            return None
        # a closure must keep its number of cells
        return code if code is not None and code.co_freevars == self.original.co_freevars else None

    @property
    def now(self) -> Any:
        """The present code or value."""
        return self.functions[0].__code__ if self.functions else self.names[_assigned(self.part)[0]]

    def give(self, content: Any) -> None:
        """Set the code of the functions, or the value of the name."""
        for function in self.functions:
            function.__code__ = content
        if not self.functions:
            self.names[_assigned(self.part)[0]] = content


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """A pass with one fault."""

    kind: str
    """The kind of change: ``"condition negated"``."""
    file: str
    """The file."""
    line: int
    """The line."""
    before: str
    """The part that was changed, as text."""
    after: str
    """The replacement; empty if the part is removed."""
    unit: _Unit = dataclasses.field(repr=False)
    """The changed function or value."""
    edits: Edits = dataclasses.field(repr=False)
    """The replaced parts of the tree."""

    def __str__(self) -> str:
        change = f"`{self.before}` → `{self.after}`" if self.after else f"`{self.before}`"
        return f"{os.path.basename(self.file)}:{self.line}: {self.kind}: {change}"

    @contextmanager
    def installed(self) -> Generator[bool]:
        """Install the fault inside the block; yield whether such a pass exists."""
        changed = self.unit.changed(self.edits)
        if changed is None:
            yield False
            return
        self.unit.give(changed)
        try:
            yield True
        finally:
            self.unit.give(self.unit.original)

    @contextmanager
    def put_back(self) -> Generator[None]:
        """Restore the original pass inside the block, while the mutant is installed."""
        changed = self.unit.now
        self.unit.give(self.unit.original)
        try:
            yield
        finally:
            self.unit.give(changed)


def mutants_of(pass_: Any) -> list[Mutant]:
    """Return all mutants of a pass, in the order of its source; none if the source is unavailable.

    Mutants change its own code:

    * the functions that it may run, in its modules and in other code outside of libraries;
    * the patterns and replacements that it names;
    * the tables of these modules.
    """
    walk = _Walk(pass_)
    files: dict[str, ast.Module | None] = {}
    units: list[_Unit] = []
    by_code: dict[types.CodeType, list[types.FunctionType]] = {}
    for function in walk.own:
        by_code.setdefault(function.__code__, []).append(function)
    for code, functions in by_code.items():
        module = files.setdefault(code.co_filename, _parsed(code.co_filename))
        part = None if module is None else _definition(module, code)
        if module is not None and part is not None:
            others = [each for each in gc.get_referrers(code) if type(each) is types.FunctionType]
            sharing = tuple(dict.fromkeys([*functions, *(each for each in others if each.__code__ is code)]))
            units.append(_Unit(code.co_filename, module, part, sharing, functions[0].__globals__, code))
    inner = {part for unit in units for part in ast.walk(unit.part) if part is not unit.part}
    units = [unit for unit in units if unit.part not in inner]
    units += _tables(units, walk.names)
    mutants = [mutant for unit in units for mutant in _mutants(unit)]
    return sorted(mutants, key=lambda mutant: (mutant.file, mutant.line, mutant.kind, mutant.before, mutant.after))


def codes_of(pass_: Any) -> list[types.CodeType]:
    """Return the code of the functions that may have mutants."""
    return [function.__code__ for function in _Walk(pass_).own]


class _Walk:
    """The functions that a pass may run, found by name from its entry point; so ``explain`` is not among them."""

    def __init__(self, pass_: Any) -> None:
        parts = [unwrapped(part) for part in parts_of(pass_)]
        self._homes = {home_of(part) for part in parts} - {None}
        self.own: list[types.FunctionType] = []
        """The functions of the pass itself."""
        self.names: set[str] = set()
        """All names in these functions."""
        self._classes: dict[type, None] = {}
        self._seen: dict[int, Any] = {}
        pending: list[Any] = parts
        while pending:
            value = pending.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                pending += self._parts(value)
            if not pending:
                pending = self._methods()

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, types.FunctionType):
            return self._parts_of_function(value)
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            return [value.__func__]
        if isinstance(value, property):
            return [value.fget]
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, type):
            if self._is_open(value):
                self._classes[value] = None
                return list(value.__bases__)
            return []
        if isinstance(value, Mapping):
            return list(cast("Mapping[Any, Any]", value).values())
        if isinstance(value, (list, tuple, set, frozenset)):
            return list(cast("Any", value))
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        attributes = list(vars(value).values()) if self._is_open(type(value)) and hasattr(value, "__dict__") else []
        return [type(value), wrapped, *attributes]

    def _is_open(self, kind: type) -> bool:
        return is_open(kind) or home_of(kind) in self._homes

    def _parts_of_function(self, function: types.FunctionType) -> list[Any]:
        code = function.__code__
        if is_own(code, self._homes):
            self.own.append(function)
        elif not is_open(function):
            return []
        names = {name for each in _codes_in(code) for name in each.co_names}
        self.names |= names
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        values = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
        return [*cells, *values, getattr(function, "__wrapped__", None), *(function.__defaults__ or ())]

    def _methods(self) -> list[Any]:
        """Return methods of the classes so far that are mentioned by name, or called in other ways."""
        return [
            part
            for kind in self._classes
            for name, part in vars(kind).items()
            if name in self.names or (name[:2] == "__" and name not in _FOR_PEOPLE and callable(part))
            if not isinstance(part, type) and id(part) not in self._seen
        ]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if it is not
    except ValueError:
        return False
    return True


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _definition(module: ast.Module, code: types.CodeType) -> ast.AST | None:
    """Return the definition of a function; its code starts at the first decorator."""
    for part in ast.walk(module):
        if isinstance(part, ast.FunctionDef) and part.name == code.co_name:
            first = min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)])
            if first == code.co_firstlineno:
                return part
    return None


def _code_like(module: types.CodeType, code: types.CodeType) -> types.CodeType | None:
    """Return the code in a compiled module at the place of ``code``."""
    place = code.co_name, code.co_firstlineno
    return next((each for each in _codes_in(module) if (each.co_name, each.co_firstlineno) == place), None)


def _tables(units: Collection[_Unit], names: Collection[str]) -> Iterator[_Unit]:
    """Yield the module-level values whose names the functions mention."""
    for unit in {unit.file: unit for unit in units}.values():
        for statement in unit.module.body:
            target, value = _assigned(statement)
            if target in names and target in unit.names and not isinstance(value, ast.Constant | ast.Name):
                yield _Unit(unit.file, unit.module, statement, (), unit.names, unit.names[target])


def _assigned(statement: ast.AST) -> tuple[str, ast.expr]:
    """Return the name and the value of an assignment; the name is empty for another statement."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            return name, value
        case _:
            return "", ast.Constant(None)


def _mutants(unit: _Unit) -> Iterator[Mutant]:
    """Yield each change of a function or a table that makes a different one."""
    is_table = not unit.functions
    roots = [_assigned(unit.part)[1]] if is_table else cast("Any", unit.part).body
    texts = {ast.dump(unit.part)}
    for part in itertools.chain.from_iterable(map(_mutable_parts, roots)):
        for kind, old, new in (*_changes(part), *(_entries(part) if is_table else ())):
            edits: Edits = {old: new}
            text = ast.dump(edited(unit.part, edits))
            if text not in texts:
                texts.add(text)
                after = " ".join(map(_shown, new)) if new and not isinstance(new[0], ast.Pass) else ""
                line = getattr(old, "lineno", getattr(part, "lineno", 0))
                yield Mutant(kind, unit.file, line, _shown(old), after, unit, edits)


def _shown(part: ast.AST) -> str:
    text = " ".join(ast.unparse(part).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _mutable_parts(part: ast.AST) -> Iterator[ast.AST]:
    """Yield a part and the parts inside it, without texts for people and annotations."""
    if isinstance(part, (ast.Raise, ast.JoinedStr, ast.arguments)):
        return
    yield part
    for name, value in ast.iter_fields(part):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutable_parts(child)


_Change = tuple[str, Any, Sequence[ast.AST]]
"""The kind, the replaced part, and its replacement."""


def _changes(part: ast.AST) -> Iterator[_Change]:
    """Yield the possible faults of one part of the tree."""
    match part:
        case ast.If(test=test, body=body, orelse=[]) if isinstance(body[-1], _LEAVES):
            yield "condition negated", test, [_negated(test)]
            yield "guard removed", part, [_nothing(part)]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition negated", test, [_negated(test)]
        case ast.comprehension(ifs=tests):
            yield from (("condition negated", test, [_negated(test)]) for test in tests)
            yield from (("condition removed", test, []) for test in tests)
        case ast.BoolOp(values=values):
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield "operand dropped", part, [rest[0] if len(rest) == 1 else ast.BoolOp(part.op, rest)]
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            others = (table[type(sign)] for table in (_NEIGHBOURS, _OPPOSITES) if type(sign) in table)
            yield "comparison swapped", part, [ast.Compare(left, [next(others)()], [right])]
            if isinstance(right, ast.Constant) and isinstance(right.value, str):
                yield "constant changed", right, [ast.Constant(f"{right.value}_")]
            if isinstance(right, (ast.Tuple, ast.List, ast.Set)):
                yield from _entries(right)
        case ast.Call(keywords=keywords):
            yield from (("argument dropped", keyword, []) for keyword in keywords if keyword.arg is not None)
        case ast.Dict(keys=keys, values=values):
            for place in range(len(values)):
                rest = ast.Dict([*keys[:place], *keys[place + 1 :]], [*values[:place], *values[place + 1 :]])
                yield "entry dropped", part, [rest]
        case ast.Constant(value=bool(value)):
            yield "constant changed", part, [ast.Constant(not value)]
        case ast.Constant(value=int(value)):
            yield "constant changed", part, [ast.Constant(value + 1)]
        case ast.Constant(value=float(value)):
            yield "constant changed", part, [ast.Constant(2 * value or 1.0)]
        case ast.Expr(value=ast.Call()) | ast.Delete() | ast.AugAssign(target=ast.Attribute() | ast.Subscript()):
            yield "edit removed", part, [_nothing(part)]
        case ast.Assign(targets=targets) if all(map(_is_store, targets)):
            yield "edit removed", part, [_nothing(part)]
        case _:
            pass


def _is_store(target: ast.expr) -> bool:
    """Return whether an assignment stores into objects, not into variables."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_is_store, target.elts))
    return isinstance(target, (ast.Attribute, ast.Subscript))


def _entries(part: ast.AST) -> Iterator[_Change]:
    """Yield a tuple, list or set of several entries without each of them."""
    if isinstance(part, (ast.Tuple, ast.List, ast.Set)) and len(part.elts) > 1:
        yield from (("entry dropped", entry, []) for entry in part.elts)


def _negated(test: ast.expr) -> ast.expr:
    match test:
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return ast.copy_location(ast.Compare(left, [_OPPOSITES[type(sign)]()], [right]), test)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case _:
            return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _nothing(part: ast.AST) -> ast.AST:
    return ast.copy_location(ast.Pass(), part)
