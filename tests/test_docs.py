"""The guides' code runs, each file from top to bottom, and prints what the guides show.

A block that begins with ```` ```python needs=package ```` runs where the package is installed.
"""

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path

import pytest
from selection import thorough_except

GUIDES = {
    path.stem: path
    for path in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    if "```python" in path.read_text("utf-8")
}
QUICK = GUIDES.keys() - {"failures", "lowering", "properties"}


def blocks_of(path):
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)(?: needs=(\w+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def as_printed_here(text):
    """What a guide shows, with the names that code has on Python 3.10: those of functions, without their classes."""
    return text if sys.version_info >= (3, 11) else re.sub(r"(:\d+, in )(?:\w+\.)+(\w+)", r"\1\2", text)


def test_there_are_guides():
    assert GUIDES.keys() >= {"transforms", "interchange", "failures", "timing", "evaluation", "properties"}


@pytest.mark.parametrize("name", thorough_except(QUICK, GUIDES))
def test_the_code_of_a_guide_prints_what_the_guide_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a guide draws or saves goes there
    names = {"__name__": "guide"}
    blocks = blocks_of(GUIDES[name])
    for number, (language, package, text) in enumerate(blocks):
        if language != "python" or (package and importlib.util.find_spec(package) is None):
            continue
        source = tmp_path / f"guide_{number}.py"  # a file, so that lines of the program are found
        source.write_text(text, encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(source), "exec"), names)
        shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "", "")
        assert printed.getvalue() == (as_printed_here(shown[2]) if shown[0] == "text" else "")
