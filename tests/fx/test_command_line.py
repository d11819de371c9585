"""``python -m fx``: each command on a model of the zoo and on one of the user's."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from torch import nn

from fx.__main__ import main

COMMANDS = {
    "code": ["code", "mlp"],
    "explain": ["explain", "mlp"],
    "trace": ["trace", "resnet_tiny"],
    "diff": ["diff", "resnet_tiny", "--pass", "fuse-conv-bn,remove-dead-code"],
    "cost": ["cost", "mlp"],
    "memory": ["memory", "resnet_tiny", "--backward"],
    "simulate": ["simulate", "mlp", "--device", "V100", "--device", "L4", "--batch", "1,8"],
    "profile": ["profile", "mlp", "--rounds", "1"],
    "shapes": ["shapes", "resnet_tiny", "--sizes", "batch,3,h,w"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_prints_lines_of_80_columns_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMANDS[name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert name in ("code", "explain") or max(len(line) for line in lines if "where" not in line) <= 80
    assert main([*COMMANDS[name], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"example: python -m fx {name}" in " ".join(capsys.readouterr().out.split())


def test_explain_shows_the_obstacles_to_a_capture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tests.fx.capture.test_explain:Model"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("5 obstacles, ")
    assert "try    capture with example_inputs" in output
    assert main(["explain", "tests.fx.capture.test_explain:Model", "--input", "3x4"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("2 obstacles, ")
    assert "the program was captured where x.shape[1] was 4: " in output


def test_costs_of_a_model_of_the_user_need_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "torch.nn:ReLU"]) == 2
    assert "--input 1x3x224x224" in capsys.readouterr().err
    assert main(["cost", "torch.nn:ReLU", "--input", "2x3"]) == 0
    assert "6 FLOP" in capsys.readouterr().out


def test_an_error_of_an_operation_is_shown_with_the_users_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "resnet_tiny", "--input", "1x4x32x32"]) == 2
    assert "model_zoo" in capsys.readouterr().err


NO_MODEL = "there is no model or file {!r}\n  why    no model of the zoo has the name{}"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("trace resnet_tin", NO_MODEL.format("resnet_tin", "; did you mean 'resnet_tiny'")),
        ("cost absent.fx", NO_MODEL.format("absent.fx", "\n  try    name a file of fx.save, or package.module")),
        ("draw mlp --output absent/mlp.html", "cannot read or write absent/mlp.html\n  why    No such file"),
        ("trace mlp --save absent/mlp.fx", "\n  why    No such file or directory\n  try    name a file in a folder"),
        ("profile mlp --rounds 1 --save absent/t.json", "cannot read or write absent/t.json"),
        ("simulate mlp --device V100 --recompute", "--recompute is about steps of training\n  try    give --training"),
    ],
)
def test_unknown_names_and_files_are_reported_with_a_remedy(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_without_the_zoo_it_is_reported_that_a_name_needs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_zoo", None)
    assert main(["trace", "resnet50"]) == 2
    assert "the zoo, model_zoo, is not installed" in capsys.readouterr().err


def without_weights() -> object:
    raise ValueError("there are no weights")


def test_a_factory_that_raises_is_reported_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "tests.fx.test_command_line:without_weights"]) == 2
    what, where, why = capsys.readouterr().err.splitlines()
    assert what == "tests.fx.test_command_line:without_weights cannot be called"
    assert where == f"  where  {__file__}:{without_weights.__code__.co_firstlineno + 1}"
    assert why == "  why    ValueError: there are no weights"
    assert main(["trace", "torch.nn:Linear"]) == 2
    what, why, remedy = capsys.readouterr().err.splitlines()
    assert why.startswith("  why    TypeError: ")
    assert remedy == "  try    name a function without arguments that returns a module"


def test_a_factory_result_that_is_no_module_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "builtins:int"]) == 2
    assert "builtins:int made a value of type int, not a module\n  try    let it" in capsys.readouterr().err


def test_sizes_that_do_not_fit_are_reported_once_and_without_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logger, "callHandlers", records.append)
    for command in (
        ["shapes", "tests.fx.test_command_line:layer", "--sizes", "n,5"],
        ["cost", "tests.fx.test_command_line:layer", "--input", "2x5"],
    ):
        assert main(command) == 2
        output = capsys.readouterr().err
        assert output.count("must have same reduction dim") == 1
        assert "call_module[target=" in output
    assert not records
    assert not logger.disabled


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8))
