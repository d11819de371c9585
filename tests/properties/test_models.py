"""``make models``: each model is tried in a process of its own, and its row says what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import __main__ as run
from models import trial
from models.libraries import LibraryModel
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[1]):
            x = x + 1
        return x


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def model_of(module: Callable[[], nn.Module]) -> LibraryModel:
    def inputs(samples: int) -> Any:
        return (torch.ones(samples, 4),)

    return LibraryModel("timm", "made", "made.here-1", lambda: (module(), inputs))


@pytest.mark.parametrize("module, way", [(nn.ReLU, "symbolic"), (Counting, "guided")])
def test_a_model_is_captured_and_called_with_two_samples_and_with_three(module: Any, way: str) -> None:
    found = trial.capture(model_of(module), 60)
    assert (found["way"], found["batch 2"], found["batch 3"]) == (way, "same", "same")
    assert len(found["why"]) == (way == "guided")


def test_a_model_that_no_way_takes_has_the_cause_of_each() -> None:
    found = trial.capture(model_of(Branching), 60)
    assert found["way"] is None
    assert [why.partition(":")[0] for why in found["why"]] == ["symbolic", "export"]


def test_a_model_that_ends_its_process_or_takes_too_long_stays_out_and_others_go_on() -> None:
    assert trial.capture(model_of(lambda: os._exit(3)), 60)["why"] == ["its process ended with 3"]
    assert trial.capture(model_of(lambda: time.sleep(60)), 0.2)["why"] == ["not done after 0.2 s"]  # type: ignore[arg-type]


def test_the_page_counts_what_came_in_and_says_why_the_others_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "version", lambda name: "1.0")
    inside, outside = model_of(nn.ReLU), LibraryModel("timm", "made", "other", lambda: model_of(nn.ReLU).build())
    known = {
        inside.attribute: {"way": "symbolic", "why": [], "nodes": 3, "batch 2": "same", "batch 3": "same"},
        outside.attribute: {"way": None, "why": [f"export: a | b ({run.PACKAGES}/timm/made.py:1)"]},
    }
    page = run.page([inside, outside], known)
    assert "- **timm: 1 of 2** (1 symbolic, 1 out)" in page
    assert r"| timm other | made | out |  |  |  |  |  | export: a \| b (timm/made.py:1) |" in page
    assert inside.attribute == "timm__made_here_1"
