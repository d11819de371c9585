"""``make gpu``, as far as a machine without a GPU can check it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu import run

from model_zoo import list_models
from pytest_fx.tables import Scale, get_table, list_tables


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The last argument of each command that is run in place of pytest; `slow` exceeds its time, `wrong` fails."""
    commands: list[str] = []

    def pretend(command: list[str], timeout: float, check: bool) -> Any:
        commands.append(command[-1])
        if command[-1] == "slow":
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 3 if command[-1] == "wrong" else 0)

    monkeypatch.setattr(run.subprocess, "run", pretend)
    monkeypatch.setattr(run, "DONE", tmp_path / "gpu.json")
    monkeypatch.setattr(run, "conditions", lambda: "commit on device")
    return commands


def test_the_steps_are_all_tests_models_of_the_zoo_and_the_tables() -> None:
    steps = run.steps()
    files = {file.name for file in run.FOLDER.glob("test_*.py")}
    assert files and files <= set(steps)
    models = {words[-1] for name, words in steps.items() if name.endswith("on CUDA")}
    assert models and models <= set(list_models())


def test_a_run_that_was_cut_off_goes_on_where_it_was(started: list[str]) -> None:
    chosen = {name: (name,) for name in ("first", "wrong", "slow", "last")}
    assert run.run_steps(chosen, 60) == {"first": 0, "wrong": 3}
    assert started == ["first", "wrong", "slow"]
    started.clear()
    chosen["slow"] = ("quick",)
    assert run.run_steps(chosen, 60) == {"first": 0, "wrong": 3, "slow": 0, "last": 0}
    assert started == ["quick", "last"]


def test_no_step_begins_after_the_time(started: list[str]) -> None:
    assert run.run_steps({"first": ("first",)}, 0) == {}
    assert started == []


def test_results_of_another_commit_do_not_count(started: list[str]) -> None:
    run.DONE.write_text(json.dumps({"other": {"first": 0}}))
    run.run_steps({"first": ("first",)}, 60)
    assert started == ["first"]


@pytest.mark.skipif(run.torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_steps_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert run.main() == 1
    output = capsys.readouterr().out
    assert output.startswith("there is no CUDA device here") and "rows of tables" in output


def test_the_marker_selects_the_rows_that_need_a_gpu() -> None:
    arguments = [*run.steps()["rows of tables"], "--collect-only", "-q", "--noconftest"]
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], capture_output=True, text=True, check=True)
    rows = [row for name in list_tables() for row in get_table(name).rows(Scale()) if row.on_gpu]
    assert rows and all(row.keyword in done.stdout for row in rows)
    assert done.stdout.count("test_table[") == len(rows)
