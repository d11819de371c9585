"""What tables report."""

from __future__ import annotations

from fx.errors import FxError


class TableError(FxError, LookupError):
    """A name leads to no table of the evaluation, or to two. The message lists the nearest names."""
