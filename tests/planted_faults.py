"""The share of faults that the tests notice: plants them one by one at random places of the code and runs the tests.

``python tests/planted_faults.py plan 60 faults.json`` draws them, ``run faults.json found.jsonl --tree FOLDER`` tries
each in a copy of the repository (which it writes to) and goes on where it stopped. A plan names a line by its text,
so that the same faults can be planted again once the files have moved: the counts before and after are to compare.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = ("fx", "pytest_fx")
_OPPOSITE = ((ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    first: other for pair in _OPPOSITE for first, other in (pair, pair[::-1])
}
OTHER_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SECONDS = 3600
"""The longest that the tests may take on one fault; a fault that hangs them is noticed."""
NEEDS_INSTALLED = "tests/pytest_fx/test_lazy.py"
"""Tests of the places of packages, which fail in a copy other than the installed one."""


@dataclass(frozen=True)
class Fault:
    """A change of one expression or statement."""

    file: str
    """The file, relative to the repository."""
    line: str
    """The text of the line on which it begins, without the indentation."""
    column: int
    """The column in that text."""
    function: str
    """The function around it."""
    old: str
    """The original text."""
    new: str
    """The fault that replaces it."""


def faults_in(file: str, text: str) -> Iterator[Fault]:
    """Yield every fault that can be planted in a file."""
    lines = text.splitlines()
    tree = ast.parse(text)
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, function = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        new = _changed(node)
        old = ast.get_source_segment(text, node) if new is not None else None
        if new is not None and old is not None and function and new != old:
            assert isinstance(node, ast.expr | ast.stmt)
            line = lines[node.lineno - 1]
            indent = len(line) - len(line.lstrip())
            if line.isascii():
                yield Fault(file, line.strip(), node.col_offset - indent, function, old, new)
        pending += [(child, function) for child in _children(node)]


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes inside, except annotations, formatted strings, assertions and messages of errors."""
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise):
        return []
    left_out = {"annotation", "returns", "decorator_list", "bases"}
    nodes: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name not in left_out:
            nodes += [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
    return nodes


def _changed(node: ast.AST) -> str | None:
    """Return the text of a wrong version, or None."""
    match node:
        case ast.Compare(left, [op], [right]):
            return ast.unparse(ast.Compare(left, [OTHER_COMPARISON[type(op)]()], [right]))
        case ast.BoolOp(op, values):
            return f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
        case ast.UnaryOp(ast.Not(), operand):
            return f"({ast.unparse(operand)})"
        case ast.BinOp(left, op, right) if type(op) in OTHER_ARITHMETIC:
            return f"({ast.unparse(ast.BinOp(left, OTHER_ARITHMETIC[type(op)](), right))})"
        case ast.Constant(bool() as value):
            return repr(not value)
        case ast.Constant(int() | float() as value):
            return repr(value + 1)
        case ast.IfExp(test, body, orelse):
            return f"({ast.unparse(ast.IfExp(test, orelse, body))})"
        case ast.Call(func, args, [*keywords, ast.keyword(str())]):
            return ast.unparse(ast.Call(func, args, keywords))
        case ast.Expr(ast.Call()):
            return "pass"
        case _:
            return None


def draw(root: Path, count: int, seed: int) -> list[Fault]:
    """Return so many faults from all that can be planted."""
    results: list[Fault] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            results += faults_in(str(path.relative_to(root)), path.read_text(encoding="utf-8"))
    return random.Random(seed).sample(results, count)


def place(root: Path, fault: Fault) -> tuple[Path, str] | None:
    """Return the file where a fault belongs now and its text with the fault, or None if the place is gone."""
    name = Path(fault.file).name
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    files.sort(key=lambda path: (str(path.relative_to(root)) != fault.file, path.name != name))
    for path in files:
        text = path.read_text(encoding="utf-8")
        for candidate in faults_in(fault.file, text) if fault.line in text else ():
            if candidate == fault:
                return path, _planted(text, fault)
    return None


def _planted(text: str, fault: Fault) -> str:
    position = 0
    for line in text.splitlines(keepends=True):
        start = position + len(line) - len(line.lstrip()) + fault.column
        if line.strip() == fault.line and text.startswith(fault.old, start):
            return text[:start] + fault.new + text[start + len(fault.old) :]
        position += len(line)
    raise AssertionError(fault)


def tests_for(root: Path, file: Path) -> list[str]:
    """Return the folders and files of tests to run, those that are named like the file first."""
    stem, package = file.stem, file.relative_to(root).parts[0]
    near = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob(f"test_*{stem}*.py"))
    room = root / "tests" / file.relative_to(root).parent
    rooms = [str(room.relative_to(root))] if room.is_dir() and room.name not in PACKAGES else []
    return [*near, *rooms, f"tests/{package}", "tests"]


def is_noticed(root: Path, path: Path, processes: int) -> str | None:
    """Run the tests, near ones first; return the test that noticed the fault, or None."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    for tests in tests_for(root, path):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "", tests]
        command += ["--deselect", NEEDS_INSTALLED]
        if tests in ("tests", f"tests/{path.relative_to(root).parts[0]}"):
            command += ["-n", str(processes), "--dist", "worksteal"]
        try:
            run = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{tests} hung"
        if run.returncode not in (0, 5):
            failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0][:200] if failed else f"{tests}: exit status {run.returncode}"
    return None


def main() -> None:
    """Draw a plan, or try one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan")
    plan.add_argument("count", type=int)
    plan.add_argument("plan", type=Path)
    plan.add_argument("--seed", type=int, default=0)
    run = commands.add_parser("run")
    run.add_argument("plan", type=Path)
    run.add_argument("found", type=Path)
    run.add_argument("--tree", type=Path, required=True, help="a copy of the repository, which is written to")
    run.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.command == "plan":
        drawn = draw(Path(__file__).resolve().parents[1], options.count, options.seed)
        options.plan.write_text(json.dumps([asdict(fault) for fault in drawn], indent=1), encoding="utf-8")
        return
    faults = [Fault(**fields) for fields in json.loads(options.plan.read_text(encoding="utf-8"))]
    tried = options.found.read_text(encoding="utf-8").splitlines() if options.found.exists() else []
    done = {json.loads(line)["number"] for line in tried}
    for number, fault in enumerate(faults):
        if number in done:
            continue
        started = time.monotonic()
        placed = place(options.tree.resolve(), fault)
        noticed: str | None = "gone"
        if placed is not None:
            path, text = placed
            before = path.read_text(encoding="utf-8")
            try:
                path.write_text(text, encoding="utf-8")
                noticed = is_noticed(options.tree.resolve(), path, options.processes)
            finally:
                path.write_text(before, encoding="utf-8")
        row = {"number": number, "noticed": noticed, "seconds": round(time.monotonic() - started), **asdict(fault)}
        with options.found.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(number, fault.file, fault.function, "|", fault.old, "->", fault.new, "|", noticed, flush=True)


if __name__ == "__main__":
    main()
