"""Registries by name: a second definition of a name is refused, an unknown name answered with the nearest ones."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, Generic, TypeVar

from fx.errors import FxError, type_in_words

T = TypeVar("T")


class Registry(Generic[T]):
    """A registry of entries of one kind, by name.

    >>> shapes = Registry("shape", "shapes")
    >>> shapes.register("square", 4)
    >>> shapes.get("squar")
    Traceback (most recent call last):
    ...
    fx.errors.FxError: there is no shape named 'squar'
      try    did you mean 'square'?
    """

    def __init__(self, kind: str, plural: str, error: type[FxError] = FxError) -> None:
        """Create an empty registry; messages call an entry ``kind`` and several of them ``plural``."""
        self._kind = kind
        self._plural = plural
        self._error = error
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> None:
        """Register ``entry`` as ``name``; registering the same entry again does nothing.

        Raises:
            FxError: another entry has the name; both are named.
        """
        other = self._entries.setdefault(name, entry)
        if other is not entry:
            raise self._error(
                f"two {self._plural} are named {name!r}",
                value=f"{_origin(other)} and {_origin(entry)}",
                why=f"a name identifies one {self._kind}",
                remedy="rename one of them",
            )

    def get(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            FxError: there is none; the message lists the nearest names.
        """
        if not isinstance(name, str):
            raise self._error(
                f"a {self._kind} is looked up by its name, not by {type_in_words(name)}",
                remedy=f"known {self._plural}: {', '.join(self.names())}",
            )
        if name in self._entries:
            return self._entries[name]
        nearest = self._nearest(name)
        raise self._error(
            f"there is no {self._kind} named {name!r}",
            value=None if nearest else f"known {self._plural}: {', '.join(self.names())}",
            remedy=f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else None,
        )

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._entries)

    def copy(self) -> Registry[T]:
        """Return a registry with the same entries, which can be extended on its own."""
        copied = Registry[T](self._kind, self._plural, self._error)
        copied._entries.update(self._entries)
        return copied

    def _nearest(self, name: str) -> list[str]:
        """Return known names like ``name``, regardless of case and of ``-`` or ``_`` between words."""
        plain = {entry_name.replace("_", "-").lower(): entry_name for entry_name in self._entries}
        close = difflib.get_close_matches(name.replace("_", "-").lower(), plain, n=3, cutoff=0.5)
        return [plain[match] for match in close]


def _origin(entry: object) -> str:
    """Return the place where an entry was defined, as far as it can be determined."""
    if isinstance(source := getattr(entry, "source", None), str):
        return f"one from {source}"
    described: Any = entry if hasattr(entry, "__qualname__") else type(entry)
    text = f"{described.__module__}.{described.__qualname__}"
    try:
        return f"{text} (line {inspect.getsourcelines(described)[1]})"
    except (OSError, TypeError):  # no source: typed in an interpreter, or built-in
        return text
