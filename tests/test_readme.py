"""The README's code runs and prints what the README shows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from pytest_fx import plugin
from pytest_fx.options import TABLE

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
PYTHON = [position for position, (language, _) in enumerate(BLOCKS) if language == "python"]


def test_the_readme_has_code_and_is_short():
    assert len(PYTHON) >= 2
    assert len(README.read_text(encoding="utf-8").splitlines()) < 240


def test_the_example_prints_the_block_below_it():
    (_, code), (language, shown) = BLOCKS[PYTHON[0]], BLOCKS[PYTHON[0] + 1]
    assert language == "text"
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    assert printed.getvalue() == shown


@pytest.mark.parametrize("position", PYTHON[1:])
def test_the_test_files_of_the_readme_pass(pytester, position):
    path = pytester.makepyfile(BLOCKS[position][1])
    result = pytester.runpytest_subprocess(path, "--fx-model", "resnet_tiny", "--fx-rounds", "5")
    result.assert_outcomes(passed=1)


def test_every_option_and_fixture_is_in_the_readme():
    text = README.read_text(encoding="utf-8")
    for option in (*(option.flag for option in TABLE), "no-timing"):
        assert f"`--fx-{option}" in text
    fixtures = [name for name in plugin.__all__ if name.startswith("fx_")]
    assert len(fixtures) >= 8
    for name in fixtures:
        assert re.search(rf"^\| .*`{name}`.* \| ", text, re.MULTILINE)


def test_every_folder_on_the_map_is_there():
    folders = re.findall(r"^\| `([a-z_/]+)/` \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(folders) >= 6
    assert all((README.parent / folder).is_dir() for folder in folders)


@pytest.mark.parametrize("package", ["fx", "pytest_fx"])
def test_every_room_is_on_the_map_for_contributors(package):
    text = (README.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, part = text.partition(f"| room of `{package}/` |")
    told = set(re.findall(r"^\| `([a-z_]+)/` \| .", part.partition("\n\n")[0], re.MULTILINE))
    assert told == {path.parent.name for path in (README.parent / package).glob("*/__init__.py")}
