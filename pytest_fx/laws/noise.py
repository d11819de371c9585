"""Outputs without decibels: those that noise, no more of it than a contract allows, moves as far as a program does.

``approximate`` promises a ratio of signal to noise. Noise in what a pass approximates says little about a histogram, an
index, a number that underflows or a difference of nearly equal numbers that is computed of it. So eager is run with
the noise that the contract allows in one value that the pass approximates at a time. An output that loses its signal by
that is not held to the ratio. In an output of few elements the ratio of one draw of noise is far from its mean, so that
the ratio may be lower there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import torch

from fx import GraphModule, Interpreter, Node
from fx.naming.printing import describe
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run, by
from pytest_fx.harness.snapshot import is_strided, same_tensor, tensors_of
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import LOST, NOISY_VALUES, NOISY_VALUES_OF_LARGE, RARE

Part = Callable[[Run], Any]


def is_lost_to_noise(
    pass_run: PassRun, inputs: Sequence[Inputs], parts: Sequence[Part], comparison: Comparison, sqnr_db: float
) -> bool:
    """Return whether all outputs with fewer decibels than promised lose as many to noise as the contract allows."""
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
        except ContractViolation:  # another shape, such as that of indices
            continue
        for path, ratio in ratios.items():
            if path in pending and ratio < sqnr_db - LOST and (ratio < LOST or pending[path] >= ratio - LOST):
                del pending[path]
        if not pending:
            return True
    return not pending


def is_of_few_elements(comparison: Comparison, sqnr_db: float) -> bool:
    """Return whether outputs with fewer decibels than promised have so few elements that noise may look as large."""
    return _too_noisy(comparison, sqnr_db) == {}


def _too_noisy(comparison: Comparison, sqnr_db: float) -> dict[str, float] | None:
    """Return the decibels of outputs that have too few for their number of elements; None if structures differ."""
    try:
        ratios, outputs = comparison.sqnr_db(), comparison.noisy_outputs()
    except ContractViolation:  # of another structure, which no noise makes
        return None
    counts = {path: sum(leaf.actual.numel() for leaf in leaves) for path, leaves in outputs.items()}
    return {path: ratio for path, ratio in ratios.items() if not ratio >= sqnr_db - spread(counts[path])}


def spread(elements: int) -> float:
    """Return by how many decibels noise in so many elements is above its mean at most, in all but ``RARE`` draws.

    The sum of the squares has a chi-squared distribution, whose quantiles are those of Wilson and Hilferty (1931).
    """
    if not elements:
        return 0.0
    deviation = math.sqrt(2 / (9 * elements))
    return 30 * math.log10(1 - deviation**2 + NormalDist().inv_cdf(1 - RARE) * deviation)


def approximated(pass_run: PassRun) -> list[Node]:
    """Return the nodes of the capture that the program has no more, or that compute with other tensors there."""
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
    """Runs a program and keeps copies of all values."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        """Run the node, and keep its value."""
        value = super().run_node(n)
        self.values[n.name] = map_tensors(torch.clone, value)
        return value


class _Noisy(Interpreter):
    """Runs a program with noise in the value of one node.

    A node that cannot be computed of noise, as a histogram with edges out of order, has the value that it has without.
    """

    def __init__(self, program: GraphModule, name: str, sqnr_db: float, number: int, values: Mapping[str, Any]) -> None:
        """Take the node by ``name``, ``number`` as a seed, and ``values`` of the program without noise if known."""
        super().__init__(program)
        self._name, self._sqnr_db, self._values = name, sqnr_db, values
        self._generator = torch.Generator().manual_seed(number)

    def run_node(self, n: Node) -> Any:
        """Run the node, and add noise to its value where that is to be."""
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
