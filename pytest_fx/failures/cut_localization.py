"""The first node that a transform gets wrong, found by cuts: it is applied to the first part of the model alone.

Any transform takes a part of the model as it takes the model, so this needs nothing of the result but its output. Each
trial converts the nodes up to a cut and compares the last value. Halving finds the first cut whose value is wrong.
"""

from __future__ import annotations

import torch

from fx import GraphModule, Node
from fx.naming.printing import describe
from fx.node import reached
from pytest_fx.failures.pairing import Fingerprint
from pytest_fx.failures.stepwise import StepwiseProgram, buffers_kept
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import law_called


def locate_by_cuts(pass_run: PassRun, subject: Subject) -> list[str]:
    """Return lines with the first node of ``subject`` from which on the transform's result is wrong.

    The transform is applied about as often as the number of nodes has binary digits.
    """
    if subject.capture_error is not None:
        return [f"{subject.name} cannot be captured, so that no part of it could be tried alone"]
    nodes = _tensor_nodes(subject)
    first, beyond, tried = 0, len(nodes), 0
    while first < beyond:  # the value of a node before `first` is right, and that of `beyond` is wrong
        middle = (first + beyond) // 2
        tried += 1
        if _is_right_up_to(pass_run, subject, nodes[middle]):
            first = middle + 1
        else:
            beyond = middle
    if first == len(nodes):
        return [f"{pass_run.name} is right on each of {tried} first parts of {subject.name}: only the whole is wrong"]
    wrong = nodes[first]
    line = [] if wrong.source is None else [f"         {wrong.source}"]
    what = f"{pass_run.name} is right on the model up to this node, and wrong with it ({tried} parts tried):"
    return [what, f"  node   {describe(wrong)}", *line]


def _tensor_nodes(subject: Subject) -> list[Node]:
    """Return the nodes of a capture that compute tensors, in order, except those that no output depends on."""
    captured = subject.captured
    needed = reached(captured.graph.find_nodes(op="output"), lambda node: node.all_input_nodes)
    with torch.no_grad(), buffers_kept([captured]):
        fingerprints: dict[Node, Fingerprint] = StepwiseProgram(
            captured, subject.arguments(), subject.dtype
        ).fingerprints()
    return [node for node in fingerprints if node in needed and node.op.startswith("call")]


def _is_right_up_to(pass_run: PassRun, subject: Subject, node: Node) -> bool:
    """Return whether the transform is right on the part of the model that computes ``node``; True if it refuses it."""
    part = Subject(
        subject.name,
        _first_part(subject.capture(), node.name),
        subject.arguments,
        device=str(subject.device),
        input_set_count=min(2, subject.input_set_count),
        mode=subject.mode,
        keeps_dtypes=True,
    )
    run = PassRun(part, pass_run.pass_, contract=pass_run.contract)
    if run.program is None or run.refusal is not None:
        return True
    return law_called("contract").find_violation(run) is None


def _first_part(program: GraphModule, name: str) -> GraphModule:
    """Return the program with the value of the node ``name`` as its output. All inputs stay."""
    graph = program.graph
    last = next(node for node in graph.nodes if node.name == name)
    for output in graph.find_nodes(op="output"):
        output.args = (last,)
    graph.eliminate_dead_code()
    program.recompile()
    return program
