"""Docstrings list the parameters of a function, each on its own line, under its real name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^Args:\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): ", re.MULTILINE)


def functions_with_arguments(package: str) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the place, the listed arguments and the parameters of each function that lists its arguments."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if "Args:" not in (text := path.read_text("utf-8")):
            continue
        for owner in ast.walk(ast.parse(text)):
            for function in ast.iter_child_nodes(owner):
                if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                docstring = ast.get_docstring(function) or ""
                if (
                    section := _SECTION.search(docstring)
                ) is None or "see :class:" in docstring:  # which lists the others
                    continue
                signature = function.args
                parameters = [
                    *signature.posonlyargs,
                    *signature.args,
                    *signature.kwonlyargs,
                    signature.vararg,
                    signature.kwarg,
                ]
                names = [parameter.arg for parameter in parameters if parameter is not None]
                is_method = isinstance(owner, ast.ClassDef) and names[:1] in (["self"], ["cls"])
                place = f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
                yield place, set(_ENTRY.findall(section[1])), set(names[is_method:])


@pytest.mark.parametrize("package", ["fx", "pytest_fx", "model_zoo"])
def test_docstrings_list_each_parameter_on_its_line(package: str) -> None:
    functions = list(functions_with_arguments(package))
    assert functions
    assert [place for place, listed, parameters in functions if listed != parameters] == []
