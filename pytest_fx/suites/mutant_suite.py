"""The suite of ``pytest --fx-mutate NAME``: mutants of a pass (:func:`pytest_fx.mutate_pass`)."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_fx.collection import TESTS_OF_MUTANTS
from pytest_fx.loading import chosen_pass, contract_for
from pytest_fx.options import options_of
from pytest_fx.report.progress import progress_of
from pytest_fx.report.summary import record_check
from pytest_fx.search.mutation import mutate_pass


def test_mutants(request: pytest.FixtureRequest, fx_mutated_pass: Any) -> None:
    """The pass keeps the laws; the summary says which of its mutants nothing notices."""
    __tracebackhide__ = True
    options, progress = options_of(request.node), progress_of(request.config)
    loaded = chosen_pass(request.config, fx_mutated_pass, options.form)
    for_inference: dict[str, Any] = {"without": ("gradients",), "modes": ("eval",)} if options.inference else {}
    report = mutate_pass(
        loaded,
        contract=contract_for(options, loaded),
        max_examples=options.examples,
        seed=options.seed,
        tests=getattr(request.config.option, TESTS_OF_MUTANTS, ()),
        on_mutant=lambda number, count: progress.doing(f"mutant {number} of {count}"),
        **for_inference,
    )
    record_check(request.node, str(report))
