"""The first wrong value inside of a converted model, found by its values beside those of the captured model.

The values become further outputs of the converted model, a few in each run, and wait in a file. The captured model then
runs once in float64 and once in the working dtype, and each value is compared when it is computed. So neither side is
in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fx import GraphModule, Node
from fx.naming.printing import describe
from fx.passes import Approximate, Contract, Exact
from pytest_fx.failures.pairing import NEAR, Fingerprint
from pytest_fx.failures.stepwise import StepwiseProgram, buffers_kept
from pytest_fx.harness.contracts import rounding_error, rounding_limit
from pytest_fx.harness.equality import Leaf, Mismatch, decibels, pair_leaves
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.subject import Subject
from pytest_fx.runtimes import ConvertedProgram, InnerValue, Session

AT_ONCE = 16
"""The number of values that one run of the converted model returns beside its outputs."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InnerDifference:
    """The part of a model that a converted model computes otherwise."""

    right: tuple[Node, ...]
    """Nodes of the model that the part reads and whose values are right in the converted model."""
    part: tuple[Node, ...]
    """Nodes of the model between these and the wrong outputs; the first is where values begin to differ."""
    converted: InnerValue | None
    """The first value of the corresponding part of the converted model."""
    count: int
    """The number of values of the converted model that were compared."""

    def lines(self, name: str) -> list[str]:
        """Return the lines of a report on the converted model ``name``."""
        text = [f"where {name} differs inside, by {self.count} of its values:"]
        if self.right:
            text += _told("right", self.right[-1])
        text += _told("differs", self.part[0])
        if len(self.part) > 1:
            last = self.part[-1]
            text.append(f"           and on, to the output, through {describe(last)}")
        if self.converted is not None:
            first = self.converted
            text.append(f"  in it    from {first.name!r} on, of the operation {first.operation}")
        return text


def _told(what: str, node: Node) -> list[str]:
    line = [] if node.source is None else [f"           {node.source}"]
    return [f"  {what:<8} {describe(node)}", *line]


def locate_in_converted(pass_run: PassRun, subject: Subject) -> list[str]:
    """Return lines that say where a converted model differs from the model inside.

    ``subject`` is the model, called with inputs that show the difference.
    """
    program = pass_run.program
    assert isinstance(program, ConvertedProgram), "the program is not converted"
    session = program.session
    if subject.capture_error is not None:
        return [f"{subject.name} cannot be captured, so that values inside cannot be compared"]
    for input_set in range(pass_run.input_set_count):
        exposed = _exposed(session, program, subject.arguments(input_set))
        if exposed.heals(subject, input_set, pass_run.contract):
            return [
                f"with its values inside as outputs, {program.name} computes the same as the model: {session.runtime} "
                "goes wrong where it fuses operations"
            ]
        difference = _difference(session, exposed, subject, input_set, pass_run.contract)
        if difference is not None:
            return difference.lines(program.name)
    return [f"all values inside of {program.name} that match one of the model are right: what differs is its outputs"]


@dataclass(frozen=True, slots=True)
class _Exposed:
    """The values of one run of a converted model."""

    values: StoredTensors
    """Each value by its name."""
    outputs: list[torch.Tensor]
    """The outputs of the model as it is."""
    outputs_beside: list[torch.Tensor]
    """The outputs of the model when it returns values inside, too."""

    def heals(self, subject: Subject, input_set: int, contract: Contract) -> bool:
        """Return whether the outputs are wrong, but right when values inside are returned, too."""
        runs = subject.eager(input_set, float64=True), subject.eager(input_set)
        expected, eager = ([leaf for _, leaf in leaves(run.output) if leaf is not None] for run in runs)

        def are_right(outputs: Sequence[torch.Tensor]) -> bool:
            return all(_is_right(*values, contract) for values in zip(expected, eager, outputs, strict=False))

        return bool(self.outputs_beside) and not are_right(self.outputs) and are_right(self.outputs_beside)


def _exposed(session: Session, program: ConvertedProgram, arguments: Arguments) -> _Exposed:
    """Run the converted model, and store the values inside."""
    inputs = program.inputs_of(arguments.args, arguments.kwargs)
    outputs, beside = session.run(inputs), list[torch.Tensor]()
    values = StoredTensors()
    for name, output in zip(session.returned, outputs, strict=False):
        values[name] = output
    names = [value.name for value in session.inner_values() if value.name not in values]
    waiting = [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]
    while waiting:
        some = waiting.pop(0)
        try:
            computed = session.with_outputs(some).run(inputs)
        except Exception:  # one of them is no tensor, or has a type that NumPy lacks
            waiting = [[name] for name in some] + waiting if len(some) > 1 else waiting
            continue
        beside = beside or computed[: len(outputs)]
        for name, value in zip(some, computed[len(outputs) :], strict=True):
            values[name] = value
    return _Exposed(values, outputs, beside)


def _difference(
    session: Session, exposed: _Exposed, subject: Subject, input_set: int, contract: Contract
) -> InnerDifference | None:
    """Return the part of the model that goes wrong; None if all matched values are right up to the outputs."""
    captured = subject.capture()
    exact = captured if subject.is_float64 else subject.capture(float64=True)
    arguments = subject.arguments(input_set)
    with torch.no_grad(), buffers_kept([captured, exact]):
        fingerprints = StepwiseProgram(exact, arguments, torch.float64).fingerprints()
    matches = _matches(fingerprints, exposed.values)
    with torch.no_grad(), buffers_kept([captured, exact]):
        right = _right_nodes(exact, captured, arguments, matches, exposed.values, subject.dtype, contract)
    ends: list[Node] = [node for each in exact.graph.find_nodes(op="output") for node in each.all_input_nodes]
    is_right = lambda node: node.name in right or node.op in ("placeholder", "get_attr")  # noqa: E731
    part = _between(ends, is_right, lambda node: node.all_input_nodes)
    wrong = [node for node in exact.graph.nodes if node in part and node in fingerprints]
    if not wrong:
        return None
    inside = {value.name: value for value in session.inner_values()}
    right_inside = {name for name, nodes in matches.items() if any(node.name in right for node in nodes)}
    own = _between(
        [name for name in session.returned if name in inside],
        lambda name: name in right_inside or name not in inside,
        lambda name: inside[name].inputs,
    )
    part_inside = [value for value in inside.values() if value.name in own]
    # Values computed from constants alone belong to the part, too, and are not where it begins.
    begins = (value for value in part_inside if not right_inside.isdisjoint(value.inputs))
    read = {used for node in wrong for used in node.all_input_nodes if used.name in right}
    return InnerDifference(
        tuple(node for node in exact.graph.nodes if node in read),
        tuple(wrong),
        next(begins, next(iter(part_inside), None)),
        len(exposed.values),
    )


def _matches(fingerprints: dict[Node, Fingerprint], values: StoredTensors) -> dict[str, list[Node]]:
    """Return for each value of the converted model the nodes of the model whose value it may be."""
    matches: dict[str, list[Node]] = {}
    for name in values:
        own = Fingerprint.of(values[name])
        if own is not None:
            near = [node for node, fingerprint in fingerprints.items() if own.distance(fingerprint) <= NEAR]
            matches[name] = [node for node in near if node.op != "get_attr"]
    return matches


def _right_nodes(
    exact: GraphModule,
    captured: GraphModule,
    arguments: Arguments,
    matches: dict[str, list[Node]],
    values: StoredTensors,
    dtype: torch.dtype,
    contract: Contract,
) -> set[str]:
    """Return the names of the nodes whose value a matched value of the converted model equals, as far as allowed."""
    names: dict[Node, list[str]] = {}
    for name, nodes in matches.items():
        for node in nodes:
            names.setdefault(node, []).append(name)
    own_nodes = {node.name: node for node in captured.graph.nodes}
    before = StepwiseProgram(exact, arguments, torch.float64)
    eager = StepwiseProgram(captured, arguments, dtype)
    right: set[str] = set()
    for node in exact.graph.nodes:
        own = own_nodes.get(node.name)
        if node.op == "output" or own is None:
            break
        expected, value = before.step(node), eager.step(own)
        if any(_is_right(expected, value, values[name], contract) for name in names.get(node, ())):
            right.add(node.name)
        before.forget(node)
        eager.forget(own)
    return right


def _is_right(expected: Any, eager: Any, actual: torch.Tensor, contract: Contract) -> bool:
    """Return whether a value is as near to eager's in float64 as the contract allows, which eager's own error bounds.

    Args:
        expected: eager's value in float64.
        eager: its value in the working dtype.
        actual: the value of the converted model.
        contract: the contract of the outputs.
    """
    if not isinstance(expected, torch.Tensor) or expected.shape != actual.shape:
        return False
    if isinstance(contract, Exact):
        return torch.equal(eager.cpu(), actual.cpu())
    pairs, own = (pair_leaves(expected.cpu(), value.cpu(), same_dtype=False) for value in (actual, eager))
    if isinstance(pairs, Mismatch) or isinstance(own, Mismatch):
        return False
    leaf: Leaf = pairs[0]
    if isinstance(contract, Approximate) and leaf.is_float:
        return decibels(*leaf.power) >= contract.sqnr_db
    return bool((leaf.errors <= rounding_limit(leaf, rounding_error(own[0]), contract)).all())


def _between(ends: Iterable[T], is_right: Callable[[T], bool], inputs: Callable[[T], Iterable[T]]) -> set[T]:
    """Return the wrong ``ends``, and all wrong values from which they are computed."""
    part: set[T] = set()
    pending = list(ends)
    while pending:
        each = pending.pop()
        if each not in part and not is_right(each):
            part.add(each)
            pending.extend(inputs(each))
    return part
