"""Passes and their options written as text: ``fuse-conv-bn,split{at=layer3}``, as a command line gives them.

::

    passes  =  pass {"," pass}
    pass    =  name ["{" [option {"," option}] "}"]
    option  =  name ["=" value]
    value   =  characters other than , { } = and quotes, or any in single or double quotes

Blanks between these parts mean nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from fx.errors import PassError

_TOKEN = re.compile(r"""\s*(?:(?P<mark>[,{}=])|(?P<quoted>'[^']*'|"[^"]*")|(?P<open>['"])|(?P<word>[^\s,{}='"]+)|$)""")
_SPECIAL = re.compile(r"""[\s,{}='"]""")


@dataclass(frozen=True, slots=True)
class OptionText:
    """One option as it was written."""

    name: str
    """What stands before ``=``."""
    value: str | None
    """What stands behind it, without quotes; None where there is no ``=``."""
    start: int
    """Where the name begins in the text, from 0."""
    value_start: int
    """Where the value begins."""


@dataclass(frozen=True, slots=True)
class PassText:
    """One pass as it was written."""

    name: str
    """Its name."""
    options: tuple[OptionText, ...]
    """Its options, in order."""
    start: int
    """Where the name begins in the text, from 0."""
    text: str
    """The whole text that it is part of."""


def refuse(text: str, at: int, what: str, why: str | None = None, remedy: str | None = None) -> NoReturn:
    """Raise a ``PassError`` that shows ``text`` and points at the character number ``at``, from 0."""
    shown = re.sub(r"\s", " ", text)
    raise PassError(what, value=f"{shown}\n         {' ' * at}^", why=why, remedy=remedy)


def quote(value: str) -> str:
    """Write ``value`` so that it is read as one value, with quotes if it needs them."""
    if value and not _SPECIAL.search(value):
        return value
    return f'"{value}"' if '"' not in value else f"'{value}'"


def parse_text(text: str) -> list[PassText]:
    """Return what ``text`` says, without asking whether there are such passes.

    Raises:
        PassError: it is not in the form above; the message points at the place.

    >>> [(part.name, [(option.name, option.value) for option in part.options]) for part in parse_text("a,b{c=1}")]
    [('a', []), ('b', [('c', '1')])]
    """
    return _Parser(text).passes()


class _Parser:
    """Reads a text from left to right; ``kind``, ``token`` and ``at`` are what comes next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        self.advance()

    def advance(self) -> None:
        """Go on to the next token."""
        match = _TOKEN.match(self.text, self.end)
        assert match is not None  # every character begins a token
        self.end = match.end()
        self.kind = match.lastgroup or "end"
        self.token = match[match.lastgroup] if match.lastgroup else ""
        self.at = match.start(match.lastgroup) if match.lastgroup else len(self.text)
        if self.kind == "open":
            refuse(self.text, self.at, "a quote is not closed", remedy=f"add the closing {self.token}")
        if self.kind == "mark":
            self.kind = self.token

    def sees(self, kind: str) -> bool:
        """Return whether a mark, a ``word``, something ``quoted`` or the ``end`` comes next."""
        return self.kind == kind

    def passes(self) -> list[PassText]:
        """All of the text."""
        found = [self.one_pass()]
        while self.sees(","):
            self.advance()
            found.append(self.one_pass())
        if not self.sees("end"):
            refuse(self.text, self.at, f"a comma or the end is expected here, not {self.token!r}")
        return found

    def one_pass(self) -> PassText:
        """A name and the options behind it."""
        start, name = self.at, self.word("the name of a pass")
        options: list[OptionText] = []
        if self.sees("{"):
            opened = self.at
            self.advance()
            while not self.sees("}") or options:  # nothing is expected in {}
                options.append(self.option(opened))
                if self.sees("}"):
                    break
                self.comma_or_brace(opened)
            self.advance()
        return PassText(name, tuple(options), start, self.text)

    def option(self, opened: int) -> OptionText:
        """``name=value``, or a name alone."""
        self.no_end(opened)
        start, name = self.at, self.word("the name of an option")
        if not self.sees("="):
            return OptionText(name, None, start, start)
        self.advance()
        self.no_end(opened)
        value_start, quoted = self.at, self.sees("quoted")
        value = self.token[1:-1] if quoted else self.word(f"a value of {name!r}")
        if quoted:
            self.advance()
        return OptionText(name, value, start, value_start)

    def word(self, expected: str) -> str:
        """A word, or else an error that says what is expected."""
        if not self.sees("word"):
            is_last = self.at > 0 and self.text[: self.at].rstrip().endswith(",")
            met = "the end" if self.sees("end") else repr(self.token)
            refuse(
                self.text,
                self.at,
                f"{expected} is expected here, not {met}",
                why="there is a comma before it" if is_last else None,
                remedy="drop the comma" if is_last else None,
            )
        word = self.token
        self.advance()
        return word

    def comma_or_brace(self, opened: int) -> None:
        """Go past the comma between two options."""
        self.no_end(opened)
        if not self.sees(","):
            refuse(
                self.text,
                self.at,
                f"a comma or a closing brace is expected here, not {self.token!r}",
                remedy="put a value with blanks or marks in quotes",
            )
        self.advance()

    def no_end(self, opened: int) -> None:
        """Refuse a text that ends inside of braces."""
        if self.sees("end"):
            refuse(self.text, opened, "a brace is not closed", remedy="add the closing }")
