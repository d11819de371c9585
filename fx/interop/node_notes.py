"""Provenance of nodes, in the form of either library.

``torch.fx`` keeps the stack of a node as text in ``node.meta``; ours has ``node.source`` and ``node.origins``. In
``torch.fx``, these are stored in ``meta`` as well, so that a pass that copies a node's ``meta`` also copies them.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fx.frames import _USER, _kind
from fx.node import Node
from fx.provenance import SourceLocation

_KEY = "fx_provenance"
_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)\n?'
                    r'(?![ \t]*File ")(?P<text>[^\n]*)', re.MULTILINE)  # fmt: skip


class Carried(NamedTuple):
    """Provenance of a node that ``torch.fx`` has no field for."""

    source: SourceLocation | None
    """``node.source`` where it cannot be read from the stack trace."""
    origins: tuple[str, ...]
    """``node.origins``."""


class Notes(NamedTuple):
    """Metadata that a node of ours gets from a node of ``torch.fx``."""

    meta: dict[str, Any]
    """The ``meta`` of the node."""
    source: SourceLocation | None
    """The user's line, if known."""
    origins: tuple[str, ...]
    """Names of the captured nodes that it comes from."""


def location_of(stack_trace: str) -> SourceLocation | None:
    """Return the innermost user line of a stack trace, or else its innermost line; None for an empty trace.

    >>> location_of('File "gate.py", line 12, in forward\\n    return x + 1\\n')
    SourceLocation('gate.py:12, in forward:  return x + 1')
    """
    innermost: SourceLocation | None = None
    for frame in reversed(list(_FRAME.finditer(stack_trace))):
        file, line, function, text = frame["file"], int(frame["line"]), frame["function"], frame["text"]
        if file.startswith("<eval_with_key>"):
            continue  # generated code, which no longer exists
        location = SourceLocation.of(file, line, function, text.strip())
        if _kind(file) == _USER:
            return location
        innermost = innermost or location
    return innermost


class NoteReader:
    """A reader of notes of many nodes; equal stack traces share one location."""

    def __init__(self) -> None:
        self._locations: dict[str, SourceLocation | None] = {}

    def locate(self, stack_trace: object) -> SourceLocation | None:
        """Return ``location_of`` a value in ``meta``, or None if it is not a text."""
        if not isinstance(stack_trace, str):
            return None
        if stack_trace not in self._locations:
            self._locations[stack_trace] = location_of(stack_trace)
        return self._locations[stack_trace]

    def of_torch(self, meta: dict[str, Any]) -> Notes:
        """Return the notes of a node of ``torch.fx`` with this ``meta``."""
        meta = dict(meta)
        carried = meta.pop(_KEY, None) or Carried(None, ())
        trace = meta.get("stack_trace")
        source = carried.source or self.locate(trace)
        if source is not None and trace == source.traceback():
            del meta["stack_trace"]  # node.stack_trace is computed from the source
        return Notes(meta, source, carried.origins)

    def for_torch(self, node: Node, meta: dict[str, Any]) -> dict[str, Any]:
        """Return ``meta`` for a ``torch.fx`` copy of ``node``, with the stack trace and the provenance added."""
        meta = dict(meta)
        if (trace := node.stack_trace) is not None:
            meta["stack_trace"] = trace
        carried = Carried(None if node.source == self.locate(trace) else node.source, node.origins)
        if carried != (None, ()):
            meta[_KEY] = carried
        return meta
