"""Provenance of nodes: the user's file and line (paper, section 5.3: errors point at the user's code)."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx.node import Node

GENERATED_FILES: dict[str, Callable[[int], SourceLocation | None]] = {}
"""By the file name of each live piece of generated code, a function from its lines to the original ones."""


def line_of(code: CodeType, offset: int) -> int:
    """Return the line number of the instruction at byte ``offset`` of ``code``."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def defined_at(function: Any) -> str | None:
    """Return the place where a function or its code is defined, as in messages: ``model.py:12, in forward``."""
    # a method has the code of its function
    code = function if isinstance(function, CodeType) else getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}"


class SourceLocation:
    """A place in the user's program.

    Tracing makes thousands of them, so all but the address is computed on demand.
    """

    __slots__ = ("_code", "_offset", "_resolved", "is_compared")

    is_compared: bool | None
    """True if code may compare the value computed there by identity; None before that is known."""

    def __init__(self, code: CodeType | None, offset: int) -> None:
        self._code = code
        self._offset = offset
        self._resolved: tuple[str, int, str, str] | None = None
        self.is_compared = None

    @classmethod
    def of(cls, file: str, line: int, function: str, text: str = "") -> SourceLocation:
        """Return a location with known parts."""
        location = cls(None, 0)
        location._resolved = (file, line, function, text)
        return location

    def is_at(self, code: CodeType, offset: int) -> bool:
        """Return whether it is this instruction."""
        return self._code is code and self._offset == offset

    def _parts(self) -> tuple[str, int, str, str]:
        if self._resolved is None:
            code = self._code
            assert code is not None
            line = line_of(code, self._offset)
            text = linecache.getline(code.co_filename, line).strip()
            function = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            self._resolved = (code.co_filename, line, function, text)
        return self._resolved

    @property
    def file(self) -> str:
        """Path of the file, as Python reports it in tracebacks."""
        return self._parts()[0]

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return self._parts()[1]

    @property
    def place(self) -> str:
        """File and line as in every message, which editors and terminals take for a link: ``model.py:12``."""
        return f"{self.file}:{self.line}"

    @property
    def function(self) -> str:
        """Qualified name of the function (its plain name on Python 3.10)."""
        return self._parts()[2]

    @property
    def text(self) -> str:
        """The source line, stripped; empty if the file cannot be read."""
        return self._parts()[3]

    def traceback(self) -> str:
        """Return the location as one entry of a Python traceback."""
        file, line, function, text = self._parts()
        return f'File "{file}", line {line}, in {function.rpartition(".")[2]}\n    {text}\n'

    def __str__(self) -> str:
        _, _, function, text = self._parts()
        return f"{self.place}, in {function}:  {text}" if text else f"{self.place}, in {function}"

    def __repr__(self) -> str:
        return f"SourceLocation({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceLocation) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __copy__(self) -> SourceLocation:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SourceLocation:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceLocation.of, self._parts()


def inherit(node: Node, sources: Iterable[Node]) -> None:
    """Add the origins of ``sources`` to those of ``node``, and a line if it has none."""
    for source in sources:
        if source._origins and source._origins is not node._origins:
            node.add_origins(source._origins)
        if node.source is None:
            node.source = source.source
