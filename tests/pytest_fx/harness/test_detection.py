"""pytest_fx.harness.detection: the limit is true, a change beyond it is caught and one within it is not."""

import pytest
import torch
from building import Scaled
from selection import thorough_except

import model_zoo
from fx.passes import approximate, close, exact
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.detection import detection_limit
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import LawViolation, contract
from pytest_fx.laws.judging import compared

NARROW = (
    "deep_recommender_small",
    "dlrm_small",
    "lstm_classifier_small",
    "mlp",
    "transformer_encoder_small",
    "two_heads",
)
CASES = [(name, torch.float32) for name in NARROW] + [("mlp", torch.bfloat16), ("mlp", torch.float64)]


def subject_of(name: str, dtype: torch.dtype) -> Subject:
    model = model_zoo.get_model(name)
    return Subject(
        name, model.build(), lambda input_set: Arguments(model.example_inputs(2, seed=input_set)), working_dtype=dtype
    )


def is_caught(subject: Subject, times: float) -> bool:
    try:
        contract(PassRun.given(subject, Scaled(subject.fresh(), times), close))
    except LawViolation:
        return True
    return False


@pytest.mark.parametrize("name, dtype", thorough_except(("mlp",), CASES))
def test_a_change_of_all_outputs_is_caught_from_the_limit_on(name, dtype):
    subject = subject_of(name, dtype)
    same = PassRun.given(subject, subject.fresh(), close)
    limit = detection_limit(compared(same, range(same.input_set_count), lambda run: run.output), close)
    assert limit is not None
    largest = {torch.float32: 1e-4, torch.bfloat16: 2.0, torch.float64: 1e-4}[dtype]
    assert limit.all_elements < largest
    step = 2 * torch.finfo(dtype).eps  # the changed output is rounded to its dtype, too
    assert any(is_caught(subject, 1 + sign * (1.05 * limit.all_elements + step)) for sign in (1, -1))
    if name != "two_heads":  # of several outputs the worst has the limit
        assert limit.all_elements < 4 * step or not is_caught(subject, 1 + 0.5 * limit.all_elements - step)


def test_the_limit_of_exact_is_a_bit_and_that_of_approximate_is_its_noise():
    values = torch.linspace(1, 2, 64)
    same = Comparison("model", "pass", [values], [values], [values.double()], None)
    bit = detection_limit(same, exact)
    noise = detection_limit(same, approximate(40))
    assert bit is not None and noise is not None
    assert bit.all_elements == torch.finfo(torch.float32).eps
    assert noise.all_elements == pytest.approx(1e-2, rel=1e-3)
    assert noise.largest_element > noise.all_elements


def test_outputs_without_floats_have_no_limit():
    values = torch.arange(4)
    assert detection_limit(Comparison("model", "pass", [values], [values], [values], None), close) is None


def test_the_worst_of_several_outputs_counts():
    fine, coarse = torch.ones(8), torch.ones(8)
    off = coarse.double() + 1e-3
    both = Comparison("model", "pass", [(fine, coarse)], [(fine, coarse)], [(fine.double(), off)], None)
    limit = detection_limit(both, close)
    assert limit is not None
    assert limit.all_elements == pytest.approx(7e-3, rel=1e-2)
