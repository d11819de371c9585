"""--fx-pass: which passes are applied."""

import pytest

CONTRACT = "test_pass_keeps_its_contract"


def test_without_the_option_every_registered_pass_that_changes_the_model_is_applied(pytester):
    result = pytester.runpytest("--fx-model", "resnet_tiny", "-k", CONTRACT, "-v", "-rs")
    assert result.ret == 0
    result.stdout.fnmatch_lines("*?resnet_tiny-fuse-conv-bn? *PASSED*")


def test_a_pass_that_finds_nothing_to_do_has_a_row_that_says_so_and_is_not_timed(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "-k", f"({CONTRACT} or timing) and fuse-conv-bn", "-rs", "-v")
    result.stdout.fnmatch_lines(["SKIPPED*fuse-conv-bn finds nothing to change in mlp"])
    result.stdout.fnmatch_lines(["mlp *fuse-conv-bn *changes nothing*"])


def test_a_named_pass_is_the_only_one(pytester):
    result = pytester.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "-k", CONTRACT, "-v")
    assert result.parseoutcomes()["passed"] == 1
    assert "skipped" not in result.parseoutcomes()


def test_a_named_pass_that_changes_nothing_is_judged_but_not_timed(user):
    result = user.runpytest(
        "--fx-model", "mine:pair", "--fx-pass", "mine:unchanged", "-k", f"{CONTRACT} or timing", "-v"
    )
    assert (result.parseoutcomes()["passed"], result.parseoutcomes()["skipped"]) == (1, 1)


def test_a_pass_that_changes_nothing_in_a_large_model_is_not_run_again(pytester):
    pytester.makepyfile(
        large="""
        from dataclasses import dataclass
        import torch

        def model():
            return torch.nn.Linear(1024, 1024), torch.ones(1, 1024)

        @dataclass
        class Counting:  # which cannot be hashed
            calls: int = 0

            def __call__(self, program):
                self.calls += 1
                print(f"called {self.calls} times.")

        idle = Counting()
        """
    )
    options = ("--fx-model=large:model", "--fx-pass=large:idle", "-s", "-v", "-k", f"{CONTRACT} or timing")
    judged, _, timed = pytester.runpytest(*options).stdout.str().partition("test_pass_timing")
    assert "called" in judged and "called" not in timed and "SKIPPED" in timed


def test_a_wrong_pass_fails_with_output_place_values_and_eagers_own_error(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", CONTRACT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': scaled changes what mine:pair computes",
            "*where  output[[]*], the worst of 8 wrong in 8 element(s), float32",
            "*value  eager *, transformed *",
            "*in float64 eager *, transformed *",
            "*why    they are * apart, SQNR 60.* dB",
            "*close(rtol=1e-05, atol=1e-08) allows * in float64",
            "*eager's rounding error in float32 is at most *",
            "*the first node that goes wrong:",
            "*%linear = call_module[[]linear[]](%x)",
            "*where *mine.py:*x = self.linear(x)",
            "*value  linear[[]*] is * in the original, * here",
            "*the worst of 8 wrong in 8 element(s), both in float64",
            "*error  added by this node *, by its inputs 0, rounding *",
        ]
    )
    result.stdout.no_fnmatch_line("*approximate(*")  # which is no remedy for a plain fault


def test_a_pass_is_judged_by_the_contract_it_carries(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:approximate_scaled", "-k", CONTRACT)
    assert result.parseoutcomes()["passed"] == 1


def test_a_pass_class_is_made_and_called_by_its_own_name(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:Renamed", "-k", CONTRACT, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines("mine:pair *my-pass *")


def test_a_pass_that_writes_to_the_original_is_caught(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:in_place", "-k", CONTRACT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': in-place *",
            "*also*law 'original untouched'*",
        ]
    )


def test_a_pass_that_returns_no_program_gets_an_error(user):
    result = user.runpytest("--fx-model", "mine:pair", "--fx-pass", "mine:lost", "-k", CONTRACT)
    result.stdout.fnmatch_lines(
        ["*LawViolation: law 'returns a program': lost returned no program", "*an object of type int"]
    )


@pytest.mark.parametrize(
    "name, lines",
    [
        ("fuse-conv-nb", ["ERROR: there is no pass named 'fuse-conv-nb'", "*did you mean 'fuse-conv-bn'*"]),
        ("mine:scale", ["ERROR: there is no pass named 'mine:scale'", "*did you mean 'mine:scaled'*"]),
        ("mine:not_callable", ["ERROR: the pass 'mine:not_callable' cannot be called"]),
    ],
)
def test_an_unknown_pass_is_answered_with_the_nearest_names_and_no_traceback(user, name, lines):
    result = user.runpytest("--fx-model", "mlp", "--fx-pass", name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)
    result.stderr.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    "definition, why",
    [
        ("def asking(program, sizes): return program", "missing a required argument: 'sizes'"),
        ("def asking(): return None", "too many positional arguments"),
        (
            "class asking:\n    def __call__(self, program, *, sizes): return program",
            "missing a required *argument: 'sizes'",
        ),
    ],
)
def test_a_pass_that_asks_for_more_or_less_than_a_program_is_refused_before_anything_runs(user, definition, why):
    user.makepyfile(asking=definition)
    for option in ("--fx-pass", "--fx-check"):
        result = user.runpytest("--fx-model", "mine:pair", option, "asking:asking")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [
                "ERROR: the pass 'asking' cannot be called with a program alone",
                "  where  *asking(*)",
                f"  why    {why}",
                "  try    give its other parameters defaults, or name a function that calls it with what it needs",
            ]
        )


def test_a_pipeline_in_text_is_one_pass(user):
    pipeline = "fuse-conv-bn,remove-dead-code"
    result = user.runpytest("--fx-model", "resnet_tiny", "--fx-pass", pipeline, "-k", CONTRACT, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [f"*{CONTRACT}?resnet_tiny-{pipeline}? PASSED*", f"resnet_tiny  {pipeline} *67 -> 47 *"]
    )


def test_options_of_a_pass_can_be_given_in_text_and_a_wrong_one_is_a_usage_error(user):
    result = user.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "split{at=layer3}", "-k", CONTRACT)
    assert result.ret == 0
    result = user.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "split{after=layer3}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: *after*")


TORCH_PASSES = """
import operator
import torch
from torch.fx import GraphModule

def negate(graph_module: GraphModule) -> GraphModule:
    for node in graph_module.graph.nodes:
        if node.op == "call_module" and node.target == "linear":
            with graph_module.graph.inserting_after(node):
                negated = graph_module.graph.call_function(operator.neg, (node,))
            node.replace_all_uses_with(negated, delete_user_cb=lambda user: user is not negated)
    return torch.fx.GraphModule(graph_module, graph_module.graph)

def untouched(graph_module):
    assert isinstance(graph_module, GraphModule)
"""


def test_a_pass_written_for_torch_fx_is_run_and_judged_like_any_other(user):
    user.makepyfile(theirs=TORCH_PASSES)
    run = ("--fx-model", "mine:pair", "-k", CONTRACT)
    assert user.runpytest(*run, "--fx-pass", "theirs:untouched").ret == 0
    result = user.runpytest(*run, "--fx-pass", "theirs:negate")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': negate changes what mine:pair computes",
            "*the first node that goes wrong:",
            "*%neg = call_function[[]operator.neg[]](%linear)",
        ]
    )


STEPWISE = """
import torch
from fx.passes import Edit, RewritingPass

class Widen(RewritingPass):
    def rewrites(self, graph_module):
        for number, node in enumerate(graph_module.graph.find_nodes(op="call_module")):
            yield Edit(f"{node.target} is multiplied", node.source)
            with graph_module.graph.inserting_after(node):
                wider = graph_module.graph.call_function(torch.mul, (node, 1.5 if number == 3 else 1.0))
            node.replace_all_uses_with(wider, delete_user_cb=lambda user: user is not wider)
"""


@pytest.mark.thorough
def test_the_edit_with_which_a_stepwise_pass_goes_wrong_is_named(user):
    user.makepyfile(stepwise=STEPWISE)
    result = user.runpytest("--fx-model", "mlp", "--fx-pass", "stepwise:Widen", "-k", CONTRACT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*the first edit that goes wrong: edit 4 of widen: layers.3 is multiplied (*small_models.py:*)"]
    )


SPECIALIZING = """
import torch
from torch import nn

class Rectified(nn.Module):
    def forward(self, x):
        return torch.relu(x + 0.5) * 2

def model():
    return Rectified(), torch.ones(300)

def drop_relu(program):
    # "the example is positive anyway"
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    program.recompile()

def raise_later(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.linalg.det
    program.recompile()
"""


@pytest.mark.thorough
def test_a_program_specialized_to_the_values_of_the_example_fails_on_other_values(user):
    user.makepyfile(special=SPECIALIZING)
    user.makeconftest(
        """
        import torch
        from model_zoo import ZooModel
        from special import Rectified

        def pytest_fx_register(config):
            def inputs(batch=1, seed=0):
                return (torch.full((batch, 300), 1.0 - 2 * (seed % 2)),)
            yield ZooModel("rectified_of_a_conftest", Rectified, inputs, "here")
        """
    )
    options = ("--fx-model", "rectified_of_a_conftest", "--fx-pass", "special:drop_relu", "-k", CONTRACT)
    result = user.runpytest_subprocess("-p", "no:cacheprovider", *options, "-s", "--rootdir=.")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': drop-relu changes what rectified_of_a_conftest computes",
            "*the first node that goes wrong:",
            "*%add = call_function[[]operator.add[]](%x, 0.5)",
            "*a test of 3 nodes that shows it alone: .pytest_fx/drop_relu_*.py",
            "*details: *failure.md",
        ]
    )


def test_a_program_that_raises_where_eager_does_not_breaks_its_contract_with_the_node(user):
    user.makepyfile(special=SPECIALIZING)
    result = user.runpytest("--fx-model", "special:model", "--fx-pass", "special:raise_later", "-k", CONTRACT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': raise-later makes special:model raise where eager does not",
            "*value *Error: linalg.det: *",
            "*%relu = call_function[[]torch.*det[]](%add)",
            "*special.py:*return torch.relu(x + 0.5) * 2",
        ]
    )
