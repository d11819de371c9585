"""Programs as TorchScript: edited programs are compiled again, and others are refused with a sentence."""

import copy

import pytest
import torch
from torch import nn

import fx
from fx import quantize
from fx.errors import CodegenError, QuantizationError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
X = torch.linspace(-2, 2, 12).reshape(2, 6)


def relu_becomes_sigmoid(program):
    for node in program.graph.find_nodes(op="call_module"):
        if isinstance(program.get_submodule(node.target), nn.ReLU):
            node.op, node.target = "call_function", torch.sigmoid
    program.recompile()
    return program


def test_an_edited_program_is_scripted_again():
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU()))
    before = torch.jit.script(program)
    expected = program(X)
    relu_becomes_sigmoid(program)
    assert torch.equal(torch.jit.script(program)(X), program(X))
    assert not torch.equal(program(X), expected)
    assert torch.equal(before(X), expected)


def test_an_edited_part_of_a_program_is_scripted_again():
    inner = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU()))
    outer = nn.Sequential(inner, nn.Tanh())
    torch.jit.script(outer)
    relu_becomes_sigmoid(inner)
    assert torch.equal(torch.jit.script(outer)(X), outer(X))


def test_a_program_that_was_scripted_is_saved_and_written_as_before(tmp_path):
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU()))
    torch.jit.script(program)
    fx.save(program, tmp_path / "scripted.fx")
    assert torch.equal(fx.load(tmp_path / "scripted.fx")(X), program(X))
    program.to_folder(tmp_path / "scripted", "Scripted")
    assert sorted(file.name for file in (tmp_path / "scripted").iterdir()) == [
        "__init__.py", "module.py", "state_dict.pt"
    ]  # fmt: skip


def checked(x):
    if x.dim() != 2:
        raise ValueError(f"expected two dimensions, got {x.dim()}")
    return x + 1


def optional(x, mask=None):
    return x if mask is None else x * mask


@pytest.mark.parametrize(
    "program",
    [lambda: fx.symbolic_trace(checked), lambda: fx.symbolic_trace(optional, concrete_args={"mask": None})],
    ids=["message", "none"],
)
def test_a_check_that_formats_its_message_is_refused_and_can_be_removed(program):
    program = program()
    with pytest.raises(
        CodegenError, match=r"TorchScript cannot compile this program: `.+` calls fx.assertions"
    ) as caught:
        torch.jit.script(program)
    assert "the pass remove-checks takes the checks out" in str(caught.value)
    assert torch.equal(torch.jit.script(fx.passes.RemoveChecks()(program))(X), program(X))


@pytest.mark.parametrize("step", ["prepared", "reference", "quantized"])
def test_programs_of_quantization_are_refused(step):
    program = quantize.prepare(
        fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU())), quantize.QuantizationScheme()
    )
    program(X)
    if step != "prepared":
        program = (quantize.reference if step == "reference" else quantize.convert)(program)
    with pytest.raises(CodegenError, match=r"calls fx.quantize.*\n(.|\n)*script the program before it is quantized"):
        torch.jit.script(nn.Sequential(program, nn.Tanh()))


@pytest.mark.parametrize("prepare", [quantize.prepare, quantize.prepare_qat])
def test_a_prepared_program_is_not_exported_and_a_converted_one_is(prepare):
    prepared = prepare(fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU())), quantize.QuantizationScheme())
    prepared(X)
    with pytest.raises(QuantizationError, match=r"a prepared program cannot be exported\n(.|\n)*convert it first"):
        torch.export.export(prepared.eval(), (X,))
    with pytest.raises(CodegenError, match=r"or convert it\s+and\s+use\s+torch.export"):
        torch.jit.script(prepared)
    converted = quantize.convert(prepared)
    torch.testing.assert_close(torch.export.export(converted, (X,)).module()(X), converted(X))


def test_a_copy_and_its_original_are_scripted_each_as_it_is():
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3), nn.ReLU()))
    other = relu_becomes_sigmoid(copy.deepcopy(program))
    assert torch.equal(torch.jit.script(program)(X), program(X))
    assert torch.equal(torch.jit.script(other)(X), other(X))


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.arange(8))

    def forward(self, x):
        return x + self.places[: x.size(1)]


def test_a_buffer_that_is_sliced_by_a_size_is_scripted():
    program = fx.symbolic_trace(Positions())
    assert torch.equal(torch.jit.script(program)(X), Positions()(X))
