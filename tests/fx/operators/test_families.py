"""The table of operators: its facts are true of torch, and all its readers know a new operator."""

import operator
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

import fx
from fx.canonical import canonical_form
from fx.checks.traced_values import count_of
from fx.operators.facts import Operator
from fx.operators.families import find_in_place, find_operator, is_one_of, operators, register_operator

TENSORS = {F.prelu: torch.tensor([0.25]), torch.index_select: torch.tensor([1, 0])}
"""Tensors that operators need after their operands and other arguments."""
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
    if row.function is torch.t:
        return (2, 4)
    return (2, 4, 4)


def arguments_of(row, value):
    tensor = TENSORS.get(row.function)
    if row.function in (torch.Tensor.view_as, torch.Tensor.expand_as):
        tensor = value + 1
    if row.family in ("linear", "convolution", "transposed convolution"):
        tensor = torch.randn(4, 4, *(2,) * row.dims)
    needs = ((2,) * row.dims,) if row.family in ("average pooling", "max pooling") else row.needs
    return needs if tensor is None else (*needs, tensor.to(value.dtype if tensor.is_floating_point() else tensor.dtype))


def call(row, value):
    if row.function in (F.fractional_max_pool2d, F.fractional_max_pool3d):
        return row.function(value, 2, output_size=2)
    if row.family == "dropout" and row.function is not torch.feature_dropout:
        return row.function(value, 0.5, training=False)
    return row.function(value, *arguments_of(row, value))


def operand_for(row, shape, dtype=torch.float32):
    """Return numbers of the row's domain, between 0 and 1 if it is unbounded."""
    low, high = row.domain
    low = 0 if low is None else low
    high = low + 1 if high is None else high
    return low + (high - low) * (torch.rand(shape, dtype=dtype) * 0.8 + 0.1)


def named(row):
    return f"{getattr(row.function, '__module__', '')}.{row.function.__name__}"


@pytest.mark.parametrize("row", UNARY, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_keep_the_properties_in_the_table(row, dtype):
    value = operand_for(row, shape_for(row), dtype)
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


VIEWS = [row for row in operators() if row.is_view]


@pytest.mark.parametrize("row", VIEWS, ids=named)
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_views_share_memory_with_their_operand_and_are_new_tensors(row, is_contiguous):
    value = torch.rand(shape_for(row))
    if not is_contiguous and row.function is not torch.Tensor.view:  # which refuses it
        value = value.mT
    result = call(row, value)
    for part in result if isinstance(result, (tuple, list)) else (result,):
        assert part.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        assert part is not value


CHANGING_NOTHING = {
    torch.transpose: (0, 0),
    torch.permute: ((0, 1, 2),),
    torch.movedim: (0, 0),
    torch.narrow: (0, 0, 2),
    torch.Tensor.view: (2, 4, 4),
    torch.Tensor.expand: (2, 4, 4),
    torch.chunk: (1,),
    torch.unsafe_chunk: (1,),
    torch.split: (2,),
    torch.unsafe_split: (2,),
    torch.split_with_sizes: ((2,),),
    torch.tensor_split: (1,),
}


@pytest.mark.parametrize("function", CHANGING_NOTHING, ids=lambda function: function.__name__)
def test_a_view_of_all_of_it_is_another_tensor_too(function):
    value = torch.rand(2, 4, 4)
    result = function(value, *CHANGING_NOTHING[function])
    assert find_operator(function).is_view
    assert (result if isinstance(result, torch.Tensor) else result[0]) is not value


@pytest.mark.parametrize("row", [row for row in operators() if row.is_contiguous], ids=named)
def test_contiguous_results_are_contiguous_for_any_layout_of_the_operand(row):
    value = torch.rand(2, 3, 4).transpose(1, 2)
    assert call(row, value if row.dims is None else torch.rand(4, 2).T).is_contiguous()


@pytest.mark.parametrize("row", [row for row in operators("split") if row.parts], ids=named)
def test_it_is_known_into_how_many_parts_a_tensor_is_cut(row):
    value = torch.rand(2, 4, 4)
    program = fx.symbolic_trace(lambda x: row.function(x, *row.needs))
    (node,) = program.graph.find_nodes(op="call_function", target=row.function)
    count = count_of(node)
    assert count is None or count[0] == len(call(row, value))
    assert count is not None or row.parts[0].startswith("split_size")


ON_NUMBERS = list(operators("activation", "function", "arithmetic"))


@pytest.mark.parametrize("row", ON_NUMBERS, ids=named)
def test_only_rounding_functions_return_integers(row):
    value = operand_for(row, (4, 4)) * (1 if row.domain[1] is not None else 3)
    operands = (value, value.T + 0.3) if row.family == "arithmetic" else (value, *arguments_of(row, value))
    with torch.random.fork_rng():
        result = row.function(*operands)
    assert torch.equal(result, result.round()) == row.rounds


def is_finite(row, number):
    try:
        return bool(call(row, torch.tensor([number], dtype=torch.float64)).isfinite().all())
    except RuntimeError:
        return False


@pytest.mark.parametrize("row", [row for row in operators("function", "activation") if not row.draws], ids=named)
def test_functions_are_finite_in_their_domain_and_not_at_its_ends(row):
    low, high = (-6.0 if row.domain[0] is None else row.domain[0], 6.0 if row.domain[1] is None else row.domain[1])
    grid = torch.linspace(low, high, 203, dtype=torch.float64)[1:-1]
    assert call(row, grid).isfinite().all()
    for end, step in zip(row.domain, (-0.1, 0.1), strict=True):
        assert end is None or not (is_finite(row, float(end)) and is_finite(row, end + step))


def test_layers_with_statistics_are_those_of_torch_that_keep_some():
    kinds = {kind for row in operators() if row.has_statistics for kind in row.modules}
    norms = {kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, _NormBase)}
    assert kinds == {kind for kind in norms if not issubclass(kind, LazyModuleMixin)}


COMMUTING = [(row, function) for row in operators() if row.commutes for function in row.functions]


@pytest.mark.parametrize("row, function", COMMUTING, ids=lambda one: getattr(one, "__name__", ""))
def test_operands_of_commutative_functions_may_be_swapped(row, function):
    extremes = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan")])
    if row.family == "logic":
        extremes = torch.tensor([True, False])
    left, right = extremes[:, None].expand(-1, len(extremes)), extremes[None].expand(len(extremes), -1)
    assert torch.equal(*(function(*pair).nan_to_num(7) for pair in ((left, right), (right, left))))


TABLES = [row for row in operators("activation", "function") if row.suits_lookup_table and not row.draws]


@pytest.mark.parametrize("row", TABLES, ids=named)
def test_functions_with_a_lookup_table_are_finite_and_without_jumps(row):
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    values = call(row, grid)
    jumps = {F.threshold, F.hardshrink}  # jump once, where their threshold is, which is one entry of the table
    assert values.isfinite().all()
    assert values.diff().abs().max() < 0.3 or row.function in jumps


IN_PLACE = [(row, written) for row in operators("activation", "function") for written in row.in_place_spellings]


@pytest.mark.parametrize("row, written", IN_PLACE, ids=lambda one: one if isinstance(one, str) else "")
def test_in_place_spellings_write_the_result_of_the_operator(row, written):
    if row.draws:
        pytest.skip("draws")
    value = operand_for(row, (2, 4))
    more = arguments_of(row, value)
    expected, copied = row.function(value, *more), value.clone()
    assert (getattr(copied, written) if isinstance(written, str) else lambda *rest: written(copied, *rest))(
        *more
    ) is copied
    assert torch.equal(copied, expected)
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
    more = tuple(
        graph.placeholder("w") if row.function in TENSORS else argument for argument in arguments_of(row, torch.ones(4))
    )
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


ADDED = """
    import sys
    import torch
    from torch import nn
    from fx.operators.facts import Operator
    from fx.operators.families import register_operator

    class Ndtr(nn.Module):
        def forward(self, x):
            return torch.special.ndtr(x)

    if "added" in sys.argv:
        register_operator(Operator(torch.special.ndtr, "activation", modules=(Ndtr,)))
        register_operator(Operator(torch.sgn, "function", suits_lookup_table=False, rounds=True))
        register_operator(Operator(torch.special.entr, "function", suits_lookup_table=False, domain=(0, None)))
        register_operator(Operator(torch.adjoint, "view", shares="view"))

    import fx
    from fx.canonical import canonical_form
    from fx.lowering.onednn.operations import converters
    from fx.lowering.known_program import KnownProgram
    from fx.pipelines.interface import Interface
    from fx.passes.machinery.ranks import find_ranks
    from fx.quantize import convert, prepare, report
    from pytest_fx.generation.bias import choices_for
    from pytest_fx.generation.grammar import ROWS
    from pytest_fx.laws.conditioning import Perturbed

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x):
            return self.norm(self.last(torch.special.ndtr(self.first(x.flatten(1)))))

    def write_to_view(x):
        torch.adjoint(x).add_(1)
        return x

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
    print("views", bool(Interface.of(fx.symbolic_trace(write_to_view).graph).writes))
    perturbed = Perturbed(fx.symbolic_trace(lambda x: torch.sgn(x)), 0)
    print("rounding", torch.equal(perturbed.run(torch.tensor([0.5, -3.0])), torch.tensor([1.0, -1.0])))
    for function, written in ((torch.special.ndtr, "({0}{*})"), (torch.special.entr, "({0}.abs() + 0.1{*})")):
        spelled = f"torch.special.{function.__name__.removeprefix('special_')}{written}"
        in_grammar = any(spelled in row.spellings for row in ROWS)
        print("generated", in_grammar and str(choices_for(function)) == f"({spelled},)")
"""


def assert_known(printed: str, expected: bool) -> None:
    words = "ranks fused quantized lowered views rounding generated generated".split()
    assert printed.split() == [part for word in words for part in (word, str(expected))]


@pytest.mark.thorough
def test_operators_that_are_added_are_known_to_passes_analyses_quantization_lowering_and_generation():
    command = [sys.executable, "-c", textwrap.dedent(ADDED), "added"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert_known(run.stdout, True)


def test_operators_that_are_not_added_are_known_to_none_of_these(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    exec(textwrap.dedent(ADDED), {"__name__": "added"})
    assert_known(capsys.readouterr().out, False)
