"""The node whose gradient differs: both programs run forward and backward, compared from the output back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fx import GraphModule, Interpreter, Node
from fx.interpreter import positional
from fx.naming.printing import describe
from fx.provenance import SourceLocation
from pytest_fx.failures.pairing import NodePairs, complete
from pytest_fx.harness.equality import Leaf, worst_difference
from pytest_fx.harness.evaluation import Arguments, default_dtype, same_random_numbers
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.snapshot import tensors_of
from pytest_fx.harness.subject import Subject
from pytest_fx.laws.differentiation import gradients_at, gradients_of, weighted_sum
from pytest_fx.laws.gradient_law import differ
from pytest_fx.laws.law import in_brief


@dataclass(frozen=True, slots=True)
class GradientError:
    """A node that returns another gradient than in the original, although the gradient of its own value is right.

    If no such node is known, it is the value whose gradient differs while those after it are right.
    """

    node: str
    """The node as printed."""
    original: str
    """The name of the node of the original that it matches."""
    origins: frozenset[str]
    """Names of all nodes of the original whose work is done between it and its readers."""
    where: SourceLocation | None
    """The user's line that the node comes from."""
    users: tuple[str, ...]
    """The readers of the value, as printed, if it is unknown which of them returns another gradient."""
    shown: str
    """The element that differs most."""

    def __str__(self) -> str:
        lines = [self.node]
        if self.where is not None:
            lines.append(f"  where  {self.where}")
        lines.append(f"  value  {self.shown}")
        if self.users:
            lines.append(f"  read   by {', '.join(self.users)}, whose backward computes it")
        return "\n".join(lines)


def localize_gradient(pass_run: PassRun) -> GradientError | None:
    """Return the last node whose gradient differs while those after it are right, or None if none does.

    Gradients are of the sum that the law on gradients uses, with respect to the value of each node. They
    are in float64 if both programs exist there.
    """
    float64 = pass_run.has_float64
    transformed = pass_run.after_float64 if float64 else pass_run.after
    if not isinstance(transformed, GraphModule):  # of a pass in another form
        return None
    original = pass_run.capture(float64)
    complete(transformed, original)
    arguments = pass_run.subject.arguments(float64=float64)
    dtype = torch.float64 if float64 else pass_run.subject.dtype
    before, after = _Backward(original, arguments, dtype), _Backward(transformed, arguments, dtype)
    expected, actual = before.gradients, after.gradients
    partners = NodePairs(original, transformed).partners
    if after.error is not None:
        raising = after.raising()
        return None if raising is None else _of_node(raising, partners, f"its backward raises {in_brief(after.error)}")
    for node in reversed(list(transformed.graph.nodes)):
        partner = partners.get(node)
        if partner is None or partner not in expected:
            continue
        # A value that does not require a gradient gets none.
        gradient = actual.get(node, torch.zeros_like(expected[partner]))
        if expected[partner].shape != gradient.shape:
            continue
        leaf = Leaf(partner.name, expected[partner], gradient)
        if differ(leaf):
            readers = [user for user in node.users if user in actual and node in actual]
            wrong = [user for user in readers if _returns_another(user, node, before, after, partners)]
            if len(wrong) == 1 or len(readers) == 1:
                return _of_node((wrong or readers)[0], partners, _shown(leaf))
            origins = {partner.name, *(name for user in node.users for name in user.origins or (user.name,))}
            users = tuple(describe(user) for user in node.users if user.op != "output" and node in actual)
            return GradientError(describe(node), partner.name, frozenset(origins), node.source, users, _shown(leaf))
    for name, wanted in before.of_parameters.items():
        leaf = Leaf(name, wanted, after.of_parameters.get(name, wanted))
        holders = [node for node in transformed.graph.nodes if f"{name}.".startswith(f"{node.target}.")]
        if wanted.shape == leaf.actual.shape and differ(leaf) and holders:
            return _of_node(holders[0], partners, _shown(leaf))
    return None


def _of_node(node: Node, partners: dict[Node, Node], shown: str) -> GradientError:
    """Return the error of a node that returns another gradient."""
    partner = partners.get(node, node)
    origins = frozenset({partner.name, *(node.origins or ())})
    return GradientError(describe(node), partner.name, origins, node.source, (), shown)


def _returns_another(user: Node, node: Node, before: _Backward, after: _Backward, partners: dict[Node, Node]) -> bool:
    """Return whether ``user`` computes another gradient for ``node`` than in the original from the same gradient."""
    original = partners.get(user)
    if original is None or original not in before.gradients:
        return True
    gradient = before.gradients[original]
    try:
        wanted, actual = before.through(original, partners[node], gradient), after.through(user, node, gradient)
    except RuntimeError:  # a reentrant checkpoint refuses this
        return True
    return wanted.shape != actual.shape or differ(Leaf(node.name, wanted, actual))


def _shown(leaf: Leaf) -> str:
    errors = leaf.errors
    worst = worst_difference(leaf, errors > 0, errors, torch.zeros_like(errors))
    assert worst is not None
    here = f"{worst.actual!r} here" if bool(leaf.actual.any()) else "and there is none here"
    return f"the gradient of {leaf.path}{worst.element} is {worst.expected!r} in the original, {here}"


class _RecordingInterpreter(Interpreter):
    """An interpreter that records the tensors that can be differentiated, as they were computed."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.values: dict[Node, torch.Tensor] = {}

    def run_node(self, n: Node) -> Any:
        """Run the node and record its value; readers of a placeholder get a copy."""
        value = super().run_node(n)
        if n.op == "output" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if not value.requires_grad and n.op != "placeholder":
            return value
        if n.op == "placeholder":
            value = value.detach().clone().requires_grad_()
        self.values[n] = value
        return value.clone() if n.op == "placeholder" else value  # which may be written to


class _Backward:
    """One run of a program forward and backward."""

    def __init__(self, program: GraphModule, arguments: Arguments, dtype: torch.dtype) -> None:
        """Run ``program``, and restore its buffers."""
        self.gradients: dict[Node, torch.Tensor] = {}
        """The gradient with respect to the value of each node, zeros where there is none."""
        self.of_parameters: dict[str, torch.Tensor] = {}
        """The gradient of each parameter."""
        self.error: Exception | None = None
        """The exception that the backward raises."""
        copies = arguments.copies()
        running = _RecordingInterpreter(program)
        buffers = {name: tensor.detach().clone() for name, tensor in program.named_buffers()}
        try:
            with torch.enable_grad(), default_dtype(dtype), same_random_numbers(arguments), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._total = weighted_sum(running.run(*positional(program, copies.args, copies.kwargs)))
        finally:
            with torch.no_grad():
                for name, tensor in program.named_buffers():
                    tensor.copy_(buffers[name])
        self._values = running.values
        parameters = {name: value for name, value in program.named_parameters() if value.requires_grad}
        if self._total is None:
            return
        try:
            gradients: dict[Node | str, torch.Tensor] = gradients_at(
                self._total, {**self._values, **parameters}, retain_graph=True
            )
        except Exception as error:  # whatever somebody's backward raises
            self.error = error
            return
        self.gradients = {node: gradients[node] for node in self._values}
        self.of_parameters = {name: gradients[name] for name in parameters}

    def through(self, user: Node, node: Node, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of ``node`` that results from ``gradient``, the gradient of ``user``."""
        value, output = self._values[node], self._values[user]
        gradients: Any = torch.autograd.grad(
            output, [value], gradient.to(output.dtype), allow_unused=True, retain_graph=True
        )
        return torch.zeros_like(value) if gradients[0] is None else gradients[0].detach()

    def raising(self) -> Node | None:
        """Return the last node whose backward raises, or None if it is unknown."""
        for node in reversed(self._values):
            try:
                assert self._total is not None, "there is nothing that could raise"
                torch.autograd.grad(self._total, self._values[node], allow_unused=True, retain_graph=True)
            except Exception:
                return next((user for user in node.users if user in self._values), None)
        return None


def gradients_are_kept(subject: Subject) -> Callable[[GraphModule], bool]:
    """Return a predicate: true if a program in float64 has the model's gradients for the parameters that they share."""
    arguments = subject.arguments(float64=True)
    expected = gradients_of(subject.eager_runner(float64=True), arguments, torch.float64)

    def is_good(program: GraphModule) -> bool:
        actual = gradients_of(subject.runner(program, float64=True), arguments, torch.float64)
        if isinstance(actual, Exception) or isinstance(expected, Exception):
            return isinstance(expected, Exception)
        if expected and not actual:  # nothing can be differentiated any more
            return False
        tensors = tensors_of(program)
        own = tensors_of(subject.eager_runner(float64=True).program)
        return not any(
            differ(Leaf(name, wanted, actual[name]))
            for name, wanted in expected.items()
            if name in actual and (name not in own or torch.equal(own[name], tensors[name]))
        )

    return is_good
