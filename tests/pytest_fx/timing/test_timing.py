"""pytest_fx.timing.paired: paired, interleaved, under steady conditions."""

import gc
from dataclasses import replace

import pytest
import torch

from pytest_fx.options import WARMUP_ROUNDS
from pytest_fx.timing.clock import Clock as BoundClock
from pytest_fx.timing.paired import LONG_TIMING, LOOKS, PairedTiming, median_interval, steady_conditions, time_pairs


def paired(eager: list[float], transformed: list[float]) -> PairedTiming:
    return PairedTiming(tuple(eager), tuple(transformed), threads=1, iterations=1)


class Clock:
    """A clock that programs move themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.share = 1.0
        own = BoundClock(lambda: self.now, lambda: self.share * self.now)
        for module in ("paired", "samples"):
            monkeypatch.setattr(f"pytest_fx.timing.{module}.CLOCK", own)

    def program(self, name: str, seconds: float):
        def run() -> None:
            self.calls.append(name)
            self.now += seconds

        return run


def test_eager_and_transformed_alternate_and_so_does_their_order(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(clock.program("e", 0.5), clock.program("t", 0.25), rounds=4)
    assert "".join(clock.calls) == "et" * WARMUP_ROUNDS + "et" + "te" + "et" + "te"
    assert timing.eager == (0.5,) * 4
    assert timing.transformed == (0.25,) * 4
    assert timing.speedup == 2.0
    assert timing.iterations == 1


def test_a_fast_program_is_called_several_times_in_each_sample(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(clock.program("e", 2**-13), clock.program("t", 2**-14), rounds=2)
    assert timing.iterations == 33  # of 0.06 ms each, those of the faster: just over 2 ms
    assert timing.eager == (2**-13,) * 2
    assert timing.transformed == (2**-14,) * 2
    assert "".join(clock.calls[2 * WARMUP_ROUNDS :]) == "e" * 33 + "t" * 66 + "e" * 33


def test_the_slower_program_bounds_how_often_a_much_faster_one_is_called(monkeypatch):
    clock = Clock(monkeypatch)
    assert time_pairs(clock.program("e", 2**-7), clock.program("t", 2**-20), rounds=2).iterations == 3  # 23 ms


def test_one_slow_call_while_warming_up_does_not_mislead(monkeypatch):
    clock = Clock(monkeypatch)
    seconds = iter([5.0, 2**-13] + [2**-13] * 1000)

    def compiled_when_first_called() -> None:
        clock.now += next(seconds)

    announced: list[float] = []
    timing = time_pairs(compiled_when_first_called, clock.program("t", 2**-13), rounds=2, announce=announced.append)
    assert timing.iterations == 17
    assert timing.eager == (2**-13,) * 2
    assert len(announced) == 1 and announced[0] < LONG_TIMING


def test_two_pairs_warm_slow_programs_up_and_a_long_timing_is_announced(monkeypatch):
    clock = Clock(monkeypatch)
    announced: list[float] = []
    timing = time_pairs(clock.program("e", 10.0), clock.program("t", 8.0), rounds=30, announce=announced.append)
    assert announced == [30 * 18.0]
    assert "".join(clock.calls[:6]) == "etetet"
    assert len(clock.calls) == 4 + 60
    assert len(timing.eager) == 30


@pytest.mark.parametrize("share, threads, loaded", [(1.0, 1, False), (0.6, 1, True), (0.6, 2, False), (1.7, 2, False)])
def test_time_of_the_processor_says_whether_the_machine_is_loaded(share, threads, loaded, monkeypatch):
    clock = Clock(monkeypatch)
    clock.share = share
    timing = time_pairs(clock.program("e", 0.5), clock.program("t", 0.25), rounds=4, threads=threads)
    assert timing.processors == pytest.approx(share)
    assert timing.loaded == loaded


def test_one_program_can_be_paired_with_itself(monkeypatch):
    program = Clock(monkeypatch).program("e", 0.5)
    assert time_pairs(program, program, rounds=3).speedups == (1.0,) * 3


def test_the_speedup_is_the_median_of_the_ratios_of_pairs():
    timing = paired([2.0, 30.0, 4.0], [1.0, 10.0, 4.0])
    assert timing.speedups == (2.0, 3.0, 1.0)
    assert timing.speedup == 2.0


@pytest.mark.parametrize(
    "eager, transformed, verdict",
    [
        ([2.0, 2.1, 1.9] * 5, [1.0] * 15, "faster"),
        ([1.0] * 15, [2.0, 2.1, 1.9] * 5, "slower"),
        ([1.0, 1.02, 0.98] * 5, [1.0] * 15, "no difference shown"),
        ([1.008, 1.009, 1.007] * 5, [1.0] * 15, "no difference shown"),
        ([1.0] * 15, [1.008, 1.009, 1.007] * 5, "no difference shown"),
        ([1.02, 1.021, 1.022] * 5, [1.0] * 15, "faster"),
        ([1.0, 1.1, 0.9] * 5, [1.0] * 15, "too noisy to tell"),
    ],
)
def test_a_difference_is_claimed_only_beyond_that_of_two_copies(eager, transformed, verdict):
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


def noisy_pairs(clock: Clock, scale: float, noise: float, seed: int = 0):
    """Two programs, of which the second takes ``scale`` times as long, both times with noise as on a loaded machine."""
    generator = torch.Generator().manual_seed(seed)

    def program(seconds: float):
        def run() -> None:
            # Most calls take about as long, and every third waits for its turn.
            draw = torch.rand(3, generator=generator).tolist()
            clock.now += seconds * (1 + noise * draw[0] + (3 * draw[1] if draw[2] < 1 / 3 else 0.0))

        return run

    return program(1.0), program(scale)


def test_pairs_are_added_until_they_decide(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(*noisy_pairs(clock, 1.05, 0.05), budget=1e9)
    assert timing.verdict == "slower" and not timing.is_open and timing.looks == LOOKS
    assert len(timing.eager) in (60, 120, 240, 480, 960)
    steady = time_pairs(clock.program("e", 0.5), clock.program("t", 0.5), budget=1e9)
    assert len(steady.eager) == 30 and steady.verdict == "no difference shown"
    measured = time_pairs(clock.program("e", 0.525), clock.program("t", 0.5), budget=1e9)
    assert len(measured.eager) == 30 and measured.verdict == "faster"


def test_no_pairs_are_added_beyond_the_budget_and_the_timing_says_that_it_has_not_decided(monkeypatch):
    clock = Clock(monkeypatch)
    timing = time_pairs(*noisy_pairs(clock, 1.0, 0.3), rounds=4, budget=40.0)
    assert timing.is_open and 4 < len(timing.eager) < 20
    assert sum(timing.eager) + sum(timing.transformed) < 60.0  # the last pairs may take longer than those before
    most = time_pairs(*noisy_pairs(clock, 1.0, 0.3), rounds=2, budget=1e9, decides=lambda timing: False)
    assert most.is_open and len(most.eager) == 2 * 2 ** (LOOKS - 1)
    first = time_pairs(*noisy_pairs(clock, 1.0, 0.3), rounds=4, budget=1.0)
    assert first.is_open and len(first.eager) == 4
    assert not time_pairs(*noisy_pairs(clock, 1.0, 0.3), rounds=4).is_open


def test_a_program_is_hardly_ever_shown_to_be_faster_or_slower_than_its_copy_however_often_one_looks():
    generator = torch.Generator().manual_seed(0)
    claims = 0
    for _ in range(30):  # each with pairs that are delayed now and then
        times = 1 + torch.rand(2, 30 * 2 ** (LOOKS - 1), generator=generator) / 20
        times += 3 * torch.rand(times.shape, generator=generator) * (torch.rand(times.shape, generator=generator) < 0.3)
        eager, transformed = times.tolist()
        for look in range(LOOKS):
            timing = replace(paired(eager[: 30 << look], transformed[: 30 << look]), looks=LOOKS)
            if timing.decides:
                break
        claims += timing.verdict in ("faster", "slower")
    assert claims <= 1


def test_intervals_are_wider_where_there_are_several_looks():
    generator = torch.Generator().manual_seed(0)
    pairs = paired((1 + torch.rand(30, generator=generator)).tolist(), [1.0] * 30)
    (low, high), (lower, higher) = pairs.interval, replace(pairs, looks=LOOKS).interval
    assert lower < low < high < higher


def test_pairs_outside_the_fences_are_outliers():
    ratios = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98, 5.0, 0.1]
    timing = paired(ratios, [1.0] * 10)
    assert timing.outliers == 0.2
    assert paired([1.0] * 10, [1.0] * 10).outliers == 0.0
    assert paired([1.0], [1.0]).outliers == 0.0


def test_noise_is_the_median_deviation_beside_the_median():
    timing = paired([1.8, 2.2, 2.0, 1.9, 2.1], [1.0] * 5)
    assert timing.noise == pytest.approx(0.05)


CUDNN = torch.backends.cudnn
FLAGS = (
    (CUDNN, "benchmark", True),
    (CUDNN, "deterministic", True),
    (CUDNN.conv, "fp32_precision", "ieee"),
    (CUDNN.rnn, "fp32_precision", "tf32"),
)


def cudnn_flags() -> list[bool | str]:
    return [getattr(owner, name) for owner, name, _ in FLAGS]


MAY_SET = "__allow_nonbracketed_mutation_flag"
"""The flag that allows flags to be set at all; torch's utilities for tests, once imported, forbid it for good."""
BACKENDS = torch.backends.flags_frozen.__globals__
"""The globals that have it: ``torch.backends`` is an object that replaces its module."""


@pytest.fixture
def unusual_flags(monkeypatch):
    monkeypatch.setitem(BACKENDS, MAY_SET, True)
    before = cudnn_flags()
    for owner, name, value in FLAGS:
        setattr(owner, name, value)
    yield
    for (owner, name, _), value in zip(FLAGS, before, strict=True):
        setattr(owner, name, value)


def test_conditions_are_set_inside_and_restored_even_after_an_error(unusual_flags):
    threads = torch.get_num_threads()
    assert gc.isenabled()

    def careless() -> None:
        assert torch.get_num_threads() == threads + 1
        assert not gc.isenabled()
        assert not torch.is_grad_enabled()
        assert cudnn_flags() == [False, False, "tf32", "tf32"]
        gc.enable()
        torch.set_num_threads(threads + 2)
        torch.set_grad_enabled(True)
        CUDNN.benchmark = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        time_pairs(careless, careless, threads=threads + 1)
    assert torch.get_num_threads() == threads
    assert gc.isenabled()
    assert torch.is_grad_enabled()
    assert cudnn_flags() == [value for _, _, value in FLAGS]


def test_flags_that_are_frozen_are_set_as_torch_itself_sets_them(unusual_flags, monkeypatch):
    monkeypatch.setitem(BACKENDS, MAY_SET, False)
    inside = []
    time_pairs(lambda: inside.append(CUDNN.benchmark), lambda: None, rounds=1)
    assert set(inside) == {False}
    assert CUDNN.benchmark
    monkeypatch.setitem(BACKENDS, MAY_SET, True)  # for the fixture to put everything back


def test_garbage_collection_stays_off_if_it_was():
    gc.disable()
    try:
        with steady_conditions(1):
            gc.enable()
        assert not gc.isenabled()
    finally:
        gc.enable()
