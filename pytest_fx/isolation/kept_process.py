"""What one test does to the process, kept from the next one. Nothing here imports torch before a test does."""

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
"""More objects out of the collector's sight than this were put there: torch makes ten times as many.

Python 3.12 counts those among them that live for ever, some hundreds."""


@contextmanager
def isolated_test(item: pytest.Item, fixtures: Iterable[str]) -> Generator[None]:
    """Put back what a test changes of the process in the block, if it uses one of ``fixtures``."""
    if set(fixtures).isdisjoint(getattr(item, "fixturenames", ())):
        yield
    else:
        with load(_PROCESS).process_kept(), _collections_quick(item), _model_kept(item):
            yield


@contextmanager
def _collections_quick(item: pytest.Item) -> Generator[None]:
    """Let collections that a large model asks for look at objects made in the block alone, which takes milliseconds.

    Programs and graphs know each other, and passes leave such rings, too: with a large model in them they are not left
    to chance. What becomes garbage later is old then, and the collector seldom visits what is old. Where somebody else
    has put objects out of the collector's sight, that stays as it is.
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
    """Free what a test has made of its model, and let it share other tensors if the test was interrupted in the midst.

    That may have been where tensors were put back: by a limit of time, also that of pytest-timeout, or Ctrl-C.
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
    return model if subject is not None and isinstance(model, subject.Subject) else None  # not a fixture of the user's


@contextmanager
def isolated_set_up(fixture: pytest.FixtureDef[Any], node: Any, fixtures: Iterable[str]) -> Generator[None]:
    """Put back what the set-up of one of ``fixtures`` for ``node`` changes: it captures, and applies passes.

    Those of a whole session load models, too, and what their modules do when they are imported stays.
    """
    if fixture.argname not in fixtures:
        yield
    else:
        imports_stay = fixture.scope != "function"
        with load(_PROCESS).process_kept(imports_stay=imports_stay), _collections_quick(node), _model_kept(node):
            yield


@contextmanager
def interrupted_finished() -> Generator[None]:
    """Put back, after the block, what the functions above were kept from putting back by an exception of a signal.

    It must be outside of what sets the signal: then nothing is interrupted any more.
    """
    process: Any = sys.modules.get(_PROCESS)
    known = process.unfinished() if process else 0
    try:
        yield
    finally:
        process = sys.modules.get(_PROCESS)
        if process:
            process.finish(known)
