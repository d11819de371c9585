"""The source files that a measurement uses, and a fingerprint of their code."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import fx
import model_zoo

_PACKAGES = (fx, model_zoo)


@contextmanager
def note_used_files() -> Generator[list[str]]:
    """Fill the returned list, at the end of the block, with the files of ``fx`` and of the models that it used.

    These are the files whose functions this thread called, and the files that they import by name. Code that runs only
    while times are taken is not seen, because no profiler is active then; each program is called before that.
    """
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    files: list[str] = []
    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(earlier)
        called = {path for code in codes if (path := _names_by_path().get(code.co_filename)) is not None}
        files += sorted(called.union(*(_imports(name) for name in called)))


@cache
def _names_by_path() -> dict[str, str]:
    """Return the name of each source file, such as ``fx/node.py``, by its path."""
    paths = ((package, Path(package.__path__[0])) for package in _PACKAGES)
    return {
        str(path): f"{package.__name__}/{path.relative_to(folder).as_posix()}"
        for package, folder in paths
        for path in sorted(folder.rglob("*.py"))
    }


@cache
def _trees() -> dict[str, ast.Module]:
    """Return the parsed code of each file by its name, without docstrings."""
    return {name: _without_docstrings(ast.parse(Path(path).read_bytes())) for path, name in _names_by_path().items()}


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove each string that is a statement, such as docstrings of functions and of fields."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements: Any = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _is_text(statement)])
    return tree


def _is_text(statement: Any) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imports(name: str) -> set[str]:
    """Return the names of the files that a file imports by ``from module import …``."""
    trees = _trees()
    modules = {node.module for node in ast.walk(trees[name]) if isinstance(node, ast.ImportFrom) and node.module}
    return {file for module in modules if (file := f"{module.replace('.', '/')}.py") in trees}


@cache
def _fingerprint_of(name: str) -> str:
    return hashlib.sha256(ast.dump(_trees()[name]).encode()).hexdigest()


def code_fingerprint(files: Sequence[str] | None = None) -> str:
    """Return a hash of the code of files, without comments and docstrings; by default of all files.

    A file that no longer exists changes the hash, and so does an entry of a damaged record that names no file.
    """
    digest = hashlib.sha256()
    for name in sorted(_trees()) if files is None else map(str, files):
        digest.update(f"{name}\0{_fingerprint_of(name) if name in _trees() else ''}\0".encode())
    return digest.hexdigest()[:16]
