"""What can go wrong when a model is asked for by name."""

from __future__ import annotations

from fx.errors import FxError


class ModelError(FxError, LookupError):
    """No model has the name that was asked for, or two definitions want the same name."""
