"""The guides' code runs, each file from top to bottom, and prints what the guides show."""

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDES = sorted(
    path for path in (Path(__file__).parents[1] / "docs").glob("*.md") if "```python" in path.read_text("utf-8")
)


def blocks_of(path):
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_are_guides():
    found = {path.stem for path in GUIDES}
    assert found >= {"transforms", "interchange", "failures", "timing", "evaluation", "properties"}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_the_code_of_a_guide_prints_what_the_guide_shows(path, tmp_path):
    names = {"__name__": "guide"}
    blocks = blocks_of(path)
    for number, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        source = tmp_path / f"guide_{number}.py"  # a file, so that lines of the program are found
        source.write_text(text, encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(source), "exec"), names)
        shown = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
        assert printed.getvalue() == (shown[1] if shown[0] == "text" else "")
