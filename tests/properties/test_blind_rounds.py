"""Passes of blind rounds are rows of the catalogue, and tried as users' passes are; a round is run by one command."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import catalogue.__main__ as page
import pytest
from catalogue import round as blind
from catalogue import trial
from catalogue.first_tries import FIRST_TRIES, section, sentence
from catalogue.rounds import ROUNDS
from catalogue.rows import Right, Wrong
from catalogue.trial import Trial, try_pass
from hypothesis import Phase, settings
from selection import thorough_except

from fx.interop import AdaptedPass
from pytest_fx import check_pass
from pytest_fx.laws import TABLE
from pytest_fx.loading import load_pass

ROOT = Path(__file__).parents[2]
WRONG = [row for row in ROUNDS.values() if isinstance(row, Wrong)]
SEARCHED = ("remove_unused", "relu_into_sum")
FILES = {
    "r71_relu_of_functional": ("F.relu", "None", "green"),
    "r72_relu_as_silu": ("F.silu", "None", "flagged"),
    "w71_gelu_for_relu": ("F.gelu", "F.relu", "truly caught"),
    "w72_tanh_for_relu": ("torch.tanh", "torch.sigmoid", "caught"),
    "w73_relu_for_relu": ("torch.relu", "torch.relu", "not judged"),
}
"""Files of a round: the replacement of torch.relu by the pass, by the pass without its fault, and the verdict."""
PASS = """
import torch
import torch.nn.functional as F
import fx

def {name}(graph_module: fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        if node.target is torch.relu:
            node.target = {wrong}
    graph_module.recompile()

def fixed(graph_module: fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        if node.target is torch.relu:
            node.target = {right}
    graph_module.recompile()
"""


def test_a_round_has_as_many_rows_as_its_figures_say() -> None:
    for row in FIRST_TRIES:
        of_round = [each for each in ROUNDS.values() if each.round == row.round]
        assert sum(isinstance(each, Wrong) for each in of_round) == row.wrong
        assert sum(isinstance(each, Right) for each in of_round) == row.right
        assert row.caught + row.unjudged <= row.wrong
        assert row.flagged + row.right_unjudged <= row.right


@pytest.mark.parametrize("row", WRONG, ids=[row.name for row in WRONG])
def test_a_wrong_pass_of_a_round_names_its_fault_and_the_laws_that_show_it(row: Wrong) -> None:
    assert row.wrong.endswith(".") and row.kind
    assert row.laws and {*row.laws} <= {law.name for law in TABLE}


def test_passes_for_torch_fx_are_those_of_the_files_that_say_so() -> None:
    adapted = {row.name for row in ROUNDS.values() if isinstance(load_pass(row.pass_, row.form), AdaptedPass)}
    assert adapted == {row.name for row in ROUNDS.values() if "_torch" in row.theme}
    assert len(adapted) > 20


@pytest.mark.parametrize("name", SEARCHED)
def test_a_pass_of_a_round_is_tried_with_the_defaults_of_a_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: dict[str, Any] = {}

    def note(pass_: Any, **options: Any) -> Any:
        recorded.update(options)
        return check_pass(lambda graph_module: None, max_examples=1, min_changed=0)

    monkeypatch.setattr(trial, "check_pass", note)
    try_pass(ROUNDS[name])
    defaults = inspect.signature(check_pass).parameters
    assert {option: recorded[option] for option in ("modes", "min_changed")} == {
        option: defaults[option].default for option in ("modes", "min_changed")
    }
    assert recorded["max_examples"] == settings.get_profile("default").max_examples


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", thorough_except(SEARCHED[:1], SEARCHED))
def test_a_known_pass_of_a_round_is_judged_rightly(name: str) -> None:
    tried = try_pass(ROUNDS[name], examples=15)
    assert tried.caught if isinstance(ROUNDS[name], Wrong) else not tried.law, tried.message


def test_the_page_separates_first_tries_from_later_results() -> None:
    counts = {"seed": 0, "programs": 200, "changed": 3, "seconds": 1.0, "message": ""}
    caught, unjudged, flagged = "max_values_to_amax", "fuse_glu", "relu_into_sum"
    text = page.table(
        [
            Trial(caught, "ties", "gradients", law="gradients", judged=True, **counts),
            Trial(unjudged, "wrong axis", "structure", law="", judged=False, **counts),
            Trial(flagged, "", "", law="", judged=False, **counts),
        ],
        untried=4,
    )
    before, _, after = text.partition(page.SEEN)
    assert "\n".join(section()) in before
    assert "**4 passes have not been tried yet.**" in after
    assert "**Seen: 1 of 2 wrong passes caught, 0 of 1 right passes flagged.**" in after
    assert [line.split(" | ")[2] for line in after.splitlines() if unjudged in line] == ["**not judged**"]
    assert [line.split(" | ")[-1] for line in after.splitlines() if flagged in line] == ["*nothing judged* |"]


def test_documents_quote_the_first_tries() -> None:
    assert sentence() in " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "\n".join(section()) in (ROOT / "results" / "catalogue.md").read_text("utf-8")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("little_explored")
@pytest.mark.parametrize(
    "names, figures",
    thorough_except(
        ["r72 w71 w72"],
        [
            (
                "r72 w71 w72",
                "wrong: 1 of 2 truly caught (1 more to look at), 0 not judged; right: 1 of 1 flagged, 0 not judged",
            ),
            ("r71 w73", "wrong: 0 of 1 truly caught, 1 not judged; right: 0 of 1 flagged, 0 not judged"),
        ],
    ),
)
def test_a_round_is_tried_once_and_judged_by_its_passes_without_their_faults(
    names: str, figures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (wrong, right, _) in FILES.items():
        (tmp_path / f"{name}.py").write_text(PASS.format(name=name[4:], wrong=wrong, right=right))
    quick = settings(database=None, phases=[Phase.generate], max_examples=6)
    monkeypatch.setattr(blind, "check_pass", partial(check_pass, settings=quick))
    monkeypatch.setattr("sys.path", [*blind.sys.path])
    monkeypatch.setattr("sys.argv", ["round", str(tmp_path), *names.split()])
    assert blind.main() == 0
    *lines, last = [line for line in capsys.readouterr().out.splitlines() if line.strip() and line[0] != " "]
    chosen = {name: verdict for name, (*_, verdict) in FILES.items() if name[:3] in names}
    assert [line.split(", ")[0].partition(" by ")[0] for line in lines] == [
        f"{name}: {verdict}" for name, verdict in chosen.items()
    ]
    assert last == figures
