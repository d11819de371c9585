"""Reading JSON files that may be damaged, or written by anyone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character: JSON allows it, text files do not."""


def parsed(text: str) -> dict[str, Any] | None:
    """Return the JSON object in ``text``; None if it is cut off, nested too deep, or its strings are not text."""
    try:
        record = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def has_types(kind: type, values: Mapping[str, Any], but: Sequence[str] = ()) -> bool:
    """Return whether each field of the dataclass ``kind``, ``but`` these, has a value of its type, or an
    integer for a float.

    >>> from dataclasses import make_dataclass
    >>> kind = make_dataclass("Kind", [("rows", "int | None"), ("seconds", float)])
    >>> has_types(kind, {"rows": None, "seconds": 1}), has_types(kind, {"rows": "7", "seconds": 1.0})
    (True, False)
    """
    hints: dict[str, Any] = get_type_hints(kind)
    return all(name in values and _has_type(hint, values[name]) for name, hint in hints.items() if name not in but)


def _has_type(hint: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int) and isinstance(0.0, hint):
        return True
    return isinstance(value, hint)
