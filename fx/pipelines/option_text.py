"""Passes and their options written as text: ``fuse-conv-bn,split{at=layer3}``, as a command line gives them.

::

    passes  =  pass {"," pass}
    pass    =  name ["{" [option {"," option}] "}"]
    option  =  name ["=" value]
    value   =  characters other than , { } = and quotes, or any in single or double quotes

Blanks between these parts are ignored. The text in braces looks like the arguments of a Python call, but Python's
``ast`` cannot parse all of it: a name with dashes (``weight-bits=8``), a name alone after a value
(``limit=1,exactly``), or the path of a module with numbers (``at=layer3.0``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from fx.errors import PassError

_WORD = r"""[^\s,{}='"]+"""
_QUOTED = r"""'[^']*'|"[^"]*\""""


@dataclass(frozen=True, slots=True)
class OptionText:
    """One option as it was written."""

    name: str
    """The text before ``=``."""
    value: str | None
    """The text after ``=``, without quotes; None without ``=``."""
    start: int
    """Position of the name in the text, from 0."""
    value_start: int
    """Position of the value in the text, from 0."""


@dataclass(frozen=True, slots=True)
class PassText:
    """One pass as it was written."""

    name: str
    """Its name."""
    options: tuple[OptionText, ...]
    """Its options, in order."""
    start: int
    """Position of the name in the text, from 0."""
    text: str
    """The whole text that it is part of."""


def refuse(text: str, at: int, what: str, why: str | None = None, remedy: str | None = None) -> NoReturn:
    """Raise a ``PassError`` that shows ``text`` and points at the character at position ``at``, from 0."""
    line = re.sub(r"\s", " ", text)
    raise PassError(what, value=f"{line}\n         {' ' * at}^", why=why, remedy=remedy)


def quote(value: str) -> str:
    """Return ``value`` as text that is parsed as one value, with quotes if it needs them."""
    if re.fullmatch(_WORD, value):
        return value
    return f'"{value}"' if '"' not in value else f"'{value}'"


def parse_text(text: str) -> list[PassText]:
    """Parse ``text``, without checking that the passes exist.

    Raises:
        PassError: the text does not follow the grammar above; the message points at the place.

    >>> [(part.name, [(option.name, option.value) for option in part.options]) for part in parse_text("a,b{c=1}")]
    [('a', []), ('b', [('c', '1')])]
    """
    reader = _OptionReader(text)
    passes = [reader.read_pass()]
    while reader.at < len(text):
        reader.need(",", "a comma or the end")
        passes.append(reader.read_pass())
    return passes


class _OptionReader:
    """A parser that reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = len(text) - len(text.lstrip())
        """Position of the next token."""
        self.opened: int | None = None
        """Position of the brace that is open, if any."""

    def take(self, form: str) -> str | None:
        """Return the next token and move past it, if it matches a regular expression; otherwise return None."""
        match = re.compile(rf"({form})\s*").match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[1]

    def need(self, form: str, expected: str, remedy: str | None = None) -> str:
        """Return the next token as :meth:`take` does, or raise a ``PassError`` that names the expected token."""
        token = self.take(form)
        if token is not None:
            return token
        if self.at == len(self.text) and self.opened is not None:
            refuse(self.text, self.opened, "a brace is not closed", remedy="add the closing }")
        at, met = self.at, self.take(f"{_QUOTED}|{_WORD}|.?")
        if met in ("'", '"'):
            refuse(self.text, at, "a quote is not closed", remedy=f"add the closing {met}")
        why = None
        if self.text[:at].rstrip().endswith(","):
            why, remedy = "there is a comma before it", "drop the comma"
        refuse(self.text, at, f"{expected} is expected here, not {repr(met) if met else 'the end'}", why, remedy)

    def read_pass(self) -> PassText:
        """Read a name and the options after it."""
        start, name = self.at, self.need(_WORD, "the name of a pass")
        options: list[OptionText] = []
        self.opened = self.at
        if self.take("{") and not self.take("}"):
            options.append(self.option())
            while not self.take("}"):
                self.need(",", "a comma or a closing brace", "put a value with blanks or marks in quotes")
                options.append(self.option())
        self.opened = None
        return PassText(name, tuple(options), start, self.text)

    def option(self) -> OptionText:
        """Read ``name=value``, or a name alone."""
        start, name = self.at, self.need(_WORD, "the name of an option")
        if not self.take("="):
            return OptionText(name, None, start, start)
        value_start, value = self.at, self.need(f"{_QUOTED}|{_WORD}", f"a value of {name!r}")
        return OptionText(name, value[1:-1] if value[0] in "'\"" else value, start, value_start)
