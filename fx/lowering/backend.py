"""The interface of backends, and the registry that finds a backend by its name (paper, section 6.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from torch import nn

from fx.argument_types import checked
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.converters import Converters
from fx.lowering.known_program import Operation
from fx.node import Node
from fx.registry import Registry


class Backend(ABC):
    """A runtime or compiler that runs regions of a program faster than eager Python.

    A subclass defines ``name``, ``converters`` and ``build``; the other members have defaults. ``docs/lowering.md``
    writes a backend from scratch.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Its name in options and reports, and the prefix of its submodules' names."""
    converters: ClassVar[Converters]
    """The converters that build its operations; an operation without a converter stays in eager Python."""
    min_size: ClassVar[int] = 1
    """The least number of operations in a region, as converters count them, unless the caller passes another."""
    flops_per_byte: ClassVar[float] = 0.0
    """The least number of floating-point operations for each byte that a region takes or returns. Regions with fewer
    stay in eager Python. Checked only where shapes are known."""
    flops_per_operation: ClassVar[float] = 0.0
    """The least number of floating-point operations for each operation that counts, which pays for the overhead of its
    call. Regions with fewer stay in eager Python. Checked only where shapes are known."""
    keeps_non_finite: ClassVar[bool] = True
    """Whether a NaN or an infinity in an input reaches the outputs where it does in eager PyTorch."""
    inlines_functions: ClassVar[bool] = False
    """Whether functions that the capture left whole, such as those marked ``fx.wrap``, are taken apart."""
    takes_other_sizes: ClassVar[bool] = True
    """Whether a lowered program takes inputs of other sizes than those of the example inputs."""

    def why_unavailable(self) -> str | None:
        """Return why the backend cannot build on this machine, such as a missing package; ``None`` if it can."""
        return None

    def emulated(self) -> Backend | None:
        """Return this backend with regions that PyTorch computes as the device would; ``None`` if it has none."""
        return None

    def supports(self, operation: Operation) -> str | None:
        """Return why the backend refuses an operation that its converter accepts; ``None`` if it takes it."""
        return None

    def prepare(self, graph_module: GraphModule) -> GraphModule:
        """Rewrite a copy of the program, such as by folding batch norms, before it is brought into canonical form."""
        return graph_module

    def can_cross(self, node: Node) -> bool:
        """Return whether the value of ``node`` can be passed to a region of the backend, and returned by one.

        A value that cannot, such as the size of a tensor where regions take only tensors, is computed on both sides of
        a boundary if the backend takes its operation. If it does not, the users of the value stay in eager Python too.
        """
        return True

    def study(self, program: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Record in ``meta`` the facts about values that :meth:`build` needs besides their shapes.

        Args:
            program: the whole program in canonical form, with the shapes for the example inputs recorded.
            example_inputs: the user's example inputs.
        """
        return

    @abstractmethod
    def build(self, region: GraphModule) -> nn.Module:
        """Return the module that replaces a region, with the same inputs and outputs.

        The region is a canonical program of its own. Any exception means that it cannot be built.
        """

    def describe(self, built: nn.Module) -> str | None:
        """Return a note on a built module for the report, such as how long the build took; ``None`` for no note."""
        return None


_AnyBackend = TypeVar("_AnyBackend", bound=Backend)

_backends: Registry[Backend] = Registry("backend", "backends", LoweringError)


@checked(LoweringError)
def register_backend(backend: _AnyBackend) -> _AnyBackend:
    """Register a backend under its name, and return it.

    Raises:
        LoweringError: another backend has the name.
    """
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
