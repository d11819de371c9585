"""pytest_fx.timing.outputs and contents: no program is reported as faster that does not compute from its inputs."""

import gc
import threading
import time

import pytest
import torch
import torch.fx
from torch import nn

import fx
from fx.passes import approximate, close
from pytest_fx.errors import TimedOutputError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.timing.contents import LARGEST_RING, Contents
from pytest_fx.timing.outputs import OutputCheck
from pytest_fx.timing.paired import PairedTiming, entered, time_pairs

MATRIX = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)) / 16


class Work(nn.Module):
    """So much that nothing beside it takes time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.tanh(x @ MATRIX)
        return x


class Remembering(nn.Module):
    """Looks a result up by a key of its input."""

    def __init__(self, key) -> None:
        super().__init__()
        self.known: dict = {}
        self.work, self.key = Work(), key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        if key not in self.known:
            self.known[key] = self.work(x)
        return self.known[key]


def one_set(number: int) -> Arguments:
    return Arguments((torch.randn(256, 256, generator=torch.Generator().manual_seed(1)),))


def many_sets(number: int) -> Arguments:
    return Arguments((torch.randn(256, 256, generator=torch.Generator().manual_seed(number)),))


def timed(eager: nn.Module, program: nn.Module, inputs=one_set, contract=None, rounds: int = 6) -> PairedTiming:
    check = OutputCheck("program", "model", contract)
    return time_pairs(eager, program, rounds=rounds, contents=Contents(inputs), outputs=check)


KEYS = {"identity": id, "address": torch.Tensor.data_ptr, "nothing": lambda x: None, "shape": lambda x: x.shape}


@pytest.mark.parametrize("contract", [None, close, approximate(20)], ids=str)
@pytest.mark.parametrize("inputs", [one_set, many_sets])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_cache_that_does_not_look_at_contents_is_refused(key, inputs, contract):
    with pytest.raises(TimedOutputError, match="program returns something else when the contents of its inputs change"):
        timed(Work(), Remembering(key), inputs, contract)


@pytest.mark.parametrize("inputs", [one_set, many_sets])
def test_a_cache_that_was_filled_before_is_refused(inputs):
    program = Remembering(lambda x: None)
    program(*inputs(0).args)
    with pytest.raises(TimedOutputError, match="a cache"):
        timed(Work(), program, inputs)


@pytest.mark.parametrize("inputs", [one_set, many_sets])
def test_a_cache_by_contents_finds_nothing_in_it(inputs):
    program = Remembering(lambda x: x.numpy().tobytes())
    for _ in range(2):  # nor do contents come again when a timing is repeated
        before = len(program.known)
        timing = timed(Work(), program, inputs)
        assert len(program.known) - before >= timing.iterations * 6


@pytest.mark.parametrize("inputs", [one_set, many_sets])
def test_a_cache_by_versions_is_refused_or_finds_nothing_in_it(inputs):
    program = Remembering(lambda x: x._version)
    try:
        timing = timed(Work(), program, inputs)
    except TimedOutputError:  # the calls of one sample have equal versions
        return
    assert len(program.known) >= timing.iterations * 6


class Embedded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return MATRIX[x.long()] @ MATRIX


def test_a_cache_of_integers_is_refused_or_finds_nothing():
    def inputs(number: int) -> Arguments:
        return Arguments((torch.randint(256, (256,), generator=torch.Generator().manual_seed(number)),))

    class First(Embedded):
        result = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.result = super().forward(x) if self.result is None else self.result
            return self.result

    timed(Embedded(), Embedded(), inputs)
    with pytest.raises(TimedOutputError, match="a cache"):
        timed(Embedded(), First(), inputs)


class ByContents(Embedded):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[bytes, torch.Tensor] = {}
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        key = x.numpy().tobytes()
        if key not in self.known:
            self.known[key] = super().forward(x)
        return self.known[key]


@pytest.mark.parametrize("tokens", [torch.arange(16), torch.tensor([[3, 200]]), torch.arange(8).bool()], ids=str)
def test_a_cache_by_contents_finds_no_integers_in_it_also_where_there_is_one_set(tokens):
    program = ByContents()
    program(tokens)
    timing = timed(Embedded(), program, lambda number: Arguments((tokens,)))
    assert (len(program.known) < program.calls) == timing.contents_repeat


def test_it_is_reported_where_integers_repeat():
    tokens = torch.full((4,), 7)
    assert timed(Embedded(), Embedded(), lambda number: Arguments((tokens,))).contents_repeat
    assert not timed(Work(), Work()).contents_repeat


def test_integers_change_in_a_way_that_the_model_accepts():
    """Offsets begin with zero and do not fall; rows may come in another order."""
    x = torch.tensor([[0, 1, 5], [0, 3, 4], [0, 0, 2], [0, 7, 9]])

    def accepts(arguments: Arguments) -> bool:
        (offsets,) = arguments.tensors
        return bool((offsets[:, 0] == 0).all() and (offsets.diff(dim=1) >= 0).all())

    contents = Contents(lambda number: Arguments((x,)), accepts)
    ring = contents.ring(3)
    contents.fill(ring, 0)
    distinct = {str(args[0].tolist()) for args, _ in ring.calls}
    assert len(distinct) == 3 and all(map(accepts, ring.arguments))
    assert {str(sorted(args[0].tolist())) for args, _ in ring.calls} == {str(sorted(x.tolist()))}


def test_a_program_that_replaces_a_function_while_it_is_timed_is_reported_and_the_function_restored():
    sinh = torch.sinh

    class Patching(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.sinh = torch.cosh
            return super().forward(x)

    with pytest.raises(TimedOutputError, match=r"changed the process, when it is called(.|\n)*torch\.sinh is another"):
        timed(Work(), Patching())
    assert torch.sinh is sinh


def test_a_timed_program_finds_no_output_of_eager_among_live_objects():
    results: list[torch.Tensor] = []

    class Finding(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            right = super().forward(x)
            for other in gc.get_objects():
                if type(other) is torch.Tensor and other is not right and other.shape == right.shape:
                    results.extend([other] if torch.equal(other, right) else [])
            return right

    timed(Work(), Finding(), rounds=1)
    assert not results


def test_a_program_that_replaces_the_clock_is_not_timed(monkeypatch):
    class Stopping(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
            return super().forward(x)

    with pytest.raises(TimedOutputError, match=r"time\.perf_counter is another function"):
        timed(Work(), Stopping())


@pytest.mark.thorough
def test_clocks_are_bound_before_a_program_can_replace_them(pytester):
    """A module that a test imports first: its clock stands still, and its garbage collector misreports."""
    pytester.makepyfile(
        standing_still="""
        import gc, sys, time
        from torch import nn

        for name, value in {"perf_counter": lambda: 0.0, "process_time": lambda: 0.0}.items():
            for module in list(sys.modules.values()):
                for attribute, held in list(vars(module).items()):
                    if held is getattr(time, name) and module is not time:
                        setattr(module, attribute, value)
            setattr(time, name, value)
        gc.isenabled, gc.disable = lambda: False, lambda: None

        class Collecting(nn.Module):
            def forward(self, x):
                gc.enable()
                return x.cos().sin()
        """,
        test_timed="""
        import standing_still
        import gc

        def test_timed(fx_timing):
            timing = fx_timing(standing_still.Collecting(), label="collecting")
            assert min(timing.eager + timing.transformed) > 0 and timing.processors > 0.1
        """,
    )
    pytester.makepyfile(
        models="""
        import torch
        from torch import nn

        class Wave(nn.Module):
            def forward(self, x):
                return x.cos().sin()

        def model():
            return Wave(), torch.ones(64, 64)
        """
    )
    result = pytester.runpytest_subprocess("--fx-model", "models:model", "test_timed.py", "--fx-rounds", "4")
    result.assert_outcomes(passed=1)


def test_no_garbage_is_collected_while_eager_runs_after_a_program_that_turns_it_on():
    collecting: list[bool] = []

    class Asking(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            collecting.append(gc.isenabled())
            return super().forward(x)

    class Collecting(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gc.enable()
            return super().forward(x)

    timed(Asking(), Collecting())
    assert not any(collecting)


def test_an_output_that_a_thread_fills_after_the_return_is_refused():
    class Later(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output, copied = torch.zeros_like(x), x.clone()

            def compute() -> None:
                time.sleep(0.01)
                output.copy_(super(Later, self).forward(copied))

            threading.Thread(target=compute).start()
            return output

    with pytest.raises(TimedOutputError):
        timed(Work(), Later())


class Counting(Work):
    """Computes in some calls only."""

    def __init__(self, computes) -> None:
        super().__init__()
        self.count, self.last, self.computes = 0, None, computes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.last is None or self.computes(self.count):
            self.last = super().forward(x)
        return self.last


@pytest.mark.parametrize("inputs", [one_set, many_sets])
@pytest.mark.parametrize("computes", [lambda count: count < 8, lambda count: count % 16 == 0])
def test_a_cache_by_the_number_of_calls_is_refused(computes, inputs):
    with pytest.raises(TimedOutputError, match="a cache"):
        timed(Work(), Counting(computes), inputs, rounds=12)


def test_outputs_that_were_computed_before_are_refused():
    class Precomputed(Work):
        def __init__(self) -> None:
            super().__init__()
            self.outputs = [super(Precomputed, self).forward(*many_sets(number).args) for number in range(8)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.outputs.append(self.outputs.pop(0))
            return self.outputs[0]

    with pytest.raises(TimedOutputError, match="a cache"):
        timed(Work(), Precomputed(), many_sets, close)


def test_error_explanation_of_captured_programs_is_not_timed():
    """It takes a third of a microsecond, of five that a small program takes."""
    plain = nn.Module.__call__
    for program in (Work(), fx.symbolic_trace(Work()), torch.fx.symbolic_trace(Work())):
        assert entered(program).__func__ is plain
        assert torch.equal(entered(program)(MATRIX), program(MATRIX))

    class Own(Work):
        def __call__(self, *args):
            return super().__call__(*args)

    own = Own()
    assert entered(own) is own
    assert entered(torch.relu) is torch.relu


class Lazy:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class LazyTensor(torch.Tensor):
    pass


@pytest.mark.parametrize("make", [Lazy, lambda x: (x, Lazy(x)), lambda x: x.as_subclass(LazyTensor)])
def test_a_lazy_output_is_refused(make):
    class Later(nn.Module):
        def forward(self, x: torch.Tensor):
            return make(x)

    with pytest.raises(TimedOutputError, match=r"is of the class .*Lazy"):
        timed(Work(), Later())
    assert timed(Later(), Later()).threads == 1


@pytest.mark.thorough
def test_programs_that_follow_their_inputs_are_timed_however_far_they_are_from_eager():
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Quantized(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.round(super().forward(x) * 16) / 16

    class Random(Work):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(x))

    timed(Work(), Other())
    timed(Work(), Quantized())
    timed(Work(), Work(), contract=close)
    timed(Random(), Random(), contract=close)
    with pytest.raises(TimedOutputError):
        timed(Work(), Other(), contract=close)


def observed(errors: list[float], elements: int, change: float, contract=None) -> OutputCheck:
    check = OutputCheck("program", "model", contract)
    for number, error in enumerate(errors):
        output = torch.arange(1.0, elements + 1) * (1 + change * number)
        check.observe(output, output * (1 + error), timed=number > 0)
    return check


LUCKY = [0.00024, 0.00041, 0.0042, 0.0042]
"""Errors of a quantized program that returns one element."""
CLIPPED = [0.07, 0.0017, 0.079, 0.078]
"""Errors of a quantized program with inputs outside the calibrated range."""


def test_a_quantized_program_may_be_nearer_to_eager_on_some_contents_than_on_others():
    observed(LUCKY, 1, 0.005).require_followed()
    observed(LUCKY, 100, 0.005, approximate(30)).require_followed()
    observed(CLIPPED, 100, 0.5).require_followed()


@pytest.mark.parametrize(
    "errors, elements, change, contract",
    [
        (LUCKY, 100, 0.005, None),
        ([0.0, *LUCKY[1:]], 1, 0.005, None),
        ([0.0, 0.0, 0.1, 0.1], 1, 0.1, close),
        (CLIPPED, 100, 0.07, None),
    ],
)
def test_errors_as_large_as_eagers_changes_are_those_of_a_cache(errors, elements, change, contract):
    with pytest.raises(TimedOutputError, match="a cache"):
        observed(errors, elements, change, contract).require_followed()


def test_a_pair_has_the_same_contents_and_no_call_has_those_of_another():
    recorded: dict[str, list[tuple[int, bytes]]] = {"e": [], "t": []}

    class Seeing(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recorded[self.name].append((x.data_ptr(), x.numpy().tobytes()))
            x.zero_()
            return x.t_()

    def inputs(number: int) -> Arguments:
        return Arguments((torch.arange(1.0, 7.0).reshape(2, 3),))

    timing = timed(Seeing("e"), Seeing("t"), inputs, rounds=4)
    assert [contents for _, contents in recorded["e"]] == [contents for _, contents in recorded["t"]]
    assert len({contents for _, contents in recorded["e"]}) == len(recorded["e"])
    for calls in recorded.values():
        assert len({address for address, _ in calls}) == timing.iterations


def test_contents_are_valid_inputs():
    table = torch.tensor([0.0, -torch.inf, torch.nan, -3.0, torch.finfo(torch.float32).max])
    contents = Contents(lambda number: Arguments((table, torch.tensor([True]), "a"), {"index": torch.tensor(number)}))
    ring = contents.ring(2)
    contents.fill(ring, 0)
    (x, mask, text), kwargs = ring.calls[0]
    assert x[0] == 0 and x[1] == -torch.inf and x[2].isnan() and -3.0 < x[3] < -2.9
    assert x[4].isfinite()
    assert mask.tolist() == [True] and text == "a"
    assert kwargs["index"] > 0
    assert not torch.equal(x, ring.calls[1][0][0])


def test_outputs_that_are_compared_are_of_different_input_sets():
    compared: list[float] = []

    class Observing(OutputCheck):
        def observe(self, eager, output, *, timed: bool = True) -> None:
            compared.append(round(float(eager.max())))

    sets = iter([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    contents = Contents(lambda number: Arguments((torch.full((2,), next(sets)),)))
    time_pairs(torch.relu, torch.relu, rounds=10, contents=contents, outputs=Observing("program", "model"))
    assert len(compared) == len(set(compared)) == 5


def test_input_sets_of_another_form_are_left_out():
    contents = Contents(lambda number: Arguments((torch.arange(2 if number == 0 else 3),)))
    ring = contents.ring(1)
    contents.fill(ring, 0)
    assert ring.calls[0][0][0].shape == (2,)


def test_argument_sets_are_bounded_in_memory():
    large = Contents(lambda number: Arguments((torch.zeros(LARGEST_RING // 3 // 4),)))
    assert large.fitting(10) == 3
    assert large.fitting(2) == 2
    assert Contents(lambda number: Arguments((torch.zeros(LARGEST_RING // 2),))).fitting(10) == 1
    assert Contents(lambda number: Arguments()).fitting(10) == 10
