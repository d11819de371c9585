"""Metrics on labelled data: the drop, its interval over samples, and the samples that changed."""

import json
import math
import re

import pytest
import torch
from building import last_run
from torch import nn

from pytest_fx import mean_iou, measure_drop, measured, perplexity, top_1
from pytest_fx.errors import InputError, MetricError

LABELS = torch.arange(5000) % 10
SCORES = nn.functional.one_hot(LABELS, 10).float()


def changed(samples, scores=SCORES):
    """Return scores in which some samples are of the next class."""
    scores = scores.clone()
    scores[samples] = scores[samples].roll(1, -1)
    return scores


def batches(size=128, scores=SCORES):
    return list(zip(torch.arange(len(LABELS)).split(size), LABELS.split(size), strict=True))


def drop_of(samples, metric=top_1, max_drop=0.01, **options):
    return measure_drop(
        SCORES.__getitem__, changed(samples).__getitem__, measured(metric, batches(), max_drop=max_drop, **options)
    )


def test_the_drop_and_the_samples_that_changed_are_those_that_were_planted():
    samples = [7, 8, 9, 1000, 1001, 1002, 2000, 2001, 3000, 3001, 4000, 4999]
    drop = drop_of(samples, unit="images")
    assert drop.right and math.isclose(drop.drop, 12 / 5000, rel_tol=1e-6) and drop.changed_samples == tuple(samples)
    assert drop.changes.startswith("12 of 5,000 images changed class: 7, 8, 9, 1000") and drop.changes.endswith("…")
    assert drop.interval[0] < 12 / 5000 < drop.interval[1] < 0.01
    assert json.loads(json.dumps(drop.to_json()))["changed"] == 12
    assert not drop_of(samples, max_drop=0.002).right


def test_no_change_among_the_samples_does_not_prove_that_there_is_none():
    drop = drop_of([])
    assert drop.drop == 0 and drop.changed == 0 and 0 < drop.interval[1] < 1e-3
    assert drop_of([], max_drop=1e-5).open_end == drop.interval[1]


def test_the_interval_contains_the_drop_on_all_data_in_95_of_100_samples():
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(300):
        was, now = torch.rand(2, 200, generator=generator)
        right = was < 0.9
        still = torch.where(right, now < 0.97, now < 0.1)  # the drop is 0.9 * 0.03 - 0.1 * 0.1 = 0.017
        contract = measured(lambda output, labels: output, [(torch.arange(200), torch.arange(200))], max_drop=1)
        drop = measure_drop(lambda _, right=right: right.double(), lambda _, still=still: still.double(), contract)
        hits += drop.interval[0] <= 0.017 <= drop.interval[1]
    assert 0.91 <= hits / 300 <= 0.99


def test_a_metric_of_the_whole_data_set_has_an_interval_by_leaving_out_groups():
    whole = drop_of(
        range(100), lambda output, labels: float((output.argmax(1) == labels).double().mean()), name="accuracy"
    )
    each = drop_of(range(100))
    assert math.isclose(whole.drop, each.drop, rel_tol=1e-6) and whole.changed is None
    assert whole.interval[0] < 0.02 < whole.interval[1]
    scattered = torch.randperm(5000, generator=torch.Generator().manual_seed(0))[:100].tolist()
    whole, each = (
        drop_of(scattered, lambda output, labels: (output.argmax(1) == labels).double().mean()),
        drop_of(scattered),
    )
    widths = [drop.interval[1] - drop.interval[0] for drop in (whole, each)]
    assert 0.7 < widths[0] / widths[1] < 1.4


def test_perplexity_falls_and_overlap_rises_with_quality():
    logits, labels = (
        torch.randn(6, 5, 11, generator=torch.Generator().manual_seed(0)),
        torch.arange(30).reshape(6, 5) % 11,
    )
    labels[0, 0] = -100
    data = [(torch.arange(3), labels[:3]), (torch.arange(3, 6), labels[3:])]
    better = logits + nn.functional.one_hot(labels.clamp(min=0), 11)
    worse = measure_drop(better.__getitem__, logits.__getitem__, measured(perplexity, data, max_drop=0.1))
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 11), labels.flatten()).exp()
    assert not worse.right and math.isclose(worse.candidate, float(expected), rel_tol=1e-5) and worse.drop > 0
    masks = torch.tensor([[[0, 0], [1, 1]]])
    scores = nn.functional.one_hot(torch.tensor([[[0, 1], [1, 1]]]), 2).permute(0, 3, 1, 2).float()
    assert math.isclose(mean_iou(scores, masks), (1 / 2 + 2 / 3) / 2)


def test_lists_of_text_are_outputs_and_labels_too():
    def word_errors(texts, labels):
        words = [(text.split(), label.split()) for text, label in zip(texts, labels, strict=True)]
        return sum(a != b for pair in words for a, b in zip(*pair, strict=True)) / sum(len(b) for _, b in words)

    labels = ["a b c", "d e"] * 10
    data = [(torch.tensor([0]), labels[:8]), (torch.tensor([1]), labels[8:])]
    contract = measured(word_errors, data, max_drop=0, higher_is_better=False, prediction=list)
    heard = {0: labels[:8], 1: ["a x c", *labels[9:]]}
    drop = measure_drop(lambda x: [labels[:8], labels[8:]][int(x)], lambda x: heard[int(x)], contract)
    assert drop.changed_samples == (8,) and math.isclose(drop.drop, 1 / 50) and not drop.right


class Counter:
    """A metric in the way of torchmetrics."""

    higher_is_better = True

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.all = 0

    def update(self, output, labels):
        self.right += int((output.argmax(1) == labels).sum())
        self.all += len(labels)

    def compute(self):
        return torch.tensor(self.right / self.all)


def test_an_object_with_update_and_compute_is_a_metric():
    drop = drop_of(range(50), Counter())
    assert drop.metric == "Counter" and math.isclose(drop.drop, 0.01, rel_tol=1e-5) and drop.interval is not None


def test_metrics_of_torchmetrics_are_taken():
    classification = pytest.importorskip("torchmetrics.classification")
    drop = drop_of(range(50), classification.MulticlassAccuracy(10, average="micro"))
    assert math.isclose(drop.drop, 0.01, rel_tol=1e-5) and drop.metric == "MulticlassAccuracy"
    perplexity_of = pytest.importorskip("torchmetrics.text").Perplexity()
    assert not measured(perplexity_of, [], max_drop=0).higher_is_better


def raising(after):
    calls = []

    def metric(output, labels):
        calls.append(len(labels))
        if len(calls) > after:
            raise ValueError("no such class\nand more")
        return (output.argmax(1) == labels).float()

    return metric


def test_a_metric_that_raises_on_the_first_batch_ends_the_run_before_the_others():
    run = []
    contract = measured(raising(0), batches(), max_drop=0, name="mine")
    with pytest.raises(
        MetricError, match="the metric mine raises ValueError: no such class\n  where  samples 0 to 127, "
    ) as error:
        measure_drop(lambda rows: (run.append(0), SCORES[rows])[1], SCORES.__getitem__, contract)
    assert len(run) == 1 and "test_metrics.py" in str(error.value)


def test_a_metric_that_raises_later_keeps_the_values_before():
    with pytest.raises(MetricError, match=r"samples 256 to 383.*\n.*on the 256 samples before: 1 -> 0.9922"):
        drop_of([0, 1], raising(4))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: measured(3, [], max_drop=0), "measured takes a metric"),
        (lambda: measured(top_1, 3, max_drop=0), "'data' of measured is an Iterable or a function, not an int"),
        (lambda: measured(top_1, [], max_drop="low"), "'max_drop' of measured is a number, not a str"),
        (
            lambda: measured(top_1, [], max_drop=0, values="close"),
            "'values' of measured is a Contract or None",
        ),
        (
            lambda: drop_of([], lambda output, labels: output),
            "returns neither a number nor one for each of 128 samples",
        ),
        (lambda: drop_of([], lambda output, labels: "good"), "returns neither a number"),
        (lambda: drop_of([], prediction=lambda output: output.no), "the metric top_1 raises AttributeError"),
    ],
)
def test_a_mistake_in_a_metric_is_told_in_a_sentence(make, message):
    with pytest.raises(MetricError) as raised:
        make()
    assert re.search(message, str(raised.value).splitlines()[0])  # the next line quotes the call


@pytest.mark.parametrize("data, message", [([], "no labelled data"), ([1], "batch 0 of the labelled data is no pair")])
def test_labelled_data_that_is_none_is_told_in_a_sentence(data, message):
    with pytest.raises(InputError, match=message):
        measure_drop(SCORES.__getitem__, SCORES.__getitem__, measured(top_1, data, max_drop=0))


class Classifier(nn.Module):
    def __init__(self, worse=0.0):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(3, 6, generator=generator))
            self.linear.weight.add_(worse * torch.randn(3, 6, generator=generator))
            self.linear.bias.zero_()

    def forward(self, x):
        return self.linear(x)


IMAGES = torch.randn(500, 6, generator=torch.Generator().manual_seed(1))
CLASSES = Classifier()(IMAGES).argmax(1)


def classifier():
    return Classifier(), IMAGES[:4]


def promise():
    return measured(top_1, list(zip(IMAGES.split(64), CLASSES.split(64), strict=True)), max_drop=0.1, unit="images")


def coarse(program):
    """Round weights to halves."""
    for parameter in program.parameters():
        parameter.data = (parameter.data * 2).round() / 2
    return program


coarse.may_change = ("parameters",)

FILE = """
import dataclasses
import pytest
from fx.passes import close
from pytest_fx import measured, top_1
from test_metrics import Classifier, IMAGES, CLASSES, promise, raising

@pytest.mark.parametrize("worse", [0.05, 0.4])
def test_it(fx_equal, worse):
    fx_equal(Classifier(worse), contract=promise(), label=f"worse by {worse}")

def test_values(fx_equal):
    fx_equal(Classifier(0.05), contract=dataclasses.replace(promise(), values=close), label="values too")

def test_raises(fx_equal):
    data = list(zip(IMAGES.split(64), CLASSES.split(64), strict=True))
    fx_equal(Classifier(), contract=measured(raising(4), data, max_drop=0), label="raises")

def test_data(fx_equal):
    fx_equal(Classifier(), contract=measured(top_1, [(IMAGES[:, :2], CLASSES)], max_drop=0), label="other data")
"""


def test_the_verdict_the_table_and_the_record_have_the_metric(pytester, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    path = pytester.makepyfile(FILE)
    result = pytester.runpytest("--fx-model", "test_metrics:classifier", "-v", "--fx-report", "report", path)
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.re_match_lines(
        [
            r".*law 'contract': worse by 0.4 lowers the top_1 of test_metrics:classifier by more than it promises",
            r".*  where  .* of 500 images changed class: \d+, \d+",
            r".*  value  1 -> 0\.\d+ on 500 images; 95 % interval 0\.\d+ to 0\.\d+",
            r".*  why    a drop of 0\.\d+ exceeds max_drop=0.1",
        ]
    )
    result.stdout.fnmatch_lines(
        ["*the metric metric raises ValueError: no such class", "*on the 128 samples before: 1 -> 1"]
    )
    result.stdout.fnmatch_lines(["*test_metrics:classifier cannot be called with its labelled data"])
    result.stdout.re_match_lines([r".*top_1 1 -> 0\.9\d+, drop .* images changed class.*"])
    record = last_run(pytester.path)
    rows = [each["row"] for each in record["records"] if each["row"]["metric"]]
    assert {row["program"] for row in rows} == {"worse by 0.05", "worse by 0.4", "values too"}
    assert all(row["samples"] == 500 and row["samples_changed"] == len(row["changed_samples"]) for row in rows)
    verdicts = {each["program"]: each["verdict"] for each in record["verdicts"]}
    assert verdicts["worse by 0.05"] == "right" and verdicts["worse by 0.4"] == "wrong"
    assert verdicts["values too"] == "wrong" and verdicts["raises"] == "not judged"
    assert "images changed class" in (pytester.path / "report" / "index.html").read_text("utf-8")


def test_a_metric_judges_passes_of_the_suite_by_its_path(pytester, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    options = ("--fx-model", "test_metrics:classifier", "--fx-pass", "test_metrics:coarse", "--fx-no-timing")
    options += ("-k", "test_pass_keeps_its_contract")
    assert pytester.runpytest(*options).ret == 1
    result = pytester.runpytest(*options, "--fx-contract", "test_metrics:promise")
    result.stdout.fnmatch_lines(["*coarse*"])
    assert "top_1" in result.stdout.str()


@pytest.mark.parametrize("written", [torch.Tensor.tolist, torch.Tensor.numpy], ids=["a list", "an array"])
@pytest.mark.parametrize("metric", [top_1, perplexity, mean_iou])
def test_ready_metrics_take_labels_of_a_data_set_in_numpy(metric, written):
    output, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    assert torch.equal(torch.as_tensor(metric(output, written(labels))), torch.as_tensor(metric(output, labels)))
