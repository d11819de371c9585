"""Runs with options: each acts and is reported, or is refused if it cannot act."""

from __future__ import annotations

from catalogue.users import text_of

from . import case
from .reported import folder, says

_MARKED = "import pytest\n@pytest.mark.fx('asked:training')\ndef test_it(fx_equal): fx_equal('canonicalize')"
_OWN = "def test_own(fx_traced): pass"


def _enter(item: str, what: str, arguments: str, *parts: str, never: tuple[str, ...] = ()) -> None:
    @case(item, what, "said")
    def _() -> str:
        with folder(asked=text_of("asked"), test_marked=_MARKED, test_own=_OWN) as user:
            return says(user.pytest(*arguments.split(), "--fx-no-timing", "-v"), *parts, never=never)


def _enter_pass(item: str, what: str, model: str, pass_: str, *parts: str, options: str = "") -> None:
    arguments = f"--fx-model asked:{model} --fx-pass {pass_} {options} -k test_pass_keeps_its_contract"
    _enter(item, what, arguments, *parts)


_TRAINING = "asked:training, training mode"
_enter_pass(
    "modes", "dropout is dropped, and the factory gives training mode", "training", "asked:drop", _TRAINING, "1 failed"
)
_enter_pass(
    "modes",
    "the same where it is dropped in evaluation alone",
    "training",
    "asked:drop_in_evaluation",
    _TRAINING,
    "1 passed",
)
_enter_pass(
    "modes", "the same in a model that is given in evaluation mode", "evaluation", "asked:drop", "right", "1 passed"
)
_enter_pass(
    "modes",
    "--fx-mode train",
    "evaluation",
    "asked:drop",
    "asked:evaluation, training mode",
    "1 failed",
    options="--fx-mode train",
)
_enter_pass("modes", "--fx-mode eval", "training", "asked:drop", "right", "1 passed", options="--fx-mode eval")
_enter_pass(
    "modes",
    "a model that raises in training mode",
    "one_sample",
    "asked:drop",
    "not judged: eager raises ValueError",
    "1 passed",
)
_enter_pass(
    "modes",
    "the same under --fx-strict",
    "one_sample",
    "asked:drop",
    "CoarseVerdict",
    "1 failed",
    options="--fx-strict",
)
_enter_pass(
    "inputs", "float64 inputs of a float32 model are narrowed", "wide", "asked:narrow", "law 'dtype'", "1 failed"
)
_enter_pass("inputs", "float64 inputs of a float32 model stay so", "wide", "asked:swap", "right", "1 passed")
_enter_pass("inputs", "a pair in the place of a factory", "pair", "asked:swap", "right", "1 passed")
_enter_pass(
    "changes",
    "--fx-require-change of a pass that finds nothing",
    "wide",
    "asked:drop",
    "TooFewChanges: drop makes 0 change(s)",
    "1 failed",
    options="--fx-require-change",
)
_enter_pass(
    "changes",
    "--fx-require-change of a pass that changes",
    "evaluation",
    "asked:drop",
    "right",
    "1 passed",
    options="--fx-require-change",
)
_enter_pass(
    "idle options",
    "--fx-form aten with --fx-capture guided",
    "wide",
    "canonicalize",
    "--fx-form has no effect",
    "try --fx-capture export",
    options="--fx-form aten --fx-capture guided",
)
_enter_pass(
    "idle options",
    "--fx-form aten, for which models are exported",
    "wide",
    "canonicalize",
    "1 passed",
    options="--fx-form aten",
)
_enter("idle options", "--fx-pass without a model", "--fx-pass canonicalize test_own.py", "--fx-pass has no effect")
_enter(
    "idle options",
    "a positional argument of the marker",
    "test_marked.py",
    "the marker fx takes no positional arguments",
)
_enter(
    "idle options",
    "--fx-fail-slower without timings",
    "--fx-model asked:wide --fx-fail-slower 5%",
    "--fx-fail-slower has no effect",
)
