"""``python -m fx lower --dry-run``: the operations that a backend would take."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fx
from fx.__main__ import main

MODULE = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Softmax(1))

def embedding():
    return nn.Embedding(10, 3)

def wrong():
    return 3

ready = make()

def pair():
    return make(), (torch.randn(1, 3, 64, 64),)

def alone():
    return make(), torch.randn(1, 3, 64, 64)

def named():
    return make(), {"input": torch.randn(1, 3, 64, 64)}

def misnamed():
    return make(), {"image": torch.randn(1, 3, 64, 64)}

def misfit():
    return make(), torch.randn(1, 4, 64, 64)

def fails():
    return 1 / 0

of_no_use = 3
"""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_of_the_command.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "models_of_the_command", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["lower", "--dry-run", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("name", ["make", "ready"])
def test_the_report_of_a_module_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, f"models_of_the_command:{name}", "--input", "1x3x64x64")
    assert (status, err) == (0, "")
    assert out.startswith("onednn takes 2 of 3 operations (67%), 100.0% of the floating-point operations; ")
    assert "  onednn_0 2 operations, 13.3 MFLOP, 48 KiB in, 961 KiB out\n" in out
    assert "  eager    softmax: onednn has no converter for `torch.nn.functional.softmax`" in out


@pytest.mark.parametrize("name", ["pair", "alone", "named"])
def test_a_factory_may_give_inputs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = run(capsys, "models_of_the_command:make", "--input", "1x3x64x64")
    assert run(capsys, f"models_of_the_command:{name}") == expected
    status, out, _ = run(capsys, f"models_of_the_command:{name}", "--input", "2x3x64x64")
    assert status == 0
    assert "onednn_0 2 operations, 26.6 MFLOP" in out


def test_saved_programs_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fx.save(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())), tmp_path / "program.fx")
    status, out, _ = run(capsys, str(tmp_path / "program.fx"))
    assert (status, out) == (0, "onednn takes 2 of 2 operations (100%)\n  onednn_0 2 operations\n")


def test_options_reach_the_lowering(capsys: pytest.CaptureFixture[str]) -> None:
    name = "models_of_the_command:make"
    assert "onednn takes 0 of 3" in run(capsys, name, "--min-size", "2")[1]
    assert "vetoed by the caller: 0" in run(capsys, name, "--veto", "0")[1]


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("nothing", [], "there is no models_of_the_command:nothing"),
        ("wrong", [], "models_of_the_command:wrong made a value of type int, not a module"),
        (
            "misnamed",
            [],
            "the inputs that models_of_the_command:misnamed gives do not fit its module\n  why    missing",
        ),
        ("misfit", [], "example_inputs do not fit the program: input 1, `input`, is float32[1, 4, 64, 64]\n"),
        ("fails", [], "models_of_the_command:fails cannot be called\n  where  models_of_the_command.py:"),
        ("of_no_use", [], "models_of_the_command:of_no_use is a module or a factory of one, not an int"),
        ("make", ["--input", "1,3"], "cannot read the input '1,3'\n  try    write its sizes"),
        ("make", ["--backend", "onedn"], "there is no backend named 'onedn'"),
    ],
)
def test_failures_are_reported_on_one_screen(
    name: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, f"models_of_the_command:{name}", *arguments)
    assert (status, out) == (2, "")
    assert re.sub(r"(where  )\S*/", r"\1", err).startswith(message)


def test_a_module_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "no_such_module_here:make")
    assert status == 2 and "there is no no_such_module_here:make\n  why    No module named" in err


def test_the_command_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "fx", "lower", "--dry-run", "models_of_the_command:make"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("onednn takes 2 of 3 operations (67%)")


def test_inputs_may_be_of_other_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "models_of_the_command:embedding", "--input", "1x3:i64")
    assert status == 0
    assert out.startswith("onednn takes 0 of 1 operations (0%), 0.0% of the floating-point operations")
    status, _, err = run(capsys, "models_of_the_command:make", "--input", "1x3x64x64:f64")
    assert status == 2
    assert err.startswith("example_inputs do not fit the program: input 1, `input`, is float64[1, 3, 64, 64]\n")
    assert torch.get_default_dtype() is torch.float32
