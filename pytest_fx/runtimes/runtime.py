"""The record of a runtime: the models that it runs, their recognition, and their loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pytest_fx.errors import ConversionError
from pytest_fx.named_objects import is_one_of
from pytest_fx.runtimes.session import Session


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that runs converted models. A row of :data:`pytest_fx.runtimes.TABLE`."""

    name: str
    """The name in messages."""
    takes: str
    """The objects and files that it runs, in words."""
    classes: tuple[str, ...]
    """The classes of these objects, as ``module:Class``. They are not imported to recognize an object."""
    suffixes: tuple[str, ...]
    """The suffixes of the files."""
    load: Callable[[Any, str], Session | nn.Module]
    """Makes a session, or a module, of an object or a :class:`~pathlib.Path`, and a name for messages. It raises
    :class:`ConversionError` if the runtime is not installed, or cannot read the file."""

    def recognizes(self, value: Any) -> bool:
        """Return whether the runtime runs ``value``: by its class, or by the suffix of a file."""
        if isinstance(value, (str, Path)):
            return Path(value).suffix in self.suffixes
        return is_one_of(value, *self.classes)


def needs_package(runtime: str, package: str, error: ImportError) -> ConversionError:
    """Return the error for a runtime whose package cannot be imported."""
    return ConversionError(
        f"{runtime} cannot be used here", why=str(error), remedy=f"pip install {package}, or give another form"
    )


def unreadable(name: str, runtime: str, error: Exception) -> ConversionError:
    """Return the error for a file that a runtime cannot read."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ConversionError(
        f"{runtime} cannot read {name}",
        why=f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"[:300],
        remedy="the file may be cut off, or of another kind: write it again",
    )
