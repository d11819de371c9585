import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn

import fx
from fx.errors import PassError
from fx.passes import PassPipeline, approximate, contract_of, get_pass
from fx.quantize import Quantize, QuantizedLayer
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import with_data
from pytest_fx.harness.subject import CALLS_OF_DATA, FIRST_OF_DATA, Subject


def program():
    torch.manual_seed(0)
    return fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 8)).eval())


def test_programs_in_training_mode_stay_as_they_are():
    training = program().train()
    assert Quantize().with_data(data())(training) is training


def data(calls=8):
    return [((torch.randn(16, 8, generator=torch.Generator().manual_seed(call)),), {}) for call in range(calls)]


def test_the_pass_prepares_calibrates_and_converts():
    captured = program()
    code = captured.code
    quantized = get_pass("quantize{weight-bits=7,observer=min-max}").with_data(data())(captured)
    assert sum(isinstance(module, QuantizedLayer) for module in quantized.modules()) == 2
    assert (
        max(int(module.weight.abs().max()) for module in quantized.modules() if isinstance(module, QuantizedLayer))
        == 63
    )
    assert captured.code == code


def test_the_pass_runs_on_keyword_arguments_too():
    quantized = Quantize().with_data([((), {"input": sample}) for (sample,), _ in data()])(program())
    assert quantized(torch.ones(1, 8)).shape == (1, 8)


def test_the_pass_runs_programs_whose_arguments_can_be_given_by_name_only():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, *, scale):
            return self.linear(x) * scale

    program = fx.symbolic_trace(Scaled().eval())
    quantized = Quantize().with_data([((sample,), {"scale": 2 * sample}) for (sample,), _ in data()])(program)
    assert any(isinstance(module, QuantizedLayer) for module in quantized.modules())


def test_float_operations_read_unrounded_values():
    model = Calling(lambda m, x: (m.linear(x), x.t(), torch.sin(x)), linear=nn.Linear(8, 8))
    program = fx.symbolic_trace(model.eval())
    quantized = Quantize().with_data(data())(program)
    x = torch.randn(4, 8)
    exact, transposed, sine = quantized(x)
    assert not torch.equal(exact, program(x)[0])
    assert transposed.data_ptr() == x.data_ptr()
    assert torch.equal(sine, torch.sin(x))


def test_without_data_the_error_of_the_pass_names_a_remedy():
    with pytest.raises(PassError, match=r"needs data to find the ranges(.|\n)*with_data"):
        Quantize()(program())


def test_the_pass_promises_decibels():
    assert str(contract_of(Quantize())) == "approximate(sqnr_db=10)"


def test_pipelines_take_it():
    pipeline = PassPipeline(["fuse-conv-bn", Quantize().with_data(data())])
    assert any(isinstance(module, QuantizedLayer) for module in pipeline(program()).modules())


def test_the_plugin_calibrates_on_inputs_that_it_compares_no_outputs_for():
    recorded: list[int] = []

    def inputs(draw):
        recorded.append(draw)
        return Arguments((torch.zeros(1, 8),))

    subject = Subject("model", torch.nn.Linear(8, 8), inputs)
    assert subject.dtype is torch.float32
    recorded.clear()
    pipeline = with_data(PassPipeline("fuse-conv-bn,quantize"), lambda: subject.data(torch.float64))
    assert len(pipeline.passes[1].data) == CALLS_OF_DATA
    assert pipeline.passes[1].data[0][0][0].dtype is torch.float64
    assert min(recorded) == FIRST_OF_DATA
    assert with_data("a pass without", list) == "a pass without"


def test_layers_that_cost_more_than_is_promised_stay_in_floating_point():
    precise, coarse = Quantize(sqnr_db=60).with_data(data()), Quantize().with_data(data())
    assert contract_of(precise) == approximate(sqnr_db=60)
    kinds = [
        [isinstance(module, QuantizedLayer) for module in quantize(program()).modules()]
        for quantize in (precise, coarse)
    ]
    assert [sum(kind) for kind in kinds] == [0, 2]


def test_calibration_leaves_no_trace_in_buffers_that_the_program_writes_to():
    model = Calling(lambda m, x: m.fc(x) + m.calls.add_(x.mean() + 1), fc=nn.Linear(8, 8)).eval()
    model.register_buffer("calls", torch.zeros(()))
    quantized = Quantize().with_data(data())(fx.symbolic_trace(model))
    assert model.calls == 0
    quantized(torch.zeros(1, 8))
    assert model.calls == 1


@pytest.mark.parametrize("as_module", [True, False])
def test_calibration_leaves_no_trace_in_weights_that_lookups_renormalize(as_module):
    def look(model, indices):
        return model.fc(model.table(indices) if as_module else F.embedding(indices, model.table.weight, None, 0.5))

    model, indices = Calling(look, table=nn.Embedding(4, 8, max_norm=0.5), fc=nn.Linear(8, 8)).eval(), torch.arange(4)
    before = model.table.weight.detach().clone()
    quantized = Quantize().with_data([((indices,), {})])(fx.symbolic_trace(model))
    assert torch.equal(model.table.weight, before)
    quantized(indices)
    assert not torch.equal(model.table.weight, before)


def test_calibration_leaves_buffers_the_shape_that_they_had():
    model = Calling(lambda m, x: m.fc(x) + m.row.mul_(x.mean()).unsqueeze_(0), fc=nn.Linear(8, 8)).eval()
    model.register_buffer("row", torch.ones(8))
    Quantize().with_data(data())(fx.symbolic_trace(model))
    assert torch.equal(model.row, torch.ones(8))


def test_data_that_the_program_writes_to_stays_as_it_is():
    program = fx.symbolic_trace(Calling(lambda m, x: m.linear(x.exp_()), linear=nn.Linear(8, 8)).eval())
    samples = data(2)
    Quantize().with_data(samples)(program)
    assert all(
        torch.equal(*pair)
        for pair in zip(*([sample for (sample,), _ in each] for each in (samples, data(2))), strict=True)
    )


def test_a_program_that_raises_on_quantized_values_is_refused():
    def compute(model, x):
        y = model.one(x)
        torch._assert(y.unique().numel() > 256, "more values than 8 bits have")
        return model.two(y)

    calls = [((torch.randn(64, 8, generator=torch.Generator().manual_seed(0)),), {})]
    program = fx.symbolic_trace(Calling(compute, one=nn.Linear(8, 8), two=nn.Linear(8, 8)).eval())
    with pytest.raises(PassError, match=r"the quantized program does not run on the data(.|\n)*more values than 8"):
        Quantize().with_data(calls)(program)
    with pytest.raises(
        PassError, match=r"the program does not run on the data(.|\n)*mat1 and mat2(.|\n)*model\.one\(x\)"
    ):
        Quantize().with_data([((torch.ones(1, 3),), {})])(program)
