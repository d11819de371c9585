"""The corpus: small programs that both libraries must capture, print, generate and run alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import torch

Definition = TypeVar("Definition", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the corpus and how to call it."""

    name: str
    """The name of the function or class; unique in the corpus."""
    definition: Callable[..., Any]
    """The function itself, or a module class without constructor arguments."""
    inputs: Callable[[], tuple[Any, ...]]
    """Makes fresh, equal inputs on every call."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """Further inputs, by keyword."""
    concrete_args: Callable[[ModuleType], Any] | None = None
    """The arguments to specialize when tracing, by the library whose placeholder marks are used."""
    pickles: bool = True
    """Whether its modules can be pickled at all."""
    retraces_in_torch_fx: bool = True
    """Whether torch.fx can trace its own generated code again, which it does for unpickling too."""

    def build(self) -> Any:
        """Make the function or a seeded, fresh module in evaluation mode."""
        if not isinstance(self.definition, type):
            return self.definition
        torch.manual_seed(7)
        return self.definition().eval()

    def capture(self, library: ModuleType) -> Any:
        """Trace a fresh build with ``library``."""
        concrete = None if self.concrete_args is None else self.concrete_args(library)
        return library.symbolic_trace(self.build(), concrete_args=concrete)

    def captured(self, library: ModuleType) -> Any:
        """Trace once, for tests that only look."""
        key = (library.__name__, self.name)
        if key not in CAPTURED:
            CAPTURED[key] = self.capture(library)
        return CAPTURED[key]


REGISTRY: dict[str, Program] = {}
CAPTURED: dict[tuple[str, str], Any] = {}


def program(*inputs: Callable[[], Any], **options: Any) -> Callable[[Definition], Definition]:
    """Register the decorated function or module class, called with the results of ``inputs``."""

    def register(definition: Definition) -> Definition:
        assert definition.__name__ not in REGISTRY
        REGISTRY[definition.__name__] = Program(
            definition.__name__, definition, lambda: tuple(make() for make in inputs), **options
        )
        return definition

    return register


def vector() -> torch.Tensor:
    """Six floats on both sides of zero."""
    return torch.linspace(-1.5, 2.0, 6)


def matrix() -> torch.Tensor:
    """A 4 x 6 matrix of positive floats."""
    return torch.linspace(0.1, 2.5, 24).reshape(4, 6)


def square() -> torch.Tensor:
    """A 3 x 3 matrix."""
    return torch.linspace(-1.0, 1.0, 9).reshape(3, 3)


def integers() -> torch.Tensor:
    """Six small integers."""
    return torch.arange(1, 7)


def mask() -> torch.Tensor:
    """Six alternating booleans."""
    return torch.arange(6) % 2 == 0


def image() -> torch.Tensor:
    """A batch of two 3 x 8 x 8 images."""
    return torch.linspace(-1.0, 1.0, 2 * 3 * 64).reshape(2, 3, 8, 8)


def given(value: Any) -> Callable[[], Any]:
    """An input that is a plain Python value."""
    return lambda: value
