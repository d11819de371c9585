"""A pass of torch.fx sees an exported program in functions or in operators of ATen, as its code mentions them."""

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt, from_torch, to_aten
from fx.interop.pass_library import form_of

aten: Any = torch.ops.aten
X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
TARGETS = {"relu": aten.relu.default}
NAMES = ("aten.relu.default",)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linear(x)) if int(x.shape[1]) > 2 else x
        return x.view(-1, 2, 2) + 1


def exported(form: Any = "functional") -> fx.GraphModule:
    torch.manual_seed(0)
    return fx.capture(Network(), (X,), how="export", form=form)


def in_aten(program: torch.fx.GraphModule) -> None:
    for node in program.graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target = aten.sigmoid.default
    program.recompile()


def in_functions(program: torch.fx.GraphModule) -> None:
    for node in program.graph.nodes:
        if node.target in (torch.relu, F.relu):
            node.target = torch.sigmoid
    program.recompile()


def by_container(program: torch.fx.GraphModule) -> None:
    for node in program.graph.nodes:
        if node.target is TARGETS["relu"]:
            node.target = aten.sigmoid.default
    program.recompile()


def by_text(program: torch.fx.GraphModule) -> None:
    for node in program.graph.nodes:
        if str(node.target) == "aten.relu.default":
            node.target = torch.sigmoid
    program.recompile()


class InClass:
    targets = (aten.relu.default,)

    def __call__(self, program: torch.fx.GraphModule) -> None:
        for node in program.graph.nodes:
            if node.target in self.targets:
                node.target = torch.sigmoid
        program.recompile()


def through_another(program: torch.fx.GraphModule) -> None:
    in_aten(program)


def pattern(x: Any) -> Any:
    return aten.relu.default(x)


def replacement(x: Any) -> Any:
    return aten.sigmoid.default(x)


def by_pattern(program: torch.fx.GraphModule) -> None:
    torch.fx.replace_pattern(program, pattern, replacement)


OF_ATEN = [in_aten, by_container, by_text, InClass(), through_another, by_pattern]
EVERY = [*OF_ATEN, in_functions]


@pytest.mark.parametrize("pass_", EVERY, ids=lambda one: getattr(one, "__name__", "class"))
@pytest.mark.parametrize("form", ["functional", "aten"])
def test_a_pass_finds_its_operations_and_leaves_the_program_in_its_form(pass_: Any, form: Any) -> None:
    assert form_of(pass_) == ("functional" if pass_ is in_functions else "aten")
    program = exported(form)
    linear = next(node for node in program.graph.nodes if node.name == "linear")
    result = adapt(pass_)(program)
    assert result is program and linear.target is (F.linear if form == "functional" else aten.linear.default)
    assert "relu(" not in program.code and "sigmoid" in program.code
    assert ("aten" in program.code) == (form == "aten")
    expected = torch.sigmoid(F.linear(X, program.linear.weight, program.linear.bias)).view(-1, 2, 2) + 1
    assert torch.equal(program(X), expected)
    assert linear.source is not None and linear.source.line > 0


def test_a_pass_that_finds_nothing_leaves_the_revision() -> None:
    def find(program: torch.fx.GraphModule) -> None:
        assert any(node.target is aten.linear.default for node in program.graph.nodes)

    program = exported()
    revision, code = program.graph.revision, program.code
    assert adapt(find)(program) is program
    assert (program.graph.revision, program.code) == (revision, code)


def test_a_pass_that_raises_leaves_the_program() -> None:
    def fail(program: torch.fx.GraphModule) -> None:
        program.graph.erase_node(program.graph.output_node())
        raise ValueError(aten.relu.default)

    program = exported()
    revision, code = program.graph.revision, program.code
    with pytest.raises(ValueError, match="relu"):
        adapt(fail)(program)
    assert (program.graph.revision, program.code) == (revision, code)


def test_a_symbolic_capture_is_passed_unchanged() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    code = program.code
    assert adapt(in_aten)(program).code == code


def test_programs_that_make_fx_made_are_in_aten_too() -> None:
    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    program = from_torch(make_fx(lambda x: torch.relu(x) + 1)(X))
    adapt(in_functions)(program)
    assert program.graph.find_nodes(op="call_function", target=aten.sigmoid.default)
    assert torch.equal(program(X), torch.sigmoid(X) + 1)


def test_a_pipeline_may_have_passes_for_both() -> None:
    def negate(program: torch.fx.GraphModule) -> None:
        for node in program.graph.find_nodes(op="call_function", target=operator.add):
            node.target = operator.sub
        program.recompile()

    program = fx.passes.PassPipeline([adapt(in_aten), adapt(negate), fx.passes.RemoveChecks()])(exported())
    assert "sigmoid" in program.code and " - 1" in program.code and "_assert" not in program.code


def test_passes_of_the_library_itself_are_for_functions() -> None:
    assert form_of(fx.passes.FuseConvBN()) == "functional"
    assert "aten" in to_aten(exported()).code


@pytest.mark.parametrize("form", ["functional", "aten"])
def test_a_pass_that_mentions_neither_gets_the_program_as_it_is(form: Any) -> None:
    recorded: list[str] = []

    def hand_on(program: torch.fx.GraphModule) -> None:
        recorded.extend(str(node.target) for node in program.graph.nodes)

    assert form_of(hand_on) is None
    program = exported(form)
    revision = program.graph.revision
    assert adapt(hand_on)(program) is program and program.graph.revision == revision
    assert ("aten.linear.default" in recorded) == (form == "aten")


def test_a_pass_that_hands_a_program_in_aten_to_pt2e_quantizes_it() -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    program = exported("aten")
    prepared = adapt(lambda theirs: pt2e.prepare_pt2e(theirs, quantizer))(program)
    prepared(X)
    converted = adapt(lambda theirs: pt2e.convert_pt2e(theirs))(prepared)
    assert "quantized_decomposed.quantize_per_tensor" in converted.code
    assert torch.allclose(converted(X), program(X), atol=0.1)
