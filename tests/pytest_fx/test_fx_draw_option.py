"""--fx-draw: pages of models, and of the changes of passes."""

from __future__ import annotations

from building import data_of

MODELS = ("--fx-model", "resnet_tiny", "--fx-no-timing", "-k", "well_formed or keeps_its_contract")


def test_models_and_the_changes_of_passes_are_drawn(pytester):
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
