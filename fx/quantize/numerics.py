"""The noise that quantization adds, its sources, and advice on layers to keep in floating point (6.2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from fx.argument_types import checked
from fx.arguments import expect_shallow
from fx.errors import QuantizationError
from fx.graph_module import GraphModule
from fx.interpreter import Interpreter
from fx.node import Node
from fx.provenance import SourceLocation
from fx.quantize.conversion import convert, reference
from fx.quantize.preparation import prepare, quantized_operations
from fx.quantize.scheme import Choice, QuantizationScheme
from fx.quantize.state import run_apart

Data = Sequence[tuple[Any, ...]]
"""The positional arguments of several calls of a program."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a quantized program at one node."""

    node: str
    """Name of the node, in canonical form."""
    sqnr_db: float
    """Signal-to-quantization-noise ratio, in decibels: infinite where nothing differs."""
    where: SourceLocation | None
    """The user's line, if known."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on the layers to keep in floating point."""

    scheme: QuantizationScheme
    """The scheme that skips these layers."""
    skipped: tuple[str, ...]
    """The names of their nodes, the most sensitive first."""
    sqnr_db: float
    """The signal-to-quantization-noise ratio of the program's outputs under that scheme, in decibels."""


class _Power:
    """The power of a signal and of its noise, summed over batches."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0

    def add(self, unquantized: Any, quantized: Any) -> None:
        for exact, near in zip(tree_leaves(unquantized), tree_leaves(quantized), strict=True):
            if isinstance(exact, Tensor) and exact.is_floating_point():
                self._signal += float(exact.double().square().sum())
                self._noise += float((exact.double() - near.double()).square().sum())

    @property
    def decibels(self) -> float:
        if self._noise == 0:
            return math.inf
        ratio = self._signal / self._noise  # not a number if neither is finite
        return 10 * math.log10(ratio) if ratio > 0 else -math.inf


@checked(QuantizationError)
def noise(program: GraphModule, data: Data, scheme: QuantizationScheme | None = None) -> tuple[Noise, ...]:
    """Return the noise in each operation's result, between the program and its quantized reference form.

    Values are compared batch by batch; only those of one batch are in memory at a time.

    Args:
        program: a captured program, in evaluation mode.
        data: arguments of the calls for calibration and comparison.
        scheme: how it is quantized.

    Raises:
        QuantizationError: there is no data, or it is not finite.
    """
    prepared = _calibrated(program, data, _given(data, scheme))
    meaning = reference(prepared)
    powers: dict[str, _Power] = {}
    for args in data:
        unquantized, quantized = (_results(program, form, args) for form in (prepared, meaning))
        for name in unquantized.keys() & quantized.keys():
            powers.setdefault(name, _Power()).add(unquantized[name], quantized[name])
    nodes = {node.name: node for node in prepared.graph.nodes}
    return tuple(Noise(name, powers[name].decibels, nodes[name].source) for name in nodes if name in powers)


def _results(program: GraphModule, form: GraphModule, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the result of each function of ``form``, which was made from ``program``, by the name of its node."""
    results: dict[str, Any] = {}

    def keep(node: Node, value: Any) -> None:
        if node.op == "call_function":
            results[node.name] = value

    run_apart(program, Interpreter(form, listeners=[keep]).run, args)
    return results


def _given(data: Data, scheme: QuantizationScheme | None) -> QuantizationScheme:
    expect_shallow(data, QuantizationError)
    return QuantizationScheme() if scheme is None else scheme


@checked(QuantizationError)
def sensitivity(program: GraphModule, data: Data, scheme: QuantizationScheme | None = None) -> tuple[Noise, ...]:
    """Return for each layer the noise in the program's outputs if it alone is quantized, the most sensitive first.

    Args:
        program: a captured program, in evaluation mode.
        data: arguments of the calls for calibration and comparison.
        scheme: how it is quantized; layers that it skips are left out.

    Raises:
        QuantizationError: there is no data, or it is not finite.
    """
    scheme = _given(data, scheme)
    noises: list[Noise] = []
    operations = quantized_operations(prepare(program, scheme), scheme)
    for node in (node for node, operation in operations.items() if operation.kind == "layer"):
        alone = QuantizationScheme(Choice(precision="float")).override(scheme.choice(node), node=node.name)
        noises.append(Noise(node.name, try_scheme(program, data, alone)[0], node.source))
    return tuple(sorted(noises, key=lambda noise: noise.sqnr_db))


@checked(QuantizationError)
def advise(
    program: GraphModule,
    data: Data,
    sqnr_db: float | None = None,
    scheme: QuantizationScheme | None = None,
    *,
    accuracy: float | None = None,
    evaluate: Callable[[GraphModule], float] | None = None,
) -> Advice:
    """Return the scheme that keeps the fewest layers in floating point and is still good enough.

    Layers are skipped in the order of their sensitivity; a binary search finds the number of them.

    Args:
        program: a captured program, in evaluation mode.
        data: arguments of the calls for calibration and comparison.
        sqnr_db: smallest allowed signal-to-quantization-noise ratio of the outputs, in decibels.
        scheme: how the rest is quantized.
        accuracy: instead of ``sqnr_db``, the smallest allowed value of ``evaluate``.
        evaluate: returns the quality of a quantized program, such as its accuracy on labelled data; more is better.

    Raises:
        QuantizationError: there is no data, or it is not finite; or not exactly one budget is given, or an accuracy
            without a function that measures it.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    >>> advise(program, [(torch.randn(8, 4),)], sqnr_db=5).skipped
    ()
    """
    scheme = _given(data, scheme)
    if (sqnr_db is None) == (accuracy is None) or (accuracy is None) != (evaluate is None):
        raise QuantizationError(
            "advice needs one budget, and a function that measures it if it is an accuracy",
            remedy="advise(program, data, sqnr_db=30), or advise(program, data, accuracy=0.9, evaluate=function)",
        )

    def tried(skipped: Sequence[str]) -> tuple[Advice, bool]:
        trial_scheme = scheme
        for name in skipped:
            trial_scheme = trial_scheme.skip(node=name)
        decibels, quantized = try_scheme(program, data, trial_scheme)
        advice = Advice(trial_scheme, tuple(skipped), decibels)
        if evaluate is not None and accuracy is not None:
            return advice, evaluate(quantized) >= accuracy
        return advice, sqnr_db is not None and advice.sqnr_db >= sqnr_db

    best, is_enough = tried(())
    if is_enough:
        return best
    ordered = [layer.node for layer in sensitivity(program, data, scheme)]
    least, most = 1, len(ordered)
    best, _ = tried(ordered)
    while least < most:
        middle = (least + most) // 2
        advice, is_enough = tried(ordered[:middle])
        if is_enough:
            best, most = advice, middle
        else:
            least = middle + 1
    return best


def _calibrated(
    program: GraphModule, data: Data, scheme: QuantizationScheme, example_inputs: Sequence[Any] | None = None
) -> GraphModule:
    if not data:
        raise QuantizationError(
            "noise is measured on data, and there is none", remedy="pass the arguments of some calls: [(x,), …]"
        )
    prepared = prepare(program, scheme, example_inputs)
    for args in data:
        run_apart(program, Interpreter(prepared).run, args)
    return prepared


def try_scheme(
    program: GraphModule, data: Data, scheme: QuantizationScheme, example_inputs: Sequence[Any] | None = None
) -> tuple[float, GraphModule]:
    """Return the signal-to-quantization-noise ratio of a quantized program's outputs in decibels, and that program.

    ``example_inputs`` are as in ``prepare``.

    Raises:
        QuantizationError: as :func:`noise`, or the quantized program does not run on the data.
    """
    prepared = _calibrated(program, data, scheme, example_inputs)
    quantized, power = convert(prepared), _Power()
    for args in data:
        unquantized = run_apart(program, Interpreter(prepared).run, args)
        output = run_apart(program, Interpreter(quantized).run, args, "the quantized program")
        power.add(unquantized, output)
    return power.decibels, quantized
