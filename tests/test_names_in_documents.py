"""Names in code spans of README, CONTRIBUTING and the guides exist: files, modules, classes, options, commands."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache, reduce
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_fx.option_table import SWITCHES, TABLE

ROOT = Path(__file__).parents[1]
PACKAGES = ("fx", "pytest_fx", "model_zoo")
FOLDERS = (*PACKAGES, "tests", "docs", "benchmarks", "results", "examples")
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = (ROOT / "README.md", CONTRIBUTING, *sorted((ROOT / "docs").glob("*.md")))
OPTIONS = {*(option.flag for option in TABLE), *SWITCHES, "tables"}


@cache
def words_of_the_code() -> frozenset[str]:
    folders = (*PACKAGES, "tests", "benchmarks")
    paths = {path for folder in folders for path in (ROOT / folder).rglob("*.py")} - {Path(__file__)}
    return frozenset(word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8")))


def spans_of(path: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


def is_there(dotted: str) -> bool:
    """Return whether a dotted name is a module, or an object or field in one."""
    try:
        if find_spec(dotted) is not None:  # not imported: some modules take seconds
            return True
    except ImportError:  # what is before the last dot is not a package
        pass
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            reduce(_part, parts[count:], module)
        except AttributeError:
            return False
        return True
    return False


def _part(owner: object, name: str) -> object:
    return None if name in getattr(owner, "__dataclass_fields__", ()) else getattr(owner, name)


def stale_names(spans: list[str], *, ours: bool) -> Iterator[str]:
    """Yield names in spans that do not exist; single names too if all are ``ours``."""
    for span in spans:
        for name in re.findall(r"(?<![\w.\-/:])((?:fx|pytest_fx|model_zoo)(?:\.\w+)+)(?![\w/])", span):
            if not name.endswith(".py") and not is_there(name):
                yield name
        for path in re.findall(r"(?<![\w.])(?:[\w.-]+/)+[\w.<>*-]*", span):
            if path.split("/")[0] in FOLDERS and not any(ROOT.glob(re.sub(r"<\w+>", "*", path).rstrip("/"))):
                yield path
        for name in re.findall(r"^[A-Z][a-z]+(?:[A-Z]\w*)?(?=\(|$)|^\w+_\w+(?=\(|$)", span) if ours else ():
            if name not in words_of_the_code():
                yield name
        for option in re.findall(r"--fx-([a-z-]+)", span):
            if option.strip("-") not in OPTIONS:
                yield f"--fx-{option}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_names_in_documents_exist(path: Path) -> None:
    assert list(stale_names(spans_of(path), ours=path == CONTRIBUTING)) == []


@pytest.mark.parametrize(
    "stale",
    ["fx.node.Nodes", "fx.nodes", "fx.passes.Edit.nothing", "fx/nodes.py", "tests/fx/tested_<name>.py", "LawfulPass",
     "register_passes(made)", "--fx-modles"],
)  # fmt: skip
def test_a_stale_name_is_found(stale: str) -> None:
    there = ["fx.node.Node", "fx/node.py", "Node", "register_pass(made)", "--fx-model"]
    assert list(stale_names([*there, stale], ours=True)) == [stale.partition("(")[0]]


def test_commands_of_make_that_documents_name_are_there() -> None:
    commands = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        named = re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)
        assert commands.issuperset(named), path


@pytest.mark.parametrize("package", ["fx", "pytest_fx"])
def test_contributing_lists_every_room(package: str) -> None:
    table = CONTRIBUTING.read_text("utf-8").partition(f"| room of `{package}/` | |")[2].lstrip().partition("\n\n")[0]
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE)) - {"tables/rows"}
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert listed == rooms
