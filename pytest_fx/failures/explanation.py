"""The cause of a failure on a model: the first wrong edit and node, a test that reproduces it, and all details."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fx import GraphModule
from fx.errors import FxError
from fx.passes import Approximate, Close, Exact, RewritingPass
from fx.pipelines.pipeline import PassPipeline
from pytest_fx.errors import LawViolation, in_a_line
from pytest_fx.failures.converted_localization import locate_in_converted
from pytest_fx.failures.cut_localization import locate_by_cuts
from pytest_fx.failures.details import describe_failure
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.formed_programs import change_around, formed_programs
from pytest_fx.failures.gradient_localization import GradientError, gradients_are_kept, localize_gradient
from pytest_fx.failures.localization import Limit, Localization, NodeError, localize
from pytest_fx.failures.node_error import any_error
from pytest_fx.failures.pairing import complete
from pytest_fx.failures.reproducer import TrialBudget, error_on, find_part
from pytest_fx.failures.reproducer_file import write_test, write_test_of_model, written_part
from pytest_fx.harness.contracts import rounding_limit
from pytest_fx.harness.equality import Leaf, Mismatch, pair_leaves
from pytest_fx.harness.evaluation import default_dtype
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.structure import dtype_name, leaves
from pytest_fx.harness.subject import Inputs
from pytest_fx.laws import law_called
from pytest_fx.loading import has_text
from pytest_fx.records.journal import ignore_in_git
from pytest_fx.runtimes import ConvertedProgram

OF_NODES = ("values", "kinds")
"""The subjects of laws (see :class:`~pytest_fx.laws.Law`) that are compared node by node in a run of the program."""
IN_FLOAT64 = "both in float64"
"""The title of the comparison of both programs in float64."""
RIGHT_ALONE = "{} alone, with the inputs that it has in eager, is right: the error has come from earlier calls"
"""The line about a step that goes wrong only after the calls before it."""
DETAILS = "failure.md"
"""The file beside the reproducing test, with everything that is known about the failure."""


def _lines_on_converted(pass_run: PassRun, law: str, inputs: Inputs) -> list[str]:
    """Return lines on where a program without a graph of ours goes wrong: a converted model, by values or by cuts."""
    if not pass_run.is_converted or law_called(law).judges != "values":
        return []
    subject = pass_run.subject.at(inputs) if inputs else pass_run.subject
    program = pass_run.program
    assert isinstance(program, ConvertedProgram)
    try:
        if program.session.inner_values():
            return locate_in_converted(pass_run, subject)
        if not pass_run.is_given:
            return locate_by_cuts(pass_run, subject)
        runtime = program.session.runtime
        return [f"{runtime} shows no values inside of {program.name}, so the first wrong one is unknown"]
    except Exception as error:  # the failure itself must not be lost
        return [f"where it goes wrong inside could not be found: {in_a_line(error)}"]


def locate_in(pass_run: PassRun, law: str, inputs: Inputs = 0) -> tuple[NodeError | None, list[str]]:
    """Return the first wrong node of a program made elsewhere, if there is one, and lines that describe it.

    The program runs in its own dtype; its reference is the model in float64. Of a converted model there are lines only.
    ``inputs`` are those on which the law is broken.
    """
    program, subject = pass_run.program, pass_run.subject
    if _is_right_alone(pass_run, inputs):
        return None, [RIGHT_ALONE.format(inputs)]
    if pass_run.is_converted:
        return None, _lines_on_converted(pass_run, law, inputs)
    if not isinstance(pass_run.contract, (Exact, Close, Approximate)):  # no limit of a node follows from the others
        return None, []
    if law_called(law).judges not in OF_NODES or not isinstance(program, GraphModule) or subject.capture_error:
        return None, []
    at_inputs, count = (subject.at(inputs), 1) if isinstance(inputs, str) else (subject, pass_run.input_set_count)
    captured = at_inputs.capture()
    captured64 = captured if subject.is_float64 else at_inputs.capture(float64=True)
    try:
        complete(program, captured)
        for input_set in range(count):
            dtypes = torch.float64, subject.dtype
            limit = partial(rounding_limit, contract=pass_run.contract)
            wrong_node = localize(
                captured64, program, at_inputs.arguments(input_set), limit, captured, dtypes=dtypes
            ).first_wrong
            if wrong_node is not None:
                return wrong_node, ["the first node that goes wrong:", _indented(wrong_node)]
    except Exception as error:  # the failure itself must not be lost
        return None, [f"the node that goes wrong could not be found: {type(error).__name__}"]
    return None, []


def _is_right_alone(pass_run: PassRun, inputs: Inputs) -> bool:
    """Return whether ``inputs`` is a step, and the program right if it is called in this step alone."""
    subject, program = pass_run.subject, pass_run.program
    if inputs not in subject.steps or program is None:
        return False
    alone = PassRun.given(subject.at(inputs), program, pass_run.contract, pass_run.name, 1)
    return law_called("contract").find_violation(alone) is None


class FailureExplanation:
    """The findings about where a pass goes wrong.

    The pass is applied again to fresh captures. An exception in a step becomes a line of the report: the failure itself
    must not be lost.
    """

    def __init__(self, failure: Failure) -> None:
        """Find the edit and the node that go wrong first in ``failure``."""
        self.failure = failure
        self.subject = failure.subject.at(failure.error.inputs) if failure.error.inputs else failure.subject
        """The model, called with inputs that show the failure."""
        self.judged = law_called(failure.error.law).judges
        """The subject of the law, compared node by node where nodes have it; see :class:`~pytest_fx.laws.Law`."""
        self.lines: list[str] = []
        self.compared: list[tuple[str, Localization]] = []
        """Each comparison of all nodes: its title and its result."""
        self.wrong: NodeError | GradientError | None = None
        self.input_set = 0
        """The index of the input set that shows the failure."""
        self.attempt("the edit that goes wrong could not be found", self.find_edit)
        self.attempt("the node that goes wrong could not be found", self.find_node)

    @property
    def cause(self) -> tuple[str, str, str]:
        """The law, how it is broken, and the user's line of the first wrong node: equal for equal failures."""
        error = self.failure.error
        return error.law, error.kind, "" if self.wrong is None else str(self.wrong.where)

    def write(self, folder: Path, *, small_test: bool = True) -> None:
        """Write the reproducing test and the file of details, and add lines that say where they are.

        Args:
            folder: the parent of the new folder for both files, which replaces that of an earlier run of the same test
                in one step.
            small_test: whether to look for a small reproducing test.
        """
        failure = self.failure
        target = folder / failure.slug
        ignore_in_git(folder)
        temporary = Path(tempfile.mkdtemp(prefix=f".{failure.slug}.", dir=folder))
        try:
            if small_test:
                self.attempt("no test file could be made of it", lambda: self.reproduce(temporary, target))
            self.lines.append(f"details: {_shown(target / DETAILS)}")
            text = describe_failure(failure, "\n".join(self.lines), self.compared)
            (temporary / DETAILS).write_text(text, encoding="utf-8")
            replace_folder(target, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def attempt(self, otherwise: str, act: Callable[[], None]) -> None:
        """Do ``act``; if it raises, add a line that starts with ``otherwise``."""
        try:
            act()
        except Exception as error:
            self.lines.append(f"{otherwise}: {in_a_line(error)}")
        self.failure.subject.tidy_up()  # large tensors exist for one step at a time

    def find_edit(self) -> None:
        """Name the first edit that makes the program wrong, for passes that report their edits.

        An approximate pass goes a little wrong with each edit, so none is named. Other contracts are about outputs.
        """
        subject, pass_, contract = self.subject, self.failure.pass_, self.failure.contract
        if not isinstance(pass_, (RewritingPass, PassPipeline)) or not isinstance(contract, (Exact, Close)):
            return
        float64 = isinstance(contract, Close) or self.judged == "gradients"
        if self.judged == "gradients":
            is_good = gradients_are_kept(subject)
        elif self.judged in OF_NODES:
            is_good = self.values_are_kept(torch.float64 if float64 else subject.dtype)
        else:
            return
        with default_dtype(torch.float64 if float64 else subject.dtype):
            module = subject.shared_copy(float64)
            program = subject.capture(module, leaves=self.failure.leaves, float64=float64, pass_=pass_)
            culprit = PassPipeline(pass_).bisect(program, is_good)
        if culprit is not None:
            self.lines.append(f"the first edit that goes wrong: {culprit}")

    def values_are_kept(self, dtype: torch.dtype) -> Callable[[GraphModule], bool]:
        """Return a predicate: true if a program computes the model's outputs on all input sets."""
        subject, float64 = self.subject, dtype == torch.float64
        input_sets = range(subject.input_set_count)
        expected = [subject.eager(input_set, float64).output for input_set in input_sets]

        def is_good(program: GraphModule) -> bool:
            runner = subject.runner(program, float64=float64)
            runs = [runner(subject.arguments(input_set, float64), dtype) for input_set in input_sets]
            if any(run.error is not None for run in runs):
                return False
            pairs = pair_leaves(expected, [run.output for run in runs])
            return not isinstance(pairs, Mismatch) and not any(
                bool((leaf.errors > self.limits(leaf)).any()) for leaf in pairs
            )

        return is_good

    def limits(self, leaf: Leaf) -> torch.Tensor:
        """Return the error allowed for each element of an output, in the dtype in which edits are tried."""
        contract = self.failure.contract
        return leaf.limits(contract.rtol, contract.atol) if isinstance(contract, Close) else _no_error(leaf, 0.0)

    def find_node(self) -> None:
        """Name the first node that goes wrong, on the first input set on which one does."""
        if self.judged not in (*OF_NODES, "gradients"):
            return
        pass_run = self.failure.applied(self.subject)
        step = self.failure.error.inputs
        if step in self.failure.subject.steps and law_called("contract").find_violation(pass_run) is None:
            self.lines.append(RIGHT_ALONE.format(step))
            return
        if pass_run.is_in_form and (self.judged == "gradients" or formed_programs(pass_run) is None):
            return
        if pass_run.after is None and not pass_run.is_in_form:
            return  # there is no program to look into
        if self.judged == "gradients":
            gradient_error = localize_gradient(pass_run)
            if gradient_error is not None:
                self.wrong = gradient_error
                what = (
                    "backward raises" if self.failure.error.kind == "cannot be differentiated" else "gradient differs"
                )
                self.lines += [f"the first node whose {what}, from the output on:", _indented(gradient_error)]
            return
        for input_set in range(self.subject.input_set_count):
            self.compared, self.input_set = [], input_set
            wrong_nodes = [located.first_wrong for located in self.compare(pass_run, input_set)]
            self.wrong = next((error for error in reversed(wrong_nodes) if error is not None), None)
            if self.wrong is not None:
                self.lines += ["the first node that goes wrong:", _indented(self.wrong)]
                if pass_run.is_in_form and (programs := formed_programs(pass_run)) is not None:
                    self.lines += change_around(programs[0], programs[1], self.wrong)
                return
        self.input_set = 0
        largest = self.compared[-1][1].largest
        if not self.compared[-1][1].errors:
            text = "no node of the transformed program matches one of the original, so none could be compared"
            self.lines.append(text)
        elif largest is not None and largest.made > 0 and self.judged != "kinds":
            text = "no node alone is wrong by more than is allowed; the one that adds most:"
            self.lines += [text, _indented(largest)]
        else:
            self.lines.append("no node computes another value: what differs is what the program returns or writes to")

    def compare(self, pass_run: PassRun, input_set: int) -> Iterator[Localization]:
        """Yield the errors of all nodes, one comparison after the other, until one has a wrong node.

        A value whose kind differs in float64, such as the result of a cast, is compared in the user's dtype, too.
        """
        arguments = self.subject.arguments(input_set)
        for title, original, transformed, eager, limit in self.programs(pass_run):
            to_float64 = original is eager  # one capture serves for both, run in float64 and as it is
            own = self.subject.dtype
            of_original = own if eager is None else torch.float64
            dtypes = (torch.float64, torch.float64) if title == IN_FLOAT64 else (of_original, own)
            located = localize(original, transformed, arguments, limit, eager, to_float64=to_float64, dtypes=dtypes)
            self.compared.append((title, located))
            yield located
            if located.first_wrong is not None and (located.first_wrong.mismatch is None or title != IN_FLOAT64):
                return

    def programs(self, pass_run: PassRun) -> Iterator[tuple[str, GraphModule, GraphModule, GraphModule | None, Limit]]:
        """Yield title, original, transformed and eager program, and limit, in the order in which the contract asks."""
        if pass_run.is_in_form:
            yield from self.programs_in_form(pass_run)
            return
        contract, after = self.failure.contract, pass_run.after
        assert after is not None
        dtype = dtype_name(self.subject.dtype)
        captured = pass_run.capture()
        complete(after, captured)
        if isinstance(contract, Exact) or self.subject.is_float64:
            limit: Limit = _no_error if isinstance(contract, Exact) else lambda leaf, eager: self.limits(leaf)
            yield f"{dtype} beside {dtype}", captured, after, None, limit
            return
        # A large model is not held in float64 twice. A capture that names its dtype needs a separate one in float64.
        arguments = [(node.args, node.kwargs) for node in captured.graph.nodes]
        names_dtype = any(value is self.subject.dtype for _, value in leaves(arguments))
        shares = self.subject.is_large and not names_dtype
        # Before the capture, where the result is kept: the pass may write to tensors that captures in float64 share.
        after_float64 = pass_run.after_float64 if isinstance(contract, Close) and not self.subject.is_large else None
        captured64 = captured if shares else pass_run.capture(float64=True)
        if isinstance(contract, Close) and self.subject.is_large:
            after_float64 = pass_run.after_float64
        if isinstance(after_float64, GraphModule):
            complete(after_float64, captured64)
            yield IN_FLOAT64, captured64, after_float64, captured, lambda leaf, eager: self.limits(leaf)
        limit = partial(rounding_limit, contract=contract) if isinstance(contract, Close) else any_error
        pass_run.let_go_of_float64()
        yield f"{dtype} beside float64", captured64, after, captured, limit

    def programs_in_form(
        self, pass_run: PassRun
    ) -> Iterator[tuple[str, GraphModule, GraphModule, GraphModule | None, Limit]]:
        """Yield the same for a pass in another form: its program before and after, in operators of ATen."""
        contract, dtype = self.failure.contract, dtype_name(self.subject.dtype)
        in_own_dtype = formed_programs(pass_run)
        assert in_own_dtype is not None
        before, after = in_own_dtype
        if isinstance(contract, Exact) or self.subject.is_float64 or not pass_run.has_float64:
            limit: Limit = _no_error if isinstance(contract, Exact) else lambda leaf, eager: self.limits(leaf)
            yield f"{dtype} beside {dtype}", before, after, None, limit
            return
        in_float64 = formed_programs(pass_run, float64=True)
        if in_float64 is None:
            return
        if isinstance(contract, Close):
            yield IN_FLOAT64, *in_float64, before, lambda leaf, eager: self.limits(leaf)
        limit = any_error if isinstance(contract, Approximate) else partial(rounding_limit, contract=contract)
        yield f"{dtype} beside float64", in_float64[0], after, before, limit

    def of_this_step(self) -> Failure:
        """Return the failure in one step as one of the model that is called in this step alone."""
        error = self.failure.error
        alone = LawViolation("contract", "", kind=error.kind).with_message(str(error))
        return replace(self.failure, subject=self.subject, error=alone)

    def reproduce(self, folder: Path, target: Path) -> None:
        """Write a test file to ``folder``, which will be moved to ``target``, and add a line that says where it is."""
        if self.failure.pass_name is None:
            self.lines.append("no test file was made of it: the pass cannot be imported by name")
            return
        if not has_text(self.failure.contract):
            self.lines.append("no test file was made of it: its contract is about the whole model")
            return
        origins = frozenset[str]() if self.wrong is None else self.wrong.origins
        input_set = 0 if self.failure.error.inputs else self.input_set
        budget = TrialBudget()
        failure = self.failure if self.failure.error.inputs not in self.failure.subject.steps else self.of_this_step()
        part = find_part(failure, origins, input_set, budget)
        why = f"no part fails alone in the same way ({budget})"
        if part is not None:
            try:
                path = write_test(folder, failure, part, None if self.wrong is None else self.wrong.where)
                # One look: the part that was written has been judged twice.
                is_same = error_on(failure, written_part(path), looks_twice=False) >= 0
                file = path if is_same else None
            except FxError as error:
                file, why = None, str(error).partition("\n")[0]
            if file is not None:
                nodes = len(part.program.graph.nodes)
                self.lines.append(f"a test of {nodes} nodes that shows it alone: {_shown(target / file.name)}")
                if budget.is_spent:
                    self.lines.append(f"  note   there may be a smaller one: {budget}")
                return
        for file in folder.iterdir():  # of a part that does not reproduce the failure
            file.unlink()
        if not self.failure.keywords:
            self.lines.append(f"no test file was made of it: {why}, and the model cannot be imported by name")
            return
        path = write_test_of_model(folder, self.failure, why)
        self.lines += [f"a test of the whole model that shows it: {_shown(target / path.name)}", f"  why    {why}"]


def _shown(path: Path) -> str:
    """Return a path as pytest shows it: relative to the working directory if it is below that."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def replace_folder(target: Path, new: Path) -> None:
    """Replace the folder ``target`` by ``new`` in one step."""
    old = new.with_name(f"{new.name}.old")
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _no_error(leaf: Leaf, eager: float) -> torch.Tensor:
    return torch.zeros_like(leaf.errors)


def _indented(value: object) -> str:
    return textwrap.indent(str(value), "  ")
