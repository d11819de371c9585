"""Advice on the layers that stay in higher precision: the effect of each, and a short list that keeps a contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fx.errors import PassError
from fx.passes import Contract
from fx.pipelines.option_text import quote
from fx.quantize import QuantizationScheme, Quantize, prepare
from fx.quantize.preparation import quantized_operations
from pytest_fx.compilers.lower_precision import LowerPrecision, layers_of
from pytest_fx.errors import LawViolation
from pytest_fx.harness.metrics import Measured
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import broken_laws, law_called
from pytest_fx.laws.judging import compared
from pytest_fx.loading import load_pass
from pytest_fx.option_table import PRECISIONS

_ANY_RATIO = -1e3
"""A signal-to-noise ratio in decibels that every result reaches, so that ``quantize`` skips no other layers."""
_SHOWN = 8
"""The most layers whose effects are listed."""


@dataclass(frozen=True, slots=True)
class LayerEffect:
    """The effect of one layer on the outputs, if it alone is computed in lower precision."""

    layer: str
    """The path of the layer, or for int8 the name of its node."""
    effect: float
    """The drop of the metric, or the negated signal-to-noise ratio in decibels: more is worse."""


@dataclass(frozen=True, slots=True)
class PrecisionAdvice:
    """The layers to keep in higher precision."""

    precision: str
    """The lower precision."""
    contract: Contract
    """The contract to keep."""
    effects: tuple[LayerEffect, ...]
    """The effects of all layers, the largest first; empty if no layer has to be kept."""
    keep: tuple[str, ...] | None
    """The layers to keep; None if the contract does not hold even if all are kept."""
    layer_count: int
    """The number of layers."""

    @property
    def argument(self) -> str:
        """The argument of a run with these layers kept."""
        keep = f"keep={quote('+'.join(self.keep))}" if self.keep else ""
        if self.precision == "int8":
            return f"--fx-pass 'quantize{{{keep}}}'" if keep else "--fx-pass quantize"
        settings = ",".join(filter(None, [f"dtype={self.precision}", keep]))
        return f"--fx-pass 'pytest_fx.compilers.lower_precision:LowerPrecision{{{settings}}}' --fx-form module"

    def lines(self) -> list[str]:
        """Return the advice in lines, verdict first."""
        if self.keep is None:
            first = f"{self.contract} does not hold with any layer in {self.precision}"
        else:
            first = f"keep {len(self.keep)} of {self.layer_count} layers: {self.argument}"
        unit = "drop {:.4g}" if isinstance(self.contract, Measured) else "{:.1f} dB"
        sign = 1 if isinstance(self.contract, Measured) else -1
        effects = [f"{each.layer} {unit.format(sign * each.effect)}" for each in self.effects[:_SHOWN]]
        return [first, *([f"  alone in {self.precision}: {', '.join(effects)}"] if effects else [])]


def advise_precision(subject: Subject, precision: str, contract: Contract | None = None) -> PrecisionAdvice:
    """Measure the effect of each layer, and return a short list of layers that have to stay for the contract to hold.

    Layers are kept in the order of their effects; a binary search finds how many. Then each kept layer is tried in
    lower precision again, so that none of the list can be left out.

    Args:
        subject: the model.
        precision: one of :data:`~pytest_fx.option_table.PRECISIONS`.
        contract: the contract to keep; None for a signal-to-noise ratio.

    Raises:
        PassError: there is no such precision, or the model has no layer for it.
        LawViolation: the model does not run in that precision at all.
    """
    if precision not in PRECISIONS:
        raise PassError(f"there is no precision {precision!r} to advise on", remedy=f"use {', '.join(PRECISIONS)}")
    default = Quantize().contract if precision == "int8" else _pass_for(precision, ()).contract
    trial = _PrecisionTrial(subject, precision, contract or default)
    layers = trial.layers
    if not layers:
        raise PassError(f"{subject.name} has no layers for {precision}", remedy="leave the model out")
    if trial.holds(()):
        return PrecisionAdvice(precision, trial.contract, (), (), len(layers))
    effects = sorted((trial.effect(layer) for layer in layers), key=lambda each: -each.effect)
    ordered = [each.layer for each in effects]
    keep = _shortest(ordered, trial.holds)
    return PrecisionAdvice(precision, trial.contract, tuple(effects), keep, len(layers))


def _shortest(ordered: Sequence[str], holds: Callable[[Sequence[str]], bool]) -> tuple[str, ...] | None:
    """Return layers to keep of which none can be left out; None if the contract holds for no number of them."""
    least, most = 1, len(ordered)
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if holds(ordered[:middle]) else (middle + 1, most)
    keep = list(ordered[:least])
    if least == len(ordered) and not holds(keep):
        return None
    for layer in reversed(ordered[: least - 1]):  # the last one is needed, as the search has shown
        fewer = [each for each in keep if each != layer]
        if holds(fewer):
            keep = fewer
    return tuple(keep)


def _pass_for(precision: str, keep: Sequence[str]) -> Any:
    if precision == "int8":
        return Quantize(keep=tuple(keep), sqnr_db=_ANY_RATIO)
    return LowerPrecision("float16" if precision == "float16" else "bfloat16", tuple(keep))


class _PrecisionTrial:
    """Runs of a model with some layers in lower precision."""

    def __init__(self, subject: Subject, precision: str, contract: Contract) -> None:
        self._subject = subject
        self._precision = precision
        self.contract = contract
        self.layers: list[str] = (
            self._quantized_layers() if precision == "int8" else [*layers_of(subject.shared_copy())]
        )

    def _quantized_layers(self) -> list[str]:
        scheme = QuantizationScheme()
        operations = quantized_operations(prepare(self._subject.capture(self._subject.shared_copy()), scheme), scheme)
        return [node.name for node, operation in operations.items() if operation.kind == "layer"]

    def _run(self, keep: Sequence[str]) -> tuple[PassRun, list[LawViolation]]:
        form = "auto" if self._precision == "int8" else "module"
        pass_run = PassRun(self._subject, load_pass(_pass_for(self._precision, keep), form), contract=self.contract)
        broken = broken_laws([law_called(name) for name in ("refusal", "returns a program")], pass_run)
        if broken or pass_run.refusal is not None:
            raise pass_run.refusal or broken[0]
        # that a model amplifies noise is no excuse here: other layers may be kept
        pass_run.looks_twice = False
        return pass_run, broken_laws([law_called("structure"), law_called("contract")], pass_run)

    def holds(self, keep: Sequence[str]) -> bool:
        """Return whether the contract holds with these layers kept."""
        return not self._run(keep)[1]

    def effect(self, layer: str) -> LayerEffect:
        """Return the effect of one layer alone."""
        pass_run, _ = self._run([each for each in self.layers if each != layer])
        if pass_run.metric_drop is not None:
            return LayerEffect(layer, pass_run.metric_drop.drop)
        comparison = compared(pass_run, range(pass_run.input_set_count), lambda run: run.output)
        return LayerEffect(layer, -min(comparison.sqnr_db().values(), default=math.inf))
