"""How values are written in the source of a program."""

from __future__ import annotations

import math
from typing import Any

import torch


def spell(value: Any) -> str:
    """Return an expression for a constant, as a user would write it where ``torch`` is imported.

    >>> spell({"size": (1,), "dtype": torch.float64, "bound": float("inf"), "rows": slice(None, 2)})
    "{'size': (1,), 'dtype': torch.float64, 'bound': float('inf'), 'rows': slice(None, 2)}"
    """
    match value:
        case float() if not math.isfinite(value):
            return f"float('{value}')"
        case slice(start=start, stop=stop, step=step):
            bounds = (start, stop) if step is None else (start, stop, step)
            return f"slice{spell(bounds)}"
        case torch.Size():
            return f"torch.Size({spell(list(value))})"
        case list():
            return f"[{', '.join(map(spell, value))}]"
        case tuple():
            return f"({', '.join(map(spell, value))}{',' * (len(value) == 1)})"
        case dict():
            return "{" + ", ".join(f"{key!r}: {spell(item)}" for key, item in value.items()) + "}"
        case _:
            return repr(value)


def spell_index(value: Any) -> str:
    """Return what stands between the brackets of a subscript.

    >>> spell_index((..., slice(None, None, 2), 0))
    '..., ::2, 0'
    """
    match value:
        case tuple() if value:
            return ", ".join(map(spell_index, value)) + "," * (len(value) == 1)
        case slice(start=start, stop=stop, step=step):
            text = ":".join("" if bound is None else spell(bound) for bound in (start, stop))
            return text if step is None else f"{text}:{spell(step)}"
        case _ if value is Ellipsis:
            return "..."
        case _:
            return spell(value)


def spell_options(options: dict[str, Any]) -> str:
    """Return keyword arguments as they stand in a call.

    >>> spell_options({"dim": 1, "keepdim": True})
    'dim=1, keepdim=True'
    """
    return ", ".join(f"{name}={spell(value)}" for name, value in options.items())
