"""``QuantizationScheme``: the parts of a program that become 8-bit integers, and how (paper, section 6.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from fx.argument_types import checked
from fx.arguments import shown
from fx.errors import QuantizationError
from fx.naming.targets import qualified_name
from fx.node import Node
from fx.quantize.affine import Bits, Percentile

Precision = Literal["int8", "dynamic", "weight-only", "bfloat16", "float"]
ObserverName = Literal["min-max", "moving-average", "histogram", "percentile"]


@checked(QuantizationError)
@dataclass(frozen=True, slots=True)
class Choice:
    """The quantization of one operation."""

    precision: Precision = "int8"
    """The arithmetic:

    - ``"int8"``: on integers, with scales from calibration;
    - ``"dynamic"``: for layers, which find the scale of their input in each call and return float values;
    - ``"weight-only"``: for layers, whose weights alone are integers;
    - ``"bfloat16"``: for layers, on float values of 16 bits;
    - ``"float"``: no quantization.
    """
    symmetric: bool = False
    """True if activations have zero in the middle of their range, rather than where it suits them best."""
    observer: ObserverName = "histogram"
    """The observer that finds the ranges of activations."""
    percentile: Percentile = 99.99
    """For a percentile observer: the percentage of values inside the range."""
    activation_bits: Bits = 8
    """The number of bits of activations, 2 to 8. Fewer than 8 are stored in 8 bits; they are faster without VNNI."""
    weight_bits: Bits = 8
    """The number of bits of weights, 2 to 8."""
    per_channel: bool = True
    """True if each output channel of a weight has its own scale."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "percentile", float(self.percentile))


@checked(QuantizationError)
@dataclass(frozen=True, slots=True)
class Override:
    """An exception from the default of a scheme.

    It holds for operations that match all of its patterns; ``*`` and ``?`` match any characters.
    """

    choice: Choice
    """The quantization of these operations."""
    node: str | None = None
    """A pattern for the names of nodes of the program in canonical form."""
    module: str | None = None
    """A pattern for the path or class name of a module: one of the modules around the operation must match."""
    operator: str | None = None
    """A pattern for the canonical function: ``"conv2d"``, ``"torch.nn.functional.*"``."""

    def __post_init__(self) -> None:
        if self.node is self.module is self.operator is None:
            raise QuantizationError(
                "an override says nothing about where it holds",
                value=repr(self),
                remedy="give a pattern for `node`, `module` or `operator`; what holds everywhere is the default",
            )

    def matches(self, node: Node) -> bool:
        """Return whether the override holds for the operation of ``node``."""
        return (
            _fits(self.node, [node.name])
            and _fits(self.module, _modules_of(node))
            and _fits(self.operator, _operator_names(node))
        )


@checked(QuantizationError)
@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """The operations of a program to quantize, and how; by default all that can be, with affine activations.

    >>> scheme = QuantizationScheme().skip(operator="conv1d").skip(module="head*")
    >>> QuantizationScheme.from_data(scheme.to_data()) == scheme
    True
    """

    default: Choice = Choice()
    """The quantization of operations without an override."""
    overrides: tuple[Override, ...] = ()
    """Exceptions; the last one that matches an operation counts."""

    def choice(self, node: Node) -> Choice:
        """Return how the operation of ``node`` is quantized."""
        matches = (override for override in reversed(self.overrides) if override.matches(node))
        return next((override.choice for override in matches), self.default)

    def override(
        self, choice: Choice, *, node: str | None = None, module: str | None = None, operator: str | None = None
    ) -> QuantizationScheme:
        """Return this scheme with one more exception; see :class:`Override`."""
        return dataclasses.replace(self, overrides=(*self.overrides, Override(choice, node, module, operator)))

    def skip(
        self, *, node: str | None = None, module: str | None = None, operator: str | None = None
    ) -> QuantizationScheme:
        """Return this scheme with more operations that stay in floating point; see :class:`Override`."""
        return self.override(Choice(precision="float"), node=node, module=module, operator=operator)

    def to_data(self) -> dict[str, Any]:
        """Return the scheme as plain data for JSON."""
        return {
            "default": dataclasses.asdict(self.default),
            "overrides": [dataclasses.asdict(override) for override in self.overrides],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> QuantizationScheme:
        """Return the scheme that ``to_data`` wrote.

        Raises:
            QuantizationError: ``data`` describes no scheme.
        """
        try:
            entries: Sequence[Any] = data["overrides"]
            overrides = [
                Override(Choice(**entry["choice"]), entry["node"], entry["module"], entry["operator"])
                for entry in entries
            ]
            return cls(Choice(**data["default"]), tuple(overrides))
        except (TypeError, KeyError) as error:
            raise QuantizationError(
                "this data describes no scheme",
                value=shown(data),
                why=f"{type(error).__name__}: {error}",
                remedy="write it with QuantizationScheme.to_data",
            ) from error


def _fits(pattern: str | None, names: list[str]) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names)


def _modules_of(node: Node) -> list[str]:
    """Return the paths and class names of the modules in which an operation was captured."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {})
    return [name for path, kind in stack.values() for name in (path, getattr(kind, "__name__", str(kind)))]


def _operator_names(node: Node) -> list[str]:
    if isinstance(node.target, str):
        return [node.target]
    name = qualified_name(node.target)
    return [name, name.rpartition(".")[2]]
