"""The table of operators: what it says is true of torch, and whoever reads it knows an operator that is added."""

import operator
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.canonical import canonical_form
from fx.lowering import get_backend
from fx.operators.families import Operator, find_in_place, find_operator, is_one_of, operators, register_operator

ARGUMENTS = {
    F.threshold: (0.5, 0.25),
    torch.clamp: (-0.5, 0.5),
    torch.clamp_min: (-0.5,),
    torch.clamp_max: (0.5,),
    F.prelu: (torch.tensor([0.25]),),
    torch.mvlgamma: (1,),
    F.layer_norm: ((4,),),
    F.rms_norm: ((4,),),
    F.group_norm: (1,),
    F.local_response_norm: (2,),
    F.softmax: (-1,),
    F.log_softmax: (-1,),
    F.softmin: (-1,),
    torch.feature_dropout: (0.5, False),
    F.pixel_shuffle: (1,),
    F.pixel_unshuffle: (1,),
    F.channel_shuffle: (2,),
    F.pad: ((1, 1),),
    torch.reshape: ((-1,),),
    torch.unflatten: (-1, (2, 2)),
    torch.permute: ((2, 1, 0),),
    torch.transpose: (0, 1),
    torch.movedim: (0, 1),
    torch.unsqueeze: (0,),
    torch.narrow: (0, 0, 1),
    torch.select: (0, 0),
    torch.Tensor.view: (-1,),
    torch.Tensor.expand: (2, 2, 4, 4),
    torch.flip: ((0,),),
    torch.roll: (1,),
    torch.index_select: (0, torch.tensor([1, 0])),
    torch.Tensor.repeat: (2, 1, 1),
    torch.Tensor.tile: (2,),
    torch.repeat_interleave: (2,),
    operator.getitem: (0,),
    F.interpolate: (3,),
    torch.amax: (0,),
    torch.amin: (0,),
}
"""What an operator is called with behind its first operand, if that is not enough."""
LEFT_OUT = {torch.batch_norm, F.batch_norm, F.affine_grid, F.grid_sample, F.glu}
UNARY = [
    row
    for row in operators()
    if row.function not in LEFT_OUT and (row.keeps_the("rank") or row.keeps_the("dtype") or row.is_value_preserving)
]


def shape_for(row):
    if row.dims is not None:
        return (2, 4, *(4,) * row.dims)
    if row.function in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle):
        return (2, 4, 2, 2)
    return (2, 4, 4)


def call(row, value):
    arguments = ARGUMENTS.get(row.function, ())
    if row.dims is not None and row.family in ("average pooling", "max pooling"):
        arguments = ((2,) * row.dims,)
    if row.function in (F.fractional_max_pool2d, F.fractional_max_pool3d):
        return row.function(value, 2, output_size=2)
    if row.family in ("linear", "convolution", "transposed convolution"):
        arguments = (torch.randn(4, 4, *(2,) * row.dims, dtype=value.dtype),)
    if row.family == "dropout" and row.function is not torch.feature_dropout:
        return row.function(value, 0.5, training=False)
    return row.function(value, *(one.to(value.dtype) if one is ARGUMENTS[F.prelu][0] else one for one in arguments))


def named(row):
    return f"{getattr(row.function, '__module__', '')}.{row.function.__name__}"


@pytest.mark.parametrize("row", UNARY, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_keep_what_the_table_says(row, dtype):
    value = torch.rand(shape_for(row), dtype=dtype) * 0.8 + 0.1
    if row.function in (torch.acosh, torch.mvlgamma):
        value += 1
    with torch.random.fork_rng():
        result = call(row, value)
    if row.keeps_the("rank"):
        assert result.dim() == value.dim()
    if row.keeps_the("dtype"):
        assert result.dtype is dtype
    if row.is_value_preserving and row.function is not F.pad:  # which adds zeros
        assert set(result.flatten().tolist()) <= set(value.flatten().tolist())
    if row.is_new:
        assert result.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


COMMUTING = [(row, function) for row in operators() if row.commutes for function in row.functions]


@pytest.mark.parametrize("row, function", COMMUTING, ids=lambda one: getattr(one, "__name__", ""))
def test_operands_of_what_commutes_may_be_swapped(row, function):
    extremes = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan")])
    if row.family == "logic":
        extremes = torch.tensor([True, False])
    left, right = extremes[:, None].expand(-1, len(extremes)), extremes[None].expand(len(extremes), -1)
    assert torch.equal(*(function(*pair).nan_to_num(7) for pair in ((left, right), (right, left))))


TABLES = [row for row in operators("activation", "function") if row.suits_lookup_table and not row.draws]


@pytest.mark.parametrize("row", TABLES, ids=named)
def test_what_a_table_stands_for_is_finite_and_without_jumps_for_finite_operands(row):
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    values = call(row, grid)
    jumps = {F.threshold, F.hardshrink}  # jump once, where their threshold is, which is one entry of the table
    assert values.isfinite().all()
    assert values.diff().abs().max() < 0.3 or row.function in jumps


IN_PLACE = [(row, written) for row in operators("activation", "function") for written in row.in_place_spellings]


@pytest.mark.parametrize("row, written", IN_PLACE, ids=lambda one: one if isinstance(one, str) else "")
def test_in_place_spellings_write_what_the_operator_returns(row, written):
    if row.draws:
        pytest.skip("draws")
    value = torch.rand(2, 4) * 0.8 + (1.1 if row.function in (torch.acosh, torch.mvlgamma) else 0.1)
    more = ARGUMENTS.get(row.function, ())
    expected, given = row.function(value, *more), value.clone()
    assert (getattr(given, written) if isinstance(written, str) else lambda *rest: written(given, *rest))(
        *more
    ) is given
    assert torch.equal(given, expected)
    assert find_in_place(written) is row and find_operator(written) is None


SPELLINGS = [
    (row, spelling)
    for row in operators("activation", "function", "softmax", "arithmetic", "comparison", "logic", "product")
    for spelling in row.spellings
    if not isinstance(spelling, type) and spelling is not F.relu6 and row.function is not operator.invert
]


@pytest.mark.parametrize("row, spelling", SPELLINGS, ids=lambda one: one if isinstance(one, str) else "")
def test_the_canonical_form_brings_each_spelling_to_the_function_of_its_row(row, spelling):
    count = 1 if row.family in ("activation", "function", "softmax") else 2
    graph = fx.Graph()
    operands = [graph.placeholder(name, type_expr=torch.Tensor) for name in ("x", "y")[:count]]
    more = ARGUMENTS.get(row.function, ())
    more = tuple(graph.placeholder("w") if isinstance(one, torch.Tensor) else one for one in more)
    if spelling is torch.rrelu:
        more = (0.125, 0.25)
    make = graph.call_method if isinstance(spelling, str) else graph.call_function
    graph.output(make(spelling, (*operands, *more)))
    canonical = canonical_form(fx.GraphModule(nn.Module(), graph)).graph_module
    (node,) = canonical.graph.find_nodes(op="call_function")
    assert find_operator(node.target) is row
    assert node.target is row.function or spelling in (torch.prelu, "prelu", "hardshrink", torch.positive)


def test_modules_functions_and_methods_are_found_and_others_are_not():
    assert find_operator(nn.Hardswish) is find_operator(F.hardswish)
    assert find_operator("sigmoid") is find_operator(torch.sigmoid) is find_operator(F.sigmoid)
    assert find_operator(operator.iadd) is None and find_in_place(operator.iadd) is find_operator(operator.add)
    assert is_one_of(nn.Conv2d, "convolution") and not is_one_of(nn.ConvTranspose2d, "convolution")
    assert find_operator(print) is find_operator([]) is find_operator("anything") is None


def test_two_operators_with_one_spelling_are_refused():
    with pytest.raises(ValueError, match="is a spelling of the operator"):
        register_operator(Operator(torch.special.ndtr, "activation", also=(torch.relu,)))
    assert find_operator(torch.special.ndtr) is None


def named_operators(text):
    homes = {"F": F, "operator": operator, "torch": torch}
    return {getattr(homes[home], name) for home, name in (path.split(".") for path in text.split())}


IN_EAGER = {
    "openvino": named_operators(
        "F.celu F.threshold F.relu6 F.softsign F.logsigmoid F.tanhshrink F.hardshrink F.softshrink F.prelu F.rrelu "
        "torch.clamp_min torch.clamp_max torch.expm1 torch.erfc torch.exp2 torch.sinc torch.i0 torch.log2 torch.log10 "
        "torch.log1p torch.logit torch.tan torch.acos torch.acosh torch.asin torch.atanh torch.erfinv torch.digamma "
        "torch.lgamma torch.mvlgamma torch.round torch.trunc torch.frac torch.nan_to_num operator.mod "
        "torch.logical_and torch.logical_or torch.logical_xor"
    ),
    "tensorrt": named_operators(
        "F.celu F.threshold F.relu6 F.logsigmoid F.tanhshrink F.hardshrink F.softshrink F.prelu F.rrelu "
        "torch.clamp_min torch.clamp_max torch.expm1 torch.erfc torch.exp2 torch.sinc torch.i0 torch.log2 torch.log10 "
        "torch.log1p torch.logit torch.erfinv torch.digamma torch.lgamma torch.mvlgamma torch.round torch.trunc "
        "torch.frac torch.nan_to_num operator.mod torch.logical_or torch.logical_xor"
    ),
}
"""Operators on each element that have no converter: a program keeps them in eager Python."""


@pytest.mark.parametrize("backend", IN_EAGER)
def test_an_operator_on_each_element_has_a_converter_or_is_listed_as_one_that_stays_in_eager_python(backend):
    rows = operators("activation", "function", "arithmetic", "comparison", "logic", "extreme")
    missing = {row.function for row in rows if get_backend(backend).converters.find(row.function) is None}
    assert missing == IN_EAGER[backend]


ADDED = """
    import sys
    import torch
    from torch import nn
    from fx.operators.families import Operator, register_operator

    class Ndtr(nn.Module):
        def forward(self, x):
            return torch.special.ndtr(x)

    if "added" in sys.argv:
        register_operator(Operator(torch.special.ndtr, "activation", modules=(Ndtr,)))

    import fx
    from fx.lowering.onednn.operations import converters
    from fx.lowering.known_program import KnownProgram
    from fx.passes.ranks import find_ranks
    from fx.quantize import convert, prepare, report
    from fx.canonical import canonical_form
    from pytest_fx.generation.elementwise_rows import ELEMENTS

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x):
            return self.norm(self.last(torch.special.ndtr(self.first(x.flatten(1)))))

    model = Model().eval()
    program = fx.symbolic_trace(model)
    (call,) = [node for node in program.graph.nodes if node.target is torch.special.ndtr]
    print("ranks", call in find_ranks(program))
    fused = fx.passes.FuseConvBN()(program)
    print("fused", not any(node.target is torch._assert for node in fused.graph.nodes))
    prepared = prepare(fx.symbolic_trace(model))
    prepared(torch.randn(4, 8))
    reasons = [one.reason for one in report(convert(prepared)).remainders]
    print("quantized", "there is no operation on integers for it" not in reasons)
    canonical = canonical_form(program).graph_module
    known = KnownProgram(canonical)
    (call,) = [node for node in canonical.graph.nodes if node.target is torch.special.ndtr]
    print("lowered", converters.find(torch.special.ndtr) is not None and known.dtype(call) is torch.float32)
    print("generated", any("torch.special.ndtr" in row.spellings for row in ELEMENTS))
"""


def assert_known(printed: str, expected: bool) -> None:
    known = dict(line.split() for line in printed.splitlines())
    assert known == dict.fromkeys(("ranks", "fused", "quantized", "lowered", "generated"), str(expected)), printed


@pytest.mark.thorough
def test_an_operator_that_is_added_is_known_to_ranks_fusion_quantization_lowering_and_generation():
    command = [sys.executable, "-c", textwrap.dedent(ADDED), "added"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert_known(run.stdout, True)


def test_an_operator_that_is_not_added_is_known_to_none_of_these(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    exec(textwrap.dedent(ADDED), {"__name__": "added"})
    assert_known(capsys.readouterr().out, False)
