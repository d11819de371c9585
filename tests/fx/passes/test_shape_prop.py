"""Shapes, dtypes and layouts of every value, found by running or on fake tensors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

import fx
import model_zoo
from fx.errors import PassError
from fx.passes.shape_prop import ShapeProp, TensorMetadata, extract_tensor_metadata

BOTH = pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)) * self.scale)


def metadata(program: fx.GraphModule, name: str) -> Any:
    return next(node for node in program.graph.nodes if node.name == name).meta["tensor_meta"]


@BOTH
def test_every_node_gets_shape_dtype_and_layout(fake: bool) -> None:
    program = fx.symbolic_trace(Net().eval())
    result = ShapeProp(program, fake=fake).propagate(torch.ones(2, 3, 8, 8))
    assert isinstance(result, FakeTensor) is fake
    shapes = {node.name: (tuple(node.meta["tensor_meta"].shape), node.meta["type"]) for node in program.graph.nodes}
    assert shapes == {
        "x": ((2, 3, 8, 8), Tensor),
        "conv": ((2, 4, 6, 6), Tensor),
        "norm": ((2, 4, 6, 6), Tensor),
        "scale": ((4, 1, 1), nn.Parameter),
        "mul": ((2, 4, 6, 6), Tensor),
        "relu": ((2, 4, 6, 6), Tensor),
        "output": ((2, 4, 6, 6), Tensor),
    }
    conv = metadata(program, "conv")
    assert conv == TensorMetadata(
        torch.Size((2, 4, 6, 6)), torch.float32, True, (144, 36, 6, 1), torch.contiguous_format, False, {}
    )


def test_layout_of_transposed_channels_last_and_strided_values_is_distinguished() -> None:
    images = torch.ones(2, 3, 4, 5)
    assert extract_tensor_metadata(images).memory_format is torch.contiguous_format
    assert extract_tensor_metadata(images.to(memory_format=torch.channels_last)).memory_format is torch.channels_last
    volumes = torch.ones(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    assert extract_tensor_metadata(volumes).memory_format is torch.channels_last_3d
    transposed = extract_tensor_metadata(torch.ones(2, 3).t())
    assert (transposed.stride, transposed.memory_format) == ((1, 3), None)
    assert extract_tensor_metadata(images, include_contiguity=False).memory_format is None
    assert extract_tensor_metadata(torch.eye(3).to_sparse()).stride == ()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
def test_quantized_tensors_are_noted_with_their_parameters() -> None:
    whole = extract_tensor_metadata(torch.quantize_per_tensor(torch.ones(2), 0.5, 3, torch.qint8))
    assert (whole.is_quantized, whole.dtype) == (True, torch.qint8)
    assert whole.qparams == {"qscheme": torch.per_tensor_affine, "scale": 0.5, "zero_point": 3}
    channels = torch.quantize_per_channel(
        torch.ones(2, 2), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8
    )
    assert extract_tensor_metadata(channels).qparams == {
        "qscheme": torch.per_channel_affine,
        "scale": [0.5, 0.25],
        "zero_point": [0, 1],
        "axis": 0,
    }


@BOTH
def test_nested_values_are_noted_in_their_containers(fake: bool) -> None:
    def several(x: Tensor) -> dict[str, Any]:
        parts = torch.split(x, 2)
        best = torch.max(x, 0)
        return {"parts": [parts[0], parts[1]], "best": best[0], "count": x.size(0)}

    program = fx.symbolic_trace(several)
    ShapeProp(program, fake=fake).propagate(torch.ones(4, 3))
    split = next(node for node in program.graph.nodes if node.target is torch.split)
    assert [tuple(part.shape) for part in split.meta["tensor_meta"]] == [(2, 3), (2, 3)]
    assert split.meta["type"] in (tuple, list)
    maximum = next(node for node in program.graph.nodes if node.target is torch.max)
    assert [part.dtype for part in maximum.meta["tensor_meta"]] == [torch.float32, torch.int64]
    size = next(node for node in program.graph.nodes if node.target == "size")
    assert "tensor_meta" not in size.meta
    assert size.meta["type"] is int
    noted = program.graph.output_node().meta["tensor_meta"]
    assert tuple(noted["parts"][1].shape) == (2, 3)
    assert noted["count"] == 4


def test_an_old_note_is_removed_if_the_value_is_no_longer_a_tensor() -> None:
    program = fx.symbolic_trace(lambda x: x)
    analysis = ShapeProp(program)
    analysis.propagate(torch.ones(1))
    analysis.propagate(3)
    assert "tensor_meta" not in program.graph.output_node().meta


def test_fake_run_leaves_state_generator_and_program_as_they_are(
    untouched: Callable[[nn.Module], nn.Module],
) -> None:
    model = untouched(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train())
    program = fx.symbolic_trace(model)
    revision, generator = program.graph.revision, torch.get_rng_state()
    ShapeProp(program, fake=True).propagate(torch.randn(3, 4, generator=torch.Generator()))
    assert program.graph.revision == revision
    assert torch.equal(torch.get_rng_state(), generator)
    assert model[1].num_batches_tracked == 0
    assert not [name for name, tensor in program.state_dict().items() if isinstance(tensor, FakeTensor)]
    assert not any(isinstance(value, FakeTensor) for node in program.graph.nodes for value in node.meta.values())


def test_real_run_moves_the_statistics_as_the_program_does() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4)).train()
    ShapeProp(fx.symbolic_trace(model)).propagate(torch.randn(3, 4))
    assert model[0].num_batches_tracked == 1


def test_fake_run_computes_nothing_however_large_the_values() -> None:
    program = fx.symbolic_trace(lambda x: torch.nn.functional.pad(x.expand(10**6, 10**6), (1, 1)))
    ShapeProp(program, fake=True).propagate(torch.ones(1))
    assert tuple(metadata(program, "pad").shape) == (10**6, 10**6 + 2)


def test_fake_run_keeps_tied_parameters_shared_modules_and_plain_tensors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.mask = torch.ones(4)  # no buffer

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.a(x))) * self.mask + self.a.weight.sum()

    program = fx.symbolic_trace(Tied())
    ShapeProp(program, fake=True).propagate(torch.ones(2, 4))
    assert tuple(program.graph.output_node().meta["tensor_meta"].shape) == (2, 4)


def test_inputs_and_defaults_that_are_fake_or_nested_are_taken() -> None:
    program = fx.symbolic_trace(Net().eval())
    mode = FakeTensorMode()
    with mode:
        images = torch.ones(1, 3, 8, 8)
    assert isinstance(ShapeProp(program).propagate(images), FakeTensor)
    assert tuple(metadata(program, "relu").shape) == (1, 4, 6, 6)
    assert isinstance(ShapeProp(program, mode).propagate(torch.ones(5, 3, 8, 8)), FakeTensor)
    assert tuple(metadata(program, "relu").shape) == (5, 4, 6, 6)

    program = fx.symbolic_trace(lambda pair: pair[0] @ pair[1])
    assert isinstance(ShapeProp(program, fake=True).propagate((torch.ones(2, 4), torch.ones(4, 3))), FakeTensor)
    assert tuple(program.graph.output_node().meta["tensor_meta"].shape) == (2, 3)


def test_a_default_that_is_a_tensor_becomes_a_fake_one() -> None:
    graph = fx.Graph()
    x, bias = graph.placeholder("x"), graph.placeholder("bias", default_value=torch.ones(3))
    graph.output(graph.call_function(torch.add, (x, bias)))
    program = fx.GraphModule(nn.Module(), graph)
    assert isinstance(ShapeProp(program, FakeTensorMode()).propagate(torch.ones(2, 3)), FakeTensor)
    assert metadata(program, "bias").shape == (3,)


def test_programs_called_by_programs_are_run_on_fake_tensors_too() -> None:
    inner = fx.symbolic_trace(nn.Linear(3, 5))
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    program = fx.GraphModule({"inner": inner}, graph)
    ShapeProp(program, fake=True).propagate(torch.ones(2, 3))
    assert tuple(metadata(program, "inner").shape) == (2, 5)


@BOTH
def test_a_wrong_input_is_reported_with_the_node_and_the_users_line(fake: bool) -> None:
    program = fx.symbolic_trace(Net().eval())
    with pytest.raises(RuntimeError) as caught:
        ShapeProp(program, fake=fake).propagate(torch.ones(2, 5, 8, 8))
    notes = "\n".join(caught.value.__notes__)
    assert "While executing %conv : [num_users=1] = call_module[target=conv]" in notes
    assert "test_shape_prop.py" in notes and "in forward" in notes


def test_a_course_that_depends_on_elements_is_reported_with_its_line() -> None:
    program = fx.symbolic_trace(lambda x: torch.nonzero(x))
    with pytest.raises(Exception, match=r"aten\.nonzero") as caught:
        ShapeProp(program, fake=True).propagate(torch.ones(3))
    assert "%nonzero" in "\n".join(caught.value.__notes__)


def test_a_wrong_number_of_inputs_shows_the_signature() -> None:
    def two(x: Tensor, y: Tensor, alpha: float = 0.5) -> Tensor:
        return x + y * alpha

    program = fx.symbolic_trace(two)
    with pytest.raises(PassError) as caught:
        ShapeProp(program).propagate(torch.ones(1))
    assert str(caught.value) == (
        "ShapeProp was given 1 input, but the program takes 2 to 3\n"
        "  value  forward(x, y, alpha=0.5)\n"
        "  try    call propagate with one value for each parameter, in their order"
    )
    with pytest.raises(PassError, match="was given 4 inputs, but the program takes 2 to 3"):
        ShapeProp(program).propagate(1, 2, 3, 4)
    assert ShapeProp(program).propagate(1, 2) == 2.0


def test_starred_inputs_may_be_any_number() -> None:
    def total(first: Tensor, *others: Tensor) -> Tensor:
        return first + others[0]

    program = fx.symbolic_trace(total)
    ShapeProp(program).propagate(torch.ones(1), torch.ones(2), torch.ones(3))
    with pytest.raises(PassError, match="was given 0 inputs, but the program takes at least 1"):
        ShapeProp(program).propagate()


def test_inputs_flattened_at_capture_are_given_as_they_were() -> None:
    program = fx.symbolic_trace(lambda pair: pair[0] + pair[1], concrete_args={"pair": (fx.PH, fx.PH)})
    ShapeProp(program, fake=True).propagate((torch.ones(2), torch.ones(2)))
    (noted,) = program.graph.output_node().meta["tensor_meta"]  # as flattened
    assert tuple(noted.shape) == (2,)


def test_notes_are_pickled_with_the_program() -> None:
    program = fx.symbolic_trace(Net().eval())
    ShapeProp(program).propagate(torch.ones(1, 3, 8, 8))
    other = pickle.loads(pickle.dumps(program))
    assert metadata(other, "relu") == metadata(program, "relu")


@pytest.mark.parametrize("name", ["resnet_tiny", "two_heads", "unet_small", "dlrm_small", "lstm_classifier_small"])
def test_fake_and_real_runs_find_the_same(name: str) -> None:
    model = model_zoo.get_model(name)
    inputs = model.example_inputs(batch=2)
    programs = [fx.symbolic_trace(model.build()) for _ in range(2)]
    for program, fake in zip(programs, (False, True), strict=True):
        ShapeProp(program, fake=fake).propagate(*inputs)
    notes = [[(node.meta["type"], node.meta.get("tensor_meta")) for node in p.graph.nodes] for p in programs]
    assert notes[0] == notes[1]
