"""Restoring the process after each test. Nothing here imports torch before a test does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_fx.lazy import load
from pytest_fx.tracebacks import forget_ours

_PROCESS = "pytest_fx.harness.process"
MOST_IMMORTAL = 10_000
"""The number of frozen objects above which somebody else has frozen them: torch makes ten times as many.

Python 3.12 counts its immortal objects among them, some hundreds."""


@contextmanager
def isolated_test(item: pytest.Item, fixtures: Iterable[str]) -> Generator[None]:
    """Undo the changes of a test to the process in the block, if the test uses one of ``fixtures``."""
    if set(fixtures).isdisjoint(getattr(item, "fixturenames", ())):
        yield
    else:
        with load(_PROCESS).process_kept(), _collections_quick(item), _model_kept(item):
            yield


@contextmanager
def _collections_quick(item: pytest.Item) -> Generator[None]:
    """Let the collections for a large model look at objects made in the block alone, which takes milliseconds.

    Programs and graphs refer to each other, and passes leave such cycles, too. If a large model is in one, its
    collection is not left to chance: garbage that appears later is old, and old objects are seldom visited. Objects
    that somebody else has frozen stay frozen.
    """
    model = _model_of(item)
    if model is None or not model.is_large or gc.get_freeze_count() > MOST_IMMORTAL:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _model_kept(item: Any) -> Generator[None]:
    """Free the test's copies of its model; if the test was interrupted, let the model share other tensors from now on.

    A limit of time (also that of pytest-timeout) or Ctrl-C may have interrupted the restoring of its tensors.
    """
    try:
        yield
    except BaseException as error:
        if (model := _model_of(item)) is not None:
            if not isinstance(error, (Exception, pytest.skip.Exception)):
                model.recover()
            if model.is_large:
                forget_ours(error)
        raise
    finally:
        if (model := _model_of(item)) is not None:
            model.tidy_up()


def _model_of(item: Any) -> Any:
    model = (getattr(item, "funcargs", None) or {}).get("fx_model")
    subject: Any = sys.modules.get("pytest_fx.harness.subject")
    return model if subject is not None and isinstance(model, subject.Subject) else None  # not a user's fixture


@contextmanager
def isolated_set_up(fixture: pytest.FixtureDef[Any], node: Any, fixtures: Iterable[str]) -> Generator[None]:
    """Undo the changes of the set-up of one of ``fixtures`` for ``node``, which captures and applies passes.

    Fixtures of a whole session load models, too; the effects of importing their modules stay.
    """
    if fixture.argname not in fixtures:
        yield
    else:
        imports_stay = fixture.scope != "function"
        with load(_PROCESS).process_kept(imports_stay=imports_stay), _collections_quick(node), _model_kept(node):
            yield


@contextmanager
def interrupted_finished() -> Generator[None]:
    """Finish, after the block, the restoring that an exception of a signal interrupted in the functions above.

    The block must enclose the code that sets the signal: after it nothing is interrupted any more.
    """
    process: Any = sys.modules.get(_PROCESS)
    already_unfinished = process.unfinished() if process else 0
    try:
        yield
    finally:
        process = sys.modules.get(_PROCESS)
        if process:
            process.finish(already_unfinished)
