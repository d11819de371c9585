"""``--fx-form``: the form of the model that passes get, if they do not show it themselves."""

MINE = """
import fx
import torch
import torch.nn.functional as F
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.linspace(-1, 1, 12).reshape(3, 4)

def _doubled(program, targets):
    found = [node for node in program.graph.nodes if node.op == "call_function" and node.target in targets]
    for node in found:
        with program.graph.inserting_after(node):
            larger = program.graph.call_function(torch.mul, (node, 1))
        node.replace_all_uses_with(larger, lambda user: user is not larger)
    program.recompile()

def for_aten(program):
    _doubled(program, {torch.ops.aten.linear.default})

def for_functions(program):
    _doubled(program, {F.linear})

def theirs_for_aten(program: torch.fx.GraphModule):
    _doubled(program, {torch.ops.aten.linear.default})

def theirs_for_functions(program: torch.fx.GraphModule):
    _doubled(program, {F.linear})

def by_computed_name(program: torch.fx.GraphModule):
    _doubled(program, {getattr(torch.ops, "".join(["at", "en"])).linear.default})
"""
OPTIONS = (
    "--fx-model",
    "mine:plain",
    "--fx-capture",
    "export",
    "--fx-no-timing",
    "-v",
    "-k",
    "pass_keeps_its_contract",
)


def test_a_pass_gets_the_form_that_its_code_mentions(mine):
    names = ("for_aten", "for_functions", "theirs_for_aten", "theirs_for_functions", "by_computed_name")
    chosen = [word for name in names for word in ("--fx-pass", f"mine:{name}")]
    result = mine.runpytest(*OPTIONS, *chosen)
    assert not {"failed", "errors"} & set(result.parseoutcomes())
    edited = [f"mine:plain *{name.replace('_', '-')} *7 -> 8 *aten *" for name in names if name.endswith("for_aten")]
    edited += [f"mine:plain *{name.replace('_', '-')} *10 -> 11 *" for name in names if name.endswith("functions")]
    result.stdout.fnmatch_lines_random([*edited, "mine:plain *by-computed-name *changes nothing*"])


def test_the_option_decides_for_all(mine):
    names = ("for_aten", "by_computed_name", "theirs_for_aten")
    chosen = [word for name in names for word in ("--fx-pass", f"mine:{name}")]
    result = mine.runpytest(*OPTIONS, *chosen, "--fx-form", "aten", "--fx-pass", "mine:theirs_for_functions")
    edited = [f"mine:plain *{name.replace('_', '-')} *7 -> 8 *aten *" for name in names]
    result.stdout.fnmatch_lines_random([*edited, "mine:plain *theirs-for-functions *changes nothing*"])
    result = mine.runpytest(*OPTIONS, "--fx-form", "functional", "--fx-pass", "mine:theirs_for_aten")
    result.stdout.fnmatch_lines(["mine:plain *theirs-for-aten *changes nothing*"])


def test_a_pipeline_has_passes_for_both(mine):
    result = mine.runpytest(*OPTIONS, "--fx-pass", "mine:theirs_for_aten,mine:for_functions,remove-checks")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["mine:plain * 10 -> 8 *"])


def test_the_ini_file_and_a_marker_take_it(mine):
    mine.makeini("[pytest]\nfx_form = aten")
    mine.makepyfile(
        test_own="""
        import pytest

        @pytest.mark.fx(model=["mine:plain"], capture="export")
        def test_of_the_ini_file(fx_traced):
            assert "torch.ops.aten.linear" in fx_traced.code

        @pytest.mark.fx(model=["mine:plain"], capture="export", form="functional")
        def test_marked(fx_traced):
            assert "torch.nn.functional.linear" in fx_traced.code
        """
    )
    mine.runpytest("test_own.py").assert_outcomes(passed=2)
