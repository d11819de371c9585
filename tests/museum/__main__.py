"""Run every reproducer of ``faults/`` in a fresh process, and write ``results/faults.md``; see docs/hunting.md.

A reproducer's assertion fails while its fault exists. ``python -m museum NAME`` runs some of them, and writes nothing.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FAULTS = Path(__file__).with_name("faults")
REPORT = Path(__file__).parents[2] / "results" / "faults.md"
LONGEST = 300.0
"""Seconds for one reproducer."""
THERE, MENDED, ABSENT, OTHER = "still there", "mended", "not installed", "fails otherwise"
FIELDS = ("software", "kind", "known")
PACKAGES = ("torch", "openvino", "onnxruntime", "torchao")
_EXPLAINED = """\
# Faults of released software

For people who use or maintain compilers of PyTorch programs. After this page you know which faults the harness found,
and whether the versions below still have them.

Each fault has a reproducer of plain torch in `tests/museum/faults`, whose assertion fails while the fault exists.
`make museum` runs all of them, each in a fresh process, and writes this page. Eager computes the expected results.
The last column is the address of a public report. "Not found" means that a short search of public issues showed none,
and not that there is none. Some causes have several rows: a power of a negative base, dropout in evaluation mode, and
NaN in OpenVINO's functions.
"""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A reproducer with the fields of its docstring."""

    name: str
    """The name of the file."""
    title: str
    """The fault, in a sentence."""
    software: str
    """The part of torch, or the engine."""
    kind: str
    """The affected result: values, gradients, an error."""
    report: str
    """The address of a public report, or ``not found``."""
    lines: int
    """The number of lines of code, without the docstring and blank lines."""


def read(path: Path) -> Exhibit:
    """Read the docstring of a reproducer.

    Raises:
        ValueError: a field is missing.
    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, _, rest = (ast.get_docstring(tree) or "").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in rest.splitlines() if ": " in line)
    if set(fields) != set(FIELDS) or not title.endswith("."):
        raise ValueError(f"{path.name}: the docstring has a sentence, a blank line, and the fields {', '.join(FIELDS)}")
    body = text.rpartition('"""')[2]
    lines = sum(bool(line.strip()) for line in body.splitlines())
    return Exhibit(path.stem, " ".join(title.split()), *(fields[name] for name in FIELDS), lines)


def state_of(path: Path) -> tuple[str, str]:
    """Run a reproducer in a fresh process; return its state, and the last line that it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        run = subprocess.run(
            [sys.executable, "-W", "ignore", str(path)],
            capture_output=True, text=True, timeout=LONGEST, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return OTHER, f"it ran longer than {LONGEST:g} s"
    if run.returncode == 0:
        return MENDED, ""
    lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
    places = [line for line in lines if line.startswith('  File "')]
    if any(line.startswith("ModuleNotFoundError") for line in lines):
        return ABSENT, lines[-1]
    is_own = bool(places) and str(path) in places[-1]
    failed = [line for line in lines if line.startswith("AssertionError")]
    return (THERE, failed[-1]) if failed and is_own else (OTHER, lines[-1])


def write(exhibits: Sequence[tuple[Exhibit, str]]) -> str:
    """Return the report."""
    counts = Counter(state for _, state in exhibits)
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    summary = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    rows = [
        f"| [{each.title.removesuffix('.')}](../tests/museum/faults/{each.name}.py) | {each.software} | {each.kind} "
        f"| {state} | {each.report} |"
        for each, state in sorted(exhibits, key=lambda pair: (pair[0].software, pair[0].name))
    ]
    head = ["| what is wrong | software | kind | state | public report |", "|---|---|---|---|---|"]
    return "\n".join([_EXPLAINED, f"**{len(exhibits)} faults: {summary}, with {versions}.**", "", *head, *rows, ""])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(names: Sequence[str]) -> int:
    """Run the reproducers, all of them without names; return 1 if one fails otherwise than by its fault."""
    started = time.monotonic()
    paths = [path for path in sorted(FAULTS.glob("*.py")) if not names or path.stem in names]
    exhibits: list[tuple[Exhibit, str]] = []
    for path in paths:
        exhibit = read(path)
        state, message = state_of(path)
        exhibits.append((exhibit, state))
        print(f"{state:15} {exhibit.name}: {message[:160]}", flush=True)
    if not names:
        REPORT.write_text(write(exhibits), encoding="utf-8")
    print(f"{len(exhibits)} faults in {time.monotonic() - started:.0f} s", flush=True)
    return int(any(state == OTHER for _, state in exhibits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
