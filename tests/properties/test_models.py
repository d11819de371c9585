"""``make models``: each model is tried in its own process, and has a row with the result."""

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
    program = trial.capture(model_of(module), 60)
    assert (program["way"], program["batch 2"], program["batch 3"]) == (way, "same", "same")
    assert len(program["why"]) == (way == "guided")


class PerSample(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[0]):
            x = x + 1
        return x


def test_symbolic_and_guided_capture_are_tried_alone_too() -> None:
    program = trial.capture(model_of(nn.ReLU), 60)
    assert {way: (program[way]["nodes"], program[way]["batch 3"]) for way in trial.ALONE} == dict.fromkeys(
        trial.ALONE, (3, "same")
    )
    program = trial.capture(model_of(PerSample), 60)
    assert program["symbolic"]["way"] is None and program["symbolic"]["why"][0].startswith(
        "symbolic: cannot use a traced"
    )
    assert (program["way"], program["guided"]["batch 2"]) == ("guided", "same")
    assert program["guided"]["batch 3"].startswith("guard: the program was captured where x.shape[0] was 2")


def test_a_model_that_no_way_takes_has_the_cause_of_each() -> None:
    program = trial.capture(model_of(Branching), 60)
    assert program["way"] is None and program["guided"]["way"] is None
    assert [why.partition(":")[0] for why in program["why"]] == ["symbolic", "export"]


def test_a_model_that_ends_its_process_or_takes_too_long_stays_out_and_others_go_on() -> None:
    assert trial.capture(model_of(lambda: os._exit(3)), 60)["why"] == ["its process ended with 3"]
    assert trial.capture(model_of(lambda: time.sleep(60)), 0.2)["why"] == ["not done after 0.2 s"]  # type: ignore[arg-type]


def _program(way: str, **more: Any) -> trial.Record:
    return {"way": way, "why": [], "nodes": 3, "seconds": 0.0123, "batch 2": "same", "batch 3": "same", **more}


def test_the_page_counts_the_included_models_and_explains_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "version", lambda name: "1.0")
    names = ("made.here-1", "fixed", "exported", "wrong", "out")
    models = [LibraryModel("timm", "made", name, model_of(nn.ReLU).build) for name in names]
    refused = [f"export: a | b ({run.PACKAGES}/timm/made.py:1, in Made.forward:  if (x):)"]
    alone = {"symbolic": _program("symbolic"), "guided": _program("guided", nodes=4)}
    out = {way: {"way": None, "why": [f"{way}: no"]} for way in trial.ALONE}
    fixed = _program("guided", **{"batch 3": f"{trial.GUARDED}: the program was captured where x.shape[0] was 2"})
    wrong = _program("symbolic", **{"batch 3": "other numbers"})
    records = [
        {**_program("symbolic"), **alone},
        {**fixed, "symbolic": out["symbolic"], "guided": fixed},
        {**_program("export", seconds=2.25, batch="free", note="a note", suite="1 passed"), **out},
        {**wrong, "symbolic": wrong, "guided": {**alone["guided"], "batch 2": "other shapes"}},
        {"way": None, "why": refused, **out},
    ]
    page = run.page(models, {model.attribute: record for model, record in zip(models, records, strict=True)})
    total = "- **timm: 3 of 5** (2 symbolic, 1 guided, 1 export, 1 out); alone 1 symbolic, 2 guided, one or the other 2"
    assert total in page
    for row in (
        "| timm made.here-1 | made | symbolic | 3, 12 ms, free | 4, 12 ms, free |  |  |  |",
        "| timm fixed | made | guided |  | 3, 12 ms, fixed |  |  | symbolic: no |",
        "| timm exported | made | export |  |  | 3, 2.2 s, free | 1 passed | symbolic: no; guided: no; a note |",
        "| timm wrong | made | symbolic | 3, 12 ms, 3: other numbers | 4, 12 ms, 2: other shapes |  |  |  |",
        r"| timm out | made | out |  |  |  |  | export: a \| b (timm/made.py:1); symbolic: no; guided: no |",
    ):
        assert row in page.splitlines()
    assert models[0].attribute == "timm__made_here_1"
