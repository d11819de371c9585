"""Outputs that are excused from a signal-to-noise ratio, since the noise that a contract allows loses as much signal.

``approximate`` promises a signal-to-noise ratio. Noise in an approximated value predicts little about a histogram, an
index, an underflow or a difference of nearly equal numbers that is computed from the value. So eager is run with the
noise that the contract allows, in one approximated value at a time. An output that loses its signal in such a run is
excused from the ratio. In an output of few elements, the ratio of one draw of noise is far from its mean; there the
ratio may be lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import torch

from fx import GraphModule, Interpreter, Node
from fx.naming.printing import describe
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Part, Run, by
from pytest_fx.harness.snapshot import is_strided, same_tensor, tensors_of
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import LOST, NOISY_VALUES, NOISY_VALUES_OF_LARGE, RARE


def is_lost_to_noise(
    pass_run: PassRun, inputs: Sequence[Inputs], parts: Sequence[Part], comparison: Comparison, sqnr_db: float
) -> bool:
    """Return whether each output with fewer decibels than promised also loses them to noise of ``sqnr_db``."""
    pending = _too_noisy(comparison, sqnr_db)
    if pending is None:
        return False
    most = NOISY_VALUES_OF_LARGE if pass_run.subject.is_full_size else NOISY_VALUES
    nodes = approximated(pass_run)
    for number in range(0 if not nodes else most):
        node = nodes[(number * len(nodes) // most if len(nodes) > most else number) % len(nodes)]
        noisy = [_noisy_run(pass_run, each, node.name, sqnr_db, number) for each in inputs]
        if any(run.error is not None for run in noisy):
            continue
        outputs = [part(run) for part, run in zip(parts, noisy, strict=True)]
        try:
            ratios = replace(comparison, actual=outputs, eager64=comparison.eager).sqnr_db()
        except ContractViolation:  # another shape, as indices may have
            continue
        for path, ratio in ratios.items():
            if path in pending and ratio < sqnr_db - LOST and (ratio < LOST or pending[path] >= ratio - LOST):
                del pending[path]
        if not pending:
            return True
    return not pending


def is_of_few_elements(comparison: Comparison, sqnr_db: float) -> bool:
    """Return whether the outputs with fewer decibels than promised have few elements, so that chance explains it."""
    return _too_noisy(comparison, sqnr_db) == {}


def _too_noisy(comparison: Comparison, sqnr_db: float) -> dict[str, float] | None:
    """Return the decibels of each output with too few for its number of elements; None if structures differ."""
    try:
        ratios, outputs = comparison.sqnr_db(), comparison.noisy_outputs()
    except ContractViolation:  # another structure, which noise does not explain
        return None
    counts = {path: sum(leaf.actual.numel() for leaf in leaves) for path, leaves in outputs.items()}
    return {path: ratio for path, ratio in ratios.items() if not ratio >= sqnr_db - spread(counts[path])}


def spread(elements: int) -> float:
    """Return the decibels by which noise in so many elements exceeds its mean at most, in all but ``RARE`` draws.

    The sum of the squares has a chi-squared distribution. Its quantile is computed by the approximation of Wilson and
    Hilferty (1931).
    """
    if not elements:
        return 0.0
    deviation = math.sqrt(2 / (9 * elements))
    return 30 * math.log10(1 - deviation**2 + NormalDist().inv_cdf(1 - RARE) * deviation)


def approximated(pass_run: PassRun) -> list[Node]:
    """Return the nodes of the capture that are missing in the program, or compute there with other tensors."""
    before, after = pass_run.before, pass_run.after
    if before is None or after is None:
        return []
    own, printed = tensors_of(after), {node.name: describe(node) for node in after.graph.nodes}

    def is_changed(node: Node) -> bool:
        if printed.get(node.name) != describe(node):
            return True
        tensors = before.module.values if node.op in ("call_module", "get_attr") else {}
        return any(
            name not in own or not same_tensor(own[name], tensor)
            for name, tensor in tensors.items()
            if f"{name}.".startswith(f"{node.target}.")
        )

    captured = pass_run.untouched().after
    assert captured is not None, "there is a program before the pass"
    computing = (node for node in captured.graph.nodes if node.op not in ("placeholder", "output"))
    return [node for node in computing if is_changed(node)]


def _noisy_run(pass_run: PassRun, inputs: Inputs, name: str, sqnr_db: float, number: int) -> Run:
    program = pass_run.to_perturb(float64=False)

    def run(interpreter: Interpreter) -> Run:
        return pass_run.subject.run_in_a_row(pass_run.subject.runner(program, by(interpreter)), inputs)[-1]

    noisy = run(_Noisy(program, name, sqnr_db, number, {}))
    if noisy.error is None:
        return noisy
    plain = _RandomKeeping(program)
    run(plain)
    return run(_Noisy(program, name, sqnr_db, number, plain.values))


class _RandomKeeping(Interpreter):
    """Interpreter that keeps copies of all values."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        """Run the node, and keep a copy of its value."""
        value = super().run_node(n)
        self.values[n.name] = map_tensors(torch.clone, value)
        return value


class _Noisy(Interpreter):
    """Interpreter that adds noise to the value of one node.

    A node that raises on noisy operands, as a histogram with edges out of order does, gets its value without noise.
    """

    def __init__(self, program: GraphModule, name: str, sqnr_db: float, number: int, values: Mapping[str, Any]) -> None:
        """Take the ``name`` of the node, ``number`` as the seed, and ``values`` without noise by node, if known."""
        super().__init__(program)
        self._name, self._sqnr_db, self._values = name, sqnr_db, values
        self._generator = torch.Generator().manual_seed(number)

    def run_node(self, n: Node) -> Any:
        """Run the node, and add noise to its value if it is the chosen one."""
        try:
            value = super().run_node(n)
        except Exception:
            if n.name not in self._values:
                raise
            return map_tensors(torch.clone, self._values[n.name])
        return map_tensors(self._with_noise, value) if n.name == self._name else value

    def _with_noise(self, value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or not is_strided(value) or not value.numel():
            return value
        size = float(value.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt())
        noise = torch.randn(value.shape, generator=self._generator, dtype=torch.float64).to(value.device)
        return (value.double() + noise * size * math.pow(10, -self._sqnr_db / 20)).to(value.dtype)
