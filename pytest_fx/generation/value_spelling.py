"""How values are written in the source of a program."""

from __future__ import annotations

import math
from typing import Any

from fx.container_kinds import held_kind
from fx.naming.printing import class_name


def spell(value: Any) -> str:
    """Return an expression for a constant, as a user would write it where ``torch`` is imported.

    >>> import torch
    >>> spell({"size": (1,), "dtype": torch.float64, "bound": float("inf"), "rows": slice(None, 2)})
    "{'size': (1,), 'dtype': torch.float64, 'bound': float('inf'), 'rows': slice(None, 2)}"
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, slice) and value.step is None:
        return f"slice{spell((value.start, value.stop))}"
    kind = held_kind(value)
    if kind is None or kind.spelling is None:
        return repr(value)
    return kind.written(value, list(map(spell, kind.parts(value))), repr, class_name)


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
