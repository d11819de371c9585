"""``make engines``, and its committed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engines import __main__ as engines
from engines.architectures import ARCHITECTURES
from engines.runtimes import BACKENDS, COMPILERS
from torch import nn

_LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("model", ARCHITECTURES)
@pytest.mark.parametrize("backend", list(BACKENDS)[:3])
def test_each_architecture_is_one_engine_of_each_runtime(model: str, backend: str) -> None:
    record = engines.read()[model, backend]
    assert (record.get("engines"), record.get("share")) == (1, 1.0), record
    assert record["error"] < _LARGEST_ERROR


def test_the_page_is_that_of_the_records() -> None:
    assert engines.RESULT.read_text() == engines.page(engines.read())


def test_a_model_is_lowered_and_timed_beside_other_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tiny() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), (
            torch.ones(2, 8),
        )

    def refuse(*arguments: Any) -> Any:
        raise ValueError("takes no such model")

    monkeypatch.setattr(engines, "RECORDS", tmp_path / "engines.jsonl")
    monkeypatch.setattr(engines, "ARCHITECTURES", {"tiny": tiny})
    monkeypatch.setattr(engines, "COMPILERS", {"torch.compile": refuse, "torch.ao, int8": COMPILERS["torch.ao, int8"]})
    names = ["tensorrt, emulated", "openvino", "torch.compile", "torch.ao, int8"]
    with torch.no_grad():
        engines.measure("tiny", names, {}, rounds=2)
    records = engines.read()
    assert records["tiny", "tensorrt, emulated"]["engines"] == 1
    assert "speedup" not in records["tiny", "tensorrt, emulated"]
    assert records["tiny", "torch.compile"]["why"] == "ValueError: takes no such model"
    low, high = records["tiny", "openvino"]["speedup"][1:]
    assert 0 < low <= high
    page = engines.page(records)
    assert "| tiny | openvino | 1 | 100.0% |" in page
    assert "| tiny | torch.compile |  |  | ValueError: takes no such model |  |" in page
