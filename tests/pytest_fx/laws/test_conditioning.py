"""pytest_fx.laws.conditioning: the tolerance of an element, ill-conditioned in eager or not."""

import copy

import pytest
import torch
from catalogue import of_theme
from catalogue.made_elsewhere import convolutions
from catalogue.rows import case
from torch import nn

from fx.passes import FuseConvBN, approximate, close
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.layouts import LayoutIndependent
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.harness.tolerances import PERTURBATIONS
from pytest_fx.laws import LawViolation, affordable, broken_laws, choose_laws, contract, law_called
from pytest_fx.laws.conditioning import Perturbed


def subject_of(module: nn.Module, *inputs: torch.Tensor) -> Subject:
    return Subject(
        "model", module.eval(), lambda input_set: Arguments(tuple(tensor.roll(input_set, -1) for tensor in inputs))
    )


def judge(module: nn.Module, program: nn.Module, *inputs: torch.Tensor, promise=close) -> None:
    contract(PassRun.given(subject_of(module, *inputs), program.eval(), promise))


def made(forward) -> nn.Module:
    """A module with ``forward``."""
    return case(forward).module


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 100)
    return nn.Sequential(*convolutions(10, 16), *head), torch.randn(2, 3, 32, 32)


SPOILT = [row for row in of_theme("made_elsewhere") if row.name != "another_box"]


@pytest.mark.parametrize("row", SPOILT, ids=[row.name for row in SPOILT])
def test_a_program_made_elsewhere_must_stay_within_eagers_own_rounding_error(network, row):
    module, images = network
    with pytest.raises(LawViolation, match="8 times eager's own largest error"):
        judge(module, row.pass_(copy.deepcopy(module)), images)


def test_a_right_fold_and_another_memory_layout_stay_right(network):
    module, images = network
    judge(module, FuseConvBN()(subject_of(module, images).capture()), images)
    judge(module, copy.deepcopy(module).to(memory_format=torch.channels_last), images)


def test_one_index_at_a_tie_does_not_excuse_the_others():
    """Eager's float32 picks another index than its float64 in one place of 4,096."""
    scores = torch.linspace(0, 1, 4096)
    scores[7] = 0.25 + 2e-8 * 0  # at the step: x * 4 is 1 in float32
    module = made(lambda self, x: torch.floor(x * 3 + 0.1 * 10 / 3))
    shifted = made(lambda self, x: torch.floor(x * 3 + 0.1 * 10 / 3).roll(1))
    with pytest.raises(LawViolation):
        judge(module, shifted, scores)


def test_boxes_behind_a_threshold_are_judged_box_by_box():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(512, 4, generator=generator) * 600
    scores = torch.rand(512, generator=generator)
    scores[5] = 0.5  # at the threshold, where rounding decides

    def detect(self, boxes, scores):
        chosen = (scores * 3.0 / 3.0 - 0.5).mul(1e6).round().ge(0)
        return torch.where(chosen[:, None], boxes, torch.zeros_like(boxes))

    def wrong(self, boxes, scores):
        detected = detect(self, boxes, scores)
        detected[100:110] = detected[100:110] + 187 * (detected[100:110] > 0)
        return detected

    judge(made(detect), made(detect), boxes, scores)
    with pytest.raises(LawViolation):
        judge(made(detect), made(wrong), boxes, scores)


def test_a_decision_by_rounding_alone_may_differ():
    module = made(lambda self, x: torch.floor(x / 0.1))
    program = made(lambda self, x: torch.floor(x * (1 / 0.1)))
    judge(module, program, torch.arange(60.0).reshape(2, 30) / 10)
    with pytest.raises(LawViolation):
        judge(module, made(lambda self, x: torch.floor(x / 0.1) + (x == 0.55)), torch.arange(60.0) / 20)


def test_a_difference_of_nearly_equal_numbers_may_be_off_by_the_rounding_of_these():
    value = 1000 + torch.rand(2, 500, generator=torch.Generator().manual_seed(0))
    module = made(lambda self, x: (x * 1.1 - x.mean() * 1.1) * 50)
    program = made(lambda self, x: (x - x.mean()) * 1.1 * 50)
    judge(module, program, value)
    with pytest.raises(LawViolation):
        judge(module, made(lambda self, x: (x - x.mean()) * 1.1 * 50 + 0.1), value)


def test_an_element_next_to_an_ill_conditioned_one_is_not():
    value = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).repeat(16, 1)
    module = made(lambda self, x: torch.cat([torch.round(x[:, :1] * 0.1 * 5), torch.sqrt(x[:, 1:])], 1))
    near = made(lambda self, x: torch.cat([torch.round(x[:, :1] / 10 * 5) + 0, torch.sqrt(x[:, 1:])], 1))
    wrong = made(lambda self, x: torch.cat([torch.round(x[:, :1] / 10 * 5), torch.sqrt(x[:, 1:]) * 1.0001], 1))
    judge(module, near, value)
    with pytest.raises(LawViolation):
        judge(module, wrong, value)


def test_noise_of_an_approximate_program_is_excused_where_rounding_decides_and_nowhere_else():
    module = made(lambda self, x: torch.floor(x / 0.1) * 0)
    judge(
        module, made(lambda self, x: torch.floor(x * (1 / 0.1)) * 0), torch.arange(60.0) / 10, promise=approximate(60)
    )
    with pytest.raises(LawViolation):
        judge(module, made(lambda self, x: torch.relu(x)), torch.arange(60.0) / 10, promise=approximate(60))


def test_after_a_broken_law_on_values_no_other_law_runs_eager_on_perturbed_values(network, monkeypatch):
    runs = []
    monkeypatch.setattr(Perturbed, "__init__", lambda self, *args: runs.append(1) or made_so(self, *args))
    module, images = network
    counts = []
    for laws in ([law_called("contract")], choose_laws()):
        pass_run = PassRun(subject_of(module, images), forget_epsilon)
        assert "contract" in [violation.law for violation in broken_laws(affordable(laws, pass_run), pass_run)]
        counts.append(len(runs))
        runs.clear()
    assert counts[0] == counts[1] > 0


def test_a_second_look_reuses_the_runs_of_eager(network, monkeypatch):
    """A batch norm may depend on how values lie in memory, so that the law is judged under another mode, too.

    The first inputs show the fault: eager is perturbed on these alone.
    """
    runs = []
    monkeypatch.setattr(Perturbed, "__init__", lambda self, *args: runs.append(1) or made_so(self, *args))
    module, images = network
    with pytest.raises(LawViolation):
        contract(pass_run := PassRun(subject_of(module, images), forget_epsilon))
    assert pass_run.input_set_count > 1 and len(runs) <= 2 * PERTURBATIONS  # eager is another under the mode


def test_a_plain_fault_is_looked_at_once_more_on_the_first_inputs_alone(network, monkeypatch):
    looks, calls = [], set()
    under, actual = PassRun.under, PassRun.actual

    def noted(self, inputs=0, float64=False):
        calls.add((inputs, self.kernel_mode))
        return actual(self, inputs, float64)

    monkeypatch.setattr(PassRun, "under", lambda self, mode: looks.append(mode) or under(self, mode))
    monkeypatch.setattr(PassRun, "actual", noted)
    module, images = network
    with pytest.raises(LawViolation):
        contract(PassRun(subject_of(module, images), forget_epsilon))
    assert looks == [LayoutIndependent]
    assert {inputs for inputs, mode in calls if mode is LayoutIndependent} == {0}


made_so = Perturbed.__init__


def forget_epsilon(program):
    for module in program.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_each_element_is_perturbed_by_a_few_ulp_of_its_own_and_an_infinity_not_at_all(dtype):
    values = torch.tensor([0.0, 1.0, -2.0, 1e4, -torch.inf, torch.inf], dtype=dtype)
    program = Subject("model", nn.Identity(), lambda _: Arguments((values,))).capture()
    moved = [Perturbed(program, number).run(values.clone()).double() - values.double() for number in range(0, 64, 2)]
    largest = torch.stack(moved).abs().nan_to_num(0.0).amax(0)
    ulps = largest / (values.double().abs().nan_to_num(1.0, 1.0, 1.0) * torch.finfo(dtype).eps).clamp(min=1e-300)
    assert ulps[0] == 0 and ulps[4:].tolist() == [0.0, 0.0]
    assert all(0 < ulp <= 1.5 for ulp in ulps[1:4].tolist())


def test_gradients_of_a_full_size_model_are_not_judged_if_its_outputs_are_wrong(network):
    module, images = network
    pass_run = PassRun(subject_of(module, images), forget_epsilon)
    vars(pass_run.subject)["is_full_size"] = True
    laws = [law_called("contract"), law_called("gradients")]
    assert [violation.law for violation in broken_laws(laws, pass_run)] == ["contract"]
    assert "wrong already" in pass_run.not_asked["gradients"]
    assert [violation.law for violation in broken_laws(laws[1:], pass_run)] == ["gradients"]
