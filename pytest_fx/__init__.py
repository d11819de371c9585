"""A pytest plugin that verifies and times transforms of PyTorch programs.

``pytest --fx-model resnet50`` runs the built-in suite (:mod:`pytest_fx.suites.model_suite`) on a model. The suite
captures the model and compares the captured program with eager. It applies each pass, checks its contract against a
float64 reference, and times it in pairs with eager. Test files use the same machinery through the fixtures
``fx_model``, ``fx_traced``, ``fx_pass``, ``fx_equal`` and ``fx_timing`` (:mod:`pytest_fx.fixtures`). :func:`check_pass`
tries a pass on random programs, and checks the laws of :mod:`pytest_fx.laws` on each. :func:`programs` draws such
programs for property tests of any kind.

pytest imports this package at every start, so the package imports neither torch nor fx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_fx.lazy import load

if TYPE_CHECKING:
    from pytest_fx.answers.comparison import assert_equal_to_answers
    from pytest_fx.answers.recording import save_answers
    from pytest_fx.candidates.judge import Judge, judge
    from pytest_fx.candidates.verdict import Verdict
    from pytest_fx.checks.eager_equality import assert_equal_to_eager
    from pytest_fx.errors import ConversionError, LawViolation, NothingJudged
    from pytest_fx.generation import Program, programs, shapes, tensors
    from pytest_fx.harness.domains import ascending, between, integers, right_padded, sums_to_one
    from pytest_fx.harness.input_sets import InputSets
    from pytest_fx.harness.metrics import MetricDrop, mean_iou, measure_drop, measured, perplexity, top_1
    from pytest_fx.harness.output_contracts import flipped, masked, matched_boxes, same_distribution, same_set, top_k
    from pytest_fx.harness.steps import Steps
    from pytest_fx.harness.training import compare_training, training_steps
    from pytest_fx.harness.training_step import training_step
    from pytest_fx.search.check_report import CheckReport
    from pytest_fx.search.mutation import MutationReport, mutate_pass
    from pytest_fx.search.pass_check import check_pass, check_program

__all__ = [
    "CheckReport",
    "ConversionError",
    "InputSets",
    "Judge",
    "LawViolation",
    "MetricDrop",
    "MutationReport",
    "NothingJudged",
    "Program",
    "Steps",
    "Verdict",
    "ascending",
    "assert_equal_to_answers",
    "assert_equal_to_eager",
    "between",
    "check_pass",
    "check_program",
    "compare_training",
    "flipped",
    "integers",
    "judge",
    "masked",
    "matched_boxes",
    "mean_iou",
    "measure_drop",
    "measured",
    "mutate_pass",
    "perplexity",
    "programs",
    "right_padded",
    "same_distribution",
    "same_set",
    "save_answers",
    "shapes",
    "sums_to_one",
    "tensors",
    "top_1",
    "top_k",
    "training_step",
    "training_steps",
]

__version__ = "0.3.0"
"""Version of the package, equal to the version of ``fx``, which is not imported here."""

_HOMES = {
    name: f"pytest_fx.{module}"
    for module, names in {
        "answers.comparison": "assert_equal_to_answers",
        "answers.recording": "save_answers",
        "candidates.judge": "Judge judge",
        "candidates.verdict": "Verdict",
        "checks.eager_equality": "assert_equal_to_eager",
        "errors": "ConversionError LawViolation NothingJudged",
        "generation": "Program programs shapes tensors",
        "harness.domains": "ascending between integers right_padded sums_to_one",
        "harness.input_sets": "InputSets",
        "harness.metrics": "MetricDrop mean_iou measure_drop measured perplexity top_1",
        "harness.output_contracts": "flipped masked matched_boxes same_distribution same_set top_k",
        "harness.steps": "Steps",
        "harness.training": "compare_training training_steps",
        "harness.training_step": "training_step",
        "search.check_report": "CheckReport",
        "search.mutation": "MutationReport mutate_pass",
        "search.pass_check": "check_pass check_program",
    }.items()
    for name in names.split()
}
"""The module that defines each public name, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pytest_fx' has no attribute {name!r}")
    return getattr(load(_HOMES[name]), name)
