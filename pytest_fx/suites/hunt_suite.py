"""The suite of ``pytest --fx-hunt NAME``: a search for faults of a compiler (:mod:`pytest_fx.search.campaign`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_fx.loading import chosen_pass
from pytest_fx.options import options_of
from pytest_fx.records.journal import ignore_in_git
from pytest_fx.records.running import FOLDER
from pytest_fx.report.progress import progress_of
from pytest_fx.report.summary import record_check
from pytest_fx.search.campaign import hunt


def test_hunt(request: pytest.FixtureRequest, fx_hunted_pass: Any) -> None:
    """The compiler shows no fault that is not known yet; all faults are in the folder of the campaign."""
    __tracebackhide__ = True
    options, config = options_of(request.node), request.config
    folder = config.rootpath / FOLDER
    ignore_in_git(folder)
    slug = re.sub(r"[^\w-]+", "_", str(fx_hunted_pass)).strip("_")
    report = hunt(
        chosen_pass(config, fx_hunted_pass, options.form),
        options.minutes,
        folder / "hunts" / slug,
        seed=options.seed,
        timeout=options.timeout,
        memory=options.memory_limit,
        known=None if options.known_faults is None else Path(options.known_faults),
        on_progress=progress_of(config).doing,
    )
    record_check(request.node, str(report))
    if report.new_faults:
        pytest.fail(str(report), pytrace=False)
