"""pytest_fx.laws.counterparts: tensors that replace a parameter, under any name, and forbidden changes of them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn

from fx.passes import FuseConvBN
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import broken_laws, law_called


def model(mode="eval", **frozen):
    torch.manual_seed(0)
    layers = {"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)}
    for name in frozen:
        layers[name].requires_grad_(False)
    return subject(Calling(lambda m, x: m.second(torch.relu(m.first(x))), **layers), mode)


def subject(module, mode="eval", shape=(3, 4)):
    inputs = Arguments((torch.randn(shape, generator=torch.Generator().manual_seed(1)),))
    return Subject("model", module, inputs.for_input_set, mode=mode)


def violation(judged, pass_):
    pass_run = PassRun(judged, pass_)
    assert pass_run.error is None and pass_run.after is not None
    violations = broken_laws([law_called("gradients")], pass_run) if pass_run.changed else []
    return str(violations[0]) if violations else None


class Wrapper(nn.Module):
    """A linear layer with tensors of its own."""

    def __init__(self, layer, how, *, detached):
        super().__init__()
        self.detached = detached
        for name in ("weight", "bias"):
            value = getattr(layer, name).detach().clone()
            if how == "parameter":
                self.register_parameter(name, nn.Parameter(value, getattr(layer, name).requires_grad))
            elif how == "buffer":
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x):
        weight = self.weight.detach() if self.detached else self.weight
        return F.linear(x, weight, self.bias)


def wrapped(name, how="parameter", *, detached=True, keep=False):
    """A pass that puts a wrapper in the place of the first layer."""

    def wrap(program):
        wrapper = Wrapper(program.get_submodule("first"), how, detached=detached)
        if name != "first" and not keep:
            program.delete_submodule("first")
        program.add_submodule(name, wrapper)
        for node in program.graph.nodes:
            if node.target == "first":
                node.target = name
        program.recompile()

    return wrap


def into_a_closure(program):
    layer = program.get_submodule("first")
    weight, bias = layer.weight.detach(), layer.bias.detach()
    for node in program.graph.nodes:
        if node.target == "first":
            node.op, node.target = "call_function", lambda x: F.linear(x, weight, bias)
    program.delete_submodule("first")
    program.recompile()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("keep", [False, True], ids=["removed", "left behind"])
@pytest.mark.parametrize("how", ["parameter", "buffer", "attribute"])
@pytest.mark.parametrize("name", ["first", "wrapper"])
def test_a_wrapper_with_weights_that_cannot_be_trained_breaks_the_law_under_any_name(name, how, keep, mode):
    assert "first.weight" in violation(model(mode), wrapped(name, how, keep=keep))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_function_that_brings_the_weights_along_breaks_the_law(mode):
    assert "first.weight' is a constant of the program" in violation(model(mode), into_a_closure)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("keep", [False, True], ids=["removed", "left behind"])
@pytest.mark.parametrize("name", ["first", "wrapper"])
def test_a_wrapper_with_weights_that_are_trained_keeps_the_law_under_any_name(name, keep, mode):
    assert violation(model(mode), wrapped(name, detached=False, keep=keep)) is None


def with_equal_layers(mode):
    layer = nn.Linear(4, 4)
    layers = {f"layer{number}": copy.deepcopy(layer) for number in range(3)} | {"first": layer}
    forward = lambda m, x: m.layer2(torch.tanh(m.layer1(torch.tanh(m.first(torch.tanh(m.layer0(x)))))))  # noqa: E731
    return subject(Calling(forward, **layers), mode)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_one_of_several_layers_with_equal_weights_is_distinguished_from_the_others(mode):
    assert violation(with_equal_layers(mode), wrapped("wrapper", detached=False)) is None
    assert "first.weight" in violation(with_equal_layers(mode), wrapped("wrapper"))


def unfrozen(program):
    program.first = copy.deepcopy(program.first).requires_grad_(True)


def as_parameters(program):
    norm = copy.deepcopy(program.norm)
    mean = norm.running_mean
    del norm.running_mean
    norm.running_mean = nn.Parameter(mean)
    program.norm = norm


def test_a_frozen_parameter_stays_frozen():
    message = violation(model(first=0), unfrozen)
    assert "the parameter 'first.weight', which is frozen in eager, can be trained in the program" in message
    assert "requires_grad of the old ones" in message
    assert violation(model(first=0, second=0), unfrozen) is not None  # nothing but inputs has gradients in eager
    assert violation(model(first=0), wrapped("wrapper", detached=False)) is None


def test_a_buffer_stays_one():
    norm = nn.BatchNorm1d(4)
    norm.running_mean.uniform_()
    judged = subject(Calling(lambda m, x: m.norm(x), norm=norm))
    assert "the buffer 'norm.running_mean' of eager can be trained" in violation(judged, as_parameters)


def alike(mode, tied=False):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.load_state_dict(first.state_dict())
    if tied:
        second.weight = first.weight
    forward = lambda m, x: m.second(torch.relu(m.first(x)))  # noqa: E731
    return subject(Calling(forward, first=first, second=second), mode)


def tie(program):
    program.get_submodule("second")._parameters["weight"] = program.get_submodule("first").weight


def tie_memory(program):
    program.second = copy.deepcopy(program.second)
    program.second.weight.data = program.first.weight.data


def untie(program):
    second = program.second
    program.second = nn.Linear(4, 4)
    program.second.load_state_dict(second.state_dict())


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("pass_", [tie, tie_memory])
def test_two_parameters_stay_two(pass_, mode):
    assert PassRun(alike(mode), pass_).changed
    assert "'first.weight' and 'second.weight' are one in the program" in violation(alike(mode), pass_)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_tied_parameter_stays_one(mode):
    assert "'first.weight', which eager uses under several names, is 2" in violation(alike(mode, tied=True), untie)
    assert violation(alike(mode, tied=True), copy.deepcopy) is None


@pytest.mark.parametrize("frozen", [False, True])
def test_folding_in_evaluation_mode_keeps_the_law(frozen):
    conv, norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    norm.running_mean.uniform_()
    module = Calling(lambda m, x: m.norm(m.conv(x)), conv=conv, norm=norm).requires_grad_(not frozen)
    assert violation(subject(module, shape=(2, 3, 8, 8)), FuseConvBN()) is None


class Renamed(nn.Module):
    """The model under other names, as somebody else wrote it."""

    def __init__(self, module, *, detached):
        super().__init__()
        self.inner, self.second = Wrapper(module.first, "parameter", detached=detached), module.second

    def forward(self, x):
        return self.second(torch.relu(self.inner(x)))


@pytest.mark.parametrize("detached", [False, True])
def test_parameters_of_a_program_made_elsewhere_are_known_by_their_values(detached):
    judged = model()
    pass_run = PassRun.given(judged, Renamed(judged.fresh(), detached=detached))
    violations = broken_laws([law_called("gradients")], pass_run)
    assert [violation.law for violation in violations] == ["gradients"] * detached


def normalized_zeros():
    torch.manual_seed(0)
    layers = {"layer": nn.Linear(4, 4, bias=False), "norm": nn.BatchNorm1d(4)}
    with torch.no_grad():
        layers["layer"].weight.zero_()
        for tensor in (layers["norm"].running_mean, layers["norm"].running_var):
            tensor.uniform_(0.1, 1.5)
    return subject(Calling(lambda m, x: m.norm(m.layer(x)), **layers))


def test_a_weight_of_zeros_may_be_folded_although_its_values_stay_zero():
    assert violation(normalized_zeros(), FuseConvBN()) is None


def test_a_weight_of_zeros_that_stays_the_same_parameter_keeps_its_gradient():
    def halve(graph_module):
        layer = graph_module.layer
        del graph_module.layer
        graph_module.layer = nn.utils.parametrize.register_parametrization(layer, "weight", Halved())
        graph_module.register_buffer("new", torch.tensor([0.25, 0.5]))
        graph_module.recompile()

    assert violation(normalized_zeros(), halve).startswith("law 'gradients': halve changes the gradient of")


class Halved(nn.Module):
    """A parametrization that halves a tensor."""

    def forward(self, tensor):
        return tensor / 2
