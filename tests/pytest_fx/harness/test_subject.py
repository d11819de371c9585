"""pytest_fx.harness.subject: copies of a model, its inputs, its own outputs."""

import pytest
import torch
from torch import nn

from model_zoo import get_model
from pytest_fx.harness.evaluation import Arguments, default_dtype
from pytest_fx.harness.subject import Subject


def linear(outputs: int = 1) -> Subject:
    module = nn.Linear(4, outputs)
    return Subject("linear", module, lambda input_set: Arguments((torch.full((1, 4), input_set + 1.0),)))


def test_copies_are_independent_of_each_other_and_of_the_users_module():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    subject = Subject("own", module, None)
    with torch.no_grad():
        subject.fresh()[0].weight.zero_()
        module[0].bias.zero_()
    assert torch.equal(subject.fresh()[0].weight, module[0].weight)
    assert subject.fresh()[0].bias.any()
    assert module.training
    assert not subject.fresh()[1].training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_working_dtype_is_that_of_the_parameters(dtype):
    assert Subject("own", nn.Linear(2, 2).to(dtype), None).dtype == dtype


def test_without_parameters_the_working_dtype_is_that_of_the_inputs():
    inputs = Arguments((torch.ones(2, dtype=torch.int64), [torch.ones(2, dtype=torch.float16)]))
    assert Subject("own", nn.Identity(), lambda input_set: inputs).dtype == torch.float16


def test_an_output_of_few_elements_is_computed_several_times_with_other_inputs():
    subject = linear(outputs=40)
    assert subject.input_set_count == 7
    assert not torch.equal(subject.eager(0).output, subject.eager(1).output)


def test_an_output_of_many_elements_is_computed_twice():
    assert linear(outputs=256).input_set_count == 2


def test_however_few_elements_there_are_the_model_is_called_eight_times_at_most():
    assert linear(outputs=1).input_set_count == 8


def test_arguments_are_the_same_in_every_dtype():
    (third,) = linear().arguments(2, float64=True).args
    assert torch.equal(third, torch.full((1, 4), 3.0, dtype=torch.float64))


def test_eager_outputs_are_computed_once():
    calls = []

    class Counting(nn.Module):
        def forward(self, x):
            calls.append(1)
            return x

    subject = Subject("own", Counting(), lambda input_set: Arguments((torch.ones(300),)))
    for _ in range(2):
        assert subject.input_set_count == 2
        subject.eager(0)
        subject.eager(1)
    assert len(calls) == 2


def test_a_model_without_inputs_says_how_to_give_some():
    with pytest.raises(LookupError, match="its factory should return"):
        Subject("own", nn.Identity(), None).arguments()


def test_inputs_do_not_depend_on_the_default_dtype():
    model = get_model("mlp")
    subject = Subject("mlp", model.build(), lambda input_set: Arguments(model.example_inputs(2, input_set)))
    (expected,) = subject.arguments().args
    with default_dtype(torch.float64):
        assert torch.equal(subject.arguments().args[0], expected)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(x.sum() * 0 + 1)
        self.factor.mul_(x.sum() * 0 + 2)
        return x * self.factor + self.calls


@pytest.mark.parametrize("float64", [False, True])
def test_writes_of_calls_are_undone(float64):
    subject = Subject("counting", Counting(), lambda input_set: Arguments((torch.ones(2),)))
    runner = subject.runner(subject.captured)
    dtype = torch.float64 if float64 else torch.float32
    runs = [
        subject.eager(0, float64),
        subject.eager(1, float64),
        *(runner(subject.arguments(), dtype) for _ in range(2)),
    ]
    assert [run.output[0].item() for run in runs] == [3] * 4
    assert all(run.state["calls"] == 1 and run.state["factor"].tolist() == [2, 2] for run in runs)
    assert subject.captured.calls == 0 and subject.captured.factor.tolist() == [1, 1]


class ReturnsItsCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        return self.calls.add_(x), x


def test_an_output_in_a_buffer_keeps_its_value_at_return():
    subject = Subject("counting", ReturnsItsCount(), lambda input_set: Arguments((torch.ones(1),)), input_set_count=3)
    assert [subject.eager(input_set).output[0].item() for input_set in range(3)] == [1, 1, 1]
    assert subject.shared_copy().calls.item() == subject.captured.calls.item() == 0


def test_other_inputs_are_known_by_their_names():
    subject = Subject("own", nn.Linear(4, 2), lambda input_set: Arguments((torch.ones(2, 4) + input_set,)))
    assert subject.arguments("inputs of batch size 3").args[0].shape == (3, 4)
    assert not subject.has("inputs of batch size 2")
    assert subject.has("inputs with NaN and infinities") and not subject.has("inputs of batch size 2")
    assert subject.at("inputs of batch size 3").arguments().args[0].shape == (3, 4)
    assert subject.at("inputs of batch size 3").name == "own on inputs of batch size 3"


def test_a_model_of_many_elements_is_of_full_size():
    assert Subject("large", nn.Linear(1024, 1024), None).is_full_size
    assert not Subject("small", nn.Linear(8, 8), None).is_full_size


def test_float64_subjects_are_recognized():
    arguments = Arguments((torch.ones(2, 4, dtype=torch.float64),))
    assert Subject("float64", nn.Linear(4, 2).double(), lambda input_set: arguments).is_float64
    assert not Subject("float32", nn.Linear(4, 2), lambda input_set: arguments).is_float64


def test_a_copy_in_another_dtype_keeps_tied_and_frozen_parameters():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    copied = Subject("tied", module, None).fresh(torch.float64)
    assert copied[0].weight is copied[1].weight and copied[0].weight.dtype is torch.float64
    assert not copied[0].bias.requires_grad and copied[0].weight.requires_grad
    assert module[0].weight.dtype is torch.float32


def test_a_copy_in_another_dtype_shares_no_memory_with_parameters_that_are_in_it_already():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    subject = Subject("mixed", module, None)
    with torch.no_grad():
        for parameter in subject.fresh(torch.float64).parameters():
            parameter.zero_()
    assert all(parameter.any() for parameter in subject.fresh(torch.float64).parameters())


class TwoDevices(nn.Module):
    """A model whose second part lies on another device. Only the first part is called, as there is one device here."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.elsewhere = nn.Linear(4, 4), nn.Linear(4, 4, device="meta")

    def forward(self, x):
        return torch.relu(self.first(x))


def test_a_model_with_parts_on_several_devices_stays_as_it_is_placed(monkeypatch):
    moved = []
    to = nn.Module.to
    monkeypatch.setattr(
        nn.Module, "to", lambda module, *args, **kwargs: moved.append(args) or to(module, *args, **kwargs)
    )
    inputs = Arguments((torch.ones(2, 4),))
    subject = Subject("own", TwoDevices(), lambda input_set: inputs, keeps_dtypes=True)
    assert subject.is_placed and not moved
    for copied in (subject.fresh(), subject.shared_copy(), subject.fresh(torch.float64)):
        assert [parameter.device.type for parameter in copied.parameters()] == ["cpu", "cpu", "meta", "meta"]
    assert subject.arguments().args[0].device.type == "cpu"
    assert subject.arguments() is inputs, "the inputs are not touched"
    assert not Subject("own", nn.Linear(2, 2), None).is_placed and moved


def test_the_clock_of_a_placed_model_waits_for_the_part_that_is_no_cpu():
    assert Subject("own", TwoDevices(), None).device.type == "meta"
    assert Subject("own", nn.Linear(2, 2), None).device.type == "cpu"


def test_a_placed_model_is_captured_and_called(tmp_path):
    subject = Subject("own", TwoDevices(), lambda input_set: Arguments((torch.ones(2, 4),)))
    assert subject.eager().error is None and subject.capture_error is None
    assert torch.equal(subject.captured(*subject.arguments()), subject.eager().output)
