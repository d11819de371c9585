"""The command that tries the wheel: its checks, its output, and the faults that it reports."""

import re
import zipfile
from pathlib import Path

import pytest
import wheels
from versions import CannotInstall
from wheels import Trial, attempt, faults, table

METADATA = """Classifier: Framework :: Pytest
Classifier: Typing :: Typed
Description-Content-Type: text/markdown
License-Expression: BSD-3-Clause
Requires-Python: >=3.10
"""
PACKAGES = ("fx", "model_zoo", "pytest_fx")


def made(path: Path, packages: tuple[str, ...] = PACKAGES, metadata: str = METADATA) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for package in packages:
            archive.writestr(f"{package}/py.typed", "")
        archive.writestr("pytest_fx-1.dist-info/METADATA", metadata)
        archive.writestr("pytest_fx-1.dist-info/entry_points.txt", "[pytest11]\nfx = pytest_fx.plugin\n")
    return path


def test_the_table_has_a_row_for_each_environment_with_the_reason_where_it_was_not_tried():
    rows = [
        Trial("3.12.1", "2.13.0+cpu", "0.2.0", "13 passed in 9.27s", "right"),
        Trial("3.13", "2.13.0", note="not installable as a CPU build"),
    ]
    assert table(rows).splitlines() == [
        "python  torch       import  pytest              verdict",
        "3.12.1  2.13.0+cpu  0.2.0   13 passed in 9.27s  right",
        "3.13    2.13.0      -       -                   not tried  not installable as a CPU build",
    ]


def test_a_wheel_is_complete_or_what_it_lacks_is_named(tmp_path):
    assert faults(made(tmp_path / "whole.whl")) == []
    untyped = made(tmp_path / "untyped.whl", packages=("fx", "pytest_fx", "tests"))
    assert faults(untyped) == ["model_zoo/py.typed", "tests is in it"]
    unknown = made(tmp_path / "unknown.whl", metadata=METADATA.replace("Framework :: Pytest", "Framework :: Flask"))
    assert faults(unknown) == ["Classifier: Framework :: Pytest"]


@pytest.fixture
def said(monkeypatch):
    """The output of commands, by a word in them; the rest print nothing."""
    answers: dict[str, str | Exception] = {"-c": "3.12.1 2.13.0+cpu 0.2.0", "pytest": "", "check": ""}

    def answer(command, folder):
        answer = next((answers[word] for word in answers if word in command), "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(wheels, "_said", answer)
    monkeypatch.setattr(wheels, "_make", lambda borrowed, folder, wheel: wheels._said(["check"], folder) or borrowed)
    return answers


@pytest.mark.parametrize(
    "step, outcome, verdict, note",
    [
        ("pytest", "without-dropout  right\n=== 13 passed, 2 skipped in 9.27s ===", "right", ""),
        ("pytest", "=== 13 passed in 9.27s ===", "wrong", ""),
        ("pytest", CannotInstall("LawViolation: changes what it computes"), "wrong", "LawViolation: changes what"),
        ("-c", CannotInstall("fx comes from a checkout"), "wrong", "fx comes from a checkout"),
        ("check", CannotInstall("pytest-fx requires numpy"), "wrong", "pytest-fx requires numpy"),
    ],
)
def test_the_verdict_is_right_where_pytest_judged_the_pass_of_the_user(said, step, outcome, verdict, note):
    said[step] = outcome
    trial = attempt(Path("environment"), Path("a.whl"), Trial("3.12", "2.13.0"))
    assert (trial.verdict, trial.note[: len(note)]) == (verdict, note)
    assert trial.tests == ("13 passed, 2 skipped in 9.27s" if verdict == "right" else trial.tests)


def test_environments_that_are_not_there_are_rows_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(wheels, "found", lambda: {"3.98": Path("python3.98")})
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    options = wheels.argparse.Namespace(as_installed=True, cuda=False, only=None)
    assert list(wheels.trials(options, Path("a.whl"))) == [Trial("3.98", "2.13.0", note="there is no such environment")]


def test_each_extra_is_explained():
    root = Path(__file__).parents[1]
    declared = (root / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    page = (root / "docs" / "faq.md").read_text()
    for extra in re.findall(r"^(\w+) = ", declared, re.MULTILINE):
        assert f"[{extra}]`" in page, extra
