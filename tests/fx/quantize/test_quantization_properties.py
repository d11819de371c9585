"""Random programs and schemes: each operation on integers matches the reference form within one step."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from step_check import StepCheck
from torch import nn

import fx
import model_zoo
from fx.quantize import Choice, QuantizationScheme, convert, dequantize_channels, prepare, prepare_qat, reference

CHANNELS, SIZE = 4, 6

LAYERS = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "strided": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2, bias=False),
    "grouped": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, groups=2),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "norm": lambda: nn.BatchNorm2d(CHANNELS),
    "linear": lambda: nn.Linear(SIZE, SIZE),
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "softmax": lambda: nn.Softmax(1),
    "pool": lambda: nn.MaxPool2d(3, 1, 1),
    "mean": lambda: nn.AvgPool2d(3, 1, 1),
}
FUNCTIONS = {
    "add": operator.add,
    "mul": operator.mul,
    "add_relu": lambda x, y: F.relu(x + y),
    "cat": lambda x, y: torch.cat((x, y), 2)[:, :, :SIZE],
    "transpose": lambda x, y: x.transpose(2, 3),
    "reshape": lambda x, y: x.flatten(1).reshape(y.shape),
    "scale": lambda x, y: 0.5 * x - 1,
    "write": lambda x, y: x.mul_(0.5),
    "add in place": lambda x, y: x.clone().add_(y),
}


class Random(nn.Module):
    """Layers and functions of earlier values, each named with the numbers of its operands."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleDict({str(n): LAYERS[name]() for n, (name, _, _) in enumerate(steps) if name in LAYERS})

    def forward(self, x):
        values = [x]
        for number, (name, left, right) in enumerate(self.steps):
            operand, other = values[left % len(values)], values[right % len(values)]
            if name in FUNCTIONS:
                values.append(FUNCTIONS[name](operand * 1 if name == "write" else operand, other))
            else:
                values.append(self.layers[str(number)](operand))
        return values[-1], values[len(values) // 2]


steps = st.lists(
    st.tuples(st.sampled_from([*LAYERS, *FUNCTIONS]), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=9
)
choices = st.builds(
    Choice,
    symmetric=st.booleans(),
    observer=st.sampled_from(["min-max", "histogram", "percentile", "moving-average"]),
    activation_bits=st.sampled_from([8, 8, 6]),
    weight_bits=st.sampled_from([8, 7, 5]),
    per_channel=st.booleans(),
)
schemes = st.builds(
    lambda choice, skipped: (
        QuantizationScheme(choice) if skipped is None else QuantizationScheme(choice).skip(**skipped)
    ),
    choices,
    st.sampled_from([None, None, {"operator": "linear"}, {"operator": "add"}, {"module": "layers.1"}, {"node": "*2"}]),
)


MANY = settings().max_examples > 100  # Hypothesis's own default
"""Whether ``make properties`` asks for many programs."""
MIN_MAX = QuantizationScheme(Choice(observer="min-max"))


@settings(max_examples=60 if MANY else 25, deadline=None)
@given(steps, schemes, st.integers(0, 1000))
def test_random_programs_on_integers_are_their_reference_form(steps, scheme, seed):
    torch.manual_seed(seed)
    model = Random(steps)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_var.uniform_(0.5, 2)
            norm.running_mean.normal_()
    model.eval()
    data = torch.randn(3, CHANNELS, SIZE, SIZE)
    with torch.no_grad():
        expected = model(data.clone())
        prepared = prepare(fx.symbolic_trace(model), scheme)
        assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(prepared(data.clone()), expected, strict=True))
        program, meaning = convert(prepared), reference(prepared)
        program.graph.lint()
        meaning.graph.lint()
        check = StepCheck(program)
        output = check.run(data.clone())
        intended = meaning(data.clone())
        assert max(check.steps.values(), default=0) <= 1
        assert all(torch.equal(*pair) for pair in zip(pickle.loads(pickle.dumps(program))(data), output, strict=True))
    # a value half-way between two integers may be rounded either way, and later values differ as much
    for first, other in zip(output, intended, strict=True):
        difference = (first - other).abs()
        assert (difference > 1e-3 * (1 + other.abs())).float().mean() < 0.1
    layers = [name for name in program.state_dict() if name.endswith("weight_scale")]
    assert len(layers) == len(meaning.graph.find_nodes(op="call_function", target=dequantize_channels))


@settings(max_examples=30 if MANY else 12, deadline=None)
@given(steps, schemes, st.integers(0, 1000))
@example([("conv", 0, 0), ("conv", 1, 0), ("relu", 1, 0), ("relu6", 3, 0), ("norm", 0, 0)], MIN_MAX, 0)
@example([("conv", 0, 0), ("conv", 1, 0), ("norm", 1, 0), ("conv", 0, 0), ("conv", 0, 0)], MIN_MAX, 0)
@example([("conv", 0, 0), ("norm", 1, 0), ("norm", 0, 0), ("conv", 0, 0), ("relu", 1, 0)], MIN_MAX, 0)
def test_random_programs_in_training_match_their_converted_form(steps, scheme, seed):
    torch.manual_seed(seed)
    model = Random(steps)
    program = prepare_qat(fx.symbolic_trace(model), scheme).train()
    data = torch.randn(3, CHANNELS, SIZE, SIZE)

    def loss_of(one):
        return sum(value.square().mean() for value in (*one(data.clone()), torch.zeros(1, requires_grad=True)))

    try:
        loss_of(model).backward()
    except RuntimeError:
        reject()  # it writes to tensors that its gradients need
    loss_of(program).backward()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True), *program.parameters()], 1e-4)
    optimizer.step()
    program(data.clone())
    program.graph.lint()
    with torch.no_grad():
        expected, intended = program.eval()(data.clone()), reference(program)(data.clone())
    for first, other in zip(intended, expected, strict=True):
        difference = (first - other).abs()
        assert (difference > 1e-3 * (1 + other.abs())).float().mean() < 0.1


SMALL = "unet transformer_encoder learning_to_paint_actor bert gpt2 vit".split()


@pytest.mark.parametrize("name", ["resnet_tiny", *(f"{name}_small" for name in SMALL)])
def test_models_on_integers_are_their_reference_form(name):
    model = model_zoo.get_model(name)
    prepared = prepare(fx.symbolic_trace(model.build()), example_inputs=model.example_inputs(2))
    with torch.no_grad():
        prepared(*model.example_inputs(2, seed=3))
        program, meaning = convert(prepared), reference(prepared)
        check = StepCheck(program)
        output, intended = check.run(*model.example_inputs(2)), meaning(*copy.deepcopy(model.example_inputs(2)))
    assert max(check.steps.values()) <= 1 and max(check.off.values()) < 1e-3
    for first, other in zip(*map(torch.utils._pytree.tree_leaves, (output, intended)), strict=True):
        assert (first - other).square().sum() < 1e-3 * other.square().sum()
