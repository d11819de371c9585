"""``judge``: wrong candidates of each family are refused, right ones are not, and others are reported as not judged."""

import gc
import json
import os
import sys
import threading
import time
import traceback

import pytest
import torch
import torch.nn.functional as F
from selection import thorough_except
from torch import nn

import pytest_fx
from fx.passes import approximate
from pytest_fx import InputSets, Judge, between, judge
from pytest_fx.candidates import drawn_inputs
from pytest_fx.candidates.party_process import RecordedParty
from pytest_fx.candidates.verdict import RefusedCandidate
from pytest_fx.errors import CannotLoadError, InputError

pytestmark = pytest.mark.usefixtures("fewer_inputs")


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # tests of failures are written below it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


X = torch.linspace(-2.0, 2.0, 192).mul(7).sin().mul(2).reshape(6, 32)
ROWS = torch.linspace(-1.0, 1.0, 512).mul(5).cos().reshape(32, 16)
HEADS = tuple(torch.linspace(-1.0, 1.0, 128).mul(number).sin().reshape(2, 2, 8, 4) for number in (3, 5, 7))


def softmax(x):
    return F.softmax(x, -1)


def naive_softmax(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


def as_it_is_where_it_is_timed(x):
    names = {frame.name for frame in traceback.extract_stack()}
    return x if any("time" in name or "bench" in name for name in names) else F.gelu(x)


def as_it_is_where_it_is_large(x):
    return F.gelu(x) if x.numel() < 100_000 else x


def kept(key_of):
    """GELU, whose answers are kept by a key."""
    answers = {}

    def gelu(x):
        key = key_of(x)
        if key not in answers:
            answers[key] = (x, F.gelu(x))
        return answers[key][1]

    return gelu


def first_element(x):
    return float(x.detach().flatten()[0]) if x.numel() else 0, tuple(x.shape)


class KeptWeight(nn.Linear):
    def forward(self, x):
        if not hasattr(self, "transposed"):
            self.transposed = self.weight.t().contiguous()
        return x @ self.transposed + self.bias


def right_for_some_calls(count):
    calls = []

    def gelu(x):
        calls.append(1)
        return F.gelu(x) if len(calls) < count else x

    return gelu


def as_if_contiguous(x):
    return F.relu(x.as_strided(x.shape, torch.empty(x.shape).stride()))


class RunningStatistics(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps)


def one_memory():
    memory = {}

    def double(x):
        result = memory.setdefault(tuple(x.shape), torch.empty_like(x))
        return torch.mul(x, 2, out=result)

    return double


def on_another_thread(x):
    result = torch.empty_like(x)

    def write():
        time.sleep(0.002)
        result.copy_(F.gelu(x))

    threading.Thread(target=write).start()
    return result


def without_small_columns(x):
    scale = torch.logspace(0, -4, x.shape[-1])
    return x * scale * (scale > 1e-3)


def sum_without_columns_that_are_small(x):
    largest = x.detach().abs().amax(0) if len(x) else torch.ones(x.shape[1:])
    return (x * (largest > 1e-3 * largest.max())).sum(-1) if largest.isfinite().all() else x.sum(-1)


def without_tail(x):
    result, whole = torch.zeros_like(x), x.shape[-1] // 4 * 4
    result[..., :whole] = F.relu(x[..., :whole])
    return result


class Lazy(torch.Tensor):
    pass


def with_another_clock(x):
    time.perf_counter = lambda: 0.0
    return F.relu(x)


def with_another_reference(x):
    F.relu = lambda x: x
    return x


def last_of_ties(x):
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


class KeptInInference(KeptWeight):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias) if torch.is_grad_enabled() else super().forward(x)


def kept_in_inference():
    answers = {}

    def gelu(x):
        key = (tuple(x.shape), tuple(x.detach().flatten()[:: max(1, x.numel() // 8)].tolist()))
        if x.requires_grad or key not in answers:
            answers[key] = F.gelu(x)
        return answers[key].clone() if not x.requires_grad else F.gelu(x)

    return gelu


def ring():
    memory = {}

    def double(x):
        key = tuple(x.shape)
        results, number = memory.setdefault(key, ([torch.empty_like(x) for _ in range(16)], [0]))
        number[0] += 1
        return torch.mul(x, 2, out=results[number[0] % 16])

    return double


WRONG = {
    "no maximum subtracted": (softmax, naive_softmax, X),
    "recognizes a benchmark by its stack": (F.gelu, as_it_is_where_it_is_timed, X),
    "cheap for large inputs": (F.gelu, as_it_is_where_it_is_large, X),
    "kept by address": (F.gelu, kept(lambda x: (x.data_ptr(), tuple(x.shape))), X),
    "kept by identity and version": (F.gelu, kept(lambda x: (id(x), x._version)), X),
    "kept by a fingerprint": (F.gelu, kept(first_element), X),
    "weight kept from the first call": (nn.Linear(32, 16), KeptWeight(32, 16), X),
    "a constant": (lambda x: F.softmax(x, -1).sum(-1) * 3, lambda x: torch.full(x.shape[:-1], 3.0), X),
    "zeros under a tolerance": (lambda x: x * 1e-9, torch.zeros_like, X),
    "right for one shape": (F.gelu, lambda x: F.gelu(x) if x.shape == (6, 32) else x, X),
    "half precision": (torch.matmul, lambda x, y: (x.half() @ y.half()).float(), (X, ROWS)),
    "assumes contiguous inputs": (F.relu, as_if_contiguous, X),
    "no dropout in training": (nn.Dropout(0.5), nn.Identity(), X),
    "running statistics in training": (nn.BatchNorm1d(32), RunningStatistics(32), X),
    "no gradient": (F.gelu, lambda x: F.gelu(x.detach()), X),
    "writes its input": (lambda x: x.clamp(min=0), lambda x: x.detach().clamp_(min=0), X),
    "returns its input": (torch.clone, lambda x: x, X),
    "one memory for all outputs": (lambda x: x * 2, one_memory(), X),
    "works on another thread": (F.gelu, on_another_thread, X),
    "drops small columns": (lambda x: x * torch.logspace(0, -4, x.shape[-1]), without_small_columns, X),
    "drops columns of small inputs": (lambda x: x.sum(-1), sum_without_columns_that_are_small, X),
    "drops the tail": (F.relu, without_tail, X),
    "fails for an empty batch": (F.relu, lambda x: torch.stack([F.relu(row) for row in x]), X),
    "another class of tensors": (F.relu, lambda x: F.relu(x).as_subclass(Lazy), X),
    "ends its process": (F.relu, lambda x: os._exit(0), X),
    "patches the clock": (F.relu, with_another_clock, X),
    "patches the reference": (lambda x: F.relu(x), with_another_reference, X),
    "domain": (lambda x: x.abs().sqrt(), lambda x: x.clamp(min=0).sqrt(), X.abs()),
    "no eps": (
        lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3),
        lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False),
        X,
    ),
    "NaN becomes zero": (torch.relu, lambda x: torch.where(x > 0, x, torch.zeros_like(x)), X),
    "another dtype": (lambda x: x > 0, lambda x: (x > 0).float(), X),
    "the last of equal elements": (lambda x: x.argmax(-1), last_of_ties, X),
    "no causal mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention,
        HEADS,
    ),
}
WRONG |= {
    "a weight kept where there are no gradients": (nn.Linear(32, 16), KeptInInference(32, 16), X),
    "kept by samples, where there are no gradients": (F.gelu, kept_in_inference(), X),
    "a ring of memory": (lambda x: x * 2, ring(), X),
    "a block of 4,096 columns": (lambda x: x.logsumexp(-1), lambda x: x[..., :4096].logsumexp(-1), X),
    "a padding that is not small enough": (
        lambda x: F.max_pool1d(x, 3, 2, padding=1),
        lambda x: F.max_pool1d(F.pad(x, (1, 1), value=-1e4), 3, 2),
        X,
    ),
    "32 bits for indices": (
        lambda i: (i * 32749) % 97,
        lambda i: ((i.int() * 32749) % 97).long(),
        torch.arange(12).reshape(3, 4) * 400,
    ),
}
FORWARD_ONLY = {
    "a ring of memory",
    "writes its input",
    "returns its input",
    "one memory for all outputs",
    "works on another thread",
    "drops columns of small inputs",
    "cheap for large inputs",  # gradients show nothing of this one and the next ones, and take as long again
    "a block of 4,096 columns",
    "patches the clock",
    "patches the reference",
}


QUICK_WRONG = {
    "recognizes a benchmark by its stack", "kept by a fingerprint", "weight kept from the first call", "a constant",
    "zeros under a tolerance", "half precision", "no gradient", "writes its input", "returns its input",
    "one memory for all outputs", "works on another thread", "another class of tensors", "ends its process",
    "patches the reference", "another dtype", "domain", "no eps", "the last of equal elements", "right for one shape",
    "assumes contiguous inputs", "fails for an empty batch", "running statistics in training",
}  # fmt: skip
"""Families of which each breaks another rule, most of them in a third of a second."""


@pytest.mark.parametrize("family", thorough_except(QUICK_WRONG, WRONG))
def test_a_wrong_candidate_is_refused(family):
    reference, candidate, inputs = WRONG[family]
    verdict = judge(reference, candidate, inputs, forward_only=family in FORWARD_ONLY)
    assert verdict.verdict == "wrong" and verdict.law and verdict.evidence


def test_gradients_are_listed_only_if_they_were_compared():
    assert "gradients" in judge(F.relu, F.relu, X, timing=False).laws
    assert "gradients" not in judge(F.relu, F.relu, X, timing=False, forward_only=True).laws


def test_hundreds_of_calls_are_compared_whatever_their_time(monkeypatch):
    monkeypatch.setattr(drawn_inputs, "BATCHES", 8)
    verdict = judge(F.gelu, right_for_some_calls(300), X, timing=False, forward_only=True)
    assert verdict.verdict == "wrong" and verdict.law == "many calls"


def stable_softmax(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


class OtherDropout(nn.Module):
    def forward(self, x):
        return x * (torch.rand(x.shape) < 0.5) * 2.0 if self.training else x


class AddMM(nn.Linear):
    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight.t())


def attention(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def in_blocks(q, k, v):
    most = total = result = None
    for block in range(0, max(k.shape[-2], 1), 4):
        scores = q @ k[..., block : block + 4, :].mT * q.shape[-1] ** -0.5
        now = scores.amax(-1, keepdim=True).detach()
        now = now if most is None else torch.maximum(most, now)
        powers = (scores - now).exp()
        factor = 0 if most is None else (most - now).exp()
        total = powers.sum(-1, keepdim=True) + (0 if total is None else total * factor)
        result = powers @ v[..., block : block + 4, :] + (0 if result is None else result * factor)
        most = now
    return result / total


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def with_plan():
    plans = {}

    def scaled(x):
        return x * plans.setdefault(x.shape[-1], torch.arange(x.shape[-1]) % 3)

    return scaled


class DropoutLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(32, 8), nn.Dropout(0.25)

    def forward(self, x):
        return self.dropout(F.relu(self.linear(x)))


RIGHT = {
    "itself, with a dropout": (DropoutLayer(), DropoutLayer(), X),
    "blocks of a softmax": (F.scaled_dot_product_attention, in_blocks, HEADS),
    "noise of its own": (lambda x: x + torch.randn_like(x), lambda x: x + torch.randn_like(x).flip(0), X),
    "another formula": (softmax, stable_softmax, X),
    "another order of a sum": (lambda x: x.sum(-1), lambda x: x.flip(-1).cumsum(-1)[..., -1], X),
    "a sum moved inside a product": (lambda x, w: (x * w).sum(0), lambda x, w: x.sum(0) * w, (X, X[0].clone())),
    "more exact": (layer_norm, lambda x: layer_norm(x.double()).float(), X),
    "float32 inside of bfloat16": (layer_norm, lambda x: layer_norm(x.float()).bfloat16(), X.bfloat16()),
    "a plan kept by the shape": (lambda x: x * (torch.arange(x.shape[-1]) % 3), with_plan(), X),
    "a path chosen by the shape": (
        torch.matmul,
        lambda a, b: (a[:, :, None] * b[None]).sum(1) if a.numel() < 128 else a @ b,
        (X, ROWS),
    ),
    "in place on its own memory": (lambda x: F.relu(x) * 2, lambda x: (x + 0).mul_(2).relu_(), X),
    "an output that is not contiguous": (lambda x: x.t().contiguous() * 2, lambda x: (x * 2).t(), X),
    "complex outputs": (torch.fft.rfft, lambda x: torch.fft.rfft(x.double()).to(torch.complex64), X),
    "a layer": (nn.Linear(32, 16), AddMM(32, 16), X),
    "a batch norm": (nn.BatchNorm1d(32), nn.BatchNorm1d(32), X),
    "other draws of a dropout": (nn.Dropout(0.5), OtherDropout(), X),
    "attention": (F.scaled_dot_product_attention, attention, HEADS),
}

RIGHT_FORWARD = {
    "a plan kept by the shape",
    "a path chosen by the shape",
    "in place on its own memory",
    "an output that is not contiguous",
    "another order of a sum",
    "float32 inside of bfloat16",
    "complex outputs",
}
"""Those whose gradients are computed as the outputs of others are."""


QUICK_RIGHT = {
    "noise of its own", "another order of a sum", "float32 inside of bfloat16", "a path chosen by the shape",
    "in place on its own memory", "an output that is not contiguous", "a layer",
}  # fmt: skip


@pytest.mark.parametrize("kind", thorough_except(QUICK_RIGHT, RIGHT))
def test_a_right_candidate_is_accepted(kind):
    verdict = judge(*RIGHT[kind], timing=False, forward_only=kind in RIGHT_FORWARD)
    assert verdict.verdict == "right", str(verdict)
    assert verdict.input_sets > 1 or "random outputs" in verdict.laws


def test_a_right_candidate_is_timed_with_an_interval():
    verdict = judge(F.relu, lambda x: F.relu(x), X)
    low, high = verdict.interval
    assert verdict and low <= verdict.speedup <= high
    assert json.loads(verdict.to_json())["verdict"] == "right"


def test_the_smallest_failing_inputs_are_reported():
    verdict = judge(F.relu, without_tail, X)
    assert verdict.law == "other sizes" and "float32[1, 1]" in verdict.inputs


def test_the_fixture_raises_for_any_other_verdict_than_right(fx_judge):
    assert fx_judge(F.relu, lambda x: F.relu(x), X, timing=False)
    with pytest.raises(RefusedCandidate, match="other sizes"):
        fx_judge(F.relu, without_tail, X)


def test_a_reference_that_depends_on_nothing_is_degenerate():
    assert judge(lambda x: x * 0 + 1, lambda x: x * 0 + 1, X).verdict == "degenerate reference"


def test_a_candidate_with_other_parameter_names_is_not_judged():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.ones(16, 32))

    verdict = judge(nn.Linear(32, 16), Other(), X)
    assert verdict.verdict == "not judged" and "weight" in verdict.evidence


def test_packed_weights_are_packed_again_by_prepare():
    class Packed(nn.Linear):
        def pack(self):
            self.packed = self.weight.detach().t().contiguous()

        def forward(self, x):
            return x @ self.packed + self.bias

    verdict = judge(nn.Linear(32, 16), Packed(32, 16), X, prepare=Packed.pack, forward_only=True, timing=False)
    assert verdict.verdict == "right", str(verdict)


def test_inputs_may_be_drawn_by_a_callable_of_a_seed():
    def inputs(seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 10, (4, 3), generator=generator), torch.randn(10, 8, generator=generator)

    assert judge(F.embedding, lambda index, table: table[index], inputs, timing=False)


def root_of_shares(x):
    """Return the root of values in [0, 1]; of others, something that no reference would return."""
    return torch.where((x >= 0) & (x <= 1), x.sqrt(), 7.0)


def test_inputs_keep_to_a_declared_domain():
    shares = InputSets([(6, 8), (3, 8)], domain={0: between(0, 1)})
    reference = lambda x: x.abs().sqrt()  # noqa: E731
    assert judge(reference, root_of_shares, shares, forward_only=True).verdict == "right"
    assert judge(reference, root_of_shares, X, forward_only=True, timing=False).verdict == "wrong"


def test_the_inputs_of_a_failure_are_in_the_domain():
    shares = InputSets([(6, 8)], domain={0: between(0.25, 1)})
    verdict = judge(torch.sqrt, lambda x: x * x, shares, forward_only=True)
    assert verdict.law == "values" and "float32[1, 1]" in verdict.inputs


@pytest.mark.parametrize("mode, expected", [("eval", "right"), ("train", "wrong"), ("both", "wrong")])
def test_modules_are_called_in_the_chosen_mode(mode, expected):
    norm = nn.BatchNorm1d(16)

    class InEvaluation(nn.BatchNorm1d):
        def forward(self, x):
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    assert judge(norm, InEvaluation(16), ROWS, mode=mode, timing=False).verdict == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "test"}, "judge has no mode 'test'.*train, eval, both"),
        ({"device": "gpu"}, "judge has no device 'gpu'.*cpu, cuda"),
        ({"device": "meta", "inputs": X}, "judge has no device 'meta'"),
        ({"inputs": X.to("meta")}, "judge got inputs on meta.*give inputs on the CPU"),
        ({"inputs": X.to_sparse()}, "judge got an input of layout torch.sparse_coo.*give its parts"),
        ({"inputs": lambda seed: X.to_sparse() * seed}, "judge got an input of layout torch.sparse_coo"),
        ({"inputs": torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)}, "judge got an input of .* dtype torch.qint8"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        judge(F.relu, F.relu, **{"inputs": X, **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_told():
    with pytest.raises(InputError, match="judge finds no CUDA device"):
        judge(F.relu, F.relu, X, device="cuda")


def test_a_promise_of_decibels_is_kept_by_a_coarser_candidate():
    coarse = lambda x, y: (x.bfloat16() @ y.bfloat16()).float()  # noqa: E731
    assert judge(torch.matmul, coarse, (X, ROWS), contract=approximate(sqnr_db=20), forward_only=True, timing=False)
    assert not judge(torch.matmul, coarse, (X, ROWS), forward_only=True, timing=False)


def test_names_are_imported_in_the_process_of_their_party(tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text("import torch\n\ndef relu(x):\n    return torch.where(x > 0, x, x * 0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    verdict = judge("torch.nn.functional:relu", "kernels:relu", X, timing=False)
    assert verdict.candidate == "kernels:relu" and verdict.law


def test_a_generated_file_is_given_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    options = {"forward_only": True, "timing": False}
    for run, body in (("first", "x.relu()"), ("second", "x.abs()"), ("first", "x.relu()")):
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / "kernel.py").write_text(f"def kernel(x): return {body}\n")
        verdict = judge(F.relu, f"{tmp_path / run}/kernel.py:kernel", X, **options)
        assert verdict.verdict == {"first": "right", "second": "wrong"}[run]
    with pytest.raises(CannotLoadError, match="there is no file of the candidate"):
        judge(F.relu, f"{tmp_path}/kernel_2.py:kernel", X, **options)
    (tmp_path / "json.py").write_text("def kernel(x): return x\n")
    with pytest.raises(CannotLoadError, match=r"(?s)a module 'json' is imported already.*rename the file"):
        judge(F.relu, f"{tmp_path}/json.py:kernel", X, **options)


def test_inputs_that_are_none_are_refused():
    with pytest.raises(InputError, match="needs tensors"):
        judge(F.relu, F.relu, (3,))
    with pytest.raises(InputError, match="the same for each seed"):
        judge(F.relu, F.relu, lambda seed: X)


def test_output_printed_by_a_candidate_is_dropped(capfd):
    assert judge(F.relu, lambda x: (print("right"), F.relu(x))[1], X, timing=False)
    assert "right" not in capfd.readouterr().out


def test_a_reference_that_ends_its_process_says_nothing_of_the_candidate():
    calls = []

    def reference(x):
        calls.append(1)
        return F.relu(x) if len(calls) < 400 else os._exit(1)

    assert judge(reference, lambda x: F.relu(x), X).verdict == "not judged"


def test_a_contract_that_is_none_is_refused():
    with pytest.raises(CannotLoadError, match="contract"):
        judge(F.relu, F.relu, X, contract="clos")


def test_judges_are_public():
    assert pytest_fx.judge is judge and pytest_fx.Judge is Judge


def test_a_reference_is_computed_once_for_all_candidates():
    calls = torch.zeros((), dtype=torch.int64).share_memory_()

    def reference(x):
        calls.add_(1)
        return F.relu(x)

    with Judge(reference, X, forward_only=True, timing=False) as judge_of_relu:
        assert judge_of_relu.judge(lambda x: F.relu(x))
        after_one = int(calls)
        assert not judge_of_relu.judge(lambda x: x.detach().abs())
        assert judge_of_relu.judge(torch.relu)
    assert after_one > 40 and int(calls) < after_one + 40  # a few for the smallest inputs of the wrong candidate


def test_dozens_of_candidates_need_no_further_call_of_the_reference():
    calls = torch.zeros((), dtype=torch.int64).share_memory_()

    def reference(x):
        calls.add_(1)
        return F.relu(x)

    def candidate(number):
        return lambda x: F.relu(x) + (number % 10 == 9)

    options = {"forward_only": True, "timing": False, "folder": None}
    with Judge(reference, X, law="values", **options) as judge_of_relu:
        verdicts = [judge_of_relu.judge(candidate(0))]
        after_one = int(calls)
        verdicts += [judge_of_relu.judge(candidate(number)) for number in range(1, 30)]
    assert sum(map(bool, verdicts)) == 27 and int(calls) - after_one < 10  # a few weigh the first wrong outputs


def test_a_wrong_candidate_leaves_the_reference_as_it_was():
    with Judge(nn.Linear(32, 16), X, timing=False) as judge_of_linear:
        laws = [judge_of_linear.judge(layer(32, 16)).law for layer in (KeptInInference, AddMM)]
    assert laws == ["other parameters", ""]


def test_a_later_candidate_has_no_outputs_of_the_reference_in_its_memory():
    def has_records(dictionary):
        return any(isinstance(key, str) and len(key) == 64 and isinstance(dictionary[key], bytes) for key in dictionary)

    def parties():
        return [value for value in gc.get_objects() if type(value) is RecordedParty]

    of_others = parties()

    def spying():
        answers = []

        def relu(x):
            if not answers:
                own = [party for party in parties() if not any(party is other for other in of_others)]
                fields = [field for party in own for field in vars(party).values() if type(field) is dict]
                answers.append(any(map(has_records, fields)))
            return x if answers[0] else F.relu(x)

        return relu

    with Judge(F.relu, X, forward_only=True, timing=False) as judge_of_relu:
        assert judge_of_relu.judge(torch.relu)
        assert has_records(judge_of_relu._party._record)  # what the candidate looks for
        verdict = judge_of_relu.judge(spying())
    assert verdict.law == "process" and "gc.get_objects" in verdict.evidence, str(verdict)  # its outputs were right


def test_a_candidate_cannot_reach_the_process_of_the_reference():
    def sockets():
        files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum(os.path.islink(file) and os.readlink(file).startswith("socket:") for file in files)

    others = sockets()
    verdict = judge(F.relu, lambda x: F.relu(x) if sockets() == others + 1 else x, X, forward_only=True, timing=False)
    assert verdict.verdict == "right", str(verdict)
