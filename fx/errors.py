"""The errors of this library, one class per stage, each message in one form: what, where, value, why, try."""

from __future__ import annotations

import pickle
import re
from typing import Any

# "An" goes before the sound of a vowel: an int, an Identity, an Unflatten; a UNet, a Union, a uint8, a OneHot.
_WITH_AN = re.compile(r"_*(?:[AEIaei]|[Oo](?!ne(?![a-z]))|[Uu]n(?!i)[a-z]|[Uu]p)")


class FxError(Exception):
    """Base of every error this library raises on purpose.

    The message is a sentence that says *what* went wrong, and the lines that are known::

        cannot branch on a traced value
          where  gate.py:12, in Gate.forward:  if x.sum() > 0:
          value  %gt = call_function[operator.gt](%sum_1, 0)
          why    whether it is true is known only when the module runs
          try    decide from a module attribute
    """

    def __init__(
        self,
        what: str,
        *,
        where: object | None = None,
        value: object | None = None,
        why: str | None = None,
        remedy: str | None = None,
    ) -> None:
        lines = [what]
        for label, part in (("where", where), ("value", value), ("why", why), ("try", remedy)):
            if part is not None:
                lines.append(f"  {label:<6} {part}")
        super().__init__("\n".join(lines))


class GraphError(FxError, RuntimeError, ValueError):
    """An edit or a graph breaks a rule of the IR (paper, section 4.2).

    Usually a pass erased a node that is still used, or used a node before it is computed. The message names the nodes.
    """


class MissingAttributeError(GraphError, AttributeError):
    """A graph refers to an attribute or submodule that the module does not have."""


class ArgumentIndexError(GraphError, IndexError):
    """A node has no argument of that number."""


class FrozenArgumentError(GraphError, TypeError):
    """Arguments of a node were changed in place. The message shows the two lines to write instead."""


class CodegenError(FxError, ValueError):
    """A graph cannot be written as Python (section 4.3): a target or an argument has no safe spelling."""


class TraceError(FxError, ValueError, RuntimeError):
    """A program cannot be captured (section 5.1). The message names the user's line and a way out.

    It also is of the built-in types that ``torch.fx`` raises in these places, for handlers written for them.
    """


class ForeignModuleError(TraceError, NameError):
    """A module or parameter is used that is not in the hierarchy of the traced root."""


class TracedValueError(TraceError, TypeError):
    """Python itself refused a traced value where it needs a real one, as in ``int(x)``."""


class UnsupportedTraceError(TraceError, NotImplementedError):
    """A use of capture that is not supported: a value of a type no node can hold, ``wrap`` inside a function."""


class GuardError(FxError, RuntimeError):
    """A guard failed: a value that the trace specialized on has changed.

    The message names the user's line that used the value, and its current value.
    """


class CaptureError(TraceError):
    """No way of capturing accepts a program. The message has the cause for each, and the user's line."""

    refusals: tuple[Any, ...] = ()
    """The refusal of each way of capturing, with the whole message: :class:`fx.interop.capturing.Refusal`."""


class PassError(FxError, RuntimeError):
    """A pass was misused, refused its input or returned a value that is not a program."""


class PickleError(FxError, pickle.PicklingError, pickle.UnpicklingError):
    """A program cannot be pickled or unpickled. The message names the node whose target has no importable name."""


class SaveError(FxError, ValueError):
    """A program cannot be written to a data-only file. The message names the node or module and the remedy."""


class LoadError(FxError, ValueError):
    """A file is not a saved program, is damaged, or names an object that a file may not name."""


class InteropError(FxError, RuntimeError):
    """A program of ``torch.fx`` or ``torch.export`` cannot become one of ours, or the other way round.

    The message names the node, input or code generator that has no counterpart.
    """


class DrawingError(FxError, ValueError, RuntimeError):
    """A program cannot be drawn as requested: an unknown format, a missing dependency, or a bad figure."""


class MissingDrawingError(DrawingError, KeyError):
    """There is no drawing of that name."""

    __str__ = Exception.__str__


class LoweringError(PassError):
    """A program, or a part of it, cannot be lowered to a backend (section 6.4).

    The message names the operation, the user's line, and the backend's own message.
    """


class LoweringWarning(UserWarning):
    """``fx.lower`` was called for a program, and its backend takes nothing of it: the program runs as before.

    The message has the first reasons, ``meta["lowering"]`` of the program has all. ``dry_run=True`` does not warn.
    """


class AnalysisError(PassError, ValueError):
    """A program cannot be analyzed as requested (section 6.3): times of another machine, a trace that cannot be read.

    The message names the figure or the file, and how to get one that fits.
    """


class TensorTypeError(AnalysisError, TypeError):
    """Types of tensors contradict each other, an annotation, or the tensors of a run (section 6.3).

    The message has the types, the operation with the user's line, and the sizes that do not fit.
    """


class QuantizationError(PassError, ValueError):
    """A program cannot be quantized as requested (section 6.2.1): bad calibration data, or a scheme without meaning."""


def with_article(noun: str) -> str:
    """Return ``noun`` with its article: ``a tuple``, ``an int``."""
    return f"an {noun}" if _WITH_AN.match(noun) else f"a {noun}"


def type_in_words(value: object) -> str:
    """Return the name of a value's type with its article."""
    return with_article(type(value).__name__)


def add_note(error: BaseException, note: str) -> None:
    """Attach ``note`` to a foreign exception, whose type and arguments stay (Python 3.10 has no method for it)."""
    notes: list[str] = getattr(error, "__notes__", [])
    if note not in notes:
        error.__notes__ = [*notes, note]  # type: ignore[attr-defined]


def note_lines(error: BaseException) -> list[str]:
    """Return the lines of all notes that are attached to an exception."""
    return [line for note in getattr(error, "__notes__", []) for line in note.splitlines()]
