"""What a pattern writes in the place of a constant that it does not care about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fx.arguments import expect
from fx.errors import PassError

if TYPE_CHECKING:
    from fx.capture.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Wildcard:
    """Matches any constant argument: a number, a string, a dtype, None, and containers of these; no computed value."""

    name: str = ""
    """By which a match knows the constant, and which stands for the same constant wherever it stands; may be empty."""

    def __fx_create_arg__(self, tracer: Tracer) -> Wildcard:
        """Return what a node holds when a traced pattern uses it: itself."""
        return self

    def __repr__(self) -> str:
        return f"literal({self.name!r})" if self.name else "anything"


def literal(name: str) -> Any:
    """A wildcard whose constant is found in ``match.literals[name]``, by filters and replacement callbacks.

    >>> import torch.nn.functional as F
    >>> def pattern(x):
    ...     return F.dropout(x, p=literal("p"))
    """
    expect(name, str, "literal takes the name of a constant", error=PassError)
    return Wildcard(name)


anything: Any = Wildcard()
"""A wildcard whose constant nobody asks for: ``F.dropout(x, p=anything)``."""
