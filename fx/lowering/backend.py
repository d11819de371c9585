"""What a backend is: a class with these members, of which one object is known by its name (paper, section 6.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from torch import nn

from fx.arguments import expect
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.converters import Converters
from fx.lowering.known_program import Operation
from fx.node import Node
from fx.registry import Registry


class Backend(ABC):
    """Something that runs regions of a program faster than eager Python does.

    A backend gives ``name``, ``converters`` and ``build``; the rest has defaults. ``docs/lowering.md`` writes one from
    nothing.
    """

    __slots__ = ()

    name: ClassVar[str]
    """What users and reports call it; also the first part of its submodules' names."""
    converters: ClassVar[Converters]
    """How it builds operations; whatever has no converter stays in eager Python."""
    min_size: ClassVar[int] = 1
    """How many operations that count a region needs at least, unless the caller says otherwise."""
    flops_per_byte: ClassVar[float] = 0.0
    """How many floating-point operations must come with each byte that a region is given or returns; regions with fewer
    stay in eager Python. Asked only where shapes are known."""
    flops_per_operation: ClassVar[float] = 0.0
    """How many floating-point operations those that count must do on average, for what it costs to call each; regions
    with smaller ones stay in eager Python. Asked only where shapes are known."""
    keeps_non_finite: ClassVar[bool] = True
    """Whether a NaN or an infinity in an input reaches the outputs where it does in eager PyTorch."""

    def why_unavailable(self) -> str | None:
        """Return why nothing can be built on this machine, such as a missing package; ``None`` where it can."""
        return None

    def supports(self, operation: Operation) -> str | None:
        """Return why the backend cannot take an operation, whatever its converter says; ``None`` if it can."""
        return None

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Rewrite a copy of the program before it is brought into canonical form, such as by folding batch norms."""
        return graph_module

    def can_cross(self, node: Node) -> bool:
        """Return whether the value of ``node`` can be handed to a region of the backend, and returned by one.

        What cannot is computed on both sides of a boundary, if the backend takes it, such as the size of a tensor for
        backends whose regions are given tensors only. If it does not, what uses it stays in eager Python as well.
        """
        return True

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Note in ``meta`` what :meth:`build` will want to know of values, besides their recorded shapes.

        Args:
            program: the whole program in canonical form, with the shapes for the example inputs recorded.
            example_inputs: what the user gave.
        """
        return

    @abstractmethod
    def build(self, region: GraphModule) -> nn.Module:
        """Return what takes the place of a region: a module that takes and returns what the region does.

        The region is a canonical program of its own. Any exception says that it cannot be built.
        """

    def describe(self, built: nn.Module) -> str | None:
        """Return what a report says of something that was built, such as how long that took."""
        return None


_Known = TypeVar("_Known", bound=Backend)

_backends: Registry[Backend] = Registry("backend", "backends", LoweringError)


def register_backend(backend: _Known) -> _Known:
    """Make a backend known under its name, and return it.

    Raises:
        LoweringError: another one has the name.
    """
    expect(backend, Backend, "register_backend takes a Backend", error=LoweringError)
    _backends.register(backend.name, backend)
    return backend


def get_backend(name: str) -> Backend:
    """Return the backend called ``name``.

    Raises:
        LoweringError: there is none; the message lists the nearest names.

    >>> get_backend("onednn").name
    'onednn'
    """
    return _backends.get(name)


def list_backends() -> list[str]:
    """Return the names of all backends, available on this machine or not."""
    return _backends.names()
