"""Variants of the programs of the corpus: other names, no source, a decorator, other imports."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.machinery import SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from marshal import dumps
from pathlib import Path
from typing import Any

from . import programs
from .programs import Program

NAMES = ("{}_get_info", "{}_my_log", "_check_shape_{}", "{}_mark", "{}_write")
"""New names for helpers, which suggest that each of them only shows something."""
Told = dict[str, Program]


def renamed(theme: types.ModuleType) -> Told:
    """Tell a theme with its helper functions called like loggers, and its helper classes like exceptions."""
    tree = ast.parse(inspect.getsource(theme))
    helpers = [
        statement
        for statement in tree.body
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and not statement.decorator_list
    ]
    used = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | _set(tree)
    inner = (node for statement in tree.body for node in ast.walk(statement) if node is not statement)
    used |= {node.name for node in inner if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names = [helper.name for helper in helpers if helper.name not in used]
    new = {name: NAMES[number % len(NAMES)].format(f"n{number}") for number, name in enumerate(names)}
    new |= {
        helper.name: f"{helper.name}Error"
        for helper in helpers
        if isinstance(helper, ast.ClassDef) and helper.name in new
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node in tree.body:
            node.name = new.get(node.name, node.name)
    return _told("renamed", theme, ast.unparse(tree))


def without_source(theme: types.ModuleType) -> Told:
    """Tell a theme by ``exec`` of text that nobody keeps."""
    return _told("without_source", theme, inspect.getsource(theme), has_source=False)


def compiled(theme: types.ModuleType, folder: Path) -> Told:
    """Tell a theme by a file of byte code that lies there alone."""
    name = _short(theme)
    code = compile(inspect.getsource(theme), f"/nowhere/{name}.py", "exec")
    path = folder / f"{name}.pyc"
    path.write_bytes(MAGIC_NUMBER + bytes(12) + dumps(code))
    module = _module("compiled", theme, str(path))
    with _registering() as registered:
        SourcelessFileLoader(module.__name__, str(path)).exec_module(module)
    return registered


def decorated(theme: types.ModuleType) -> Told:
    """Tell a theme with a decorator around each program."""
    programs = _told("decorated", theme, inspect.getsource(theme))
    for name, program in programs.items():
        if not program.is_module:
            again = _handing_on(program.definition)
            programs[name] = Program(
                program.theme, again, program.inputs, program.options, program.must_refuse, program.guided
            )
        elif isinstance(vars(program.definition).get("forward"), types.FunctionType):
            program.definition.forward = _handing_on(program.definition.forward)  # type: ignore[attr-defined]
    return programs


def _handing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def imported_otherwise(theme: types.ModuleType) -> Told:
    """Tell a theme with ``from random import random`` for ``import random``, and the other way round."""
    tree = ast.parse(inspect.getsource(theme))
    modules: dict[str, str] = {}
    members: dict[str, tuple[str, str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            modules |= {
                alias.asname or alias.name: alias.name
                for alias in statement.names
                if alias.asname or "." not in alias.name
            }
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module != "__future__":
            members |= {alias.asname or alias.name: (str(statement.module), alias.name) for alias in statement.names}
    stored = _set(tree)
    rewriter = _Imports(
        {name: home for name, home in modules.items() if name not in stored},
        {name: home for name, home in members.items() if name not in stored},
    )
    tree = rewriter.visit(tree)
    place = (
        next(index for index, statement in enumerate(tree.body) if isinstance(statement, (ast.Import, ast.ImportFrom)))
        + 1
    )
    tree.body[place:place] = rewriter.imports()
    return _told("imported_otherwise", theme, ast.unparse(ast.fix_missing_locations(tree)))


class _Imports(ast.NodeTransformer):
    def __init__(self, modules: dict[str, str], members: dict[str, tuple[str, str]]) -> None:
        self._modules, self._members = modules, members
        self._from: dict[str, tuple[str, str]] = {}
        self._whole: dict[str, str] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        home = self._modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if home is None or not isinstance(node.ctx, ast.Load) or not hasattr(importlib.import_module(home), node.attr):
            self.generic_visit(node)
            return node
        name = f"of_{home.replace('.', '_')}_{node.attr}"
        self._from[name] = home, node.attr
        return ast.Name(name, ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._members or not isinstance(node.ctx, ast.Load):
            return node
        home, member = self._members[node.id]
        name = f"whole_{home.replace('.', '_')}"
        self._whole[name] = home
        return ast.Attribute(ast.Name(name, ast.Load()), member, ast.Load())

    def imports(self) -> list[ast.stmt]:
        """Return the statements that import the members under the new names."""
        whole = [ast.Import([ast.alias(home, name)]) for name, home in self._whole.items()]
        return [
            *whole,
            *(
                ast.ImportFrom(home, [ast.alias(name_there, name)], 0)
                for name, (home, name_there) in self._from.items()
            ),
        ]


def _set(tree: ast.AST) -> set[str]:
    """The names of variables and parameters."""
    nodes = list(ast.walk(tree))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _short(theme: types.ModuleType) -> str:
    return theme.__name__.rpartition(".")[2]


def _told(how: str, theme: types.ModuleType, text: str, has_source: bool = True) -> Told:
    file = f"/{how}/{_short(theme)}.py"
    if has_source:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = _module(how, theme, file)
    with _registering() as registered:
        exec(compile(text, file, "exec"), vars(module))
    return registered


def _module(how: str, theme: types.ModuleType, file: str) -> types.ModuleType:
    module = types.ModuleType(f"{theme.__package__}.{how}.{_short(theme)}")
    module.__package__, module.__file__ = theme.__package__, file
    sys.modules[module.__name__] = module
    return module


@contextmanager
def _registering() -> Generator[Told]:
    """Let programs register in a registry of their own."""
    before, programs.REGISTRY = programs.REGISTRY, {}
    try:
        yield programs.REGISTRY
    finally:
        programs.REGISTRY = before
