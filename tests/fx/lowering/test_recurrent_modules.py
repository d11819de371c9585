"""Recurrent modules of torch, which each engine takes whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from selection import thorough_except
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import fx
from fx.lowering import get_backend
from fx.lowering.tensorrt import TensorRT
from model_zoo import get_model

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
fx.wrap("pack_padded_sequence")

BACKENDS = ["openvino", "onnxruntime", "tensorrt"]


class Sequences(nn.Module):
    """A recurrent module between other layers, all of whose results are returned."""

    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.recurrent = nn.Linear(5, 8), kind(8, 6, **settings)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        output, state = self.recurrent(torch.relu(torch.tanh(self.before(x))))
        states = (state[0], state[1]) if isinstance(self.recurrent, nn.LSTM) else (state,)
        return torch.relu(output * 2), *states


class GivenStates(Sequences):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x = torch.relu(torch.tanh(self.before(x)))
        first = x[:1, :, :6] * 2
        return self.recurrent(x, (first, first + 1) if isinstance(self.recurrent, nn.LSTM) else first)[0] * 2


MODULES: dict[str, nn.Module] = {
    "LSTM": Sequences(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
    "GRU": Sequences(nn.GRU, num_layers=2),
    "LSTM without biases": Sequences(nn.LSTM, bias=False),
    "GRU in both directions": Sequences(nn.GRU, bias=False, bidirectional=True),
    "RNN": Sequences(nn.RNN, bidirectional=True),
    "RNN with relu": Sequences(nn.RNN, nonlinearity="relu"),
    "LSTM with projections": Sequences(nn.LSTM, proj_size=3, bidirectional=True),
    "LSTM with states": GivenStates(nn.LSTM),
    "GRU with states": GivenStates(nn.GRU),
}


def lowered_to(name: str, module: nn.Module, *inputs: Any, **options: Any) -> fx.GraphModule:
    backend = TensorRT(emulate=True, **options) if name == "tensorrt" else get_backend(name)
    if (why := backend.why_unavailable()) is not None:
        pytest.skip(f"{name}: {why}")
    with torch.no_grad():
        return fx.lower(fx.symbolic_trace(module.eval()), backend, inputs)


def assert_same(lowered: nn.Module, module: nn.Module, *inputs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", thorough_except(["LSTM", "GRU"], list(MODULES)))
def test_a_recurrent_module_is_in_one_engine(backend: str, name: str) -> None:
    if (backend, name) == ("onnxruntime", "LSTM with projections"):
        pytest.skip("torch.onnx writes a wrong model")
    x = torch.randn(7, 3, 5)
    lowered = lowered_to(backend, MODULES[name], x)
    coverage = lowered.meta["lowering"]
    assert (len(coverage.parts), coverage.refused, coverage.flop_share) == (1, (), 1.0), str(coverage)
    assert_same(lowered, MODULES[name], x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_sequence_without_a_batch_is_in_one_engine(backend: str) -> None:
    x = torch.randn(7, 5)
    lowered = lowered_to(backend, MODULES["GRU"], x)
    assert lowered.meta["lowering"].refused == ()
    assert_same(lowered, MODULES["GRU"], x)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_sequences_of_other_lengths_are_taken(backend: str) -> None:
    lowered = lowered_to(backend, MODULES["LSTM"], torch.randn(7, 3, 5))
    assert_same(lowered, MODULES["LSTM"], torch.randn(4, 9, 5))


def test_loops_of_tensorrt_go_over_sequences_of_other_lengths() -> None:
    lowered = lowered_to("tensorrt", MODULES["LSTM"], torch.randn(3, 7, 5), ranges={"x": {0: (1, 4), 1: (1, 9)}})
    for batch, length in ((3, 7), (1, 9), (4, 1)):
        assert_same(lowered, MODULES["LSTM"], torch.randn(batch, length, 5))


def test_the_network_of_openvino_grows_with_layers_and_not_with_the_length() -> None:
    counts: list[int] = []
    for length in (4, 40):
        region: Any = lowered_to("openvino", MODULES["RNN"], torch.randn(length, 3, 5)).get_submodule("openvino_0")
        (engine,) = region._engines.values()
        counts.append(len(engine._network.model.get_ops()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_classifier_of_sequences_is_in_one_engine(backend: str) -> None:
    model = get_model("lstm_classifier_small")
    module, inputs = model.build(), tuple(model.example_inputs(2, seed=0))
    lowered = lowered_to(backend, module, *inputs)
    assert [len(lowered.meta["lowering"].parts), lowered.meta["lowering"].flop_share] == [1, 1.0]
    assert_same(lowered, module, *inputs)


class Packed(Sequences):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        packed = pack_padded_sequence(torch.relu(torch.tanh(self.before(x)) * 2), lengths)
        return self.recurrent(packed)[0].data


@pytest.mark.filterwarnings("ignore::fx.errors.LoweringWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences_stay_in_python(backend: str) -> None:
    inputs = torch.randn(7, 3, 5), torch.tensor([7, 4, 2])
    module = Packed(nn.GRU)
    lowered = lowered_to(backend, module, *inputs)
    assert_same(lowered, module, *inputs)


def test_results_that_share_no_memory_may_all_be_returned() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, indices = torch.topk(torch.relu(x) * 2, 2)
        return values, indices, values + 1

    lowered = lowered_to("tensorrt", fx.symbolic_trace(function), torch.randn(3, 5))
    assert lowered.meta["lowering"].refused == ()


def test_views_of_the_same_memory_are_not_returned_by_an_engine() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, second = (torch.relu(x) * 2 + 1).split(2)
        return first, second

    lowered = lowered_to("tensorrt", fx.symbolic_trace(function), torch.randn(4, 5))
    assert "returns several views of this memory" in str(lowered.meta["lowering"])
