"""``judge`` on candidates of :mod:`catalogue.candidates`: tricks that are not among those the judge was made with.

They were written by an author who knew the judge's code. At the first try 12 of 29 wrong ones were refused; 10 of 10
right ones were accepted. A trick that sent a forged answer first got a speed-up of 10. Afterwards:

- calls run on a thread of their own, without frames of the judge, so one trick by frames of the caller became harmless;
- functions that list living objects, threads below ``threading``, processes, hooks and settings of torch are noticed,
  also after the timed calls;
- a call in an empty environment, without modules of test tools, is compared;
- inputs have gaps and strides of zero, halves, and 1,031 elements in each dimension; the largest have 2.2 million;
- correlations of random outputs, and gradients of complex inputs, are compared.

A candidate that is wrong for inputs over 10 million elements is still accepted. The verdict names the largest inputs.
"""

import pytest
import torch
from catalogue.candidates import RIGHT, WITHOUT_EFFECT, WRONG
from selection import thorough_except

from pytest_fx import judge

OF_ANY_SIZE = (
    "right if judged, by the environment", "a hook on all modules", "a thread below threading", "a process that stays",
    "one mask for all rows", "scratch memory", "a dropout by Bernoulli",
)  # fmt: skip
"""Candidates that are judged on smaller inputs, in less time."""
QUICK = (
    *OF_ANY_SIZE,
    "inputs with steps", "expanded inputs", "half precision for long sums", "long sequences", "halves rounded up",
    "a gradient that is not conjugated", "a sum of halves",
)  # fmt: skip
"""Candidates of each mended rule."""


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _inputs_of_its_size(name, request):
    if name in OF_ANY_SIZE:
        request.getfixturevalue("fewer_inputs")


@pytest.mark.usefixtures("_inputs_of_its_size")
@pytest.mark.parametrize("name", thorough_except([name for name in QUICK if name in WRONG], WRONG))
def test_a_candidate_with_a_new_trick_is_refused(name):
    case = WRONG[name]
    timing = name not in QUICK
    verdict = judge(case.reference, case.make(), case.inputs, forward_only=case.forward_only, timing=timing)
    assert verdict.verdict == "wrong" and verdict.law and verdict.evidence, str(verdict)


@pytest.mark.usefixtures("_inputs_of_its_size")
@pytest.mark.parametrize("name", thorough_except([name for name in QUICK if name in RIGHT], RIGHT))
def test_a_right_candidate_of_another_form_is_accepted(name):
    case = RIGHT[name]
    verdict = judge(case.reference, case.make(), case.inputs, timing=False)
    assert verdict.verdict == "right", str(verdict)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_candidate_finds_no_frame_of_the_judge(name):
    case = WITHOUT_EFFECT[name]
    verdict = judge(case.reference, case.make(), case.inputs)
    assert verdict.verdict == "right" and verdict.speedup < 1.5


def test_the_verdict_names_the_largest_inputs():
    verdict = judge(torch.relu, lambda x: x.clamp(min=0), torch.ones(3, 4).cumsum(1), forward_only=True, timing=False)
    assert verdict.most_elements > 2_000_000
    assert f"inputs of up to {verdict.most_elements:,} elements were compared" in str(verdict)
