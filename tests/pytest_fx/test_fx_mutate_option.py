"""--fx-mutate NAME: the mutants of a pass that neither the search nor the user's tests notice."""

import pytest

pytestmark = pytest.mark.usefixtures("little_explored")

PASSES = '''
"""A user's passes."""
import torch


def relu_as_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_method", target="relu"):
        node.op, node.target = "call_function", torch.relu
    graph_module.recompile()
'''
TESTS = """
import torch

import fx
from passes_of_mine import relu_as_function


def test_it():
    program = fx.symbolic_trace(lambda x: x.relu())
    relu_as_function(program)
    assert program(torch.ones(2)).sum() == 2
"""


@pytest.fixture
def passes(pytester, monkeypatch):
    """A folder with the user's module ``passes_of_mine`` and a test of it."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    pytester.makepyfile(passes_of_mine=PASSES, test_mine=TESTS)
    return pytester


def test_changes_of_a_pass_are_tried_by_the_search_and_by_the_tests_that_are_named(passes):
    options = ("--fx-mutate", "passes_of_mine:relu_as_function", "--fx-examples", "2")
    result = passes.runpytest(*options, "test_mine.py")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "relu-as-function: 4 mutants: *",
            "  the tests notice 1 of them, not these:",
            "*passes_of_mine.py:*: edit removed: `graph_module.recompile()`*",
        ]
    )


def test_tests_that_fail_with_the_pass_itself_are_refused_in_one_sentence(passes):
    passes.makepyfile(test_mine="def test_it():\n    assert False")
    options = ("--fx-mutate", "passes_of_mine:relu_as_function", "--fx-examples", "2")
    result = passes.runpytest(*options, "test_mine.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*the tests do not pass with passes_of_mine:relu_as_function itself*")


@pytest.mark.parametrize(
    "text, message",
    [
        ("0", "*--fx-mutate: must be an integer from 1 on, or a pass, not '0'"),
        ("no-such-pass", "*there is no pass named 'no-such-pass'*"),
        ("4", "*--fx-mutate has no effect*"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(passes, text, message):
    result = passes.runpytest("--fx-mutate", text)
    assert result.ret != 0
    result.stderr.fnmatch_lines(message)
