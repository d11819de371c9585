"""The README's code runs and prints what the README shows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import fx
import pytest_fx
from pytest_fx.fixtures import FIXTURES
from pytest_fx.options import TABLE

README = Path(__file__).parents[1] / "README.md"
OPTIONS = README.parent / "docs" / "options.md"


def blocks_of(path):
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of(README)
PYTHON = [position for position, (language, _) in enumerate(BLOCKS) if language == "python"]
TEST_FILES = [code for language, code in blocks_of(OPTIONS) if language == "python"]


def test_the_readme_has_code_and_is_short():
    assert len(PYTHON) >= 1
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_the_example_prints_the_block_below_it():
    (_, code), (language, expected) = BLOCKS[PYTHON[0]], BLOCKS[PYTHON[0] + 1]
    assert language == "text"
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    assert printed.getvalue() == expected


@pytest.mark.parametrize("code", TEST_FILES, ids=range(len(TEST_FILES)))
def test_the_test_files_of_the_page_on_options_pass(pytester, code):
    path = pytester.makepyfile(code)
    result = pytester.runpytest_subprocess(path, "--fx-model", "resnet_tiny", "--fx-rounds", "5")
    result.assert_outcomes(passed=1)


def test_every_option_and_fixture_is_on_the_page_that_the_readme_names():
    assert "`docs/options.md`" in README.read_text(encoding="utf-8")
    text = OPTIONS.read_text(encoding="utf-8")
    for option in (*(option.flag for option in TABLE), "no-timing"):
        assert f"`--fx-{option}" in text
    assert len(FIXTURES) >= 8
    for name in FIXTURES:
        assert re.search(rf"^\| .*`{name}`.* \| ", text, re.MULTILINE)


def test_every_guide_is_in_the_table_and_each_page_that_is_named_is_there():
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"`(docs/[a-z_]+\.md)`", text))
    assert named == {f"docs/{path.name}" for path in OPTIONS.parent.glob("*.md")}
    linked = re.findall(r"\]\((results[^)]+)\)", text)
    assert len(linked) >= 5 and all((README.parent / path).is_file() for path in linked)


def test_every_guide_is_in_the_menu_of_the_site_once():
    _, _, menu = (README.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    pages = re.findall(r"[a-z_]+\.md", menu)
    generated = re.findall(r'"([a-z_]+\.md)"', (README.parent / "docs" / "site_hooks.py").read_text(encoding="utf-8"))
    assert len(generated) == 3
    assert sorted(pages) == sorted([*generated, *(path.name for path in OPTIONS.parent.glob("*.md"))])


def test_every_folder_on_the_map_is_there():
    rows = re.findall(r"^\| (`[a-z_]+/.*?) \| ", README.read_text(encoding="utf-8"), re.MULTILINE)
    folders = re.findall(r"`([a-z_/]+)/`", " ".join(rows))
    assert len(folders) >= 10
    assert all((README.parent / folder).is_dir() for folder in folders)


@pytest.mark.parametrize("package", ["fx", "pytest_fx"])
def test_every_room_is_on_the_map_for_contributors(package):
    text = (README.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, part = text.partition(f"| room of `{package}/` |")
    listed = set(re.findall(r"^\| `([a-z_]+)/` \| .", part.partition("\n\n")[0], re.MULTILINE))
    assert listed == {path.parent.name for path in (README.parent / package).glob("*/__init__.py")}


def test_plugin_library_and_changelog_have_one_version():
    changelog = (README.parent / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE).group(1)
    assert fx.__version__ == pytest_fx.__version__ == newest
