"""``python -m fx simulate`` and ``profile``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fx.__main__ import main
from fx.simulation import time_commands
from fx.simulation.calibration import save_device
from fx.simulation.measured_times import Replay
from tests.fx.simulation.calibrated import calibrated


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new folder for stored files, and a measured machine."""
    monkeypatch.setattr(time_commands, "_folder", lambda: tmp_path)
    monkeypatch.setattr(time_commands, "calibrated_here", lambda folder: calibrated())
    monkeypatch.setattr(Replay, "seconds", lambda self, call: 1e-3)
    return tmp_path


def layers() -> tuple[nn.Module, torch.Tensor]:
    """A model of the user, with inputs."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*blocks), torch.ones(1, 64)


def test_this_machine_is_the_default_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "mlp"]) == 0
    assert "on this machine, roofline" in capsys.readouterr().out


def test_training_takes_more_memory_than_a_run_and_less_where_values_are_computed_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    needed: list[int] = []
    command = ["simulate", f"{__name__}:layers", "--device", "V100", "--batch", "512", "--json"]
    for more in ([], ["--training", "adam", "--recompute"], ["--training", "adam"]):
        assert main([*command, *more]) == 0
        needed.append(json.loads(capsys.readouterr().out)[0]["memory"])
    assert needed == sorted(set(needed))


def test_training_counts_batch_norm_as_it_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "two_heads", "--device", "V100", "--training", "sgd", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    norm = next(node for node in row["nodes"] if node["node"] == "trunk_1")
    assert norm["kernels"] == 3  # the count of batches, too


def test_each_batch_and_device_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "mlp", "--device", "V100", "--device", "L4", "--batch", "1,64,4096", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["device"], row["batch"]) for row in rows] == [
        (device, batch) for device in ("V100", "L4") for batch in ("1", "64", "4096")
    ]
    assert rows[0]["interval"][0] < rows[0]["seconds"] < rows[0]["interval"][1]


def test_kernels_are_measured_and_remembered(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "mlp", "--times", "measured"]) == 0
    assert "on this machine, measured" in capsys.readouterr().out
    (file,) = home.glob("times-*.json")
    assert json.loads(file.read_text())["seconds"]
    assert main(["simulate", "mlp", "--device", "V100", "--times", "measured"]) == 2
    assert "kernels cannot be run on V100 from here" in capsys.readouterr().err


def test_times_come_from_a_trace(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 0, "dur": 2e6, "args": {"Input Dims": [[2, 3]]}}
    (home / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    trace = str(home / "trace.json")
    assert main(["simulate", "torch.nn:ReLU", "--input", "2x3", "--device", "EPYC 7763", "--times", trace]) == 0
    assert "2 s" in capsys.readouterr().out
    assert main(["simulate", "mlp", "--device", "V100", "--times", str(home / "none.json")]) == 2
    assert "none.json is not a trace that can be read" in capsys.readouterr().err


def test_a_profile_is_beside_the_estimate_and_is_saved(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "mlp", "--rounds", "1", "--device", "here", "--save", str(home / "p.json")]) == 0
    assert "estimated" in capsys.readouterr().out
    assert json.loads((home / "p.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("mlp --device V10", "there is no device named 'V10'"),
        ("mlp --batch 1,x", "cannot read the batches '1,x'\n  try    write numbers from 1 on, as 1,8,32"),
        ("torch.nn:ReLU", "there are no inputs to follow the program with"),
        (
            "torch.nn:ReLU --input 2x3 --input 4x3 --device V100 --batch 8",
            "the batch dimension of the inputs is ambiguous",
        ),
    ],
)
def test_impossible_requests_are_reported(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_calibration_is_kept_apart_for_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fx.simulation import calibration

    monkeypatch.setattr(calibration, "_measure", calibrated)
    assert calibration.calibrated_here(tmp_path) == calibrated()
    (file,) = tmp_path.glob("machine-*.json")
    monkeypatch.setattr(calibration, "_measure", lambda: None)
    assert calibration.calibrated_here(tmp_path) == calibrated()
    other = calibrated(name="kept")
    save_device(other, file)
    assert calibration.calibrated_here(tmp_path).name == "kept"
