"""--fx-mode: models are judged in evaluation mode, in training mode or in both."""

import pytest
from building import last_run

MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.bn, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(torch.relu(self.bn(self.linear(x))))

def training():
    return Net(), torch.randn(8, 6)

def evaluation():
    return Net().eval(), torch.randn(8, 6)

def one_sample():
    return Net(), torch.randn(1, 6)

def with_frozen_statistics():
    net = Net()
    net.bn.eval()
    return net, torch.randn(1, 6)

def without_modes():
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU()), torch.randn(8, 6)

def drop(program):
    "Removes dropout, in whichever mode."
    for node in list(program.graph.nodes):
        if node.op == "call_module" and node.target == "dropout":
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.recompile()

def drop_in_evaluation(program):
    if not program.training:
        drop(program)

def double_in_training(program):
    if program.training:
        for node in program.graph.find_nodes(op="output"):
            with program.graph.inserting_before(node):
                doubled = program.graph.call_function(torch.mul, (node.args[0], 2))
            node.args = (doubled,)
        program.recompile()
"""
QUICK = ("--fx-no-timing", "-k", "pass_keeps_its_contract or test_capture_equals")


def verdicts(pytester):
    records = last_run(pytester.path)["records"]
    return {(record["row"]["model"], record["row"]["program"]): record["row"] for record in records}


def test_a_pass_is_judged_in_the_mode_that_the_factory_gives_beside_evaluation(mine):
    options = ("--fx-model", "mine:training", *QUICK, "--fx-pass")
    result = mine.runpytest(*options, "mine:drop")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "*mine:training *capture *right*",
            "*mine:training *drop *right*",
            "*mine:training, training mode *capture *right*",
            "!*mine:training, training mode *drop *wrong*",
        ]
    )
    result.stdout.fnmatch_lines("*try    for a pass for inference alone, return model.eval() from the factory*")
    result = mine.runpytest(*options, "mine:drop_in_evaluation")
    assert result.ret == 0
    result.stdout.fnmatch_lines("mine:training, training mode: 1 pass found nothing to change: drop-in-evaluation")


@pytest.mark.parametrize(
    "model, mode, row, is_right",
    [
        ("training", "eval", "mine:training", True),
        ("training", "train", "mine:training, training mode", False),
        ("evaluation", "train", "mine:evaluation, training mode", False),
        ("evaluation", None, "mine:evaluation", True),
        ("with_frozen_statistics", None, "mine:with_frozen_statistics, training mode", False),
        ("one_sample", "eval", "mine:one_sample", True),
    ],
)
def test_the_option_chooses_the_mode_and_the_row_says_it(mine, model, mode, row, is_right):
    chosen = () if mode is None else ("--fx-mode", mode)
    result = mine.runpytest("--fx-model", f"mine:{model}", "--fx-pass", "mine:drop", *QUICK, *chosen)
    assert (result.ret == 0) == is_right
    verdict = verdicts(mine)[row, "drop"]
    assert (verdict.get("outcome") is None) == is_right
    models = {model for model, _ in verdicts(mine)}
    assert models == ({row} if mode is not None or is_right else {row, row.removesuffix(", training mode")})


def test_both_makes_a_test_for_each_mode(mine):
    options = ("--fx-model", "mine:evaluation", "--fx-pass", "mine:drop", *QUICK, "--fx-mode", "both")
    result = mine.runpytest(*options, "--fx-batch", "2,4", "-v")
    assert result.parseoutcomes()["passed"] == 6
    result.stdout.fnmatch_lines_random(
        [
            "fx::test_pass_keeps_its_contract?mine:evaluation-batch2-mine:drop? PASSED*",
            "fx::test_pass_keeps_its_contract?mine:evaluation-training-batch2-mine:drop? FAILED*",
        ]
    )
    assert ("mine:evaluation, training mode, batch 4", "capture") in verdicts(mine)


def test_the_whole_suite_runs_in_training_mode(mine):
    result = mine.runpytest(
        "--fx-model", "mine:training", "--fx-model", "mine:with_frozen_statistics", "--fx-pass", "canonicalize",
        "--fx-pass", "quantize", "--fx-mode", "train", "--fx-rounds", "3",
    )  # fmt: skip
    assert result.ret == 0
    assert verdicts(mine)["mine:training, training mode", "canonicalize"]["speedup"] is not None


def test_a_model_that_cannot_be_called_in_training_mode_is_reported_as_not_judged_in_it(mine):
    result = mine.runpytest("--fx-model", "mine:one_sample", "--fx-pass", "mine:drop", *QUICK, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines("mine:one_sample, training mode *drop *not judged: eager raises ValueError*")
    result = mine.runpytest("--fx-model", "mine:one_sample", "--fx-pass", "mine:drop", *QUICK, "--fx-strict")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines("E *CoarseVerdict: drop is not judged on mine:one_sample, training mode")


def test_a_mode_that_makes_no_difference_is_not_tried_twice(mine):
    options = ("--fx-model", "mine:without_modes", *QUICK, "--fx-pass")
    assert mine.runpytest(*options, "canonicalize").ret == 0
    assert {model for model, _ in verdicts(mine)} == {"mine:without_modes"}
    result = mine.runpytest(*options, "mine:double_in_training")
    assert result.ret == 1
    assert verdicts(mine)["mine:without_modes, training mode", "double-in-training"]["outcome"] == "wrong: contract"


def test_the_test_that_shows_a_fault_in_training_mode_runs_in_it(mine):
    mine.runpytest("--fx-model", "mine:training", "--fx-pass", "mine:drop", *QUICK)
    (path,) = mine.path.glob(".pytest_fx/*/test_*.py")
    assert "mode='train'" in path.read_text()
    result = mine.runpytest(path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("!*part_of_model, training mode *drop *wrong*")


def test_a_marker_chooses_the_mode_and_parameters_of_a_test_have_that_of_the_run(mine):
    path = mine.makepyfile(
        """
        import mine, pytest

        @pytest.mark.fx(model=mine.evaluation, mode="train")
        def test_marked(fx_model, fx_traced):
            assert fx_model.name == "evaluation, training mode" and fx_traced.training

        @pytest.mark.parametrize("fx_model", ["mine:evaluation"], indirect=True)
        def test_own(fx_model, fx_traced):
            assert fx_traced.training
        """
    )
    mine.runpytest(path, "--fx-mode", "train").assert_outcomes(passed=2)


def test_a_timing_in_training_mode_puts_statistics_back(mine):
    path = mine.makepyfile(
        """
        import mine, pytest, torch

        @pytest.mark.fx(model=mine.training, mode="train", rounds=3)
        def test_own(fx_model, fx_timing, fx_equal):
            mean = fx_model.captured.bn.running_mean
            before = mean.clone()
            fx_timing("canonicalize")
            assert torch.equal(mean, before)
            fx_equal("canonicalize")
        """
    )
    mine.runpytest(path).assert_outcomes(passed=1)


def test_a_program_is_compared_with_the_model_in_its_own_mode(mine):
    path = mine.makepyfile(
        """
        import copy, mine, pytest

        NET = mine.training()

        @pytest.mark.fx(model=NET)
        @pytest.mark.parametrize("training", [True, False])
        def test_own(fx_equal, training):
            fx_equal(copy.deepcopy(NET[0]).train(training), contract="exact", label="copy")

        @pytest.mark.fx(model=NET)
        def test_without_dropout(fx_equal):
            candidate = copy.deepcopy(NET[0])
            candidate.dropout.p = 0.0
            with pytest.raises(AssertionError, match="training mode"):
                fx_equal(candidate)
        """
    )
    mine.runpytest(path).assert_outcomes(passed=3)
    assert ("Net, training mode", "copy") in verdicts(mine) and ("Net", "copy") in verdicts(mine)
