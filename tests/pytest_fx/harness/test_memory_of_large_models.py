"""The built-in suite on a model with large parameters: the number of copies in memory at a time."""

import gc
import inspect
import linecache
import os
import resource
import sys
import weakref
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import fx
from fx.passes import FuseConvBN
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Runner
from pytest_fx.harness.shared_weights import SharedWeights
from pytest_fx.harness.snapshot import in_pieces, same_tensor, tensors_of
from pytest_fx.harness.stored import LARGE, StoredTensors
from pytest_fx.harness.subject import Subject
from pytest_fx.isolation.kept_process import MOST_IMMORTAL
from pytest_fx.laws import TABLE, broken_laws

MODEL = '''
import torch
from torch import nn


class Large(nn.Module):
    """Eight kernels with batch norms, all numbers of which are others once they are folded."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(192, 192, 3, padding=1, bias=False) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(192) for _ in range(8))

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms):
            x = torch.relu(norm(convolution(x)))
        return x


def large():
    torch.manual_seed(0)
    return Large().eval(), torch.randn(1, 192, 2, 2)
'''
SIZE = 8 * (192 * 192 * 9 + 4 * 192) * 4
"""Bytes of its parameters and buffers."""
MOST = 4.0
"""The largest memory as a multiple of the parameters, beside the values of one call."""


def peak_bytes(run) -> int:
    """The most bytes that PyTorch's allocator has given to tensors at a time during ``run``, beside those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    now = most = 0
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_allocations_are_seen():
    assert peak_bytes(lambda: [torch.empty(1000, dtype=torch.uint8) for _ in range(3)]) == 3000
    assert peak_bytes(lambda: [torch.empty(1000, dtype=torch.uint8).size(0) for _ in range(3)]) == 1000


def large_memories():
    """The bytes of each large memory that a tensor has, without a run of the garbage collector."""
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]
    strided = [each for each in tensors if each.layout == torch.strided and each.device.type == "cpu"]
    memories = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in strided}
    return {memory: size for memory, size in memories.items() if size > LARGE}


class AfterEachTest:
    """Adds up the large tensors that exist after each test, except older ones."""

    def __init__(self):
        self.left = []
        self._before = large_memories()

    def pytest_runtest_logfinish(self):
        self.left.append(sum(size for memory, size in large_memories().items() if memory not in self._before))


@pytest.mark.thorough
def test_the_suite_needs_four_times_the_parameters_and_leaves_one_copy_after_each_test(pytester):
    pytester.makepyfile(large=MODEL)
    options = ("--fx-model=large:large", "--fx-pass=fuse-conv-bn", "--fx-rounds=2", "-p", "no:cacheprovider")
    gc.collect()
    outcome, after = [], AfterEachTest()
    run = partial(pytester.inline_run, *options, "-k", "not compile", plugins=[after])
    gc.disable()
    try:
        peak = peak_bytes(lambda: outcome.append(run()))
    finally:
        gc.enable()
    passed, _, failed = outcome[0].countoutcomes()
    assert (passed, failed) == (13, 0)
    assert SIZE < peak < MOST * SIZE
    assert max(after.left) < 1.1 * SIZE and after.left[-1] == 0


def wrong(program):
    """One function becomes another one."""
    next(node for node in program.graph.nodes if node.target is torch.relu).target = torch.sigmoid
    program.recompile()


@pytest.mark.thorough
def test_a_pass_that_fails_needs_six_times_the_parameters_and_leaves_one_copy(pytester):
    pytester.makepyfile(large=MODEL)
    pytester.makepyfile(failing=f"import torch\n\n{inspect.getsource(wrong)}")
    options = ("--fx-model=large:large", "--fx-pass=failing:wrong", "--fx-no-timing", "-p", "no:cacheprovider")
    gc.collect()
    outcome, after = [], AfterEachTest()
    run = partial(pytester.inline_run, *options, "-k", "contract", plugins=[after])
    peak = peak_bytes(lambda: outcome.append(run()))
    assert outcome[0].countoutcomes() == [0, 1, 1]  # the same failure is reported once
    assert SIZE < peak < 6 * SIZE
    assert max(after.left) < 1.1 * SIZE and after.left[-1] == 0


def large() -> Subject:
    module = nn.Sequential(nn.Linear(1024, 1025), nn.BatchNorm1d(1025), nn.ReLU())
    subject = Subject("large", module, lambda input_set: Arguments((torch.ones(2, 1024) + input_set,)))
    assert subject.is_large
    return subject


def test_borrowed_modules_of_a_large_model_share_the_only_tensors_there_are():
    subject = large()
    first, second = tensors_of(subject.shared_copy()), tensors_of(subject.shared_copy())
    assert all(first[name] is second[name] for name in first)
    assert peak_bytes(subject.shared_copy) < LARGE


def test_small_models_and_those_whose_tensors_are_views_are_copied_in_memory():
    assert not Subject("small", nn.Linear(8, 8), None).is_large
    sharing = nn.Module()
    sharing.register_buffer("table", torch.zeros(1024, 1025))
    sharing.register_buffer("rows", sharing.table[:2])
    assert not Subject("sharing", sharing, None).is_large
    viewing = nn.Module()
    viewing.register_buffer("table", torch.zeros(1024, 1025))
    assert Subject("viewing", viewing, None).is_large
    viewing.rows = [viewing.table[:4]]
    assert not Subject("viewing", viewing, None).is_large


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_model_that_holds_its_parameters_in_a_list_too_is_shared(dtype):
    recurrent = nn.LSTM(512, 512).to(dtype)
    subject = Subject(
        "recurrent", recurrent, lambda input_set: Arguments((torch.ones(2, 1, 512, dtype=dtype) + input_set,))
    )
    assert subject.is_large
    with subject.set_aside():
        pass
    with torch.no_grad():
        expected, _ = recurrent(torch.ones(2, 1, 512, dtype=dtype))
        shared_copy, _ = subject.shared_copy()(torch.ones(2, 1, 512, dtype=dtype))
    assert torch.equal(subject.eager().output[0], expected)
    assert torch.equal(shared_copy, expected)


def test_writes_to_a_large_model_are_detected_and_new_tensors_are_lent():
    subject = large()

    def writes(program):
        with torch.no_grad():
            program.get_submodule("0").weight.mul_(2)
            program.get_submodule("0").weight.requires_grad_(False)

    before = subject.fresh()[0].weight
    pass_run = PassRun(subject, writes)
    assert pass_run.damage == "it wrote to 0.weight"
    assert torch.equal(subject.fresh()[0].weight, before)
    assert torch.equal(subject.shared_copy()[0].weight, before) and subject.shared_copy()[0].weight.requires_grad
    assert torch.equal(pass_run.after.get_submodule("0").weight, 2 * before)


def test_writes_of_a_call_to_a_large_model_are_undone():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(1024, 1025))

        def forward(self, x):
            return self.table.add_(x).sum()

    subject = Subject("counting", Counting(), lambda input_set: Arguments((torch.ones(1),)), input_set_count=1)
    assert subject.is_large
    runner = subject.eager_runner()
    outputs = [runner(subject.arguments(), torch.float32).output.item() for _ in range(2)]
    assert outputs == [1024 * 1025] * 2


def test_copies_of_a_large_model_lie_in_memory_as_it_does():
    module = nn.Conv2d(512, 512, 3).to(memory_format=torch.channels_last)
    subject = Subject("channels last", module, None)
    assert subject.fresh().weight.stride() == subject.fresh(torch.float64).weight.stride() == module.weight.stride()


@pytest.mark.thorough
def test_a_large_model_has_one_program_in_float64_at_a_time():
    subject = large()
    subject.eager(0, float64=True)
    shared_weights = weakref.ref(next(iter(subject.shared_weights(float64=True).values())).tensor)
    pass_run = PassRun(subject, FuseConvBN())
    reference = weakref.ref(pass_run.after_float64.get_submodule("0").weight)
    assert shared_weights() is None
    subject.shared_weights(float64=True)
    assert reference() is None
    assert pass_run.after_float64 is not None, "it is made again"


def test_a_float64_program_releases_its_tensors_while_it_is_referenced():
    pass_run = PassRun(large(), lambda program: None)
    program = pass_run.after_float64
    weight = weakref.ref(program.get_submodule("0").weight)
    pass_run.let_go_of_float64()
    assert weight() is None
    assert pass_run.after_float64 is not None, "it is made again"


@pytest.mark.thorough
def test_heavy_results_of_a_pass_are_made_after_the_run_in_float64():
    subject = large()
    pass_run = PassRun(subject, FuseConvBN())
    first = weakref.ref(pass_run.after)
    pass_run.make_room()
    assert first() is None and pass_run.after is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedWeights, "deepcopy", None)  # there is nothing more to be made in float64
        assert pass_run.actual(0, float64=True).error is None
        assert pass_run.eager(0, float64=True).error is None
    assert torch.allclose(pass_run.actual(0, True).output, pass_run.eager(0, True).output, rtol=1e-5)


def test_tensors_that_were_set_aside_are_there_again():
    subject = large()
    tensors = tensors_of(subject.shared_copy())
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    with subject.set_aside():
        assert tensors["0.weight"].numel() == 0
    assert all(torch.equal(tensors[name], values) for name, values in before.items())
    assert not any(weight.written for weight in subject.shared_weights().values())


def test_a_runner_copies_no_large_tensor_in_memory():
    module = nn.Linear(1024, 1024)
    assert peak_bytes(lambda: Runner(module)) < LARGE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
@pytest.mark.parametrize("rows", [3, 2**11])
def test_stored_tensors_are_unchanged(dtype, rows):
    tensor = torch.randn(rows, 1024).to(dtype)
    stored = StoredTensors()
    stored["values"] = tensor
    before = tensor.clone()
    tensor.zero_()
    assert same_tensor(stored["values"], before) and list(stored) == ["values"] and len(stored) == 1


def test_stored_tensors_take_memory_only_while_they_are_read():
    tensor = torch.randn(1024, 1024).t()
    stored = StoredTensors()
    stored["values"] = tensor
    stored["again"] = tensor
    assert peak_bytes(lambda: stored["values"]) == 0
    assert torch.equal(stored["again"], tensor)


def test_where_there_is_no_room_for_a_file_tensors_stay_in_memory(monkeypatch):
    def full():
        raise OSError("no space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    stored, tensor = StoredTensors(), torch.randn(1024, 1024)
    stored["values"] = tensor
    assert torch.equal(stored["values"], tensor) and stored["values"] is not tensor


def test_large_tensors_are_compared_in_pieces():
    x = torch.full((2**12, 2**12), torch.nan)
    other = x.clone()
    assert peak_bytes(lambda: same_tensor(x, other)) < x.nbytes / 3
    other[-1, -1] = 0
    assert not same_tensor(x, other)
    assert sum(piece.numel() for (piece,) in in_pieces(x)) == x.numel()


def test_batch_norms_are_folded_without_keeping_the_old_weights():
    module = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).eval()
    program = fx.symbolic_trace(module)
    weight = weakref.ref(module[0].weight)
    del module
    gc.collect()
    gc.disable()
    try:
        edits = FuseConvBN().rewrites(program)
        next(edits)
        next(edits)  # after the first edit
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.thorough
def test_nothing_stays_behind_in_the_process():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    inputs = torch.ones(1, 3, 8, 8)

    def work():
        program = fx.symbolic_trace(module)
        program(inputs)
        fx.lower(program, "onednn")(inputs)
        subject = Subject("small", module, lambda input_set: Arguments((inputs,)))
        assert not broken_laws(TABLE[:16], PassRun(subject, FuseConvBN()))

    def there():
        gc.collect()
        kinds = Counter(str(type(each).__module__).partition(".")[0] for each in gc.get_objects())
        tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        return kinds["fx"], kinds["pytest_fx"], tensors, len(linecache.cache), len(sys.modules)

    work()
    before = there()
    for _ in range(10):
        work()
    assert there() == before


class Rewriting(nn.Module):
    """Normalizes by its batch in evaluation, too, and writes statistics that torch does not count as written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.register_buffer("mean", torch.zeros(1024))
        self.register_buffer("variance", torch.ones(1024))

    def forward(self, x):
        return nn.functional.batch_norm(self.linear(x), self.mean, self.variance, training=True)


def test_writes_of_timed_calls_to_a_large_model_are_undone_even_after_an_error():
    torch.manual_seed(0)
    subject = Subject("rewriting", Rewriting(), lambda input_set: Arguments((torch.randn(16, 1024),)))
    assert subject.is_large
    (mean,) = (
        weight.tensor for weight in subject.shared_weights().values() if same_tensor(weight.tensor, torch.zeros(1024))
    )
    with subject.to_be_timed() as program:
        program(torch.randn(16, 1024))
        assert mean.any()
    assert not mean.any()

    def time_and_fail():
        with subject.to_be_timed() as program:
            program(torch.randn(16, 1024))
            program(torch.ones(1, 2))

    with pytest.raises(RuntimeError, match="shape"):
        time_and_fail()
    assert not mean.any()


def test_a_model_with_a_buffer_that_overlaps_itself_is_copied_in_memory():
    module = nn.Linear(1024, 1024)
    module.register_buffer("mask", torch.ones(32, 32).expand(4, 32, 32))
    subject = Subject("masked", module, lambda input_set: Arguments((torch.ones(1, 1024),)))
    assert not subject.is_large
    assert subject.fresh(torch.float64).mask.shape == (4, 32, 32)


def test_a_model_of_many_tensors_takes_few_open_files():
    module = nn.Sequential(*(nn.Linear(128, 128) for _ in range(80)))
    subject = Subject("many", module, lambda input_set: Arguments((torch.ones(1, 128),)))
    assert subject.is_large
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        assert (subject.dtype, subject.is_full_size, subject.is_float64) == (torch.float32, True, False)
        assert subject.eager().error is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.thorough
@pytest.mark.parametrize("outcome", ["skip", "fail"])
def test_a_test_of_a_large_model_that_is_cut_short_is_tidied_up_after(pytester, outcome):
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        from dataclasses import dataclass

        @dataclass
        class Size:
            is_large: bool = True

        @pytest.fixture
        def size(): return Size()

        def large(): return torch.nn.Linear(1024, 1024), torch.ones(1, 1024)

        seen = []
        def same(program): pass
        def test_cut_short(fx_model, fx_equal, size):
            seen.append(fx_model)
            fx_equal(same)
            pytest.{outcome}("enough")
        def test_after(): assert {{key[0] for key in seen[0].findings}} <= {{"changes"}}  # no program
        """
    )
    outcomes = {"skip": {"skipped": 1}, "fail": {"failed": 1}}[outcome]
    pytester.runpytest("--fx-model", "test_it:large", "test_it.py").assert_outcomes(passed=1, **outcomes)


@pytest.mark.thorough
@pytest.mark.parametrize("width, left_out", [(8, False), (1024, True)], ids=["small", "large"])
def test_objects_become_old_only_beside_a_large_model(pytester, width, left_out):
    pytester.makepyfile(
        test_it=f"""
        import gc, torch
        from pytest_fx.isolation.kept_process import MOST_IMMORTAL
        gc.collect()  # Python 3.12 counts immortal objects from then on
        def model(): return torch.nn.Linear({width}, {width}), torch.ones(1, {width})
        def test_it(fx_model): assert (gc.get_freeze_count() > MOST_IMMORTAL) is {left_out}
        """
    )
    gc.unfreeze()
    try:
        pytester.runpytest("--fx-model", "test_it:model", "test_it.py").assert_outcomes(passed=1)
        assert gc.get_freeze_count() <= MOST_IMMORTAL
    finally:
        gc.freeze()
