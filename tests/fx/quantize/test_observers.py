import copy

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import (
    Affine,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageObserver,
    PercentileObserver,
    convert,
    merge_observers,
    prepare,
)

KINDS = [MinMaxObserver, MovingAverageObserver, HistogramObserver, PercentileObserver]
EXACT = [MinMaxObserver, HistogramObserver, PercentileObserver]


def batches(count=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(50, generator=generator) * (number + 1) for number in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_values_pass_through_unchanged(kind):
    value = torch.randn(3, 4)
    assert kind()(value) is value


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_shards_merged_are_the_same_as_one_run(kind, cut):
    whole, first, second = kind(), kind(), kind()
    for number, batch in enumerate(batches()):
        whole(batch)
        (first if number < cut else second)(batch)
    first.merge(second)
    assert all(torch.equal(first.state_dict()[name], value) for name, value in whole.state_dict().items())
    assert first.affine() == whole.affine()


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_moving_averages_of_consecutive_shards_merge_up_to_rounding(cut):
    whole, first, second = (MovingAverageObserver(momentum=0.3) for _ in range(3))
    for number, batch in enumerate(batches()):
        whole(batch)
        (first if number < cut else second)(batch)
    first.merge(second)
    assert torch.allclose(first.bounds, whole.bounds, rtol=1e-12)
    assert first.count == whole.count


def test_merging_keeps_the_first_batch_for_later_merges():
    whole, parts = MovingAverageObserver(momentum=0.3), [MovingAverageObserver(momentum=0.3) for _ in range(3)]
    for number, batch in enumerate(batches()):
        whole(batch)
        parts[number // 2](batch)
    parts[1].merge(parts[2])
    parts[0].merge(parts[1])
    assert torch.allclose(parts[0].bounds, whole.bounds, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_in_the_state_dict(kind):
    observer, other = kind(), kind()
    for batch in batches():
        observer(batch)
    other.load_state_dict(observer.state_dict())
    assert other.affine() == observer.affine()


def test_min_max_covers_everything():
    observer = MinMaxObserver()
    observer(torch.tensor([0.5, 2.0]))
    observer(torch.tensor([-1.0]))
    assert observer.affine() == Affine.of_range(-1.0, 2.0)


def test_a_histogram_gives_up_an_outlier_for_less_squared_error():
    values = torch.cat((torch.randn(100_000, generator=torch.Generator().manual_seed(1)), torch.tensor([30.0])))
    observer, simple = HistogramObserver(bits=4), MinMaxObserver(bits=4)
    observer(values)
    simple(values)

    def error(affine):
        quantized = ((values / affine.scale).round() + affine.zero_point).clamp(0, affine.highest)
        return ((quantized - affine.zero_point) * affine.scale - values).square().mean()

    assert error(observer.affine()) < error(simple.affine()) / 2


def test_a_percentile_leaves_outliers_out_on_both_sides():
    observer = PercentileObserver(percentile=98)
    observer(torch.linspace(-1, 1, 10_001))
    affine = observer.affine()
    assert affine.values()[0] == pytest.approx(-0.98, abs=0.01)
    assert affine.values()[255] == pytest.approx(0.98, abs=0.01)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, -7.0])
def test_a_constant_is_represented(kind, value):
    observer = kind()
    observer(torch.full((3,), value))
    affine = observer.affine()
    assert affine.values()[affine.quantized(value)] == pytest.approx(value, rel=0.01, abs=1e-29)


def prepared_doubles():
    return prepare(fx.symbolic_trace(Calling(lambda m, x: m.fc(x * 2), fc=nn.Linear(2, 2))))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused_with_node_and_line(bad):
    prepared = prepared_doubles()
    where = r"not finite\n  where  %mul, .*test_observers.py:\d+, in .*<lambda>"
    with pytest.raises(QuantizationError, match=where) as e:
        prepared(torch.tensor([[1.0, bad]]))
    assert "look for the batch" in str(e.value)


def test_data_without_elements_is_refused_with_node_and_line():
    prepared = prepared_doubles()
    with pytest.raises(QuantizationError, match=r"without elements\n  where  %mul, .*test_observers.py"):
        prepared(torch.empty(0, 2))


def test_converting_without_calibration_lists_all_observers():
    prepared = prepare(fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())))
    with pytest.raises(QuantizationError, match=r"2 of 2 values were never calibrated\n  where  %input_1(.|\n)*%_0"):
        convert(prepared)


def test_an_observer_that_saw_nothing_has_no_range():
    with pytest.raises(QuantizationError, match="never calibrated"):
        MinMaxObserver(place="%x").affine()


def test_copies_of_a_program_calibrated_on_shards_merge():
    prepared = prepared_doubles()
    first, second = copy.deepcopy(prepared), copy.deepcopy(prepared)
    for number in range(4):
        data = torch.randn(8, 2) + number
        prepared(data)
        (first if number < 2 else second)(data)
    merge_observers(first, second)
    assert all(torch.equal(first.state_dict()[name], value) for name, value in prepared.state_dict().items())


def test_observers_of_different_programs_do_not_merge():
    with pytest.raises(QuantizationError, match=r"different programs(.|\n)*observers.mul"):
        merge_observers(prepared_doubles(), prepare(fx.symbolic_trace(nn.Linear(2, 2))))
    with pytest.raises(QuantizationError, match="different kinds"):
        MinMaxObserver().merge(HistogramObserver())
    with pytest.raises(QuantizationError, match="different kinds"):
        MinMaxObserver().merge(MinMaxObserver(bits=4))
