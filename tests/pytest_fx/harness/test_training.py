"""Training as the subject: parameters and losses after some steps, beside eager's own rounding and other orders."""

import copy

import pytest
import torch
from torch import nn

import fx
from pytest_fx import LawViolation, compare_training, training_steps
from pytest_fx.errors import InputError
from pytest_fx.harness.training import require_trained


class Network(nn.Module):
    def __init__(self, norm=True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity()
        self.second = nn.Linear(16, 3)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 24, 6, generator=generator)
    return [(each, (each.sum(1) > 0).long()) for each in x]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def steps(optimizer=sgd, count=4, loss=nn.functional.cross_entropy):
    return training_steps(loss, optimizer, data(), count)


class Halves(torch.autograd.Function):
    """The identity, with a gradient that is off by a share."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + ctx.share), None


class Wrong(Network):
    share = 1e-3

    def forward(self, x):
        return Halves.apply(super().forward(x), self.share)


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_a_capture_trains_as_the_model_does(optimizer):
    model = Network().train()
    comparison = compare_training(model, fx.symbolic_trace(copy.deepcopy(model)), steps(optimizer))
    assert comparison.right and comparison.orders == 3 and comparison.losses[0] == comparison.losses[1]


class Reordered(Network):
    """Another order of the arithmetic: the product in two parts."""

    def forward(self, x):
        weight = self.first.weight
        y = x[:, 3:] @ weight[:, 3:].T + self.first.bias + x[:, :3] @ weight[:, :3].T
        return self.second(torch.relu(self.norm(y)))


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_another_order_of_arithmetic_is_right_even_if_adam_follows_the_signs_of_rounding_errors(optimizer):
    comparison = compare_training(Network().train(), Reordered().train(), steps(optimizer, 6))
    assert comparison.right, comparison


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.3])
def test_gradients_that_are_a_little_off_are_found(share):
    wrong = Wrong().train()
    wrong.share = share
    comparison = compare_training(Network().train(), wrong, steps())
    assert not comparison.right
    message = r"law 'training': halves trains network otherwise than eager\n  where  .* after 4 steps"
    with pytest.raises(LawViolation, match=message):
        require_trained(comparison, "halves", "network")


def test_a_model_in_half_precision_is_judged_in_float64_too():
    halves = [(x.bfloat16(), labels) for x, labels in data()]
    in_halves = training_steps(nn.functional.cross_entropy, sgd, halves, 4)
    model, other, wrong = Network().train().bfloat16(), Reordered().train().bfloat16(), Wrong().train().bfloat16()
    assert compare_training(model, other, in_halves).right
    comparison = compare_training(model, wrong, in_halves)
    assert not comparison.right and comparison.in_float64


def test_a_buffer_that_is_not_updated_is_found():
    wrong = Network().train()
    wrong.norm.momentum = 0.2
    comparison = compare_training(Network().train(), wrong, steps())
    assert not comparison.right and comparison.worst.startswith("norm.running")


def test_a_program_that_computes_in_half_precision_is_beyond_eagers_rounding():
    class Half(Network):
        def forward(self, x):
            return super().forward(x).bfloat16().to(x.dtype)

    assert not compare_training(Network().train(), Half().train(), steps()).right


def test_the_order_of_a_batch_is_not_changed_if_it_is_part_of_the_computation():
    class Dropped(Network):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    comparison = compare_training(Dropped().train(), fx.symbolic_trace(Dropped().train()), steps())
    assert comparison.right and comparison.orders == 0


def test_a_program_that_does_not_train_a_parameter_or_starts_elsewhere_is_wrong():
    frozen = Network().train()
    frozen.second.weight.requires_grad_(False)
    with pytest.raises(LawViolation, match=r"does not train 'second\.weight'"):
        compare_training(Network().train(), frozen, steps())
    moved = Network().train()
    with torch.no_grad():
        moved.second.bias.add_(1)
    with pytest.raises(LawViolation, match=r"starts from another value of 'second\.bias'"):
        compare_training(Network().train(), moved, steps())


def test_neither_module_is_changed():
    model, other = Network().train(), Network().train()
    before = [tensor.clone() for tensor in (*model.state_dict().values(), *other.state_dict().values())]
    compare_training(model, other, steps())
    after = (*model.state_dict().values(), *other.state_dict().values())
    assert all(map(torch.equal, before, after)) and all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: training_steps(3, sgd, data()), "'loss' of training_steps is a function, not an int"),
        (lambda: training_steps(print, 3, data()), "'optimizer' of training_steps is a function, not an int"),
        (lambda: training_steps(print, sgd, []), "a training has no batches"),
        (lambda: training_steps(print, sgd, [3]), "batch 0 of a training is no pair"),
        (lambda: training_steps(print, sgd, data(), 0), "'steps' of training_steps is an int of at least 1, not 0"),
        (
            lambda: compare_training(Network(), Network(), training_steps(lambda y, labels: y[99], sgd, data())),
            "eager itself cannot be trained with these steps\n  where  .*test_training.py",
        ),
    ],
)
def test_a_mistake_in_the_steps_is_told_in_a_sentence(make, message):
    with pytest.raises(InputError, match=f"^{message}"):  # a later line quotes the call
        make()


def network():
    return Network().train(), data()[0][0]


def scale_gradients(program):
    """Divide and multiply by a constant, which is right, but forget the second in the backward pass."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    with program.graph.inserting_before(output):
        scaled = program.graph.call_function(_halves, (output.args[0],))
    output.args = (scaled,)
    program.recompile()
    return program


def _halves(x):
    return Halves.apply(x, 0.25)


def keep(program):
    return program


FILE = """
import pytest
from test_training import keep, scale_gradients, steps

@pytest.mark.parametrize("pass_", [keep, scale_gradients])
def test_it(fx_equal, pass_):
    fx_equal.training(pass_, steps())
"""


def test_passes_are_trained_under_pytest_and_the_table_has_the_result(pytester, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    path = pytester.makepyfile(FILE)
    result = pytester.runpytest("--fx-model", "test_training:network", "-v", path)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*law 'training': scale-gradients trains test_training:network, training mode otherwise*"]
    )
    result.stdout.re_match_lines([r".*keep +right .*4 steps: .* is .* off.*", r".*scale-gradients +wrong: training.*"])
    result = pytester.runpytest("--fx-model", "test_training:network", "--fx-mode", "eval", path)
    result.stdout.fnmatch_lines(["*is in evaluation mode, in which nothing is trained"])
