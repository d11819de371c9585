"""Legal, unique names for nodes and for the variables and globals of generated code (paper, section 4.3)."""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from functools import lru_cache
from math import inf, nan
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx import _pytree as fx_pytree
from fx.errors import GraphError, type_in_words

NoneType = type(None)

GENERATED_GLOBALS: dict[str, Any] = {
    "inf": inf,
    "nan": nan,
    "NoneType": NoneType,
    "torch": torch,
    "device": torch.device,
    "fx_pytree": fx_pytree,
    "pytree": pytree,
}
"""Names on which every generated module may rely; nodes never have them."""

_RESERVED = frozenset(dir(builtins)) | frozenset(keyword.kwlist) | frozenset(GENERATED_GLOBALS)
_ILLEGAL = re.compile(r"[^0-9a-zA-Z_]+")
_NUMBERED = re.compile(r"(.*)_(\d{1,18})", re.DOTALL)  # Python refuses to convert thousands of digits


def is_identifier(text: str) -> bool:
    """Return whether ``text`` is a valid name in source that Python keeps as it is.

    Keywords are not. Nor are strings of a subclass, whose methods may lie, and strings that Python would normalize.
    """
    return type(text) is str and _is_identifier(text)


@lru_cache(maxsize=65536)
def _is_identifier(text: str) -> bool:
    return (
        text.isidentifier()
        and not keyword.iskeyword(text)
        and (text.isascii() or unicodedata.normalize("NFKC", text) == text)
        and text != "__debug__"
    )


@lru_cache(maxsize=65536)
def _split(candidate: str) -> tuple[str, str, int | None]:
    """Return the legal spelling of ``candidate``, its base, and the number after its last underscore."""
    legal = _ILLEGAL.sub("_", candidate) or "_unnamed"
    if legal[0].isdigit():
        legal = f"_{legal}"
    if numbered := _NUMBERED.fullmatch(legal):
        return legal, numbered[1], int(numbered[2])
    return legal, legal, None


@lru_cache(maxsize=65536)
def snake_case(text: str) -> str:
    """Return ``text`` in lower case, with underscores between words: ``MaxPool2d`` becomes ``max_pool2d``."""
    out: list[str] = []
    for before, char in zip(" " + text, text, strict=False):
        if char.isupper() and before.islower():
            out.append("_")
        out.append(char.lower())
    return "".join(out)


class Namespace:
    """A source of legal, distinct names: the first keeps its candidate, later ones get ``_1``, ``_2``, …"""

    __slots__ = ("_last", "_names", "_used")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._last: dict[str, int] = {}
        self._names: dict[int, tuple[str, Any]] = {}

    def create_name(self, candidate: str, obj: object | None = None) -> str:
        """Return a new name like ``candidate``.

        With ``obj``, the name belongs to that object, and a second call for the same object returns the same name. The
        name may be a reserved one if ``obj`` is the object of that name.
        """
        if obj is not None and id(obj) in self._names:
            return self._names[id(obj)][0]
        if not isinstance(candidate, str):
            raise GraphError("a Namespace makes a name like another one", value=type_in_words(candidate))
        name, base, number = _split(candidate)
        used = self._used
        if number is None or name in used:
            number = self._last.get(base, 0)
        while name in used or (name in _RESERVED and not _is_value_of(name, obj)):
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        self._last[base] = number
        if obj is not None:
            self._names[id(obj)] = (name, obj)
        return name

    def claim(self, name: str) -> bool:
        """Take ``name`` as it is; return False if it is not legal, in use, or reserved."""
        legal = type(name) is str and name.isascii() and name.isidentifier()
        if not legal or name in self._used or name in _RESERVED:
            return False
        self._used.add(name)
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Namespace:
        copied = Namespace()
        copied._used = set(self._used)
        copied._last = dict(self._last)
        copied._names = dict(self._names)
        return copied


def _is_value_of(name: str, obj: object | None) -> bool:
    if obj is None:
        return False
    return getattr(builtins, name, _is_value_of) is obj or GENERATED_GLOBALS.get(name, _is_value_of) is obj
