"""Graphs in the DOT language, and the pictures that Graphviz, if installed, makes of them."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from fx.errors import DrawingError

_LONGEST_RUN = 120
_LINE_ENDS = re.compile(r"[\0\r\n\x0b\x0c\x85\u2028\u2029]+")


def quoted(text: str) -> str:
    """Return a string of the DOT language that Graphviz shows as ``text``, with centred lines.

    >>> print(quoted('a "b" \\\\ <c>'))
    "a \\"b\\" \\\\ <c>"
    """
    lines = text.replace("\0", "").encode(errors="replace").decode().split("\n")
    return '"' + r"\n".join(_LINE_ENDS.sub(" ", line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def record_field(text: str) -> str:
    """Return text as a field of a box of the shape ``record``, with special characters escaped.

    >>> print(record_field("{a|b}"))
    \\{a\\|b\\}
    """
    return re.sub(r"([\\{}|<> ])", lambda match: "\\" + match[1] if match[1] != " " else " ", _LINE_ENDS.sub(" ", text))


def attributes(values: Mapping[str, str]) -> str:
    """Return attributes in brackets; values come from :func:`quoted`, except labels of records, which are ready."""
    spelled = [f"{name}={value}" for name, value in values.items()]
    return f" [{', '.join(spelled)}]" if spelled else ""


class DotGraph:
    """A graph in the DOT language, with the methods of ``pydot.Dot`` that write it.

    ``to_string()`` and ``write(path)`` need no other tool. ``write_svg(path)``, ``write_png(path)`` and other formats
    need Graphviz's command ``dot``. All other methods of ``pydot.Dot`` need pydot, which reads the text.
    """

    def __init__(self, name: str, statements: Iterable[str] = ()) -> None:
        self._name = name
        self._statements = list(statements)

    def get_name(self) -> str:
        """Return the name of the graph."""
        return self._name

    def to_string(self) -> str:
        """Return the graph as text."""
        return "\n".join(
            [f"digraph {quoted(self._name)} {{", *(f"  {statement}" for statement in self._statements), "}", ""]
        )

    def __str__(self) -> str:
        return self.to_string()

    def write(self, path: str | os.PathLike[str], prog: str = "dot", format: str = "raw") -> bool:
        """Write a file: the text (``raw``), or a picture in a format of Graphviz's.

        Raises:
            DrawingError: Graphviz is missing, or fails.
        """
        content = self.create(prog, format)
        with open(path, "wb") as file:
            file.write(content)
        return True

    def create(self, prog: str = "dot", format: str = "ps") -> bytes:
        """Return the content of the file that :meth:`write` writes."""
        text = self.to_string().encode()
        return text if format == "raw" else run_graphviz(text, format, prog)

    def to_pydot(self) -> Any:
        """Return the graph as a ``pydot.Dot``.

        Raises:
            DrawingError: pydot is not installed.
        """
        try:
            pydot: Any = importlib.import_module("pydot")
        except ImportError as error:
            raise DrawingError(
                "a pydot.Dot needs pydot, which is not installed",
                why=str(error),
                remedy="pip install pydot; to_string() and write_svg() of the graph do without",
            ) from error
        return pydot.graph_from_dot_data(self.to_string())[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        verb, _, form = name.partition("_")
        if verb == "write" and form:
            return lambda path, prog="dot": self.write(path, prog, form)
        if verb == "create" and form:
            return lambda prog="dot": self.create(prog, form)
        return getattr(self.to_pydot(), name)


def run_graphviz(text: bytes, form: str, program: str = "dot") -> bytes:
    """Return Graphviz's picture of a text.

    Raises:
        DrawingError: Graphviz is not installed, refuses the text, or takes longer than two minutes.
    """
    command = shutil.which(program)
    if command is None:
        raise DrawingError(
            f"a file in the format {form} needs Graphviz, whose command {program!r} is not on the path",
            remedy="install Graphviz (apt install graphviz, brew install graphviz), or write .svg or .html, "
            "which need nothing: fx.draw(program, 'program.svg')",
        )
    try:
        run = subprocess.run([command, f"-T{form}"], input=text, capture_output=True, timeout=_LONGEST_RUN, check=False)
    except subprocess.TimeoutExpired as error:
        raise DrawingError(
            f"Graphviz took longer than {_LONGEST_RUN} s",
            remedy="write .svg or .html, which take seconds: fx.draw(program, 'program.svg')",
        ) from error
    if run.returncode:
        raise DrawingError("Graphviz refused the graph", why=run.stderr.decode(errors="replace").strip() or None)
    return run.stdout
