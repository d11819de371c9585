"""The guides' code runs, each file from top to bottom, and prints what the guides show.

A block that begins with ```` ```python needs=package ```` runs where the package is installed. One whose first line is
``# name.py`` is that file, without the line. ```` ```console ```` runs the command of pytest in it, and looks for the
lines below.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from selection import thorough_except

GUIDES = {
    path.stem: path
    for path in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    if "```python" in path.read_text("utf-8")
}
QUICK = GUIDES.keys() - {"failures", "lowering", "properties", "tutorial"}


def blocks_of(path):
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)(?: needs=(\w+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_as_shown(text):
    """Run the command of a block, ``$ pytest …``, and look for the lines below it in what it prints, in that order."""
    command, *lines = text.splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "pytest"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    rest = run.stdout
    for line in lines:
        if line != "...":
            assert line in rest, run.stdout
            rest = rest[rest.index(line) + len(line) :]


def as_printed_here(text):
    """Return the output in a guide as this Python prints it: version 3.10 names functions without their classes."""
    return text if sys.version_info >= (3, 11) else re.sub(r"(:\d+, in )(?:\w+\.)+(\w+)", r"\1\2", text)


def test_there_are_guides():
    assert GUIDES.keys() >= {"transforms", "interchange", "failures", "timing", "evaluation", "properties"}


@pytest.mark.parametrize("name", thorough_except(QUICK, GUIDES))
def test_the_code_of_a_guide_prints_the_output_in_the_guide(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for files that a guide draws or saves
    names = {"__name__": "guide"}
    blocks = blocks_of(GUIDES[name])
    for number, (language, package, text) in enumerate(blocks):
        if language == "console":
            run_as_shown(text)
            continue
        named = re.match(r"# (\w+\.py)\n", text)
        if language == "python" and named:
            (tmp_path / named[1]).write_text(text.partition("\n")[2], encoding="utf-8")  # as its reader would
            continue
        if language != "python" or (package and importlib.util.find_spec(package) is None):
            continue
        source = tmp_path / f"guide_{number}.py"  # a file, so that lines of the program are found
        source.write_text(text, encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(source), "exec"), names)
        next_block = blocks[number + 1] if number + 1 < len(blocks) else ("", "", "")
        assert printed.getvalue() == (as_printed_here(next_block[2]) if next_block[0] == "text" else "")


def test_each_extra_is_explained():
    root = Path(__file__).parents[1]
    declared = (root / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    page = (root / "docs" / "faq.md").read_text()
    for extra in re.findall(r"^(\w+) = ", declared, re.MULTILINE):
        assert f"[{extra}]`" in page, extra
