"""``python -m catalogue.minimality``: how many counterexamples have nothing that could go.

Wrong passes are taken evenly from the catalogue. From what ``check_pass`` shows of each, every line, option, positional
argument and element of a result is removed in turn, by code that knows nothing of how it was found.
"""

from __future__ import annotations

import argparse
import ast
import copy
import re
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis

from pytest_fx import LawViolation, check_pass, check_program

from . import WRONG, Wrong
from .rows import EXAMPLES

PASSES = 25
"""The number of passes that are tried."""
_SHOWN = re.compile(r"in (\w+) mode:\n(.*?)\ncode before the pass:", re.DOTALL)


def counterexample(row: Wrong, seed: int = 0) -> tuple[str, str, str] | None:
    """The law, the mode and the text of the program on which a pass is shown to be wrong; None if it is not."""
    with tempfile.NamedTemporaryFile() as no_folder:  # where no test file can be, the message shows the whole program
        try:
            check_pass(
                row.pass_,
                contract=row.contract,
                modes=row.modes,
                max_examples=EXAMPLES,
                min_changed=0,
                seed=seed,
                settings=hypothesis.settings(database=None),
                folder=Path(no_folder.name),
            )
        except LawViolation as violation:
            return violation.law, *shown_in(violation)
    return None


def shown_in(violation: LawViolation) -> tuple[str, str]:
    """Return the mode and the text of the program that a message shows."""
    match = _SHOWN.search(str(violation))
    assert match is not None
    return {"training": "train"}.get(match[1], "eval"), textwrap.dedent(match[2])


def smaller(source: str) -> Iterator[str]:
    """The program without each thing in turn that may be removed."""
    count = len(list(_without(ast.parse(source))))
    for place in range(count):
        tree = ast.parse(source)
        remove = list(_without(tree))[place]
        remove()
        yield ast.unparse(tree)


def _without(tree: ast.Module) -> Iterator[Any]:
    for part in [part for part in tree.body if isinstance(part, ast.ClassDef)]:
        for method in [method for method in part.body if isinstance(method, ast.FunctionDef)]:
            for line in method.body:
                if not isinstance(line, ast.Return) and "super()" not in ast.unparse(line):
                    yield from _without_line(method, line)
            for inner in [inner for line in method.body for inner in ast.walk(line)]:
                if isinstance(inner, ast.Call) and "super" not in ast.unparse(inner):
                    yield from (lambda kept=inner, gone=gone: kept.keywords.remove(gone) for gone in inner.keywords)
                    if not re.search("Parameter|register_buffer", ast.unparse(inner.func)):
                        yield from (lambda kept=inner, gone=gone: kept.args.remove(gone) for gone in inner.args)
                if isinstance(inner, ast.Tuple | ast.List) and len(inner.elts) > 1:
                    yield from (lambda kept=inner, gone=gone: kept.elts.remove(gone) for gone in inner.elts)


def _without_line(method: ast.FunctionDef, line: ast.stmt) -> Iterator[Any]:
    """The line alone, and with each name that it reads, or that comes from outside, in the place of its result."""
    assigned = [part.id for part in ast.walk(line) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    read = [part.id for part in ast.walk(line) if isinstance(part, ast.Name) and part.id not in assigned]
    parameters = [part.arg for part in (*method.args.args, *method.args.kwonlyargs)][1:]
    for other in dict.fromkeys([None, *read, *parameters]):

        def remove(other: str | None = other) -> None:
            method.body.remove(line)
            for part in ast.walk(method):
                if isinstance(part, ast.Name) and part.id in assigned and other:
                    part.id = other

        yield remove


def is_wrong_on(row: Wrong, source: str, law: str, mode: str) -> bool:
    """Return True if the pass, and not the capture alone, breaks the law on a program that runs."""
    names: dict[str, Any] = {"__name__": "smaller"}
    try:
        exec(source, names)
        args, kwargs = names["inputs"]()
        names["build"]().train(mode == "train")(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        check_program(lambda program: program, names["build"], names["inputs"], laws=(law,), mode=mode)
    except Exception:  # of a program that does not run
        return False
    try:
        check_program(row.pass_, names["build"], names["inputs"], laws=(law,), mode=mode, contract=row.contract)
    except LawViolation:
        return True
    return False


def main() -> int:
    """Print each pass, and how many counterexamples are minimal."""
    parser = argparse.ArgumentParser(prog="python -m catalogue.minimality", description=__doc__)
    parser.add_argument("--passes", type=int, default=PASSES, help=f"how many passes are taken ({PASSES})")
    parser.add_argument("--first", type=int, default=0, help="the first one's number (0)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of passes that are wrong
    rows = [row for row in WRONG.values() if "changes" not in row.laws and 0 < row.programs <= EXAMPLES]
    minimal = counted = 0
    for row in rows[options.first :: len(rows) // options.passes][: options.passes]:
        started = time.perf_counter()
        counterexample_text = counterexample(row)
        if counterexample_text is None:
            print("not found", row.name, flush=True)
            continue
        law, mode, source = counterexample_text
        seconds = time.perf_counter() - started
        could_go = next((text for text in smaller(source) if is_wrong_on(row, text, law, mode)), None)
        counted, minimal = counted + 1, minimal + (could_go is None)
        print("minimal  " if could_go is None else "NOT SMALL", row.name, f"({law}, {seconds:.1f} s)", flush=True)
        if could_go is not None:
            print(textwrap.indent(f"{source}\n\n# smaller:\n{could_go}", "    "), flush=True)
    print(f"{minimal} of {counted} counterexamples are minimal")
    return int(minimal < counted)


if __name__ == "__main__":
    sys.exit(main())
