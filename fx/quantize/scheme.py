"""``QuantizationScheme``: what of a program becomes 8-bit integers, and how (paper, section 6.2.1)."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from types import NoneType
from typing import Any, Literal

from fx.arguments import expect, expect_all, shown
from fx.errors import QuantizationError
from fx.naming.targets import qualified_name
from fx.node import Node

Precision = Literal["int8", "dynamic", "weight-only", "bfloat16", "float"]
ObserverName = Literal["min-max", "moving-average", "histogram", "percentile"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How one operation is quantized."""

    precision: Precision = "int8"
    """``"int8"``: on integers, whose scales calibration finds; ``"dynamic"``: layers find the scale of their input
    in each call, and give float values; ``"weight-only"``: layers whose weights alone are integers;
    ``"bfloat16"``: layers on float values of 16 bits; ``"float"``: not at all."""
    symmetric: bool = False
    """Whether activations have zero in the middle of their range, rather than where it suits them best."""
    observer: ObserverName = "histogram"
    """What finds the ranges of activations."""
    percentile: float = 99.99
    """Of a percentile observer: how much of the values is inside the range, in percent."""
    activation_bits: int = 8
    """How many bits activations have, 2 to 8; fewer than 8 are stored in 8 and coarser, and faster without VNNI."""
    weight_bits: int = 8
    """How many bits weights have, 2 to 8. """
    per_channel: bool = True
    """Whether each output channel of a weight has a scale of its own."""

    def __post_init__(self) -> None:
        for name, kind in _LITERALS.items():
            allowed = typing.get_args(kind)
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in allowed:
                raise QuantizationError(
                    f"a scheme's {name} cannot be {shown(getattr(self, name))}",
                    remedy=f"choose one of {', '.join(map(repr, allowed))}",
                )
        for name in ("activation_bits", "weight_bits"):
            bits = getattr(self, name)
            if type(bits) is not int or not 2 <= bits <= 8:
                raise QuantizationError(f"a scheme's {name} cannot be {shown(bits)}", remedy="choose 2 to 8 bits")
        for name in ("symmetric", "per_channel"):
            expect(getattr(self, name), bool, f"a scheme's {name} is true or false", error=QuantizationError)
        if not isinstance(self.percentile, Real) or not 50 < self.percentile <= 100:
            raise QuantizationError(
                f"a scheme's percentile cannot be {shown(self.percentile)}",
                remedy="choose more than 50 and at most 100",
            )
        object.__setattr__(self, "percentile", float(self.percentile))


_LITERALS: dict[str, Any] = {"precision": Precision, "observer": ObserverName}


@dataclass(frozen=True, slots=True)
class Override:
    """Where a program is quantized otherwise than its scheme says.

    It holds for operations that match all of the patterns that are given; ``*`` and ``?`` stand for any characters.
    """

    choice: Choice
    """How these operations are quantized."""
    node: str | None = None
    """A pattern for the names of nodes of the program in canonical form."""
    module: str | None = None
    """A pattern for paths of modules, or for names of their classes: one that the operation is in must match."""
    operator: str | None = None
    """A pattern for the canonical function: ``"conv2d"``, ``"torch.nn.functional.*"``."""

    def __post_init__(self) -> None:
        expect(self.choice, Choice, "an Override has a Choice", error=QuantizationError)
        for pattern in (self.node, self.module, self.operator):
            expect(pattern, (str, NoneType), "patterns of an Override are strings", error=QuantizationError)
        if self.node is self.module is self.operator is None:
            raise QuantizationError(
                "an override says nothing about where it holds",
                value=repr(self),
                remedy="give a pattern for `node`, `module` or `operator`; what holds everywhere is the default",
            )

    def matches(self, node: Node) -> bool:
        """Return whether it holds for the operation of ``node``."""
        expect(node, Node, "Override.matches takes a Node", error=QuantizationError)
        return (
            _fits(self.node, [node.name])
            and _fits(self.module, _modules_of(node))
            and _fits(self.operator, _operator_names(node))
        )


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """Which operations of a program are quantized, and how; by default all that can be, with affine activations.

    >>> scheme = QuantizationScheme().skip(operator="conv1d").skip(module="head*")
    >>> QuantizationScheme.from_data(scheme.to_data()) == scheme
    True
    """

    default: Choice = Choice()
    """How operations are quantized for which there is no override."""
    overrides: tuple[Override, ...] = ()
    """Exceptions; of those that match an operation the last one counts."""

    def __post_init__(self) -> None:
        expect(self.default, Choice, "the default of a QuantizationScheme is a Choice", error=QuantizationError)
        what = "overrides of a QuantizationScheme are Overrides"
        expect_all(self.overrides, lambda one: isinstance(one, Override), what, error=QuantizationError)

    def choice(self, node: Node) -> Choice:
        """Return how the operation of ``node`` is quantized."""
        expect(node, Node, "QuantizationScheme.choice takes a Node", error=QuantizationError)
        return next((one.choice for one in reversed(self.overrides) if one.matches(node)), self.default)

    def override(
        self, choice: Choice, *, node: str | None = None, module: str | None = None, operator: str | None = None
    ) -> QuantizationScheme:
        """This scheme with one more exception; see :class:`Override`."""
        return dataclasses.replace(self, overrides=(*self.overrides, Override(choice, node, module, operator)))

    def skip(
        self, *, node: str | None = None, module: str | None = None, operator: str | None = None
    ) -> QuantizationScheme:
        """This scheme with operations that stay in floating point; see :class:`Override`."""
        return self.override(Choice(precision="float"), node=node, module=module, operator=operator)

    def to_data(self) -> dict[str, Any]:
        """The scheme as plain data that JSON can hold."""
        return {
            "default": dataclasses.asdict(self.default),
            "overrides": [dataclasses.asdict(one) for one in self.overrides],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> QuantizationScheme:
        """The scheme that ``to_data`` wrote.

        Raises:
            QuantizationError: ``data`` is none.
        """
        remedy = "write it with QuantizationScheme.to_data"
        expect(data, Mapping, "from_data takes what to_data returned", error=QuantizationError, remedy=remedy)
        try:
            overrides: Sequence[Any] = data["overrides"]
            made = [Override(Choice(**one["choice"]), one["node"], one["module"], one["operator"]) for one in overrides]
            return cls(Choice(**data["default"]), tuple(made))
        except (TypeError, KeyError) as error:
            raise QuantizationError(
                "this data describes no scheme",
                value=shown(data),
                why=f"{type(error).__name__}: {error}",
                remedy=remedy,
            ) from error


def _fits(pattern: str | None, names: list[str]) -> bool:
    return pattern is None or any(fnmatchcase(name, pattern) for name in names)


def _modules_of(node: Node) -> list[str]:
    """Paths and names of classes of the modules that an operation was captured in."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {})
    return [name for path, kind in stack.values() for name in (path, getattr(kind, "__name__", str(kind)))]


def _operator_names(node: Node) -> list[str]:
    if isinstance(node.target, str):
        return [node.target]
    name = qualified_name(node.target)
    return [name, name.rpartition(".")[2]]
