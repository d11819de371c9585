"""check_pass: the search for a program on which a pass breaks a law, and its report."""

import functools
import importlib
import math
import operator
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from selection import thorough_except
from torch import nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

import fx
from fx.errors import FxError, PassError
from fx.passes import RewritingPass, close, exact
from pytest_fx import LawViolation, NothingJudged, check_pass
from pytest_fx.generation import programs
from pytest_fx.generation.bias import chains
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import GivenProgram
from pytest_fx.laws import Law
from pytest_fx.loading import load_pass
from pytest_fx.processes.deadline import TookTooLong, Watchdog
from pytest_fx.search.counterexample import spelled_pass
from pytest_fx.search.nearness import running
from pytest_fx.search.placement import PutBack
from pytest_fx.search.references import references_of

pytestmark = pytest.mark.usefixtures("little_explored")

SHRINKING = hypothesis.settings(database=None)
QUICK = hypothesis.settings(SHRINKING, phases=[hypothesis.Phase.generate])


@pytest.fixture
def check(tmp_path):
    """check_pass without Hypothesis's database, which would remember failures from run to run."""

    def check(pass_, **options):
        arguments = {"settings": QUICK, "seed": 1, "folder": tmp_path, "max_examples": 24, "min_changed": 0, **options}
        return check_pass(pass_, **arguments)

    return check


@pytest.fixture(scope="module")
def smallest(tmp_path_factory):
    """The report of a wrong pass on the smallest program that was found, and the folder with a test of it."""
    folder = tmp_path_factory.mktemp("smallest")
    with pytest.raises(LawViolation) as caught:
        check_pass(add_as_sub, settings=SHRINKING, seed=1, folder=folder, max_examples=200, min_changed=0)
    return str(caught.value), folder


def violation_of(check, pass_, **options):
    with pytest.raises(LawViolation) as caught:
        check(pass_, **options)
    return caught.value


def add_as_sub(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
        node.target = operator.sub
    graph_module.recompile()


def relu_method_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_method", target="relu"):
        node.op, node.target = "call_function", torch.relu
    graph_module.recompile()


def leave_alone(graph_module):
    return graph_module


def refuse_all(graph_module):
    raise PassError("not this one")


def raise_on_relu(graph_module):
    if graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        raise KeyError("relu")


def hang_on_relu(graph_module):
    while graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        pass


@dataclass(frozen=True, slots=True)
class ScaleRelu(RewritingPass):
    """A wrong pass with an option."""

    factor: float = 1.5
    name: ClassVar[str] = "scale-relu"
    contract: ClassVar = exact

    def rewrites(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            yield fx.passes.Edit("it is scaled")
            node.target, node.args, node.kwargs = operator.mul, (node.args[0], self.factor), {}


# What is found.


def test_a_right_pass_is_reported_with_the_programs_that_it_changed(check):
    report = check(relu_method_as_function, contract=exact, max_examples=12)
    assert report.programs == 12
    assert report.changed > 6
    assert "aliasing" in report.laws
    assert report.coverage is not None and report.coverage.unreached == ()
    changed = f"relu-method-as-function changed {report.changed} of 12 programs and kept 27 laws"
    first, varied, *_ = str(report).splitlines()
    assert first == f"{changed}, also on {report.varied} programs near to these; {report.coverage}"
    assert varied == (
        f"  {len(report.varied_properties)} properties of {report.seeds} programs were varied, one to four at a time, "
        f"in {report.trials} trials on which it acted"
    )


def test_a_wrong_pass_is_shown_on_a_program_of_a_line_or_two_before_and_after(smallest):
    text, folder = smallest
    assert text.startswith("law 'contract': add-as-sub changes ")
    program = text.partition("mode:\n")[2].partition("code before the pass:")[0]
    forward = program.partition("def forward")[2].partition("def inputs")[0]
    assert "import" not in program and "def build" not in program  # they are in the test file
    assert len(forward.strip().splitlines()) <= 4, text
    assert "code after the pass:" in text
    assert "the transformed program returns:" in text
    assert str(folder / "test_add_as_sub_keeps_contract.py") in text


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_failure(check):
    first, second = (str(violation_of(check, add_as_sub, max_examples=200)) for _ in range(2))
    assert first == second


ONCE_MORE_AS_ADD = """
import pathlib, sys
import pytest

sys.dont_write_bytecode = True
test, module = sys.argv[1:]
run = ["-q", "-p", "no:cacheprovider", test]
wrong = pytest.main(run)
sys.modules.pop("wrong_pass")
pathlib.Path(module).write_text(pathlib.Path(module).read_text().replace("operator.sub", "operator.add"))
right = pytest.main(run)
print("statuses", int(wrong), int(right))
"""


@pytest.mark.thorough
def test_the_written_test_fails_alone_and_passes_once_the_pass_is_right(check, tmp_path):
    module = tmp_path / "wrong_pass.py"
    module.write_text(
        "import operator\n\n\ndef add_as_sub(graph_module):\n"
        "    for node in graph_module.graph.find_nodes(op='call_function', target=operator.add):\n"
        "        node.target = operator.sub\n    graph_module.recompile()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        violation_of(check, "wrong_pass:add_as_sub", max_examples=200, folder=tmp_path / "found")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("wrong_pass", None)
    (path,) = (tmp_path / "found").glob("test_*.py")
    command = [sys.executable, "-c", ONCE_MORE_AS_ADD, str(path), str(module)]
    both = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert "law 'contract': add-as-sub changes" in both.stdout
    assert both.stdout.endswith("statuses 1 0\n"), both.stdout + both.stderr


def test_a_pass_that_raises_or_hangs_breaks_a_law_that_says_where(check):
    raised = violation_of(check, raise_on_relu, max_examples=200)
    assert raised.law == "refusal"
    assert "value  KeyError: 'relu'" in str(raised)
    assert "in raise_on_relu" in str(raised)
    hung = violation_of(check, hang_on_relu, max_examples=200, seconds=0.3)
    assert hung.law == "terminates"
    assert "was still running after 0.3 seconds" in str(hung)


def test_a_pass_that_refuses_keeps_the_laws_and_is_counted(check):
    report = check(refuse_all)
    assert (report.changed, report.refused) == (0, 24)
    assert "refused 24" in str(report)


def never_then_clean_up(graph_module):
    """A rewrite that finds nothing, followed by torch's clean-up."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        if len(node.users) > 99:
            node.target = torch.tanh
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def never_then_clean_up_in_torch(graph_module: torch.fx.GraphModule):
    never_then_clean_up(graph_module)


def never_then_retrace(graph_module):
    """A rewrite that finds nothing, after a step that changes programs without editing any."""
    retraced = fx.Transformer(graph_module).transform()
    for node in retraced.graph.nodes:
        node._rename(f"{node.name}_again")
        if len(node.users) > 99:
            node.target = torch.tanh
    retraced.recompile()
    return retraced


@pytest.mark.parametrize("pass_", [never_then_clean_up, never_then_clean_up_in_torch, never_then_retrace])
def test_changes_by_clean_up_alone_are_not_the_passes(check, pass_):
    with pytest.raises(NothingJudged) as caught:
        check(pass_, min_changed=0.05, max_examples=3)
    assert caught.value.changed == 0
    assert "others were changed by none of its edits" in str(caught.value)
    assert "node.target = torch.tanh" in str(caught.value)


def test_the_report_counts_changes_by_clean_up_alone(check):
    report = check(never_then_clean_up, max_examples=12)
    assert report.changed == 0 and report.tidied > 2
    assert f"{report.tidied} others were changed by none of its edits" in str(report)


def relu_as_function_then_clean_up(graph_module):
    relu_method_as_function(graph_module)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def erase_what_nothing_uses(graph_module):
    """Remove the dead code that torch's clean-up would also remove."""
    for node in reversed(graph_module.graph.nodes):
        if not node.users and not node.is_impure():
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def only_clean_up(graph_module):
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


@pytest.mark.parametrize("pass_", [relu_as_function_then_clean_up, erase_what_nothing_uses, only_clean_up])
def test_a_pass_that_also_cleans_up_or_only_does_so_itself_is_judged(check, pass_):
    report = check(pass_, min_changed=0.05, max_examples=6)
    assert report.changed >= 2


def relu_in_torch_unless_in_place(graph_module: torch.fx.GraphModule):
    relu_in_torch(graph_module)
    if graph_module.graph.find_nodes(op="call_method", target="neg_"):
        raise PassError("it writes in place")


@pytest.mark.thorough
def test_programs_that_torch_cannot_hold_are_not_counted_as_refused(check):
    report = check(relu_in_torch_unless_in_place, max_examples=60)
    assert 0 < report.untranslated < 30
    assert f"{report.untranslated} were not judged: torch.fx cannot hold them" in str(report)
    assert report.refused == 0 or f"refused {report.refused}" in str(report)


@pytest.mark.thorough
def test_a_pass_that_changes_too_few_programs_is_not_judged(check):
    with pytest.raises(NothingJudged) as caught:
        check(leave_alone, min_changed=0.05, max_examples=10)
    error = caught.value
    assert not isinstance(error, LawViolation)
    assert (error.changed, 10 < error.programs <= 20) == (0, True)
    assert str(error).splitlines()[0] == f"leave-alone changed 0 of {error.programs} programs: too few to judge it"
    assert "like=" in str(error)
    assert check(leave_alone, min_changed=0, max_examples=10).programs == 10
    with pytest.raises(NothingJudged):
        check(relu_method_as_function, min_changed=21, max_examples=10)


def pad_before_conv_by_reflection(graph_module):
    """Rare: one kind of padding before one kind of layer."""
    for node in graph_module.graph.find_nodes(op="call_module"):
        if isinstance(graph_module.get_submodule(node.target), nn.Conv1d):
            (operand,) = node.all_input_nodes
            if operand.target is F.pad and operand.kwargs.get("mode") == "reflect":
                operand.target = pad_by_reflection
    graph_module.recompile()


def pad_by_reflection(x, pad, mode, value=None):
    return F.pad(x, pad, "reflect")


def linear_to_the_same_size_on_three_dimensions(graph_module):
    """Rare: a layer of one size, on a transposed value."""
    for node in graph_module.graph.find_nodes(op="call_module"):
        layer, operand = graph_module.get_submodule(node.target), node.all_input_nodes[0]
        is_square = isinstance(layer, nn.Linear) and layer.in_features == layer.out_features
        if is_square and operand.target == "transpose":
            operand.args = (operand.args[0], *reversed(operand.args[1:]))
    graph_module.recompile()


@pytest.mark.thorough
@pytest.mark.parametrize("pass_", [pad_before_conv_by_reflection, linear_to_the_same_size_on_three_dimensions])
def test_programs_approach_the_rare_pattern_of_a_pass(check, pass_):
    options = {"max_examples": 25, "without": ("gradients", "deterministic", "retraceable", "round trips")}
    seldom = check(pass_, **options).changed
    often = check(pass_, min_changed=seldom + 3, **options)
    assert 25 < often.programs <= 50
    assert often.changed >= seldom + 3


# Its options.


def test_passes_of_every_kind_are_taken(check):
    def negate_twice(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return graph_module

    for pass_ in (fx.passes.RemoveDeadCode, "remove-dead-code", "remove-dead-code,eliminate-common-subexpressions"):
        assert check(pass_, max_examples=2).programs >= 2  # and the places of two building blocks
    assert check(fx.interop.adapt(negate_twice), max_examples=2).name == "negate-twice"


def test_options_of_a_pass_are_in_the_written_test(check, tmp_path):
    fx.passes.register_pass(ScaleRelu)
    violation = violation_of(check, ScaleRelu(factor=3.0), max_examples=200)
    assert violation.law == "contract"
    (path,) = tmp_path.glob("test_*.py")
    assert "check_program('scale-relu{factor=3.0}', build, inputs, laws=('contract',)" in path.read_text()


def test_a_pass_without_a_name_to_import_is_still_shown(check):
    def local(graph_module):
        add_as_sub(graph_module)

    assert "no test file was made of it: the pass has no name" in str(violation_of(check, local, max_examples=200))
    with pytest.raises(FxError, match="define it at the top of a module"):
        spelled_pass(local)


def test_laws_are_switched_off_demanded_and_added(check):
    def no_change(example):
        if example.changed:
            raise LawViolation("no change", "there is one")

    assert "contract" not in check(leave_alone, without=("contract",), max_examples=3).laws
    assert violation_of(check, relu_method_as_function, demand=("shrinks the graph",)).law == "shrinks the graph"
    violation = violation_of(check, relu_method_as_function, demand=(Law("no change", no_change),))
    assert violation.law == "no change"


def test_a_law_that_reports_another_one_is_named_with_it(check):
    def no_change(example):
        if example.changed:
            raise LawViolation("every change", "there is one")

    with pytest.raises(FxError) as failure:
        check(relu_method_as_function, demand=(Law("no change", no_change),))
    assert str(failure.value) == (
        "the law 'no change' reports that the law 'every change' is broken\n"
        "  value  law 'every change': there is one\n"
        "  why    a broken law is checked again by its name, while a program is made smaller\n"
        "  try    let it raise LawViolation('no change', …), or make it Law('every change', …)"
    )


@pytest.mark.parametrize(
    "fields, what",
    [
        ({"name": None}, "'name' of Law is a str, not None"),
        ({"check": "no"}, "'check' of Law is a function, not a str"),
        ({"kind": "often"}, "'kind' of Law is 'always' or 'sampled' or 'demanded', not 'often'"),
    ],
)
def test_an_invalid_law_is_refused(fields, what):
    with pytest.raises(FxError, match=what):
        Law(**{"name": "mine", "check": print, **fields})


def test_the_modes_and_the_contract_are_the_callers(check):
    modes = set()

    def note_the_mode(graph_module):
        modes.add(graph_module.training)

    check(note_the_mode, modes=("train",))
    assert modes == {True}
    with pytest.raises(FxError, match="there is no mode 'training'"):
        check(leave_alone, modes=("training",))

    def slightly_off(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = off
        graph_module.recompile()

    short = programs(ops=[torch.relu], steps=2)  # longer ones have differences of nearly equal values
    assert violation_of(check, slightly_off, contract="exact", max_examples=200, programs=short).law == "contract"
    check(slightly_off, contract="approximate(40)", without=("gradients",), programs=short)


def off(x, inplace=False):
    return (torch.relu(x) * (1 + 1e-6)).to(x.dtype)


@pytest.mark.thorough
def test_programs_are_the_callers_or_like_a_program(check):
    def full_of_tanh(x):
        return torch.tanh(x + torch.tanh(x))

    def tanh_as_method(graph_module):
        hidden = "".join(reversed("hnat"))
        for node in graph_module.graph.find_nodes(op="call_function", target=getattr(torch, hidden)):
            node.op, node.target = "call_method", hidden
        graph_module.recompile()

    like = check(tanh_as_method, like=fx.symbolic_trace(full_of_tanh))
    assert like.changed > check(tanh_as_method).changed
    assert check(leave_alone, programs=programs(steps=2), max_examples=3).programs == 3


# Hypothesis.


def test_the_number_of_programs_is_that_of_hypothesis_unless_it_is_given(check):
    settings = hypothesis.settings(QUICK, max_examples=6)
    assert check(leave_alone, settings=settings, max_examples=None).programs == 6
    assert check(leave_alone, settings=settings, max_examples=3).programs == 3


@pytest.mark.thorough
def test_the_last_failure_is_tried_first_on_the_next_run_of_the_same_pass(check):
    settings = hypothesis.settings(database=InMemoryExampleDatabase())
    violation_of(check, add_as_sub, settings=settings, max_examples=200, seed=None)
    again = violation_of(check, add_as_sub, settings=settings, max_examples=1, seed=None)
    assert "found after 1 program(s)" in str(again)
    assert check(leave_alone, settings=settings, max_examples=1, seed=None).programs == 1


@pytest.mark.thorough
def test_a_pass_that_is_wrong_at_times_is_reported_all_the_same(check):
    calls = iter(range(10**9))

    def wrong_at_times(graph_module):
        if next(calls) % 3 == 0:
            add_as_sub(graph_module)

    violation_of(check, wrong_at_times, max_examples=200, settings=SHRINKING)


def test_a_program_that_cannot_be_captured_is_nobodys_fault(check):
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    @dataclass(frozen=True)
    class Given:
        source: str = "branching"
        inputs: Arguments = Arguments((torch.ones(2),))  # noqa: RUF009 - nobody writes to it

        def build(self):
            return Branching()

    with pytest.raises(hypothesis.errors.Unsatisfiable):
        check(leave_alone, programs=st.builds(Given), max_examples=1)


# What a pass mentions.

TABLE = {nn.GELU: F.gelu, "permute": torch.permute}


def pattern(x):
    return torch.relu(torch.neg(x))


def uses_a_table_and_a_pattern(graph_module, limit=torch.clamp):
    for node in graph_module.graph.nodes:
        if node.target in TABLE or isinstance(node.target, nn.Conv2d):
            node.target = F.silu
    fx.replace_pattern(graph_module, pattern, helper)


def helper(x):
    return x.sigmoid() if x is None else torch.sigmoid(x)


def test_references_are_read_from_code_tables_defaults_and_helpers():
    references = references_of(uses_a_table_and_a_pattern)
    expected = {nn.GELU, F.gelu, "permute", torch.permute, nn.Conv2d, F.silu, torch.clamp, torch.sigmoid, torch.relu}
    assert expected <= set(references.operations)
    (program,) = references.patterns
    assert [node.target for node in program.graph.nodes][1:3] == [torch.neg, torch.relu]


LEAST = functools.cmp_to_key(lambda one, other: 0)(0)  # which compares with nothing but its like


def test_a_pass_may_refer_to_values_that_cannot_be_compared() -> None:
    def keep(module: fx.GraphModule) -> fx.GraphModule:
        return (module, LEAST)[0]

    assert references_of(keep).operations == ()


def test_references_are_read_from_fields_and_adapted_passes():
    @dataclass
    class Fuse:
        target: object = torch.cos

        def __call__(self, graph_module):
            return graph_module

    def torch_pass(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return graph_module.graph.find_nodes(op="call_function", target=torch.sin)

    assert references_of(Fuse()).operations == (torch.cos,)
    assert torch.sin in references_of(fx.interop.adapt(torch_pass)).operations
    assert nn.Linear in references_of(fx.passes.FuseConvBN()).operations


def test_references_include_linear_algebra_attributes_and_infinities():
    def masks(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.linalg.vector_norm):
            node.args = (-math.inf, "mT", "act", "norm")

    references = references_of(masks)
    assert {torch.linalg.vector_norm, "mT", "norm"} <= set(references.operations)
    assert {math.inf, -math.inf, "act", "norm"} <= set(references.constants)


def test_checks_are_references_by_name_and_by_a_question_about_impurity():
    def erase(program):
        for node in program.graph.find_nodes(op="call_function", target=torch._assert):
            program.graph.erase_node(node)

    def erase_by_name(program):
        return [node for node in program.graph.nodes if node.name.startswith("_assert")]

    def erase_what_may_go(program):
        return [node for node in program.graph.nodes if not node.is_impure()]

    for pass_ in (erase, erase_by_name, erase_what_may_go):
        assert torch._assert in references_of(pass_).operations
    assert torch._assert not in references_of(relu_method_as_function).operations


def test_references_in_a_set_have_the_same_order_in_every_process():
    def activations(program):
        return program.graph.find_nodes(op="call_function", target=wanted)

    wanted = {torch.tanh, torch.relu, torch.sin, torch.cos, torch.exp, F.gelu, torch.neg, torch.abs}
    references = references_of(activations).operations
    assert [operation.__name__ for operation in references if operation in wanted] == [
        *("gelu", "abs", "cos", "exp", "neg", "relu", "sin", "tanh")
    ]


def never_return():
    while True:
        try:
            len("")  # a call: before "try", Python 3.10 lets nothing interrupt a loop
        except Exception:
            continue


def test_a_watchdog_ends_a_pass_that_catches_every_exception():
    with Watchdog() as watchdog:
        with pytest.raises(TookTooLong), watchdog.limit(0.05):
            never_return()
        with watchdog.limit(60):
            assert close


def test_constants_that_a_pass_mentions_are_found():
    def eighths(graph_module):
        return [node for node in graph_module.graph.nodes if node.args[1] in (8.5, 8) or node.kwargs == "reflect"]

    references = references_of(eighths).constants
    assert {8.5, 8, "reflect"} <= set(references)


def silu_in_torch(graph_module: torch.fx.GraphModule):
    torch.fx.replace_pattern(graph_module, lambda x: x * torch.sigmoid(x), lambda x: F.silu(x))


def without_dead_code_in_torch(graph_module: torch.fx.GraphModule):
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def silu_before_its_user(graph_module: torch.fx.GraphModule):
    """Do the work of torch's replace_pattern in the pass itself."""
    for node in list(graph_module.graph.nodes):
        if node.target == torch.sigmoid:
            (product,) = node.users
            with graph_module.graph.inserting_before(next(iter(product.users))):
                call = graph_module.graph.call_function(F.silu, node.args)
            product.replace_all_uses_with(call)
            graph_module.graph.erase_node(product)
            graph_module.graph.erase_node(node)
    graph_module.recompile()


class WrittenAfterwards(nn.Module):
    def forward(self, x):
        y = x + 1
        z = y * torch.sigmoid(y)
        y.neg_()
        return z, y


def program_given(build):
    return st.just(GivenProgram(build, Arguments((torch.ones(2, 2),), {}), build.__name__))


class ReplacedTwice(nn.Module):
    def forward(self, x):
        y = x + 1
        z = y * torch.sigmoid(y)
        y.neg_()
        two = y * torch.sigmoid(y)
        return z, two * torch.sigmoid(two)


class ReturnsASize(nn.Module):
    def forward(self, x):
        return torch.ones(2, 3).size(), torch.relu(x)


def relu_in_torch(graph_module: torch.fx.GraphModule):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        with graph_module.graph.inserting_before(node):
            node.replace_all_uses_with(graph_module.graph.call_function(F.relu, node.args, node.kwargs))
    graph_module.recompile()


@pytest.mark.parametrize(
    "pass_, program",
    [
        (silu_in_torch, WrittenAfterwards),
        (silu_in_torch, ReplacedTwice),
        (without_dead_code_in_torch, WrittenAfterwards),
        (relu_in_torch, ReturnsASize),
    ],
)
def test_faults_of_torch_fx_tools_are_not_blamed_on_passes(check, pass_, program):
    report = check(pass_, programs=program_given(program), max_examples=1)
    assert report.unjudged == 1


class CubesOfBooleans(nn.Module):
    def forward(self, x):
        return torch.erf(torch.pow(x > 0, 3))


def test_a_kernel_that_torch_lacks_for_a_dtype_of_the_program_is_not_blamed_on_a_pass(check):
    def erf_as_gelu(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.erf):
            node.target = F.gelu
        graph_module.recompile()

    report = check(erf_as_gelu, programs=program_given(CubesOfBooleans), max_examples=1, min_changed=0)
    assert report.unjudged == 1


RAISES_THE_SECOND_TIME = """
import torch
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        size = self.count.add_(1).int().item()
        return torch.relu(x).reshape(2 // size, -1) if size < 2 else x.reshape(7)


def build():
    return Program()


def inputs():
    return (torch.ones(2),), {}
"""


def test_a_program_that_does_not_run_twice_is_no_variation():
    assert running(RAISES_THE_SECOND_TIME) is None


class ReturnsNothingFinite(nn.Module):
    def forward(self, x):
        return torch.log(-1 - torch.relu(x))


def test_a_program_that_returns_no_finite_number_is_not_counted_as_changed(check):
    def relu_as_tanh(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.tanh
        graph_module.recompile()

    report = check(relu_as_tanh, programs=program_given(ReturnsNothingFinite), max_examples=1, min_changed=0)
    assert (report.changed, report.uncompared) == (0, 1)
    assert "1 were not judged: what they return is empty or not finite" in str(report)


def test_faults_of_a_torch_fx_pass_itself_are_blamed_on_it(check):
    violation = violation_of(check, silu_before_its_user, programs=program_given(WrittenAfterwards), max_examples=1)
    assert violation.law == "contract"


def test_new_nodes_move_to_the_places_of_the_nodes_they_replace():
    def forward(x, y):
        first = y * torch.sigmoid(y)
        y.neg_()
        second = y * torch.sigmoid(y)
        return x + first, second

    program = PutBack(load_pass(silu_in_torch))(fx.symbolic_trace(forward))
    called = [node.target for node in program.graph.nodes if node.op.startswith("call")]
    assert called == [F.silu, "neg_", F.silu, operator.add]
    inputs = torch.arange(3.0), torch.arange(3.0)
    for actual, expected in zip(program(*(part.clone() for part in inputs)), forward(*inputs), strict=True):
        assert torch.allclose(actual, expected)


def test_as_many_programs_are_tried_as_there_are_and_none_twice(check):
    sources = []

    def note(graph_module):
        sources.append(graph_module.code)

    report = check(note, programs=programs(steps=4), max_examples=24)
    assert report.programs == 24 and len(set(sources)) > 18
    assert check(note, programs=program_given(WrittenAfterwards), modes=("eval",), max_examples=24).programs <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("derandomize", [True, False], ids=["derandomize", "--hypothesis-seed"])
def test_programs_are_the_same_in_each_run_if_hypothesis_is_derandomized(check, monkeypatch, derandomize):
    monkeypatch.setattr("hypothesis.core.global_force_seed", None if derandomize else 5)
    runs = []
    for _ in range(2):
        runs.append([])
        settings = hypothesis.settings(QUICK, derandomize=derandomize)
        # Messages of checks name the file of a drawn program, and each file has another number.
        keep = lambda program: runs[-1].append(re.sub(r"<program \d+>", "", program.code))  # noqa: E731
        check(keep, settings=settings, seed=None, without=("deterministic",))
    assert runs[0] == runs[1] and len(set(runs[0])) > 20


@pytest.mark.parametrize("given", [None, programs(steps=4)], ids=["drawn", "of a strategy"])
def test_programs_of_a_seed_do_not_depend_on_other_modules(check, tmp_path, monkeypatch, given):
    def run():
        recorded = []
        keep = lambda program: recorded.append((program.training, re.sub(r"<program \d+>", "", program.code)))  # noqa: E731
        check(keep, programs=given, without=("deterministic",), max_examples=20)
        return recorded

    def modes(seen):
        return [mode for mode, _ in seen]

    before = run()
    constants = [*range(300), 0.25, -7.5, float("inf"), "reflect"]
    (tmp_path / "an_unrelated_module.py").write_text(f"inf = float('inf')\nmentioned = {constants}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("an_unrelated_module")
    after = run()
    if given is None:
        assert after == before
    else:  # Hypothesis draws from the caller's strategy
        assert modes(after)[:10] == modes(before)[:10]


def only_two_dimensions(graph_module: torch.fx.GraphModule):
    """Fold a batch norm into a linear layer by torch's own condition, which holds for (N, C, L) where L is C."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.find_nodes(op="call_module")):
        norm, before = modules[node.target], node.args[0]
        if not isinstance(norm, nn.BatchNorm1d) or before.op != "call_module" or len(before.users) > 1:
            continue
        layer, calls = modules[before.target], [each.target for each in graph_module.graph.nodes]
        is_plain = norm.affine and norm.track_running_stats and not norm.training and calls.count(before.target) == 1
        if is_plain and isinstance(layer, nn.Linear) and layer.out_features == norm.num_features:
            modules[before.target] = fuse_linear_bn_eval(layer, norm)
            parent, _, name = before.target.rpartition(".")
            setattr(graph_module.get_submodule(parent), name, modules[before.target])
            node.replace_all_uses_with(before)
            graph_module.graph.erase_node(node)
    graph_module.recompile()


@pytest.mark.parametrize("seed", thorough_except([0], range(6)))
def test_a_fold_that_is_right_for_other_sizes_is_found_wrong_where_two_are_equal(check, seed):
    violation = violation_of(check, only_two_dimensions, seed=seed, max_examples=100, min_changed=0.05)
    assert violation.law in ("contract", "gradients", "batch sizes", "other values")


def relu_of_the_first():
    """A pass that changes one program, and no other."""
    changed = set()

    def relu_as_function(graph_module):
        code = graph_module.code
        if graph_module.graph.find_nodes(op="call_method", target="relu") and (code in changed or not changed):
            changed.add(code)
            relu_method_as_function(graph_module)

    return relu_as_function


@pytest.mark.thorough
def test_the_search_continues_until_enough_programs_change_and_reports_a_shortfall(check):
    options = {"max_examples": 24, "without": ("gradients", "deterministic", "retraceable")}
    usual = check(relu_method_as_function, min_changed=1, **options)
    assert usual.changed >= usual.wanted == 7 and usual.programs == 24
    assert check(relu_of_the_first(), min_changed=0.01, enough_changed=0, **options).programs == 24
    few = check(relu_of_the_first(), min_changed=0.01, **options)
    assert 0 < few.changed < few.wanted == 7 and 24 < few.programs <= 48
    assert few.changed + few.varied > 7  # programs near to those that it changes count, too
    none = replace(few, changed=2, varied=3)
    assert f"it looked for 7 that are changed, and did not find as many in {few.programs} programs" in str(none)


def without_norms(graph_module):
    modules = dict(graph_module.named_modules())
    for node in graph_module.graph.find_nodes(op="call_module"):
        if isinstance(modules[node.target], nn.BatchNorm1d) and modules[node.target].track_running_stats:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def test_the_smallest_program_still_shows_the_difference(check):
    options = {"modes": ("eval",), "settings": SHRINKING, "max_examples": 100}
    text = str(violation_of(check, without_norms, **options))
    program = text.partition("mode:\n")[2].partition("code before")[0]
    assert program.count("self.batchnorm1d") == 2 and " = self.batchnorm1d" in program
    assert "uniform_" in program  # with fresh statistics it would do next to nothing
    eager, actual = re.findall(r"returns:\n((?:    .*\n)+)", text)
    assert eager != actual
    assert "approximate(" not in text


def slightly_more(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target, node.kwargs = scaled_relu, {}
    graph_module.recompile()


def scaled_relu(x, *_):
    return (torch.relu(x).double() * (1 + 3e-6)).to(x.dtype)


def test_outputs_are_shown_with_as_many_digits_as_differ(check):
    short = programs(ops=[torch.relu], steps=2)
    text = str(violation_of(check, slightly_more, contract="exact", max_examples=200, programs=short))
    eager, actual = re.findall(r"returns:\n((?:    .*\n)+)", text)
    assert eager != actual


def test_shrinking_ends_when_its_time_is_over(check, monkeypatch, smallest):
    monkeypatch.setattr("pytest_fx.search.search.SHRINKING", 0)
    short = str(violation_of(check, add_as_sub, settings=SHRINKING, max_examples=200))
    assert short.count(" = ") > smallest[0].count(" = ")
    assert "the smallest program found" in short


def test_a_program_whose_text_defines_nothing_is_shown_as_it_is(check):
    violation = violation_of(
        check, silu_before_its_user, programs=program_given(WrittenAfterwards), settings=SHRINKING, max_examples=1
    )
    assert "WrittenAfterwards" in str(violation)


def test_patterns_without_a_name_are_found_where_they_are_replaced():
    (pattern, _) = references_of(silu_in_torch).patterns
    assert [node.target for node in pattern.graph.nodes][1:3] == [torch.sigmoid, operator.mul]


def test_a_pass_on_buffers_alone_gets_programs_that_write_to_them():
    def share_buffers(graph_module):
        return {node.target: dict(graph_module.named_buffers()) for node in graph_module.graph.nodes}

    def fetches(graph_module):
        return graph_module.graph.find_nodes(op="get_attr")

    def any_operation(graph_module):
        return [node for node in graph_module.graph.nodes if node.op in ("get_attr", "call_function")]

    assert references_of(share_buffers).operations == references_of(fetches).operations == ("get_attr",)
    assert references_of(any_operation).operations == ()
    rows = {tuple(sorted(choice.row.tags)) for chain in chains(["get_attr"]) for step in chain for choice in step}
    assert rows == {("in-place", "state")}


def test_functions_of_torch_that_are_written_in_python_are_mentioned():
    def products(graph_module):
        return graph_module.graph.find_nodes(op="call_function", target=torch.einsum)

    assert references_of(products).operations == (torch.einsum,)


def marked(graph_module):
    """Change a setting of a module that the pass was not given; in evaluation mode change the results, too."""
    for module in graph_module.children():
        module.mark = 1
    if not graph_module.training:
        add_as_sub(graph_module)


def test_the_message_starts_with_the_violation_that_guided_the_shrinking(tmp_path):
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return torch.relu(self.layer(x)) + x

    like = fx.symbolic_trace(Program()), (torch.ones(2, 2),)
    options = {"settings": SHRINKING, "seed": 1, "folder": tmp_path, "max_examples": 4, "min_changed": 0}
    with pytest.raises(LawViolation) as caught:
        check_pass(marked, like=like, modes=("train", "eval"), **options)
    text = str(caught.value)
    assert text.startswith("law 'contract': marked changes what the program computes")
    assert "also   law 'original untouched'" not in text  # a program without a layer shows it, too
    assert "self.layer" not in text.partition("the smallest program found")[2]
    assert [path.name for path in tmp_path.glob("test_*.py")] == ["test_marked_keeps_contract.py"]
