"""Programs as people write them: each is registered with what makes its inputs, in files of one theme each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Definition = TypeVar("Definition", bound=Callable[..., Any])

SIZES = (2, 5)
"""The batch sizes that each program is run with."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and how to call it."""

    theme: str
    """The name of its file."""
    definition: Callable[..., Any]
    """The function itself, or a module class without constructor arguments."""
    inputs: Callable[[int], tuple[Any, ...]]
    """Makes fresh, equal inputs of a size on every call."""
    options: dict[str, Any]
    """Attributes of the tracer."""
    must_refuse: bool
    """Whether any capture is wrong."""
    guided: bool
    """Whether it is captured with example inputs."""

    @property
    def name(self) -> str:
        """Return the name in lists and tests; unique."""
        return f"{self.theme}.{self.definition.__name__}"

    @property
    def is_module(self) -> bool:
        """Return whether it is a class of modules."""
        return isinstance(self.definition, type)

    def build(self, training: bool) -> Any:
        """Make the function or a fresh module with the same numbers every time."""
        if not self.is_module:
            return self.definition
        torch.default_generator.manual_seed(7)
        return self.definition().train(training)


REGISTRY: dict[str, Program] = {}


def program(
    *makers: Callable[[int], Any], must_refuse: bool = False, guided: bool = False, **options: Any
) -> Callable[[Definition], Definition]:
    """Register the decorated function or module class, called with what each of ``makers`` makes of a size."""

    def register(definition: Definition) -> Definition:
        theme = definition.__module__.rpartition(".")[2]
        program = Program(
            theme, definition, lambda size: tuple(make(size) for make in makers), options, must_refuse, guided
        )
        assert program.name not in REGISTRY, program.name
        REGISTRY[program.name] = program
        return definition

    return register


class Layered(torch.nn.Module):
    """A module with one layer, for those of themes to inherit from."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x)


def one_liners(*makers: Callable[[int], Any], guided: bool = False, **functions: Callable[..., Any]) -> None:
    """Register functions of one expression each, under these names."""
    for name, function in functions.items():
        function.__name__ = name
        program(*makers, guided=guided)(function)


def rows(size: int) -> torch.Tensor:
    """A matrix of floats, six in a row, on both sides of zero."""
    return torch.linspace(-1.5, 2.0, size * 6).reshape(size, 6)


def other_rows(size: int) -> torch.Tensor:
    """Another matrix of that shape."""
    return torch.linspace(2.0, -1.0, size * 6).reshape(size, 6).sin()


def sequences(size: int) -> torch.Tensor:
    """A batch of sequences: four steps of six numbers."""
    return torch.linspace(-1.0, 1.0, size * 24).reshape(size, 4, 6)


def longer(size: int) -> torch.Tensor:
    """Two sequences, as many steps as the size, of six numbers."""
    return torch.linspace(-1.0, 1.0, size * 12).reshape(2, size, 6)


def images(size: int) -> torch.Tensor:
    """A batch of images of three channels and 8 x 8 pixels."""
    return torch.linspace(-1.0, 1.0, size * 192).sin().reshape(size, 3, 8, 8)


def tokens(size: int) -> torch.Tensor:
    """Sequences of four token numbers below ten."""
    return (torch.arange(size * 4) * 7 % 10).reshape(size, 4)


def labels(size: int) -> torch.Tensor:
    """A class number below six for each of a batch."""
    return torch.arange(size) % 6


def flags(size: int) -> torch.Tensor:
    """A mask of sequences of four steps."""
    return (torch.arange(size * 4) % 3 != 0).reshape(size, 4)


def given(value: Any) -> Callable[[int], Any]:
    """An input that is the same for all sizes."""
    return lambda size: value
