"""A captured program as the text of a random one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.generation.transcription import MOST_ELEMENTS, transcribed, written_program


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("offset", torch.arange(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x, scale=2.0):
        x = F.adaptive_avg_pool2d(self.body(x), 1).flatten(1)
        x = F.linear(x, self.weight) * scale + self.offset
        return (self.head(x[:, 0:8]),)


def test_the_text_computes_what_the_program_does_with_the_same_state():
    model = Network().eval()
    captured = fx.symbolic_trace(model)
    program = transcribed(captured)
    assert program is not None
    theirs = program.build()
    renamed = {}
    for name, value in model.state_dict().items():
        layer, _, leaf = name.rpartition(".")
        renamed[f"{layer.replace('.', '_')}.{leaf}" if layer else leaf] = value
    assert theirs.load_state_dict(renamed)
    x = program.inputs.args[0]
    assert torch.equal(theirs(x)[0], model(x)[0])
    assert [node.op for node in fx.symbolic_trace(theirs).graph.nodes] == [node.op for node in captured.graph.nodes]


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Embedding(5, 3), (2, 3)),
        (nn.LayerNorm([6, 5]), (2, 6, 5)),
        (nn.Conv1d(4, 2, 3), (2, 4, 8)),
        (nn.BatchNorm3d(3), (2, 3, 8, 8, 8)),
        (nn.GroupNorm(2, 6), (2, 6, 8, 8)),
    ],
)
def test_inputs_are_those_that_the_first_layer_takes(layer, shape):
    program = transcribed(fx.symbolic_trace(nn.Sequential(nn.Identity(), layer)))
    assert program is not None and program.inputs.args[0].shape == shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 3)])
def test_layers_and_inputs_keep_their_dtype(layer, dtype):
    captured = fx.symbolic_trace(nn.Sequential(copy.deepcopy(layer).to(dtype), nn.ReLU()))
    x = torch.ones(2, 4, 8, dtype=dtype) if isinstance(layer, nn.Conv1d) else torch.ones(2, 4, dtype=dtype)
    for inputs in (None, (x,)):
        program = transcribed(captured, inputs)
        assert program is not None
        assert program.build()(*program.inputs.args).dtype is dtype


def test_given_inputs_are_taken_with_their_shapes_and_dtypes():
    def forward(x, y):
        return x[y]

    program = transcribed(fx.symbolic_trace(forward), (torch.ones(7, 2), torch.tensor([1, 4])))
    assert program is not None
    x, y = program.inputs.args
    assert (x.shape, y.dtype, y.shape) == ((7, 2), torch.int64, (2,))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3),
        torch.full((3,), 2.5),
        torch.ones(4, 4, dtype=torch.bool).tril(),
        torch.ones(2, 3, 5).triu(-1),
        torch.full((1, 1, 4, 4), float("-inf")).triu(1),
        torch.tensor([[3, -1], [7, 0]]),
        torch.tensor([True, False, False]),
        torch.tensor(3),
        torch.arange(100).reshape(4, 25),
        torch.tensor(float("-inf")),
    ],
)
def test_masks_indices_and_constants_are_written_as_they_are(tensor):
    recipe = TensorRecipe.like(tensor)
    written = eval(recipe.text, {"torch": torch})
    assert written.dtype is tensor.dtype and torch.equal(written, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(50) + 3,
        -torch.rand(4, 30),
        torch.randn(60) * 100,
        torch.rand(20, dtype=torch.float64),
        torch.tensor([0.5, float("inf"), 0.1, float("nan")]),
        torch.randint(0, 30, (100,)),
        torch.randn(40),
    ],
)
def test_other_values_are_of_the_same_shape_sign_and_range(tensor):
    written = eval(TensorRecipe.like(tensor).text, {"torch": torch})
    finite = tensor[tensor.isfinite()]
    assert (written.shape, written.dtype) == (tensor.shape, tensor.dtype)
    assert finite.min() <= 0 <= finite.max() or bool((written.sign() == finite[0].sign()).all())
    assert written.max() <= max(1, finite.max() * 1.01) and written.abs().max() >= min(0.9, finite.abs().max() * 0.9)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.norm = nn.LayerNorm(4)
        self.norm.bias.requires_grad_(False)
        self.again = self.norm

    def forward(self, x):
        return self.head(self.again(self.norm(self.words(x) * self.scale)))


def test_tied_frozen_and_shared_parameters_stay_so():
    program = transcribed(fx.symbolic_trace(Tied()), (torch.tensor([[0, 4, 2]]),))
    assert program is not None
    module = program.build()
    assert module.head.weight is module.words.weight
    assert not module.scale.requires_grad and module.words.weight.requires_grad
    assert module.norm.weight.requires_grad and not module.norm.bias.requires_grad
    assert program.inputs.args[0].tolist() == [[0, 4, 2]]
    names = {name for name, _ in fx.symbolic_trace(module).named_modules(remove_duplicate=False)}
    assert {"norm", "words", "head"} <= names


def test_a_program_is_written_at_other_sizes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.widen = nn.Linear(32, 128)
            self.weight = nn.Parameter(torch.ones(128, 32))

        def forward(self, x):
            return (self.widen(x) @ self.weight).view(-1, 4, 8, 32)

    program = fx.symbolic_trace(Model())
    text = written_program(program, (TensorRecipe((64, 32), elements="waves"),), {32: 8, 128: 20})
    assert "nn.Linear(in_features=8, out_features=20, bias=True)" in text
    assert ".reshape(20, 8)" in text and ".view(-1, 4, 8, 8)" in text and ".reshape(64, 8)" in text


class Own(nn.Module):
    def forward(self, x):
        return x


def test_programs_without_a_text_are_left_alone():
    own = fx.Graph()
    own.output(own.call_module("own", (own.placeholder("x"),)))
    assert transcribed(fx.GraphModule({"own": Own()}, own)) is None
    assert transcribed(fx.symbolic_trace(nn.Linear(MOST_ELEMENTS, 1))) is None
    assert transcribed(fx.symbolic_trace(lambda *parts: parts[0])) is None
    assert transcribed(fx.symbolic_trace(lambda x: x.view(1, 2, 3, 4, 5, 6, 7))) is None
    assert transcribed(fx.symbolic_trace(nn.Linear(4, 4)), (torch.ones(3),)) is None
