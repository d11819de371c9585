"""``compatibility``, by which client code of torch.fx marks interfaces that will not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Marked = TypeVar("_Marked")


def compatibility(is_backward_compatible: bool) -> Callable[[_Marked], _Marked]:
    """Decorate a function or class with a note in its docstring on whether its interface is kept in later versions.

    >>> @compatibility(is_backward_compatible=True)
    ... def fuse(graph_module):
    ...     "Fuse what can be."
    >>> print(fuse.__doc__)
    Fuse what can be.
    <BLANKLINE>
    .. note::
        The interface is kept in later versions.
    """
    note = "The interface is kept in later versions." if is_backward_compatible else "The interface may change."

    def mark(marked: _Marked) -> _Marked:
        marked.__doc__ = f"{marked.__doc__ or ''}\n\n.. note::\n    {note}"
        return marked

    return mark
