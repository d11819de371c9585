"""Five faults that engineers make: each is found, and blamed on its edit and node, in a file that fails alone."""

import os
import re

import pytest
from catalogue import of_theme
from catalogue.users import text_of

FAULTS = [row for row in of_theme("in_files") if row.name.startswith("faults:")]


@pytest.mark.thorough
@pytest.mark.parametrize("row", FAULTS, ids=[row.kind for row in FAULTS])
def test_a_fault_is_blamed_on_its_edit_and_node_in_a_file_that_fails_alone(pytester, monkeypatch, row):
    monkeypatch.setenv("COLUMNS", "80")
    pytester.makepyfile(faults=text_of("faults"))
    options = ("--fx-model", row.model, "--fx-pass", row.name, "--fx-batch", "8")
    result = pytester.runpytest(*options, "--fx-no-timing", "-k", "test_pass_keeps_its_contract")
    assert result.ret == 1
    output = str(result.stdout)
    failure = output[output.index("LawViolation: law ") :]
    failure = failure[: failure.index("\n==")]
    assert len(failure.splitlines()) <= 26
    assert max(len(line) for line in failure.splitlines() if ".pytest_fx" not in line) <= 80
    words = re.sub(r"\s+", " ", failure)
    for text in (f"LawViolation: {row.says[0]}", "the first node that goes wrong: ", *row.says[1:]):
        assert text in words
    path = pytester.path / re.search(r"that shows it alone: (\S+)", words)[1]
    details = path.with_name("failure.md").read_text(encoding="utf-8")
    for heading in ("## Error of each node", "## The program before the pass", "## The program after", "## Versions"):
        assert heading in details
    os.chdir(pytester.mkdir("elsewhere"))
    alone = pytester.runpytest("-p", "no:cacheprovider", path)
    alone.assert_outcomes(failed=1)
    first = row.says[0].rpartition(" ")[0].replace(row.model, "part_of_model")
    assert f"LawViolation: {first}" in re.sub(r"\s+(E\s+)?", " ", str(alone.stdout))


def test_a_batch_size_baked_in_shows_at_each_batch_size(pytester):
    pytester.makepyfile(faults=text_of("faults"))
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
def test_a_batch_size_baked_in_is_found_without_another_one_being_requested(pytester, model):
    pytester.makepyfile(faults=text_of("faults"), fixed=FIXED)
    options = ("--fx-model", model, "--fx-pass", "faults:OneSample", "--fx-no-timing")
    result = pytester.runpytest(*options, "-k", "test_pass")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            f"*law 'batch sizes': one-sample changes what {model} on inputs of batch size 3*",
            "*view has the shape [[]3, 48[]] in the original and [[]1, 144[]] here",
        ]
    )


def test_a_model_that_takes_one_number_of_samples_only_is_not_tried_with_another(pytester):
    pytester.makepyfile(faults=text_of("faults"), fixed=FIXED)
    options = ("--fx-model", "fixed:scaled", "--fx-pass", "canonicalize", "-k", "test_pass_keeps")
    pytester.runpytest(*options).assert_outcomes(passed=1)
