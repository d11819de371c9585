"""Reduction of a program's text while it shows the same failure, until nothing more can be removed."""

from __future__ import annotations

import ast
import functools
import io
import re
import time
import tokenize
from collections.abc import Callable

from pytest_fx.search.removals import removals, renaming
from pytest_fx.search.syntax import edited


def reduced(source: str, shows: Callable[[str], bool], seconds: float) -> str:
    """Return the text of a smaller program for which ``shows`` is true.

    Parts are removed one after the other. At the end no removal of :func:`~.removals.removals` is possible alone,
    unless the time was over before.

    Args:
        source: the text of a program for which ``shows`` is true.
        shows: returns whether another text shows the failure; the text may be no program that runs.
        seconds: the time limit.
    """
    end = time.monotonic() + seconds
    smallest, tried = source, {source}
    tree = ast.parse(source)
    size, edits = _size(tree), list(removals(tree))
    place = fruitless = 0  # the number of edits in a row without effect
    while fruitless < len(edits) and time.monotonic() < end:
        smaller = _tidied(edited(tree, edits[place % len(edits)]))
        place, fruitless = place + 1, fruitless + 1
        if _size(smaller) < size and (text := written(smaller)) not in tried:
            tried.add(text)
            if shows(text):
                smallest, tree, fruitless = text, ast.parse(text), 0
                size, edits = _size(tree), list(removals(tree))
    text = written(edited(tree, renaming(tree)))
    return text if text not in tried and shows(text) else smallest


def written(tree: ast.Module) -> str:
    """Return the text of a program in the usual layout."""
    parts = [_statement_written(part) for part in tree.body]
    imports = [part for part in parts if part.startswith(("import ", "from "))]
    others = [re.sub(r"^(class .*:\n)\n+", r"\1", part) for part in parts if part not in imports]
    text = "\n\n\n".join(["\n".join(imports), *others]) + "\n"
    return re.sub(r"(?:(?<=return )|(?<= = ))\((.*)\)$", _without_parentheses, text, flags=re.MULTILINE)


@functools.lru_cache(maxsize=256)  # an edited tree shares the other statements with the first one
def _statement_written(statement: ast.stmt) -> str:
    return _with_double_quotes(ast.unparse(ast.fix_missing_locations(statement)))


def _tidied(tree: ast.Module) -> ast.Module:
    """Return the program without unused imports and classes."""
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    return ast.Module([part for part in tree.body if not _is_unused(part, names)], [])


def _is_unused(statement: ast.stmt, names: set[str]) -> bool:
    match statement:
        case ast.Import(names=[imported]) | ast.ImportFrom(names=[imported]):
            return (imported.asname or imported.name.partition(".")[0]) not in names
        case ast.ClassDef(name=name):
            return name not in names
        case _:
            return False


def _without_parentheses(match: re.Match[str]) -> str:
    """Return a tuple without parentheses, as in ``return a, b``."""
    try:
        inside = ast.parse(match[1], mode="eval").body
    except SyntaxError:  # the two parentheses are not a pair
        return match[0]
    return match[1] if isinstance(inside, ast.Tuple) and len(inside.elts) > 1 else match[0]


def _with_double_quotes(text: str) -> str:
    """Return the text with strings in double quotes; ``ast.unparse`` writes them as ``repr`` does."""
    if '"' not in text:  # no string has a quote in it
        return re.sub(r"'([^'\\\n]*)'", r'"\1"', text)
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        (row, start), (_, stop) = token.start, token.end
        if token.type == tokenize.STRING and re.fullmatch(r"'[^'\"\\\n]*'", token.string):
            lines[row - 1] = f'{lines[row - 1][:start]}"{token.string[1:-1]}"{lines[row - 1][stop:]}'
    return "".join(lines)


def _size(tree: ast.Module) -> tuple[int, int, float, int]:
    """Return a sort key of size: statements, parts of expressions, numbers, names."""
    parts = [part for part in ast.walk(tree) if not isinstance(part, ast.expr_context)]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    numbers = sum(abs(value) for value in values if isinstance(value, int | float))
    names = sum(len(part.attr) for part in parts if isinstance(part, ast.Attribute))
    return sum(isinstance(part, ast.stmt) for part in parts), len(parts), numbers, names
