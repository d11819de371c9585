"""pytest_fx.timing: paired, interleaved, under steady conditions."""

import gc

import pytest
import torch

from pytest_fx.options import WARMUP_ROUNDS
from pytest_fx.timing import PairedTiming, median_interval, steady_conditions, time_pairs


def paired(eager: list[float], transformed: list[float]) -> PairedTiming:
    return PairedTiming(tuple(eager), tuple(transformed), threads=1, iterations=1)


class Clock:
    """A clock that programs move themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr("pytest_fx.timing.time.perf_counter", lambda: self.now)

    def program(self, name: str, seconds: float):
        def run() -> None:
            self.calls.append(name)
            self.now += seconds

        return run


def test_eager_and_transformed_alternate_and_so_does_their_order(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(clock.program("e", 2.0), clock.program("t", 1.0), rounds=4)
    assert "".join(clock.calls) == "et" * WARMUP_ROUNDS + "et" + "te" + "et" + "te"
    assert timing.eager == (2.0,) * 4
    assert timing.transformed == (1.0,) * 4
    assert timing.speedup == 2.0
    assert timing.iterations == 1


def test_a_fast_program_is_called_several_times_in_each_sample(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(clock.program("e", 2**-13), clock.program("t", 2**-14), rounds=2)
    assert timing.iterations == 17  # of 0.12 ms each: just over 2 ms
    assert timing.eager == (2**-13,) * 2
    assert timing.transformed == (2**-14,) * 2
    assert "".join(clock.calls[2 * WARMUP_ROUNDS :]) == "e" * 17 + "t" * 34 + "e" * 17


def test_the_speedup_is_the_median_of_the_ratios_of_pairs():
    timing = paired([2.0, 30.0, 4.0], [1.0, 10.0, 4.0])
    assert timing.speedups == (2.0, 3.0, 1.0)
    assert timing.speedup == 2.0


@pytest.mark.parametrize(
    "eager, transformed, verdict",
    [
        ([2.0, 2.1, 1.9] * 5, [1.0] * 15, "faster"),
        ([1.0] * 15, [2.0, 2.1, 1.9] * 5, "slower"),
        ([1.0, 1.1, 0.9] * 5, [1.0] * 15, "no difference shown"),
    ],
)
def test_a_difference_is_claimed_only_if_the_interval_is_on_one_side_of_one(eager, transformed, verdict):
    assert paired(eager, transformed).verdict == verdict


def test_the_interval_holds_the_median_and_is_the_same_every_time():
    generator = torch.Generator().manual_seed(5)
    values = tuple((1 + torch.randn(30, generator=generator, dtype=torch.float64) / 10).tolist())
    low, high = median_interval(values)
    assert low < sorted(values)[15] < high
    assert (low, high) == median_interval(values)
    assert 0.02 < high - low < 0.2  # the median of 30 has a standard error of about 0.023 here


def test_the_interval_covers_the_true_median_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(100):
        low, high = median_interval(tuple(torch.randn(30, generator=generator).tolist()))
        covered += low <= 0.0 <= high
    assert 88 <= covered <= 100


def test_conditions_are_set_inside_and_restored_even_after_an_error():
    threads = torch.get_num_threads()
    assert gc.isenabled()

    def measure() -> None:
        with steady_conditions(threads + 1):
            assert torch.get_num_threads() == threads + 1
            assert not gc.isenabled()
            assert not torch.is_grad_enabled()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert torch.get_num_threads() == threads
    assert gc.isenabled()
    assert torch.is_grad_enabled()


def test_garbage_collection_stays_off_if_it_was():
    gc.disable()
    try:
        with steady_conditions(1):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_device_is_timed_and_not_the_launches():
    matrix = torch.randn(8192, 8192, device="cuda")
    timing = time_pairs(lambda: matrix @ matrix @ matrix, lambda: matrix @ matrix, rounds=5, device="cuda")
    assert 1.5 < timing.speedup < 2.5
    assert min(timing.transformed) > 1e-3
