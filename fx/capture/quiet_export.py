"""``torch.export`` without what it prints and logs."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet_export() -> Generator[None]:
    """Drop what torch prints and logs while it exports, programs and warnings: its errors say what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with without_trace_log(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def without_trace_log() -> Generator[None]:
    """Drop what Dynamo logs for tools of its own in the block: that log is enabled whatever is disabled."""
    trace_log = logging.getLogger("torch.__trace")
    trace_log.addFilter(_nothing)
    try:
        yield
    finally:
        trace_log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
