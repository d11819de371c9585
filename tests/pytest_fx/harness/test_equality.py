"""pytest_fx.harness.equality: distances between outputs, in steps of a number format, and as signal to noise."""

import math

import pytest
import torch
from torch import nn

from pytest_fx.errors import ComparisonError
from pytest_fx.harness.equality import Leaf, Mismatch, decibels, pair_leaves, ulps_apart, worst_difference
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.run import Runner, layout_notes
from pytest_fx.harness.snapshot import overlaps, same_tensor
from pytest_fx.laws.judging import identical

NAN, INF = math.nan, math.inf


def leaf(expected, actual) -> Leaf:
    return Leaf("", torch.as_tensor(expected), torch.as_tensor(actual))


@pytest.mark.parametrize(
    "expected, actual, error",
    [
        (1.0, 1.5, 0.5),
        (NAN, NAN, 0.0),
        (NAN, 1.0, INF),
        (1.0, NAN, INF),
        (INF, INF, 0.0),
        (INF, -INF, INF),
        (INF, 1.0, INF),
        (3, 5, 2.0),
        (True, False, 1.0),
        (3 + 4j, 0j, 5.0),
        (2**60, 2**60 + 1, 1.0),
        (2**60, 2**60, 0.0),
    ],
)
def test_the_error_of_an_element_is_its_distance_and_infinite_where_there_is_none(expected, actual, error):
    assert leaf(expected, actual).errors.item() == error


def test_zero_tensors_of_forward_mode_are_compared_too():
    zeros = torch._efficientzerotensor((2,))
    assert leaf(zeros, zeros).errors.tolist() == [0, 0]


@pytest.mark.parametrize(
    "expected, limit", [(100.0, 1.01), (-100.0, 1.01), (INF, 0.0), (NAN, 0.0), (100, 0.0), (100j, 1.01)]
)
def test_tolerance_grows_with_finite_numbers_and_is_none_for_the_rest(expected, limit):
    assert leaf(expected, expected).limits(rtol=0.01, atol=0.01).item() == pytest.approx(limit)


@pytest.mark.parametrize("values", [torch.arange(4.0).reshape(1, 4).mT, torch.ones(4)[::4]])
def test_bits_are_compared_for_any_stride_of_a_dimension_of_size_one(values):
    assert not Leaf("", values, values.clone()).bits_differ.any()
    assert Leaf("", values, values + 1).bits_differ.all()


def test_bits_differ_by_the_sign_of_zero_but_not_by_the_payload_of_a_nan():
    other_nan = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert leaf([0.0, 1.0], [-0.0, 1.0]).bits_differ.tolist() == [True, False]
    assert leaf([NAN], other_nan).bits_differ.tolist() == [False]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64]
)
def test_bits_are_compared_in_any_dtype_and_shape(dtype):
    ones = torch.ones((2, 3), dtype=dtype)
    changed = ones.clone()
    changed[1, 2] = 0
    assert leaf(ones, changed).bits_differ.nonzero().tolist() == [[1, 2]]
    assert leaf(ones[:, ::2], changed[:, ::2]).bits_differ.nonzero().tolist() == [[1, 1]]
    assert not leaf(ones[:0], ones[:0]).bits_differ.any()


def test_the_scale_is_the_largest_finite_magnitude():
    assert leaf([1.0, -3.0, INF, NAN], [0.0] * 4).scale == 3.0
    assert leaf(torch.ones(0), torch.ones(0)).scale == 0.0


def test_the_worst_element_is_the_one_furthest_over_its_own_limit():
    pair = leaf([[2.0, 1000.0, 5.0]], [[3.0, 1010.5, 5.0]])
    errors, limits = pair.errors, pair.limits(rtol=0.01, atol=0.0)
    difference = worst_difference(pair, errors > limits, errors, limits)
    assert difference is not None
    assert (difference.index, difference.expected, difference.actual) == ((0, 0), 2.0, 3.0)
    assert (difference.count, difference.size, difference.error) == (2, 3, 1.0)
    assert (difference.element, difference.extent) == ("[0, 0]", "the worst of 2 wrong in 3 element(s), float32")
    assert difference.distance == "1 apart, SQNR 39.5 dB"  # so many ulp mean nothing


def test_a_number_is_compared_like_a_tensor_without_dimensions():
    (pair,) = pair_leaves({"loss": 1.0}, {"loss": 2.0})
    difference = worst_difference(pair, pair.bits_differ, pair.errors, pair.errors * 0)
    assert difference is not None
    assert (difference.path, difference.element) == ("['loss']", "")


@pytest.mark.parametrize(
    "expected, actual, sentence",
    [
        ((1, 2), [1, 2], "eager returns tuple(int, int), the program list(int, int)"),
        (["a"], ["b"], "output[0] is 'a' in eager and 'b' in the program"),
        (torch.ones(2), torch.ones(2, 1), "output has the shape [2] in eager and [2, 1] in the program"),
        (torch.ones(2), torch.ones(2).double(), "output is torch.float32 in eager and torch.float64 in the program"),
    ],
)
def test_outputs_that_cannot_be_compared_are_described(expected, actual, sentence):
    assert pair_leaves(expected, actual).text == sentence


def test_dtypes_may_differ_where_the_caller_says_so():
    assert len(pair_leaves(torch.ones(2).double(), torch.ones(2), same_dtype=False)) == 1


@pytest.mark.parametrize(
    "expected, actual, mismatch",
    [
        (
            torch.ones(2),
            torch.ones(2, device="meta"),
            Mismatch("device", "output is on cpu in eager and meta in the program"),
        ),
        (
            torch.eye(2),
            torch.eye(2).to_sparse(),
            Mismatch("layout", "output is torch.strided in eager and torch.sparse_coo in the program"),
        ),
        (1, 1.0, Mismatch("dtype", "output is torch.int64 in eager and torch.float64 in the program")),
    ],
)
def test_devices_and_layouts_must_agree(expected, actual, mismatch):
    assert pair_leaves(expected, actual) == mismatch


@pytest.mark.parametrize(
    "kept",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: x.to_mkldnn(),
        lambda x: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
        lambda x: x.to_sparse() * 1j,
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:.*quantize_per_tensor")
def test_sparse_and_quantized_tensors_are_compared_by_their_dense_values(kept):
    first, other = torch.eye(2), torch.eye(2)
    other[1, 1] = 2
    (same,) = pair_leaves(kept(first), kept(first))
    assert not same.bits_differ.any()
    (pair,) = pair_leaves(kept(first), kept(other))
    assert pair.errors.tolist() == [[0, 0], [0, 1]]


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    "value, why",
    [
        (nested, "value  a nested tensor\n  why    its parts differ in shape\n  try    let the model return"),
        (lambda: torch.ones(2, device="meta"), "value  a meta tensor\n  why    it has a shape, but no values"),
    ],
)
def test_tensors_without_values_or_shape_are_refused_with_their_place(value, why):
    with pytest.raises(ComparisonError) as error:
        pair_leaves({"x": value()}, {"x": value()})
    assert str(error.value).startswith("output['x'] cannot be compared\n")
    assert why in str(error.value)


def test_the_worst_element_has_its_steps_and_the_sqnr():
    pair = leaf([1.0, 2.0], [1.0, 2.0000005])
    difference = worst_difference(pair, pair.bits_differ, pair.errors, pair.errors * 0)
    assert difference is not None
    assert (difference.ulps, difference.distance) == (2, "4.8e-07 apart, 2 ulp, SQNR 133.4 dB")
    numbers = leaf([1, 2], [1, 3])
    difference = worst_difference(numbers, numbers.bits_differ, numbers.errors, numbers.errors * 0)
    assert difference is not None
    assert (difference.ulps, difference.sqnr_db, difference.distance) == (None, None, "1 apart")


VALUES = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
LAID_OUT = {
    "MKL-DNN": torch.Tensor.to_mkldnn,
    "coordinates": torch.Tensor.to_sparse,
    "rows": torch.Tensor.to_sparse_csr,
    "columns": torch.Tensor.to_sparse_csc,
    "blocks of rows": lambda tensor: tensor.to_sparse_bsr((1, 1)),
    "half of a complex number": lambda tensor: tensor.to(torch.complex32),
    "8 bits": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*(beta|ComplexHalf|TypedStorage|deprecated).*")
@pytest.mark.parametrize("lay_out", LAID_OUT.values(), ids=LAID_OUT.keys())
def test_tensors_of_any_layout_are_compared_by_layout_and_then_by_values(lay_out):
    first, equal, other = lay_out(VALUES), lay_out(VALUES.clone()), lay_out(VALUES + 1)
    assert same_tensor(first, equal)
    assert not same_tensor(first, other)
    assert not same_tensor(first, VALUES)
    assert identical(first, equal)
    assert not identical(first, other)
    (leaf,) = pair_leaves(first, equal)
    assert not leaf.errors.any()
    (leaf,) = pair_leaves(first, other)
    assert torch.equal(leaf.errors, torch.ones(2, 3, dtype=torch.float64))
    assert isinstance(pair_leaves(first, VALUES), Mismatch)
    arguments = Arguments((first,))
    assert same_tensor(arguments.copies().args[0], first)
    for copied in (arguments.copies(torch.float64), arguments.shrunk(0)):
        assert copied.args[0].layout == first.layout
    assert arguments.samples == 2
    assert not overlaps(first)
    observed = Runner(nn.Identity())(arguments, torch.float32)
    assert observed.error is None
    assert layout_notes(observed.output, observed.output) == []


def test_zeros_of_tensors_of_another_layout_have_signs():
    assert not identical(torch.tensor([0.0, 1.0]).to_mkldnn(), torch.tensor([-0.0, 1.0]).to_mkldnn())


def test_tensors_without_values_are_the_same_if_their_shapes_are():
    assert same_tensor(torch.empty(2, device="meta"), torch.empty(2, device="meta"))
    assert not same_tensor(torch.empty(2, device="meta"), torch.empty(3, device="meta"))


@pytest.mark.filterwarnings("ignore:.*prototype.*")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_the_same_if_their_parts_are(layout):
    first, other = (torch.nested.nested_tensor([VALUES, last], layout=layout) for last in (VALUES[:1], VALUES[1:]))
    assert same_tensor(first, first.clone())
    assert not same_tensor(first, other)


def test_errors_and_limits_are_where_the_tensors_are():
    for dtype in (torch.int64, torch.bool):
        there = torch.ones(2, 3, dtype=dtype, device="meta")
        leaf = Leaf("", there, there)
        assert {value.device.type for value in (leaf.errors, leaf.limits(1e-5, 1e-8), leaf.bits_differ)} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 100.0])
def test_neighbours_are_one_step_apart(dtype, value):
    x = torch.tensor(value, dtype=dtype)
    assert ulps_apart(x, torch.nextafter(x, torch.tensor(math.inf, dtype=dtype))) == 1
    assert ulps_apart(x, x) == 0


def test_steps_are_counted_through_zero_and_to_infinity():
    tiny = torch.tensor(5e-324, dtype=torch.float64)
    assert ulps_apart(-tiny, tiny) == 2
    assert ulps_apart(torch.tensor(0.0), torch.tensor(-0.0)) == 0
    assert ulps_apart(torch.tensor(torch.finfo(torch.float32).max), torch.tensor(math.inf)) == 1


def test_the_format_is_that_of_the_program():
    assert ulps_apart(torch.tensor(1 + 1e-12, dtype=torch.float64), torch.tensor(1.0)) == 0


def test_complex_numbers_are_as_far_apart_as_the_worse_part():
    assert ulps_apart(torch.tensor(1 + 1j), torch.tensor(1.0000001 + 1.0000005j)) == 4


@pytest.mark.parametrize("one, other", [(3, 4), (True, False), (math.nan, 1.0), (1.0, math.nan), (math.nan * 1j, 1j)])
def test_integers_and_nan_have_no_steps(one, other):
    assert ulps_apart(torch.tensor(one), torch.tensor(other)) is None


@pytest.mark.parametrize(
    "signal, noise, ratio",
    [(100.0, 1.0, 20.0), (1.0, 0.0, math.inf), (0.0, 1.0, -math.inf), (1.0, math.inf, -math.inf), (0.0, 0.0, math.inf)],
)
def test_ratios_are_in_decibels(signal, noise, ratio):
    assert decibels(signal, noise) == ratio
