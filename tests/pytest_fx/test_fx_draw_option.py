"""--fx-draw: pages of models, and of what passes do with them."""

from __future__ import annotations

import pytest
from building import data_of

MODELS = ("--fx-model", "resnet_tiny", "--fx-no-timing", "-k", "well_formed or keeps_its_contract")


def test_models_and_what_passes_do_with_them_are_drawn(pytester):
    result = pytester.runpytest(
        *MODELS, "--fx-pass", "fuse-conv-bn", "--fx-pass", "overlap", "--fx-draw", "shown/pages"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines("fx: drawings are in shown/pages")
    folder = pytester.path / "shown" / "pages"
    assert sorted(path.name for path in folder.iterdir()) == ["resnet_tiny-fuse-conv-bn.html", "resnet_tiny.html"]
    data = data_of(folder / "resnet_tiny-fuse-conv-bn.html")
    assert [step["name"] for step in data["steps"]] == ["fuse-conv-bn"]
    assert data["hasShapes"] and data_of(folder / "resnet_tiny.html")["hasShapes"]
    assert [figure["name"] for figure in data["figures"]] == ["float64 error", "rounding error of eager"]
    names = [data["strings"][node[1][1]] for node in data["nodes"]]
    values = {names[node]: float(text) for node, _, text, _ in data["figures"][1]["nodes"]}
    assert 0 < values["conv1"] < 1e-3


def test_without_it_nothing_is_drawn(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "-k", "well_formed")
    result.stdout.no_fnmatch_line("fx: drawings*")
    assert not list(pytester.path.glob("**/*.html"))


def test_a_pass_that_fails_leaves_the_drawing_of_the_model(pytester):
    pytester.makepyfile(broken="def broken(program):\n    raise IndexError('out of range')")
    result = pytester.runpytest(*MODELS, "--fx-pass", "broken:broken", "--fx-draw", "pages")
    result.assert_outcomes(passed=1, failed=1, skipped=1, deselected=result.parseoutcomes()["deselected"])
    assert [path.name for path in (pytester.path / "pages").iterdir()] == ["resnet_tiny.html"]


def test_models_without_inputs_and_users_names_are_drawn_too(pytester):
    pytester.makepyfile(mine="import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.ReLU())")
    pytester.runpytest("--fx-model", "mine:net", "--fx-no-timing", "-k", "well_formed", "--fx-draw=pages")
    assert [path.name for path in (pytester.path / "pages").iterdir()] == ["mine_net.html"]


@pytest.mark.parametrize("marker", ["@pytest.mark.fx(draw='pages')"])
def test_it_is_said_for_a_run_not_for_a_test(pytester, marker):
    path = pytester.makepyfile(f"import pytest\n{marker}\ndef test_one(fx_traced): pass")
    result = pytester.runpytest("--fx-model", "mlp", path)
    assert "the marker fx has no keyword 'draw'" in result.stdout.str() + result.stderr.str()


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_runs(pytester):
    (pytester.path / "notes").write_text("mine")
    for folder in ("notes", "notes/pages"):
        result = pytester.runpytest("--fx-model", "mlp", "--fx-draw", folder)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines("*--fx-draw: must be a folder that is there or can be made: *notes is a file")
