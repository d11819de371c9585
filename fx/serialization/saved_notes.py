"""Notes of analyses and passes (``meta``) as JSON: what of them is data is kept, the rest is not needed to run."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fx.container_kinds import held_kind
from fx.serialization.allow_list import Refused, name_of
from fx.serialization.values import DEPTH, Json, ValueReader, ValueWriter

_DATA = ValueWriter(None)


def encode_note(value: Any) -> Json:
    """One note as JSON; entries of dicts that are not data are left out.

    Raises:
        Refused: it is not data.
    """
    return _DATA.value(_plain(value))


def encode_notes(meta: dict[str, Any], encode_dict: Callable[[dict[Any, Any]], Json] = encode_note) -> dict[str, Json]:
    """The entries of ``meta`` that are data; ``encode_dict`` writes those that are dicts."""
    stored: dict[str, Json] = {}
    for key, value in meta.items():
        if type(key) is str:
            with contextlib.suppress(Refused):
                is_dict = type(value) in (dict, OrderedDict)
                stored[key] = encode_dict(value) if is_dict else encode_note(value)
    return stored


def decode_notes(stored: Json) -> dict[str, Any]:
    """Return what ``encode_notes`` stored.

    Raises:
        Refused: it is no such thing.
    """
    if type(stored) is not dict:
        raise Refused("the notes of a module are not an object")
    data = ValueReader([])
    return {key: data.value(value) for key, value in stored.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    """The part of a note that is data: classes that a file may not name become strings, other entries go."""
    if depth > DEPTH:
        raise Refused("a note nests too deeply")
    if isinstance(value, type):
        try:
            name_of(value)
        except Refused:
            return f"{value.__module__}.{value.__qualname__}"
        return value
    kind = held_kind(value)
    if kind is None or kind.tag is None:
        _DATA.value(value)
        return value
    if not kind.is_keyed:
        return kind.rebuild(value, [_plain(part, depth + 1) for part in kind.parts(value)])
    kept: dict[Any, Any] = {}
    for key, item in value.items():
        with contextlib.suppress(Refused):
            kept[_plain(key, depth + 1)] = _plain(item, depth + 1)
    return kind.rebuild(kept, list(kept.values()))
