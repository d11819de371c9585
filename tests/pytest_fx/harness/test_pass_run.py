"""pytest_fx.harness.pass_run: a pass applied to a subject, and its effects."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from judged import made_in_float64, violations_of
from models_of_users import FORKING
from torch import nn

from fx.passes.infra.pass_base import PassResult
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, applied
from pytest_fx.harness.subject import Subject


def subject() -> Subject:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return Subject("own", module, lambda input_set: Arguments((torch.ones(1, 3, 8, 8),)))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_pass_that_does_nothing_changes_nothing(leaves):
    assert not PassRun(subject(), lambda program: None, leaves=leaves).changed


def test_without_leaf_modules_a_pass_sees_functions_only():
    operations = set()

    def look(program):
        operations.update(node.op for node in program.graph.nodes)

    PassRun(subject(), look, leaves=False)
    assert "call_function" in operations
    assert "call_module" not in operations


def test_a_pass_sees_a_capture_in_the_dtype_requested():
    dtypes = []

    def look(program):
        dtypes.append((next(program.parameters()).dtype, torch.get_default_dtype()))

    PassRun(subject(), look)
    made_in_float64(subject(), look)
    assert dtypes == [(torch.float32, torch.float32)] * 2 + [(torch.float64, torch.float64)]


def edit_graph(program):
    node = next(node for node in program.graph.nodes if node.op == "call_module" and node.target == "2")
    node.replace_all_uses_with(node.args[0])
    program.graph.erase_node(node)


def replace_parameter(program):
    program.get_submodule("0").weight = nn.Parameter(torch.zeros(4, 3, 3, 3))


def change_setting(program):
    program.get_submodule("1").eps = 0.5


@pytest.mark.parametrize("pass_", [edit_graph, replace_parameter, change_setting])
def test_an_edit_of_the_graph_a_parameter_or_a_setting_is_a_change(pass_):
    def on_a_copy(program):
        program = copy.deepcopy(program)
        pass_(program)
        return program

    assert PassRun(subject(), on_a_copy).changed


def test_a_pass_may_return_a_result_that_holds_the_program():
    def on_a_copy(program):
        program = copy.deepcopy(program)
        edit_graph(program)
        program.recompile()
        return PassResult(program, False)

    run = PassRun(subject(), on_a_copy)
    assert run.changed and "2" not in [node.target for node in run.program.graph.nodes]


def test_a_buffer_that_is_not_saved_is_the_originals_too():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(2), persistent=False)

        def forward(self, x):
            return x + self.shift

    def write(program):
        next(program.buffers()).zero_()

    violation = violations_of(Subject("own", Shifted(), lambda input_set: Arguments((torch.ones(2),))), write)[-1]
    assert violation.law == "original untouched"
    assert "it wrote to shift" in str(violation)


def test_nodes_are_counted_before_and_after_and_the_code_is_as_the_pass_left_it():
    pass_run = PassRun(subject(), edit_graph)
    assert pass_run.before is not None and pass_run.after is not None
    assert (len(pass_run.before.nodes), len(pass_run.after.graph.nodes)) == (5, 4)
    assert pass_run.after.code == pass_run.before.code != pass_run.written


def test_the_pass_is_called_once_for_all_that_ask():
    calls = []

    def count(program):
        calls.append(program)

    judged = subject()
    for _ in range(3):
        assert applied(judged, count).after is not None
    assert len(calls) == 1


def test_eager_is_unchanged_after_a_pass_that_wrote_to_the_original():
    def zero(program):
        with torch.no_grad():
            for parameter in program.parameters():
                parameter.zero_()

    judged = subject()
    before = judged.eager().output
    pass_run = PassRun(judged, zero)
    assert pass_run.damage == "it wrote to 0.weight, 0.bias, 1.weight"
    assert torch.equal(PassRun(judged, lambda program: None).actual().output, before)
    assert not torch.equal(pass_run.actual().output, before)


def test_a_graph_that_is_not_well_formed_is_reported():
    def call_what_is_not_there(program):
        next(node for node in program.graph.nodes if node.op == "call_module").target = "missing"

    by_law = {violation.law: str(violation) for violation in violations_of(subject(), call_what_is_not_there)}
    assert "missing" in by_law["well formed"]


def rename_the_input(program):
    (node,) = program.graph.find_nodes(op="placeholder")
    node.target = "renamed"


def test_another_signature_is_reported_unless_the_pass_says_that_it_may_change():
    by_law = {violation.law: str(violation) for violation in violations_of(subject(), rename_the_input)}
    assert by_law["signature"].startswith("law 'signature': the program's inputs are (renamed) instead of (input)")

    def allowed(program):
        rename_the_input(program)
        program.recompile()

    allowed.may_change = ("signature",)
    assert not violations_of(subject(), allowed)


def test_a_default_is_part_of_the_signature():
    class Scaled(nn.Module):
        def forward(self, x, scale=2):
            return x * scale

    def drop_the_default(program):
        program.graph.find_nodes(op="placeholder")[1].args = ()
        program.recompile()

    scaled = Subject("own", Scaled(), lambda input_set: Arguments((torch.ones(2), 3)))
    (violation,) = violations_of(scaled, drop_the_default)
    assert "(x, scale) instead of (x, scale=2)" in str(violation)


def test_complex_parameters_that_a_pass_makes_are_compared_with_both_their_parts():
    class Rotated(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))

        def forward(self, x):
            return x @ self.weight

    def conjugate_twice(program):
        program.weight = nn.Parameter(program.weight.detach().conj().resolve_conj().conj().resolve_conj())
        return program

    arguments = Arguments((torch.randn(2, 3, dtype=torch.complex64),))
    assert not violations_of(Subject("rotated", Rotated(), lambda input_set: arguments), conjugate_twice)


def test_a_program_that_a_pass_keeps_stays_whole():
    cache = {}

    def memoized(program):
        return cache.setdefault(program.code, program)

    subject = Subject("linear", nn.Linear(3, 3), lambda input_set: Arguments((torch.ones(1, 3),)))
    for pass_ in (memoized, lambda program: program, memoized):
        pass_run = applied(subject, pass_)
        assert pass_run.actual().error is None
    (program,) = cache.values()
    assert program(torch.ones(1, 3)).shape == (1, 3)


APPLIED = """
import multiprocessing, time, warnings
from torch import nn
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject

def by_multiprocessing(program):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.2,), daemon=True).start()

warnings.simplefilter("ignore")  # Python's own, of forks beside threads
print(PassRun(Subject("linear", nn.Linear(3, 3), None), {pass_}).disturbance)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "pass_, changes",
    [
        ("in_a_thread", []),
        ("by_multiprocessing", []),
        ("fork", ["a child process, forked by os.fork, was left behind"]),
    ],
)
def test_only_copies_of_the_process_that_go_on_with_the_pass_are_blamed_on_it(pass_, changes):
    code = FORKING + APPLIED.replace("{pass_}", pass_)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(changes)


def test_a_child_that_was_there_before_is_not_blamed_on_a_pass_that_forks():
    def forking(program):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    subject = Subject("linear", nn.Linear(3, 3), lambda input_set: Arguments((torch.ones(1, 3),)))
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not PassRun(subject, forking).disturbance
    finally:
        other.communicate()
