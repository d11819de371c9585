"""pytest_fx.laws.gradient_law: the comparison of gradients."""

import copy
import operator

import pytest
import torch
from building import Calling
from catalogue import RIGHT
from torch import nn
from torch.utils.checkpoint import checkpoint

from fx.passes import close
from pytest_fx.errors import LawViolation
from pytest_fx.harness.equality import Leaf
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import differentiation
from pytest_fx.laws.gradient_law import differ, gradients, share_that_differs


@pytest.mark.parametrize(
    "dtype, relative, absolute", [(torch.float64, 1e-5, 1e-10), (torch.float32, 1e-3, 1e-5), (torch.float16, 0.1, 1e-2)]
)
def test_an_element_of_a_gradient_may_differ_by_a_part_of_itself_and_by_less_of_the_largest(dtype, relative, absolute):
    expected = torch.tensor([0.5, -2.0, 0.0], dtype=dtype)
    for place in range(3):
        limit = relative * abs(float(expected[place])) + absolute * 2.0
        for sign, part, is_another in ((1, 0.9, False), (-1, 0.9, False), (1, 1.2, True), (-1, 1.2, True)):
            actual = expected.clone()
            actual[place] += sign * part * limit
            assert differ(Leaf("", expected, actual)) is is_another
            moved = torch.zeros(3, dtype=torch.float64)
            moved[(place + 1) % 3] = 1.0  # another element has moved
            assert (share_that_differs(Leaf("", expected, actual), moved) > 0) is is_another
            moved[place] = 0.5 * limit
            assert not share_that_differs(Leaf("", expected, actual), moved)


@pytest.mark.parametrize("lost", [torch.nan, torch.inf])
def test_where_eager_has_no_gradient_a_program_may_have_one_and_the_other_elements_are_compared(lost):
    expected = torch.tensor([lost, 1.0])
    assert not differ(Leaf("", expected, expected.clone()))
    assert not differ(Leaf("", expected, torch.tensor([3.0, 1.0])))
    assert differ(Leaf("", expected, torch.tensor([3.0, 1.1])))
    assert differ(Leaf("", expected, torch.tensor([3.0, torch.nan])))
    assert differ(Leaf("", expected, torch.tensor([lost, torch.inf])))


def test_a_logarithm_of_a_softmax_may_become_one_function_where_its_own_gradient_overflows():
    def as_one(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.log):
            node.target, node.args = torch.log_softmax, (node.args[0].args[0], 0)
        program.graph.eliminate_dead_code()
        program.recompile()

    x = torch.tensor([0.0, -738.0], dtype=torch.float64)
    subject = Subject("shares", Calling(lambda m, x: torch.log(torch.softmax(x, 0))), lambda _: Arguments((x,)))
    gradients(PassRun(subject, as_one))


def test_gradients_of_nothing_but_zeros_may_differ_by_rounding():
    zeros = torch.zeros(2, dtype=torch.float64)
    assert not differ(Leaf("", zeros, zeros + 0.9e-8))
    assert differ(Leaf("", zeros, zeros + 1.2e-8))


def deep(*layers, mode="eval", rows=16, inputs=None):
    torch.manual_seed(0)
    arguments = Arguments((torch.randn(rows, 1024) if inputs is None else inputs,))
    return Subject("deep", nn.Sequential(*layers), lambda input_set: arguments, mode=mode)


def with_output(change):
    """A pass that makes something else of the output."""

    def changing(program):
        output = program.graph.output_node()
        with program.graph.inserting_before(output):
            output.args = (change(program.graph, output.args[0]),)
        program.recompile()

    return changing


detached = with_output(lambda graph, value: graph.call_method("detach", (value,)))
scaled = with_output(lambda graph, value: graph.call_function(torch.mul, (value, 1.0)))


def tied(program):
    program.get_submodule("1")._parameters["weight"] = program.get_submodule("0").weight
    scaled(program)


@pytest.mark.thorough
def test_a_large_program_whose_output_is_detached_breaks_the_law():
    with pytest.raises(LawViolation, match="gradient"):
        gradients(PassRun(deep(nn.Linear(1024, 1024)), detached, contract=close))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_gradient_that_is_gone_as_two_parameters_were_tied_breaks_the_law(mode):
    first, second = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
    second.weight.data.copy_(first.weight.data)
    with pytest.raises(LawViolation, match=r"1\.weight"):
        gradients(PassRun(deep(first, second, mode=mode), tied, contract=close))


def test_sparse_gradients_of_a_large_table_are_compared():
    inputs = torch.randint(0, 20_000, (4, 6))
    layers = nn.Embedding(20_000, 128, sparse=True), nn.Linear(128, 8)
    gradients(PassRun(deep(*layers, inputs=inputs), scaled, contract=close))


def test_gradients_of_the_model_itself_are_found_out_once_for_all_passes(monkeypatch):
    recorded = []
    original = differentiation.gradients_of
    monkeypatch.setattr(
        differentiation, "gradients_of", lambda *given, **named: recorded.append(1) or original(*given, **named)
    )
    subject = deep(nn.Embedding(20_000, 64), nn.Linear(64, 8), inputs=torch.randint(0, 20_000, (4, 6)))
    for _ in range(2):
        gradients(PassRun(subject, scaled, contract=close))
    assert len(recorded) == 1


def frozen(program):
    """Put a frozen layer in the place of the first, and take the cancelling away."""
    first = program.get_submodule("first")
    layer = nn.Linear(1024, 1024).to(first.weight.dtype).requires_grad_(False)
    layer.load_state_dict(first.state_dict())
    program.add_submodule("frozen", layer)
    for node in program.graph.nodes:
        if node.target == "first":
            node.target = "frozen"
        if node.name == "sub":
            node.replace_all_uses_with(node.args[0].args[0])
    program.delete_submodule("first")
    program.graph.eliminate_dead_code()
    program.recompile()


@pytest.mark.thorough
def test_a_frozen_layer_of_a_large_model_is_reported_where_eager_has_to_be_perturbed():
    torch.manual_seed(0)
    layers = {"first": nn.Linear(1024, 1024), "second": nn.Linear(1024, 8)}
    # Rounding errors of its gradients are so large that eager has to be perturbed to know them.
    cancelling = Calling(lambda m, x: ((m.second(m.first(x)) + 1e12) - 1e12) ** 2, **layers)
    inputs = Arguments((torch.randn(16, 1024),))
    subject = Subject("cancelling", cancelling, lambda input_set: inputs, mode="train")
    with pytest.raises(LawViolation, match="gradient"):
        gradients(PassRun(subject, frozen, contract=close))


class CancellingWholly(nn.Module):
    """Softmax is invariant to a shift of all elements: the gradients of ``x`` are mere rounding errors."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.arange(24.0).reshape(6, 4))

    def forward(self, x):
        keys = torch.softmax(torch.softmax(x.mT * -(0.5 ** x[1]), dim=-1) @ self.rows, -1)
        return torch.softmax(torch.matmul(keys, keys.transpose(-2, -1)) * 0.5, dim=-1) @ keys


def test_rounding_errors_that_are_all_of_a_gradient_may_differ_by_chance():
    inputs = Arguments((torch.arange(24.0).add(1).sin().reshape(4, 6, 1),))
    subject = Subject("cancelling", CancellingWholly(), lambda input_set: inputs)
    gradients(PassRun(subject, RIGHT["attention"].pass_))


class Checkpointed(nn.Module):
    """Computes a layer once more in the backward pass, which it starts itself."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=True)


def checkpointed(change):
    """A pass that computes a copy of the first layer in a checkpoint."""

    def pass_(program):
        layer = copy.deepcopy(program.get_submodule("0"))
        change(layer)
        program.delete_submodule("0")
        program.add_submodule("checkpointed", Checkpointed(layer))
        for node in program.graph.nodes:
            if node.target == "0":
                node.target = "checkpointed"
        program.recompile()

    return pass_


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_reentrant_checkpoint_has_gradients_and_wrong_ones_are_found(mode):
    layers = nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)
    subject = deep(*layers, inputs=torch.randn(16, 8), mode=mode)
    gradients(PassRun(subject, checkpointed(lambda layer: None)))
    twice = checkpointed(lambda layer: layer.weight.register_hook(lambda gradient: gradient * 2))
    with pytest.raises(LawViolation, match=r"changes the gradient of 0\.weight"):
        gradients(PassRun(subject, twice))


def test_a_model_with_a_reentrant_checkpoint_keeps_its_own_gradients():
    subject = deep(Checkpointed(nn.Linear(8, 8)), nn.Linear(8, 4), inputs=torch.randn(16, 8))
    gradients(PassRun(subject, scaled))
    assert all(parameter.grad is None for parameter in subject.eager_runner().program.parameters())
    with pytest.raises(LawViolation, match="changes the gradient"):
        gradients(PassRun(subject, detached))


class Normalized(nn.Module):
    """A batch norm between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.first(x)))


def computed_again(layer):
    """A pass that computes one layer once more in the backward pass."""

    def pass_(program):
        for node in program.graph.find_nodes(op="call_module", target=layer):
            program.add_submodule("again", Again(program.get_submodule(layer)))
            node.target = "again"
        program.delete_submodule(layer)
        program.recompile()

    return pass_


class Again(nn.Module):
    """Computes a layer once more in the backward pass."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


def test_a_buffer_that_the_backward_pass_updates_once_more_breaks_the_law():
    inputs = Arguments((torch.randn(6, 4),))
    subject = Subject("normalized", Normalized(), lambda input_set: inputs, mode="train")
    gradients(PassRun(subject, computed_again("first")))
    with pytest.raises(LawViolation, match=r"the backward pass changes 'again.layer.running_mean' of the program"):
        gradients(PassRun(subject, computed_again("norm")))


def test_a_boolean_buffer_that_a_program_writes_is_compared():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.register_buffer("positive", torch.zeros(4, dtype=torch.bool))

        def forward(self, x):
            self.positive.logical_xor_(x[0] > 0)
            return torch.relu(self.first(x))

    subject = Subject("remembering", Remembering(), lambda input_set: Arguments((torch.randn(6, 4),)))
    gradients(PassRun(subject, computed_again("first")))


def test_a_gradient_that_is_a_rounding_error_of_the_largest_may_be_another():
    rest = 0.1 + 0.2 - 0.3

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.factor = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
            self.zero = nn.Parameter(torch.zeros(1))  # its gradient is infinite

        def forward(self, x):
            return self.weight * rest + self.factor * x, self.zero.sqrt()

    def without_rest(value):
        def pass_(program):
            for node in program.graph.find_nodes(op="call_function", target=operator.mul):
                if node.args[1] == rest:
                    node.args = node.args[0], value
            program.recompile()

        return pass_

    inputs = Arguments((torch.randn(3),))
    subject = Subject("cancelling", Cancelling(), lambda input_set: inputs)
    gradients(PassRun(subject, without_rest(0.0)))
    with pytest.raises(LawViolation, match="weight"):
        gradients(PassRun(subject, without_rest(1e-9)))
