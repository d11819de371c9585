"""--fx-check: a pass on random programs, without a test being written."""

import pytest

pytestmark = pytest.mark.usefixtures("little_explored")

PASSES = '''
"""A user's passes."""
import torch


def relu_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_method", target="relu"):
        node.op, node.target = "call_function", torch.relu
    graph_module.recompile()


def relu_as_abs(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.abs
    graph_module.recompile()


def no_pass(graph_module):
    return None
'''


@pytest.fixture
def passes(pytester, monkeypatch):
    """A folder with the user's module ``passes_of_mine``."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    pytester.makepyfile(passes_of_mine=PASSES)
    return pytester


def test_a_right_pass_is_reported_with_its_changes(passes):
    result = passes.runpytest("--fx-check", "remove-dead-code", "--fx-examples", "6", "--hypothesis-seed=1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*remove-dead-code changed * of * programs*and kept * laws*"])


def test_mutants_of_a_pass_are_counted_below_it(passes):
    options = ("--fx-check", "passes_of_mine:relu_as_function", "--fx-examples", "4", "--fx-mutate", "3")
    result = passes.runpytest(*options, "--hypothesis-seed=1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["relu-as-function changed *", "relu-as-function: 3 of 4 mutants: 2 killed, *"])


@pytest.mark.thorough
def test_a_wrong_pass_fails_with_its_smallest_program_and_a_file_that_fails_alone(passes):
    options = ("--fx-check", "passes_of_mine:relu_as_abs", "--fx-examples", "200", "--hypothesis-seed=1")
    result = passes.runpytest(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*law 'contract': relu-as-abs changes *", "*the smallest program found, in * mode:", "*code after the pass:"]
    )
    (path,) = (passes.path / ".pytest_fx").glob("test_*.py")
    assert path.name == "test_relu_as_abs_keeps_contract.py"
    alone = passes.runpytest(path)
    alone.assert_outcomes(failed=1)
    alone.stdout.fnmatch_lines("*law 'contract': relu-as-abs changes *")


def test_a_pass_that_changes_nothing_fails_without_a_broken_law(passes):
    result = passes.runpytest("--fx-check", "passes_of_mine:no_pass", "--fx-examples", "5", "--hypothesis-seed=1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*NothingJudged: no-pass changed 0 of * programs: too few to judge it")
    result.stdout.fnmatch_lines("nothing judged: no-pass changed 0 of * programs: too few to judge it")
    assert "law '" not in result.stdout.str()


def test_the_fixture_takes_the_options_and_the_arguments_of_a_test(passes):
    passes.makepyfile(
        """
        import passes_of_mine

        def test_it(fx_check_pass):
            report = fx_check_pass(passes_of_mine.no_pass, min_changed=0, seed=1)
            assert (report.programs, report.changed) == (7, 0)
        """
    )
    result = passes.runpytest("--fx-examples", "7")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        "no-pass changed 0 of 7 programs and kept 27 laws; 1 of 1 lines and branches of its code were reached"
    )


def test_the_fixture_takes_tolerances(passes, monkeypatch):
    recorded = []
    monkeypatch.setattr(
        "pytest_fx.search.pass_check.check_pass", lambda pass_, **given: recorded.append(given["contract"])
    )
    passes.makepyfile("import passes_of_mine\ndef test_it(fx_check_pass): fx_check_pass(passes_of_mine.no_pass)")
    passes.runpytest("--fx-rtol", "0.5", "--fx-error-factor", "3").assert_outcomes(passed=1)
    assert [str(contract) for contract in recorded] == ["close(rtol=0.5, atol=1e-08, error_factor=3)"]


MODELS = '''
"""A user's model, with a row of operators that no random program has, and a pass on it that is wrong."""
import torch

ROW = "tanh", "flip", "".join(("ro", "ll"))


class Turned(torch.nn.Module):
    def forward(self, x):
        return (x * 2).roll(3, 1).flip(1).tanh() + x


def turned():
    return Turned(), torch.arange(10.0).reshape(2, 5)


def unturned(graph_module):
    for last in graph_module.graph.find_nodes(op="call_method", target="tanh"):
        row = [last, *last.all_input_nodes]
        row += row[-1].all_input_nodes
        if tuple(node.target for node in row) == ROW and len(row[2].args) == 3:
            row[1].replace_all_uses_with(row[2].args[0])
            graph_module.graph.erase_node(row[1])
            graph_module.graph.erase_node(row[2])
    graph_module.recompile()


def without_inputs():
    return Turned()
'''


def test_the_places_of_models_where_the_pass_acts_are_tried_first(passes):
    passes.makepyfile(models_of_mine=MODELS)
    options = ("--fx-check", "models_of_mine:unturned", "--fx-examples", "5", "--hypothesis-seed=1", "-k", "laws")
    result = passes.runpytest(*options, "--fx-model", "mlp", "--fx-model", "models_of_mine:turned")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*law 'contract': unturned changes *", "*found after 1 program(s), of which *"])
    passes.makepyfile(
        """
        import pytest

        @pytest.mark.fx(model=["mlp", "gpt2_small"])
        def test_it(fx_check_pass):
            report = fx_check_pass("remove-identities", seed=1, max_examples=1)
            assert report.models == ("none in mlp", "4 in gpt2_small")
            assert fx_check_pass("remove-identities", models=(), seed=1, min_changed=0, max_examples=1).places == 0

        @pytest.mark.fx(model="gpt2_small", dtype="float64")
        def test_dtype(fx_check_pass):
            report = fx_check_pass("remove-identities", seed=1, max_examples=1)
            assert report.models == ("4 in gpt2_small",)
        """
    )
    result = passes.runpytest()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("*4 were places of models where it acts: none in mlp, 4 in gpt2_small")


def test_a_model_without_a_place_to_cut_out_is_refused(passes):
    passes.makepyfile(models_of_mine=MODELS)
    result = passes.runpytest(
        "--fx-check", "remove-identities", "--fx-model", "models_of_mine:without_inputs", "-k", "laws"
    )
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines("*no place can be cut out of models_of_mine:without_inputs: it has no example inputs")


def test_orders_of_a_single_pass_are_refused_in_one_sentence(passes):
    result = passes.runpytest("--fx-check", "remove-dead-code", "--fx-orders", "--fx-examples", "3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*remove-dead-code has no orders: it is a single pass*")


def test_orders_without_a_check_have_no_effect(passes):
    passes.makepyfile("def test_nothing(): pass")
    result = passes.runpytest("--fx-orders")
    assert result.ret != 0
    result.stderr.fnmatch_lines("*--fx-orders has no effect*")
