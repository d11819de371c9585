"""One judgement: the laws that a candidate must keep, checked in order, and the smallest inputs that break one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from fx.errors import FxError
from fx.passes import Approximate, Contract
from pytest_fx.candidates.batch_timing import largest
from pytest_fx.candidates.drawn_inputs import FIRST_SIZES, InputSet, redrawn_in
from pytest_fx.candidates.intermediates import first_difference
from pytest_fx.candidates.party_process import Party, Reply
from pytest_fx.candidates.verdict import DEGENERATE, NOT_JUDGED, RIGHT, Verdict
from pytest_fx.errors import ContractViolation
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.detection import detection_limit
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.evaluation import Arguments, places
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.harness.variants import NON_FINITE
from pytest_fx.laws.noise import is_of_few_elements
from pytest_fx.processes.child import ChildEnded

PERTURBED = 3
"""Runs of the reference with inputs perturbed by rounding, to weigh a difference."""
MOVED = 4.0
"""Allowed error, as a multiple of the change in these runs: intermediate values are rounded, too."""
GRADIENTS = 1e-3
"""Allowed error of a gradient's elements in float32, relative to its largest element."""
GRADIENTS_OF_HALVES = 5e-2
"""The same in float16 and bfloat16."""
OF_OTHERS = 1e-5
"""Allowed error relative to the largest of all gradients, for the residue of sums that cancel."""
DRAWS = 64
"""Seeds for the comparison of random outputs."""
FAR = 6.0
"""Standard errors between two means above which they differ."""
FEWEST_CORRELATED, MOST_CORRELATED = 32, 512
"""Elements of a random output between which correlations are compared; fewer have too few pairs."""
CORRELATION = 1.5
"""Ratio of the mean squared correlations of random outputs above which they differ."""
INSENSITIVE = 1e-7
"""Relative change of outputs below which they count as independent of the inputs."""
UNTESTED = 4_000
"""The seed of the inputs of a call in an empty environment."""
SMALLER = 12
"""Most steps in the reduction of inputs that show a failure."""


class BrokenLaw(Exception):
    """The candidate breaks a law."""

    def __init__(self, law: str, evidence: str, inputs: InputSet | None = None) -> None:
        super().__init__(law)
        self.law, self.evidence, self.inputs = law, evidence, inputs


class Unjudged(Exception):
    """The candidate cannot be judged; the message is the reason."""

    def __init__(self, why: str, kind: str = NOT_JUDGED) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass
class Judgement:
    """One judgement, with its state."""

    reference: Party
    candidate: Party
    several: Sequence[Arguments]
    """Input sets that the reference must take."""
    input_sets: Iterable[InputSet]
    """All input sets."""
    batches: Iterable[list[Arguments]]
    """Inputs of many calls."""
    domain: InputDomain
    """The declared domain of the inputs."""
    contract: Contract
    forward_only: bool
    seed: int
    mode: str = "both"
    """The mode of modules."""
    law: str = ""
    """The only law to check, on the inputs as given; empty for all laws."""
    laws: dict[str, None] = field(default_factory=dict[str, None])
    """The laws checked so far, in order."""
    count: int = 0
    """The number of input sets that both were called with."""
    most_elements: int = 0
    """The most elements of an input for which outputs were compared."""
    refused: list[str] = field(default_factory=list[str])
    """The names of input sets that the reference refuses."""
    allowed: float = 0.0
    """The relative error that the outputs of a timed call may have."""
    detection: float | None = None
    """The detection limit of the inputs as given."""
    is_random: bool = False
    """Whether the outputs of the reference are random in evaluation mode."""

    def right(self, names: tuple[str, str]) -> Verdict:
        """Return the verdict on a candidate that keeps all laws."""
        device = str(self.candidate.loaded["device"])
        return Verdict(RIGHT, *names, detection_limit=self.detection, why_no_speedup="timing=False", device=device)

    def check_laws(self) -> None:
        """Check every law.

        Raises:
            BrokenLaw: a law is broken.
            Unjudged: the candidate cannot be judged.
        """
        self._expect_loaded()
        self._same_parameters()
        if self.law:
            self._check_alone(self.law)
            return
        self._expect_sensitive()
        for mode in self._modes:
            if self._is_random(mode):
                self.is_random = self.is_random or mode == "eval"
                self._check_random(mode)
            else:
                self._check_input_sets(mode)
        if not self.is_random:
            self._check_redrawn_parameters()
            self._check_many_calls()
            self._check_untested()
        self.check_process()

    @property
    def _modes(self) -> list[str]:
        is_one = self.mode != "both" or self.forward_only or not self.reference.loaded["is_module"]
        return ["eval"] if is_one else ["eval", "train"]

    def _check_alone(self, law: str) -> None:
        """Check one law on the inputs as given."""
        match law:
            case "random outputs":
                for mode in self._modes:
                    self._check_random(mode)
            case "other parameters":
                self._check_redrawn_parameters()
            case "many calls":
                self._check_many_calls()
            case "environment":
                self._check_untested()
            case "process":
                self._check_many_calls()
                self.check_process()
            case _:
                input_set = InputSet("inputs as given", self.several[0], law if law in _LAWS_ON_VALUES else "values")
                if not self._check_input_set(input_set, "train" if law == "training" else "eval"):
                    raise Unjudged("the reference does not take these inputs, or overflows")

    def check_process(self) -> None:
        """Refuse a candidate that left something in its process, or looked for objects of others.

        Raises:
            BrokenLaw: it did.
        """
        self.laws["process"] = None
        if changes := self.candidate.left():
            raise BrokenLaw("process", "its calls change their process: " + ", ".join(changes))

    # Requirements of a judgement.

    def _expect_loaded(self) -> None:
        if error := self.reference.loaded["error"]:
            raise Unjudged(f"the reference cannot be loaded: {error}")
        if error := self.candidate.loaded["error"]:
            raise BrokenLaw("loads", f"the candidate cannot be loaded: {error}")

    def _same_parameters(self) -> None:
        """Write the parameters of the reference into the candidate."""
        if not (state := self.reference.loaded["state"]):
            return
        if not self.candidate.loaded["is_module"]:
            raise Unjudged(
                "the reference has parameters, and the candidate is a function: make it a module with the same names"
            )
        self._write(state)

    def _write(self, state: Mapping[str, torch.Tensor]) -> None:
        answer = self.candidate.write(state)
        if "missing" in answer:
            raise Unjudged(
                f"the names of parameters and buffers differ: the candidate lacks {answer['missing']}, "
                f"and has {answer['other']}"
            )
        if "error" in answer:
            raise BrokenLaw("parameters", f"parameters cannot be written: {answer['error']}")

    def _expect_sensitive(self) -> None:
        """Refuse a reference whose outputs hardly depend on its inputs."""
        first = self.reference.run(self.several[0])
        if first.error:
            raise Unjudged(f"the reference does not take the inputs: {first.error}")
        if not any(tensor.numel() for tensor in _tensors(first.outputs)):
            raise Unjudged("the reference returns no numbers", DEGENERATE)
        others = [self.reference.run(arguments) for arguments in self.several[1:]]
        if all(other.error or _change(first.outputs, other.outputs) < INSENSITIVE for other in others):
            raise Unjudged(
                "the outputs of the reference hardly depend on its inputs: nothing can be learned", DEGENERATE
            )

    def _is_random(self, mode: str) -> bool:
        pair = [self.reference.run(self.several[0], mode, seed) for seed in (1, 2)]
        return not any(reply.error for reply in pair) and _change(pair[0].outputs, pair[1].outputs) > INSENSITIVE

    # Laws.

    def _check_input_sets(self, mode: str) -> None:
        failed: dict[str, int] = {}
        free_dimensions: set[str] = set()
        is_approximate = isinstance(self.contract, Approximate)
        for input_set in self.input_sets:
            if input_set.name == NON_FINITE and is_approximate:
                continue  # they have no signal-to-noise ratio
            if mode == "train":
                if not input_set.is_required:
                    continue
                input_set = replace(input_set, law="training")
            if failed.get(input_set.dimension, 0) >= FIRST_SIZES and input_set.dimension not in free_dimensions:
                continue
            if self._check_input_set(input_set, mode):
                free_dimensions.add(input_set.dimension)
            elif input_set.dimension:
                failed[input_set.dimension] = failed.get(input_set.dimension, 0) + 1

    def _check_input_set(self, input_set: InputSet, mode: str) -> bool:
        """Check the laws on one input set; return whether the reference takes it."""
        is_taken = self._check_call(input_set, mode, gradients=False)
        if is_taken and not self.forward_only and not input_set.forward_only:
            self._check_call(input_set, mode, gradients=True)
        return is_taken

    def _check_call(self, input_set: InputSet, mode: str, gradients: bool) -> bool:
        """Check the laws on one input set, with or without gradients; return whether the reference takes it."""
        expected = self.reference.run(input_set.arguments, mode, gradients=gradients)
        if expected.error:
            if input_set.is_required:
                raise Unjudged(f"the reference does not take {input_set.name}: {expected.error}")
            self.refused.append(input_set.name)
            return False
        exact = self.reference.run(input_set.arguments, mode, gradients=gradients, float64=True)
        if not input_set.is_required and _overflows(expected, exact):
            return False
        self.count += 1
        elements = max(tensor.numel() for tensor in input_set.arguments.tensors)
        self.most_elements = max(self.most_elements, elements)
        actual = self.candidate.run(input_set.arguments, mode, gradients=gradients)
        self.laws |= {law: None for law in _LAWS if gradients or law != "gradients"}
        self._compare(input_set, mode, expected, exact, actual)
        self._compare_earlier(input_set, expected, actual)
        return True

    def _compare(self, input_set: InputSet, mode: str, expected: Reply, exact: Reply, actual: Reply) -> None:
        if actual.error:
            raise BrokenLaw("returns", f"the candidate raises where the reference returns: {actual.error}", input_set)
        if actual.structure != expected.structure:
            raise BrokenLaw("structure", f"it returns {actual.structure}, not {expected.structure}", input_set)
        if actual.strange:
            raise BrokenLaw("plain outputs", f"it returns tensors of the class {', '.join(actual.strange)}", input_set)
        comparison = self._comparison(input_set, mode, expected, exact, actual)
        try:
            comparison.require(self.contract)
        except ContractViolation as violation:
            promise = self.contract
            if not isinstance(promise, Approximate) or not is_of_few_elements(comparison, promise.sqnr_db):
                raise BrokenLaw(input_set.law, _text(violation), input_set) from None
        if mode == "eval" and not self.allowed:  # the inputs as given come first
            limit = detection_limit(comparison, self.contract)
            self.detection = None if limit is None else limit.all_elements
            self.allowed = max(self.detection or 0.0, 1e-6)
        self._compare_state(input_set, expected, actual)
        self._compare_gradients(input_set, mode, expected, exact, actual)

    def _comparison(self, input_set: InputSet, mode: str, expected: Reply, exact: Reply, actual: Reply) -> Comparison:
        best = expected.outputs if exact.error else exact.outputs
        eager, own = expected.outputs, actual.outputs
        if input_set.law == "other values" and _has_infinities(
            input_set
        ):  # exact rewrites may exchange NaN and infinity
            eager, own, best = (map_tensors(_without_infinities, part) for part in (eager, own, best))

        moved = cache(lambda: self._moved(input_set, mode, best))

        def deviation(position: int, float64: bool) -> torch.Tensor | None:
            return moved()[position] if position < len(moved()) else None

        return Comparison("the reference", "the candidate", [eager], [own], [best], deviation=deviation)

    def _moved(self, input_set: InputSet, mode: str, best: Any) -> list[torch.Tensor]:
        """Return the change of each output of the reference when its inputs are perturbed by their rounding."""
        movement = [torch.zeros(tensor.shape, dtype=torch.float64) for tensor in _tensors(best)]
        for number in range(PERTURBED):
            generator = torch.Generator().manual_seed(number)
            reply = self.reference.run(input_set.arguments.map(_perturbing(generator)), mode, float64=True)
            if reply.error:
                continue
            for most, unperturbed, perturbed in zip(movement, _tensors(best), _tensors(reply.outputs), strict=True):
                if unperturbed.shape == perturbed.shape == most.shape and not unperturbed.is_complex():
                    change = (unperturbed.double() - perturbed.double()).abs().nan_to_num(0.0, 0.0, 0.0)
                    torch.maximum(most, MOVED * change, out=most)
        return movement

    def _compare_earlier(self, input_set: InputSet, expected: Reply, actual: Reply) -> None:
        """Refuse a candidate that changed its previous outputs. Outputs that alias inputs may change with them."""
        if expected.is_earlier_kept and not actual.is_earlier_kept and not actual.aliases:
            raise BrokenLaw("earlier outputs", "the outputs of the previous call changed during this one", input_set)

    def _check_many_calls(self) -> None:
        """Call the candidate many times. All outputs must be right, and must not change within a batch."""
        self.laws["many calls"] = None
        for batch, contents in enumerate(self.batches):
            replies = [party.run_all(contents) for party in (self.reference, self.candidate)]
            for number, arguments, expected, actual in zip(itertools.count(1), contents, *replies):
                name = f"inputs of call {batch * len(contents) + number} in a row"
                input_set = InputSet(name, arguments, "many calls")
                if not actual.is_kept and expected.is_kept:
                    raise BrokenLaw("earlier outputs", f"an output changed within {len(contents)} calls", input_set)
                if not expected.error:
                    self._compare(input_set, "eval", expected, Reply(error="not asked"), actual)

    def _check_untested(self) -> None:
        """Compare in an empty environment, without command-line arguments and modules of test tools."""
        self.laws["environment"] = None
        name = "inputs drawn again, in an empty environment, without modules of test tools"
        input_set = InputSet(name, redrawn_in(self.domain, self.several[0], UNTESTED), "environment")
        expected = self.reference.run(input_set.arguments)
        if not expected.error:
            actual = self.candidate.run(input_set.arguments, untested=True)
            if actual.error:
                evidence = f"without environment variables and modules of test tools, it raises {actual.error}"
                raise BrokenLaw("environment", evidence, input_set)
            self._compare(input_set, "eval", expected, Reply(error="not asked"), actual)

    def _compare_state(self, input_set: InputSet, expected: Reply, actual: Reply) -> None:
        if list(actual.inputs) != list(expected.inputs):
            raise BrokenLaw(
                "inputs untouched", "after the call, its inputs differ from those of the reference", input_set
            )
        for name, tensor in expected.state.items():
            other = actual.state.get(name)
            if other is None or not torch.allclose(
                tensor.double(), other.double(), rtol=1e-4, atol=1e-6, equal_nan=True
            ):
                raise BrokenLaw("state", f"after the call, {name!r} differs from that of the reference", input_set)
        if set(actual.aliases) - set(expected.aliases):
            raise BrokenLaw(
                "aliasing",
                f"these share memory: {', '.join(sorted(set(actual.aliases) - set(expected.aliases)))}",
                input_set,
            )

    def _compare_gradients(self, input_set: InputSet, mode: str, expected: Reply, exact: Reply, actual: Reply) -> None:
        largest_of_all = max((largest(tensor) for tensor in exact.gradients.values()), default=0.0)
        for name, tensor in expected.gradients.items():
            other, best = actual.gradients.get(name), exact.gradients.get(name, tensor)
            if other is None:
                raise BrokenLaw("gradients", f"{name} has no gradient", input_set)
            part = GRADIENTS_OF_HALVES if tensor.dtype.itemsize == 2 else GRADIENTS
            tensor, other, best = map(_real, (tensor, other, best))
            own = (tensor - best).abs()
            errors = (other - best).abs()
            limits = 8 * own + part * largest(best) + OF_OTHERS * largest_of_all
            if bool((errors > limits).any()):
                limits = limits + self._moved_gradient(input_set, mode, name, best)
            if bool((errors > limits).any()) and bool(best.isfinite().all()):
                place = int(errors.flatten().argmax())
                evidence = (
                    f"the gradient of {name} is {float(other.flatten()[place])!r}, "
                    f"not {float(best.flatten()[place])!r}, at its element {place}"
                )
                raise BrokenLaw("gradients", evidence, input_set)

    def _moved_gradient(self, input_set: InputSet, mode: str, name: str, best: torch.Tensor) -> torch.Tensor:
        """Return the change of each element of a gradient when inputs are perturbed by their rounding."""
        movement = torch.zeros(best.shape, dtype=torch.float64)
        for number in range(PERTURBED):
            perturb = _perturbing(torch.Generator().manual_seed(number))
            reply = self.reference.run(input_set.arguments.map(perturb), mode, gradients=True, float64=True)
            if (other := reply.gradients.get(name)) is not None and (other := _real(other)).shape == best.shape:
                movement = torch.maximum(movement, MOVED * (other - best).abs())
        return movement

    def _check_random(self, mode: str) -> None:
        """Compare the means and variances of random outputs."""
        self.laws["random outputs"] = None
        drawn = [[], []]
        for seed in range(DRAWS):
            for runs, party in zip(drawn, (self.reference, self.candidate), strict=True):
                reply = party.run(self.several[0], mode, seed)
                if reply.error:
                    raise BrokenLaw("returns", f"it raises in mode {mode}: {reply.error}")
                runs.append([tensor.double() for tensor in _tensors(reply.outputs) if tensor.is_floating_point()])
        self.count += 1
        as_given = InputSet(f"inputs as given, in mode {mode}", self.several[0])
        for expected, actual in zip(zip(*drawn[0], strict=True), zip(*drawn[1], strict=True), strict=True):
            if actual[0].shape != expected[0].shape:
                raise BrokenLaw("structure", f"an output is of shape {list(actual[0].shape)}", as_given)
            evidence = _other_distribution(torch.stack(expected), torch.stack(actual))
            if evidence:
                raise BrokenLaw("random outputs", f"in mode {mode}, with {DRAWS} seeds, {evidence}", as_given)

    def _check_redrawn_parameters(self) -> None:
        """Compare again after other parameters are written in place."""
        state: dict[str, torch.Tensor] = self.reference.loaded["state"]
        floats = [name for name, tensor in state.items() if tensor.is_floating_point()]
        if not floats:
            return
        self.laws["other parameters"] = None
        generator = torch.Generator().manual_seed(self.seed + 1)
        other = {
            name: (tensor * (0.5 + torch.rand(tensor.shape, generator=generator)) if name in floats else tensor).to(
                tensor.dtype
            )
            for name, tensor in state.items()
        }
        for party in (self.reference, self.candidate):
            party.write(other)
        name = "inputs as given, with other parameters"
        self._check_input_set(InputSet(name, self.several[0], "other parameters", is_required=True), "eval")
        for party in (self.reference, self.candidate):
            party.write(state)

    # The inputs and the part of a failure.

    def first_wrong_part(self, broken: BrokenLaw) -> str:
        """Describe the first part of the candidate with a wrong value; empty if none is known.

        A part is a submodule that the reference has, too, or a node if the candidate is a captured program.
        """
        if broken.law not in _LAWS_ON_VALUES or broken.inputs is None or self.candidate.has_ended:
            return ""
        loaded = self.candidate.loaded
        by_nodes = bool(loaded["is_program"])
        if not by_nodes and not (loaded["is_module"] and self.reference.loaded["is_module"]):
            return ""
        arguments = broken.inputs.arguments
        try:
            return first_difference(
                self.reference.values_of_parts(arguments, by_nodes=by_nodes),
                self.reference.values_of_parts(arguments, by_nodes=by_nodes, float64=True),
                self.candidate.values_of_parts(arguments, by_nodes=by_nodes),
            )
        except ChildEnded:
            return ""

    def smaller(self, broken: BrokenLaw) -> BrokenLaw:
        """Reduce the inputs of a failure; return the failure on the smallest inputs that still break the same law."""
        law = broken.law
        for _ in range(SMALLER if law in LAWS_OF_ONE_CALL and not (self.law or self.candidate.has_ended) else 0):
            again = None if broken.inputs is None else self._same_on_smaller(broken.inputs, law)
            if again is None:
                return broken
            broken = again
        return broken

    def _same_on_smaller(self, inputs: InputSet, law: str) -> BrokenLaw | None:
        """Return the failure on the first smaller inputs that break the same law, or None."""
        for arguments in _shorter(inputs.arguments):
            if self.domain.violation(arguments) is not None:
                continue
            try:
                self._check_input_set(replace(inputs, arguments=arguments), "eval")
            except BrokenLaw as again:
                if again.law == law:
                    return again
            except (Unjudged, FxError, ChildEnded):
                continue
        return None


_LAWS = (
    "returns", "structure", "plain outputs", "values", "inputs untouched", "state", "aliasing", "gradients",
    "earlier outputs",
)  # fmt: skip

_LAWS_ON_VALUES = ("values", "other values", "other sizes", "training")
LAWS_OF_ONE_CALL = (*_LAWS, "other values", "other sizes")
"""The laws that a single call in evaluation mode can break."""
LAWS_ALONE = (
    *LAWS_OF_ONE_CALL, "loads", "parameters", "training", "random outputs", "other parameters", "many calls",
    "environment", "process",
)  # fmt: skip
"""The laws that can be checked alone: all but those of timed calls."""


def _text(violation: ContractViolation) -> str:
    return "\n".join(str(violation).splitlines()[1:]) or str(violation)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _has_infinities(input_set: InputSet) -> bool:
    return not all(bool(tensor.isfinite().all()) for tensor in input_set.arguments.tensors)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64; of a complex one the real and imaginary parts, in a last dimension."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _change(one: Any, other: Any) -> float:
    """Return the largest relative change between two outputs."""
    change = 0.0
    for a, b in zip(_tensors(one), _tensors(other), strict=False):
        if a.shape != b.shape:
            return math.inf
        if a.numel():
            a, b = a.double() if not a.is_complex() else a.abs(), b.double() if not b.is_complex() else b.abs()
            change = max(change, largest(a - b) / (largest(a) or 1.0))
    return change


def _without_infinities(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isfinite(), tensor, torch.nan) if tensor.is_floating_point() else tensor


def _overflows(expected: Reply, exact: Reply) -> bool:
    """Return whether the reference overflows in its dtype where it does not in float64, or the reverse."""
    if exact.error:
        return False
    pairs = zip(_tensors(expected.outputs), _tensors(exact.outputs), strict=False)
    return any(bool((own.isfinite() != best.isfinite()).any()) for own, best in pairs if own.shape == best.shape)


def _perturbing(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    def perturb(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        eps = torch.finfo(tensor.dtype).eps
        signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        return tensor.double() * (1 + signs * eps)

    return perturb


def _other_distribution(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """Describe how two samples of outputs, one seed a row, differ in mean or variance; empty if they do not."""
    means, variances = (expected.mean(0), actual.mean(0)), (expected.var(0), actual.var(0))
    error = ((variances[0] + variances[1]) / len(expected)).sqrt()
    scale = float(expected.abs().amax()) or 1.0
    if bool(((means[0] - means[1]).abs() > FAR * error + 1e-5 * scale).any()):
        return "its mean differs from that of the reference"
    spreads = [float(variance.sum()) for variance in variances]
    if spreads[0] and not 0.6 < spreads[1] / spreads[0] < 1.6:
        return f"its variance is {spreads[1] / spreads[0]:.2f} times that of the reference"
    random_elements = ((variances[0] > 0) & (variances[1] > 0)).flatten().nonzero().flatten()
    if len(random_elements) >= FEWEST_CORRELATED:
        chosen = random_elements[torch.linspace(0, len(random_elements) - 1, MOST_CORRELATED).long().unique()]
        shares = [_mean_squared_correlation(sample.flatten(1)[:, chosen]) for sample in (expected, actual)]
        if not 1 / CORRELATION < shares[1] / shares[0] < CORRELATION:
            return (
                f"its elements depend on each other in another way: their mean squared correlation is "
                f"{shares[1]:.3f}, that of the reference {shares[0]:.3f}"
            )
    return ""


def _mean_squared_correlation(sample: torch.Tensor) -> float:
    """Return the mean of the squared correlations between two columns, over all pairs of columns."""
    squares = torch.corrcoef(sample.T).square()
    count = len(squares)
    return float((squares.sum() - squares.diagonal().sum()) / (count * (count - 1)))


def _shorter(arguments: Arguments) -> Iterator[Arguments]:
    """Yield arguments with one size reduced, in every dimension that has it."""
    sizes = {size for tensor in arguments.tensors for size in tensor.shape if size > 1}
    for size in sorted(sizes, reverse=True):
        for new in dict.fromkeys((1, size // 2, size - 1)):

            def cut(tensor: torch.Tensor, size: int = size, new: int = new) -> torch.Tensor:
                for dimension in range(tensor.dim()):
                    if tensor.shape[dimension] == size:
                        tensor = tensor.narrow(dimension, 0, new)
                return tensor.contiguous()

            yield arguments.map(cut)


def described(input_set: InputSet | None) -> str:
    """Return the name of an input set, with the dtypes and shapes of its tensors; empty for None."""
    if input_set is None:
        return ""
    shapes = [
        f"{place} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for place, tensor in places(input_set.arguments).items()
    ]
    return f"{input_set.name}: {', '.join(shapes)}"
