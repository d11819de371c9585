"""Five faults that engineers make: each is found, and blamed on its edit and node, in a file that fails alone."""

import os
import re
from pathlib import Path

import pytest

FAULTS = {
    "a wrong epsilon in a fusion": (
        ("normed", "FoldWithAnyEpsilon"),
        "law 'contract': fold-with-any-epsilon changes what faults:normed computes",
        "edit 2 of fold-with-any-epsilon: bn2 into conv2",
        ["%conv2 = call_module[conv2](%relu)", "value  bn2[", "x = torch.relu(self.bn2(self.conv2(x)))"],
    ),
    "swapped operands": (
        ("gated", "OperatorsForFunctions"),
        "law 'contract': operators-for-functions changes what faults:gated computes",
        "edit 2 of operators-for-functions: rsub becomes an operator",
        ["%rsub = call_function[torch.Tensor.sub](%sigmoid, %y)", "value  rsub[", "rest = torch.rsub(gate, y)"],
    ),
    "a lost bias": (
        ("projected", "LinearToMatmul"),
        "law 'contract': linear-to-matmul changes what faults:projected computes",
        "edit 3 of linear-to-matmul: out becomes a product",
        ["call_function[torch.matmul](%softmax, %", "value  out[", "return self.out(torch.softmax("],
    ),
    "a batch size baked in": (
        ("flattened", "OneSample"),
        "law 'structure': an output has another shape",
        "edit 1 of one-sample: size becomes 1",
        [
            "%view = call_method[view](%relu, 1, -1)",
            "why    view has the shape [8, 48] in the original and [1, 384] here",
            "x = x.view(x.size(0), -1)",
        ],
    ),
    "specialization to values": (
        ("shifted", "IdleRelus"),
        "law 'contract': idle-relus changes what faults:shifted computes",
        "edit 3 of idle-relus: relu_2 is idle",
        ["%sub = call_function[operator.sub](%mul, 0.5)", "value  relu_2[", "torch.relu(x - 0.5)"],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_blamed_on_its_edit_and_node_in_a_file_that_fails_alone(pytester, monkeypatch, fault):
    monkeypatch.setenv("COLUMNS", "80")
    (model, pass_), what, edit, node = FAULTS[fault]
    source = Path(__file__).parents[1].joinpath("faulty_passes.py").read_text(encoding="utf-8")
    pytester.makepyfile(faults=source)
    options = ("--fx-model", f"faults:{model}", "--fx-pass", f"faults:{pass_}", "--fx-batch", "8")
    result = pytester.runpytest(*options, "--fx-no-timing", "-k", "test_pass_keeps_its_contract")
    assert result.ret == 1
    shown = str(result.stdout)
    failure = shown[shown.index("LawViolation: law ") :]
    failure = failure[: failure.index("\n==")]
    assert len(failure.splitlines()) <= 26
    assert max(len(line) for line in failure.splitlines() if ".pytest_fx" not in line) <= 80
    words = re.sub(r"\s+", " ", failure)
    assert f"LawViolation: {what}" in words
    for text in (
        f"the first edit that goes wrong: {edit} (faults.py:",
        "the first node that goes wrong: ",
        *node,
    ):
        assert re.sub(r"\s+", " ", text) in words
    path = pytester.path / re.search(r"that shows it alone: (\S+)", words)[1]
    details = path.with_name("failure.md").read_text(encoding="utf-8")
    for heading in ("## Error of each node", "## The program before the pass", "## The program after", "## Versions"):
        assert heading in details
    os.chdir(pytester.mkdir("elsewhere"))
    alone = pytester.runpytest("-p", "no:cacheprovider", path)
    alone.assert_outcomes(failed=1)
    first = what.rpartition(" ")[0].replace(f"faults:{model}", "part_of_model")
    assert f"LawViolation: {first}" in re.sub(r"\s+(E\s+)?", " ", str(alone.stdout))


def test_a_batch_size_baked_in_shows_at_each_batch_size(pytester):
    source = Path(__file__).parents[1].joinpath("faulty_passes.py").read_text(encoding="utf-8")
    pytester.makepyfile(faults=source)
    options = ("--fx-model", "faults:flattened", "--fx-pass", "faults:OneSample", "--fx-batch", "1,8")
    result = pytester.runpytest(*options, "--fx-no-timing", "-k", "test_pass_keeps_its_contract", "-v")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*law 'batch sizes': one-sample *", "*law 'structure': an output has another shape"])


FIXED = """
import torch
from faults import Flattened, OneSample, Projected

def one():
    return Flattened(), torch.ones(1, 3, 4, 4)

def scaled():
    class Scaled(Projected):
        def forward(self, x):
            return x.reshape(3, 2).sum(1)
    return Scaled(), torch.ones(1, 6)
"""


@pytest.mark.parametrize("model", ["faults:flattened", "fixed:one"])
def test_a_batch_size_baked_in_is_found_without_another_one_being_asked_for(pytester, model):
    source = Path(__file__).parents[1].joinpath("faulty_passes.py").read_text(encoding="utf-8")
    pytester.makepyfile(faults=source, fixed=FIXED)
    options = ("--fx-model", model, "--fx-pass", "faults:OneSample", "--fx-no-timing")
    result = pytester.runpytest(*options, "-k", "test_pass")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            f"*law 'batch sizes': one-sample changes what {model} on inputs of batch size 3*",
            "*view has the shape [[]3, 48[]] in the original and [[]1, 144[]] here",
        ]
    )


def test_a_model_that_takes_one_number_of_samples_only_is_not_asked_for_another(pytester):
    source = Path(__file__).parents[1].joinpath("faulty_passes.py").read_text(encoding="utf-8")
    pytester.makepyfile(faults=source, fixed=FIXED)
    options = ("--fx-model", "fixed:scaled", "--fx-pass", "canonicalize", "-k", "test_pass_keeps")
    pytester.runpytest(*options).assert_outcomes(passed=1)
