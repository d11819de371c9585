"""Passes that installed packages offer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fx.errors import PassError
from fx.passes import get_pass, list_passes
from fx.pipelines.registered_passes import describe_pass

CODE = '''
"""Passes of a package."""

def offered_pass(graph_module):
    """Leave everything as it is."""
    return graph_module

number = 3
'''


@pytest.fixture(autouse=True)
def _leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offering", raising=False)


def install(folder: Path, package: str, *lines: str) -> None:
    information = folder / f"{package}-1.5.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (information / "entry_points.txt").write_text("\n".join(["[fx.passes]", *lines]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "offering.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_offered_pass_is_listed_without_being_imported(site: Path) -> None:
    install(site, "offerer", "offered-pass = offering:offered_pass")
    assert "offered-pass" in list_passes()
    assert "offering" not in sys.modules


def test_an_offered_pass_is_imported_when_it_is_requested(site: Path) -> None:
    install(site, "offerer", "offered-pass = offering:offered_pass")
    pass_ = get_pass("offered-pass")
    assert pass_ is sys.modules["offering"].offered_pass
    assert get_pass("offered-pass") is pass_
    assert describe_pass("offered-pass").startswith("offered-pass: Leave everything as it is.")


def test_a_miss_names_offered_passes_too(site: Path) -> None:
    install(site, "offerer", "offered-pass = offering:offered_pass")
    with pytest.raises(PassError, match="did you mean 'offered-pass'"):
        get_pass("offered-pas")


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "broken = nowhere_at_all:it",
            "the pass 'broken' cannot be imported\n  value  offerer 1.5 (nowhere_at_all:it)\n"
            "  why    ModuleNotFoundError: No module named 'nowhere_at_all'\n"
            "  try    update or uninstall that package",
        ),
        ("broken = offering:missing", "the pass 'broken' cannot be imported\n  value  offerer 1.5 (offering:missing)"),
        (
            "broken = offering:offered_pass",
            "the entry point 'broken' is not a pass of that name\n  value  offerer 1.5 (offering:offered_pass)\n"
            "  why    the object that it refers to is called 'offered-pass'\n",
        ),
        (
            "broken = offering:number",
            "the entry point 'broken' is not a pass of that name\n  value  offerer 1.5 (offering:number)\n"
            "  why    the object that it refers to cannot be called\n",
        ),
    ],
)
def test_a_broken_offer_names_its_package(site: Path, line: str, message: str) -> None:
    install(site, "offerer", line)
    with pytest.raises(PassError) as caught:
        get_pass("broken")
    assert str(caught.value).startswith(message)
    assert get_pass("fuse-conv-bn")


def test_two_packages_that_offer_one_name_are_both_named(site: Path) -> None:
    install(site, "one", "twice = offering:a")
    install(site, "other", "twice = offering:b")
    with pytest.raises(PassError, match="two packages offer a pass named 'twice'") as caught:
        get_pass("twice")
    assert "one 1.5 (offering:a)" in str(caught.value) and "other 1.5 (offering:b)" in str(caught.value)
