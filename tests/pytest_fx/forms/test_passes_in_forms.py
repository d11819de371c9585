"""Right passes in a form of torch's are right, and wrong ones wrong, through ``--fx-model`` and ``--fx-pass``."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

RIGHT = {
    "aten": ("clamp", "no_factor", "product", "subtraction", "addmm", "fold"),
    "exported-program": (
        *("exported_clamp", "exported_product", "exported_factor", "decomposed", "permute", "moved_constant"),
    ),
    "pattern-matcher": tuple(f"pattern_{name}" for name in ("clamp", "sum", "silu", "dot", "quotient", "negative")),
}
WRONG = {
    "aten": ("clamp", "alpha", "batch", "counter", "fold", "gradient"),
    "exported-program": ("exported_clamp", "lost_counter", "lost_write", "order", "weight", "half"),
    "pattern-matcher": tuple(f"pattern_{name}" for name in ("clamp", "factor", "gelu", "epsilon", "silu", "dimension")),
}
MODELS = {"aten": "net", "exported-program": "net", "pattern-matcher": "elementwise"}


@pytest.fixture(scope="module", autouse=True)
def inductor_imported():
    """Import Inductor before a test does: what a test imports is imported anew later, which Inductor refuses."""
    importlib.import_module("torch._inductor.compile_fx")


@pytest.fixture
def judged(pytester):
    """Judges passes on the model of a form: those that changed it and were right, and those that were wrong."""
    pytester.syspathinsert(Path(__file__).parent)

    def judge(form, names):
        chosen = [word for name in names for word in ("--fx-pass", f"aten_passes:{name}")]
        options = ("--fx-no-timing", "-k", "pass_keeps_its_contract", "--fx-require-change", "-p", "no:logging")
        result = pytester.inline_run("--fx-model", f"aten_passes:{MODELS[form]}", *options, *chosen)
        passed, _, failed = result.listoutcomes()
        return tuple({report.nodeid.rpartition(":")[2].rstrip("]") for report in some} for some in (passed, failed))

    return judge


def some_of_each(passes, slow=()):
    """Return parameters for a pass of each form, and for the others, which take a minute in all.

    Some forms are slow to judge. tests/properties/test_passes_on_aten.py judges a wrong pass of theirs in a second.
    """
    some = [
        pytest.param(form, names[:1], id=form, marks=pytest.mark.thorough if form in slow else ())
        for form, names in passes.items()
    ]
    others = [
        pytest.param(form, names[1:], id=f"{form}, others", marks=pytest.mark.thorough)
        for form, names in passes.items()
    ]
    return some + others


@pytest.mark.parametrize("form, chosen", some_of_each(RIGHT))
def test_right_passes_are_right(judged, form, chosen):
    names = {f"right_{name}" for name in chosen}
    assert judged(form, sorted(names)) == (names, set())


@pytest.mark.parametrize("form, chosen", some_of_each(WRONG, slow=("exported-program", "pattern-matcher")))
def test_wrong_passes_are_wrong(judged, form, chosen):
    names = {f"wrong_{name}" for name in chosen}
    assert judged(form, sorted(names)) == (set(), names)
