"""LSTM, GRU and RNN have weights in 8 bits, and equal their float results up to rounding."""

import copy
import pickle

import pytest
import torch
from building import Calling, decibels
from step_check import calibrated
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fx
from fx.errors import QuantizationError
from fx.operators.effects import declare_pure
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedRecurrent,
    convert,
    kernels_used,
    prepare,
    prepare_qat,
    recurrent,
    reference,
    report,
)

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def flat(value):
    parts = [value] if isinstance(value, torch.Tensor) else [flat(part) for part in value]
    return torch.cat([part.flatten() for part in parts])


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, state=None):
        output, last = self.layer(x, state)
        return output, last


KINDS = {
    "lstm": (nn.LSTM, {}),
    "lstm_projected": (nn.LSTM, {"proj_size": 8}),
    "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu"}),
}
SETTINGS = {
    "plain": {},
    "two_layers_both_ways": {"num_layers": 2, "bidirectional": True},
    "batch_first_without_bias": {"batch_first": True, "bias": False, "bidirectional": True},
}


def made(kind, **settings):
    torch.manual_seed(0)
    of, own = KINDS[kind]
    return of(16, 32, **own, **settings).eval()


def first_state(layer, shape):
    count = layer.num_layers * (1 + layer.bidirectional)
    hidden = torch.randn(count, *shape, layer.proj_size or 32)
    return (hidden, torch.randn(count, *shape, 32)) if isinstance(layer, nn.LSTM) else hidden


def converted(model, *inputs, precision="int8"):
    prepared = calibrated(model, *inputs, scheme=QuantizationScheme(Choice(precision=precision)))
    return convert(prepared), reference(prepared)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_recurrent_layers_compute_the_same_but_for_rounding(kind, settings):
    layer = made(kind, **SETTINGS[settings])
    model = Recurrent(layer)
    batch = 12 if layer.batch_first else 5
    state = first_state(layer, (batch,))
    sequences = torch.randn(12, 5, 16)
    one_state = [part[:, 0] for part in state] if isinstance(state, tuple) else state[:, 0]
    program, meaning = converted(model, sequences, state)
    summary = report(program)
    assert (summary.layers, summary.float_layers, summary.share_of_operations, summary.remainders) == (1, 0, 1.0, ())
    assert summary.bytes_in_8_bits == sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
    for inputs in ((sequences,), (sequences, state), (sequences[0],), (sequences[:, 0], one_state)):
        expected = model(*inputs)
        output = program(*inputs)
        assert kernels_used(program)
        assert [tensor.shape for tensor in (output[0], *output[1])] == [
            tensor.shape for tensor in (expected[0], *expected[1])
        ]
        assert decibels(flat(output), flat(expected)) > 33
        assert decibels(flat(meaning(*inputs)), flat(expected)) > 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@torch.no_grad()
def test_they_are_at_least_as_exact_as_those_of_torch_ao(kind):
    ao = pytest.importorskip("torch.ao.quantization")
    for number, sizes in enumerate([(64, 64), (32, 128)]):
        torch.manual_seed(number)
        layer = KINDS[kind][0](*sizes, num_layers=2).eval()
        data = torch.randn(20, 4, sizes[0])
        theirs = ao.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype=torch.qint8)
        program, _ = converted(Recurrent(layer), data)
        expected = layer(data)[0]
        assert decibels(program(data)[0], expected) > decibels(theirs(data)[0], expected)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "rnn_relu"])
@torch.no_grad()
def test_cells_are_sequences_of_one_element(kind):
    def unrolled(model, x):
        state = model.cell(x[0])
        for step in range(1, 3):
            state = model.cell(x[step], state)
        return model.head(state[0] if kind == "lstm" else state)

    torch.manual_seed(0)
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}.get(kind, nn.RNNCell)(16, 32, **KINDS[kind][1])
    model = Calling(unrolled, cell=cell, head=nn.Linear(32, 4)).eval()
    for inputs in (torch.randn(3, 5, 16), torch.randn(3, 16)):
        program, _ = converted(model, inputs)
        assert decibels(program(inputs), model(inputs)) > 28
        assert (report(program).layers, report(program).float_layers) == (4, 0)
        assert len([module for module in program.modules() if isinstance(module, QuantizedRecurrent)]) == 1


@fx.wrap
@declare_pure
def packed(sequences, lengths):
    return pack_padded_sequence(sequences, lengths, batch_first=True, enforce_sorted=False)


@fx.wrap
@declare_pure
def padded(sequences):
    return pad_packed_sequence(sequences, batch_first=True)[0]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_packed_sequences_are_taken(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = made(kind, bidirectional=True)
            self.head = nn.Linear(2 * (KINDS[kind][1].get("proj_size") or 32), 3)

        def forward(self, x, lengths):
            output, state = self.layer(packed(x, lengths))
            return self.head(padded(output)), state

    model, x, lengths = Model().eval(), torch.randn(3, 6, 16), torch.tensor([2, 6, 4])
    expected = flat(model(x, lengths))
    program, meaning = converted(model, x, lengths)
    assert decibels(flat(program(x, lengths)), expected) > 28 and decibels(flat(meaning(x, lengths)), expected) > 28
    assert report(program).layers == 2


class Tagger(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.layer = nn.LSTM(16, 32, num_layers=2, bidirectional=True, batch_first=True, dropout=dropout)
        self.head = nn.Linear(64, 5)

    def forward(self, words):
        return self.head(self.layer(self.words(words))[0])


WORDS = torch.randint(0, 50, (4, 7), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_converted_programs_are_copied_pickled_saved_and_printed(tmp_path):
    program, _ = converted(Tagger().eval(), WORDS)
    expected = program(WORDS)
    assert "self.layer(" in program.code and "QuantizedRecurrent(\n    LSTM, 16, 32, num_layers=2" in str(program)
    fx.save(program, tmp_path / "tagger.fx")
    for same in (
        copy.deepcopy(program), pickle.loads(pickle.dumps(program)), fx.load(tmp_path / "tagger.fx"),
        fx.symbolic_trace(program),
    ):  # fmt: skip
        assert torch.equal(same(WORDS), expected)
    other = converted(Tagger().eval(), WORDS)[0]
    for tensor in other.buffers():
        tensor.zero_()
    other.load_state_dict(program.state_dict())
    assert torch.equal(other(WORDS), expected)


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_tracing_exporting_and_compiling_record_the_program_on_float_values():
    program, meaning = converted(Tagger().eval(), WORDS)
    expected = meaning(WORDS)
    traced = torch.jit.trace(program, WORDS)(WORDS)
    exported = torch.export.export(program, (WORDS,)).module()(WORDS)
    compiled = torch.compile(program, backend="eager", fullgraph=True)(WORDS)
    for result in (traced, exported, compiled):
        assert decibels(result, expected) > 30


@pytest.mark.parametrize("precision", ["dynamic", "weight-only", "float", "bfloat16"])
@torch.no_grad()
def test_recurrent_layers_in_other_precisions(precision):
    model = Tagger().eval()
    program, _ = converted(model, WORDS, precision=precision)
    assert decibels(program(WORDS), model(WORDS)) > 28
    summary = report(program)
    in_float = [
        remainder
        for remainder in summary.remainders
        if remainder.bytes_of_state == sum(p.nbytes for p in model.layer.parameters())
    ]
    expected = {"float": "the scheme says so", "bfloat16": "only layers can be bfloat16"}.get(precision)
    assert [entry.reason for entry in in_float] == ([] if expected is None else [expected])
    if precision == "weight-only":
        assert summary.weights_alone == 2


def test_one_layer_can_be_left_in_float():
    summary = report(convert(calibrated(Tagger(), WORDS, scheme=QuantizationScheme().skip(module="layer"))))
    assert (summary.layers, summary.float_layers) == (2, 1)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_are_trained_with_dropout_and_rounding(kind, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = made(kind, num_layers=2, dropout=0.5)
            self.head = nn.Linear(32, 3)

        def forward(self, x, state):
            output, last = self.layer(x, state)
            return self.head(output), last

    model, x = Model(), torch.randn(6, 3, 16)
    state = first_state(model.layer, (3,))
    program = prepare_qat(fx.symbolic_trace(model)).train()
    assert not torch.equal(program(x, state)[0], program(x, state)[0])
    flat(program(x, state)).sum().backward()
    assert program.get_parameter("layer.weight_hh_l1").grad is not None
    program.eval()
    with torch.no_grad():
        weight = program.get_parameter("layer.weight_hh_l0")
        before = flat(program(x, state))
        weight[0, 0] += weight.abs().max() * 1e-4  # less than a step
        assert torch.equal(flat(program(x, state)), before)
        assert decibels(before, flat(model.eval()(x, state))) > 30
        quantized = convert(program)
        assert decibels(flat(quantized(x, state)), before) > 30
    assert report(quantized).layers == 3
    fx.save(quantized, tmp_path / "program.fx")
    assert torch.equal(flat(fx.load(tmp_path / "program.fx")(x, state)), flat(quantized(x, state)))


@torch.no_grad()
def test_values_that_are_not_finite_are_passed_on():
    layer = made("lstm")
    program, _ = converted(Recurrent(layer), torch.randn(4, 2, 16))
    x = torch.randn(4, 2, 16)
    x[1, 0, 0] = torch.nan
    output = program(x)[0]
    assert torch.equal(output.isnan(), layer(x)[0].isnan()) and not output[:, 1].isnan().any()


@torch.no_grad()
def test_weights_of_other_shapes_are_refused():
    program, _ = converted(Recurrent(made("gru")), torch.randn(4, 2, 16))
    program.layer.hidden_l0.fill(*[buffer[:5] for buffer in program.layer.hidden_l0.buffers()])
    program.layer._unpack()
    with pytest.raises(QuantizationError, match="holds tensors of other shapes or types"):
        program(torch.randn(4, 2, 16))


@torch.no_grad()
def test_inputs_and_states_of_other_sizes_are_refused_as_torch_does():
    program, _ = converted(Recurrent(made("gru")), torch.randn(4, 2, 16))
    for inputs in (
        (torch.randn(4, 2, 15),), (torch.randn(4, 2, 16), torch.zeros(1, 2, 31)),
        (torch.randn(4, 2, 16), torch.zeros(1, 3, 32)), (torch.randn(4, 2, 16), torch.zeros(2, 2, 32)),
        (torch.randn(4, 2, 16).double(),),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            program(*inputs)


def test_the_node_of_a_module_keeps_its_source_line_and_module_path():
    model = Tagger().eval()
    program = prepare(fx.symbolic_trace(model))
    node = next(node for node in program.graph.nodes if node.target is recurrent)
    assert (
        "self.layer(" in str(node.source) and [path for path, _ in node.meta["nn_module_stack"].values()][-1] == "layer"
    )
