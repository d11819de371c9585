"""A pass of torch.fx is adapted wherever its name or the pass itself comes from."""

import pytest

THEIRS = """
import torch
import torch.fx
from torch import nn
from fx.passes import PassPipeline

class Network(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def network():
    return Network(), torch.ones(3, 4)

def functional_relu(graph_module):
    assert isinstance(graph_module, torch.fx.GraphModule), type(graph_module)
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.nn.functional.relu
    graph_module.recompile()

class Renamed:
    def __init__(self, prefix: str = "new_"):
        self.prefix = prefix
    def __call__(self, graph_module: torch.fx.GraphModule):
        assert isinstance(graph_module, torch.fx.GraphModule), type(graph_module)
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.nn.functional.relu):
            node.name = self.prefix + node.name
        graph_module.recompile()
        return graph_module

both = PassPipeline([functional_relu, Renamed])
"""
MODEL = ("--fx-model", "theirs:network", "--fx-no-timing", "-v")
ONE = ("-k", "test_pass_keeps_its_contract")


@pytest.fixture
def theirs(pytester):
    pytester.makepyfile(theirs=THEIRS)
    return pytester


@pytest.mark.parametrize("text", ["theirs:functional_relu", "theirs:functional_relu,theirs:Renamed", "theirs:both"])
def test_the_command_line_takes_one_pass_several_and_pipelines(theirs, text):
    result = theirs.runpytest(*MODEL, "--fx-pass", text, *ONE)
    result.assert_outcomes(passed=1, deselected=14)
    assert "4 -> 4" in result.stdout.str()


def test_the_ini_file_takes_the_values_of_the_command_line(theirs):
    theirs.makeini("[pytest]\nfx_pass = theirs:functional_relu,theirs:Renamed")
    result = theirs.runpytest(*MODEL, *ONE)
    result.assert_outcomes(passed=1, deselected=14)
    assert "4 -> 4" in result.stdout.str()


def test_a_comma_list_mixes_registered_passes_and_paths_and_options_are_in_braces(theirs):
    theirs.makepyfile(
        ours="""
        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Named:
            suffix: str = "_"

            def __call__(self, program):
                for node in program.graph.find_nodes(op="placeholder"):
                    assert self.suffix == "x"
        """
    )
    text = "remove-dead-code,theirs:functional_relu,ours:Named{suffix=x}"
    result = theirs.runpytest(*MODEL, "--fx-pass", text, *ONE)
    result.assert_outcomes(passed=1, deselected=14)
    result = theirs.runpytest(*MODEL, "--fx-pass", "theirs:functional_relu{n=2}")
    result.stderr.fnmatch_lines("*pass 'theirs:functional_relu' takes no options*")


@pytest.mark.parametrize("name", ["functional-relu", "functional-relu,renamed"])
def test_the_hook_registers_passes_of_torch_fx(theirs, name):
    theirs.makeconftest(
        """
        def pytest_fx_register(config):
            import theirs
            return [theirs.functional_relu, theirs.Renamed]
        """
    )
    result = theirs.runpytest(*MODEL, "--fx-pass", name, *ONE)
    result.assert_outcomes(passed=1, deselected=14)
    assert "4 -> 4" in result.stdout.str()


@pytest.mark.thorough
def test_markers_and_arguments_of_fixtures_take_the_passes_themselves(theirs):
    theirs.makepyfile(
        test_own="""
        import pytest, theirs
        from pytest_fx import check_pass

        @pytest.mark.fx(pass_=[theirs.functional_relu, theirs.both])
        def test_marked(fx_pass, fx_transformed, fx_equal):
            assert "functional.relu" in fx_transformed.code
            fx_equal(fx_pass)

        @pytest.mark.parametrize("fx_pass", [theirs.functional_relu, theirs.both, "theirs:functional_relu"])
        def test_direct(fx_pass, fx_transformed, fx_equal):
            assert "functional.relu" in fx_transformed.code
            fx_equal(fx_pass)

        TEXT = "theirs:functional_relu,theirs:Renamed"

        @pytest.mark.parametrize("given", [theirs.functional_relu, theirs.both, TEXT])
        def test_checked(given, fx_check_pass):
            fx_check_pass(given, max_examples=20, seed=0)
            check_pass(given, max_examples=20, seed=0)
        """
    )
    theirs.runpytest(*MODEL, "test_own.py").assert_outcomes(passed=8)


@pytest.mark.thorough
def test_a_failure_of_a_list_leaves_a_test_of_that_list(theirs):
    theirs.makepyfile(
        wrong="""
        import torch, torch.fx

        def to_gelu(graph_module: torch.fx.GraphModule):
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
                node.target = torch.nn.functional.gelu
            graph_module.recompile()
        """
    )
    result = theirs.runpytest(*MODEL, "--fx-pass", "theirs:Renamed,wrong:to_gelu", *ONE)
    result.assert_outcomes(failed=1, deselected=14)
    (path,) = theirs.path.glob(".pytest_fx/*/test_*.py")
    theirs.runpytest_subprocess(str(path)).assert_outcomes(failed=1)
