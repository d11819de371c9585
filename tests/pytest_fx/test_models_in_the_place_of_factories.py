"""A module, or a pair of a module and inputs, in place of a factory; its inputs, and how they unpack."""

import pytest

MINE = """
import torch
from torch import nn

class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, shift=None):
        x = self.linear(x)
        return x if shift is None else x + shift

class Accumulated(nn.Module):
    "Sums in the dtype of its input."
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return x * self.weight

net = Shifted()
pair = (Shifted(), torch.ones(3, 4))
keywords = (Shifted(), {"x": torch.ones(3, 4), "shift": torch.ones(4)})
number = 3

def wide():
    return Accumulated(), torch.rand(3, 4, dtype=torch.float64)

def too_wide():
    return Shifted(), torch.rand(3, 4, dtype=torch.float64)

def through_float32(program):
    for node in list(program.graph.nodes):
        if node.op == "placeholder":
            with program.graph.inserting_after(node):
                narrow = program.graph.call_method("float", (node,))
            node.replace_all_uses_with(narrow, lambda user: user is not narrow)
    program.recompile()
"""


@pytest.mark.parametrize("name", ["pair", "keywords"])
def test_a_pair_that_a_name_leads_to_is_judged(mine, name):
    result = mine.runpytest(
        "--fx-model", f"mine:{name}", "--fx-pass", "canonicalize", "--fx-no-timing", "-k", "pass_keeps or well_formed"
    )
    result.assert_outcomes(passed=2, deselected=13)


def test_a_module_that_a_name_leads_to_is_captured(mine):
    result = mine.runpytest("--fx-model", "mine:net", "--fx-no-timing", "-k", "well_formed or capture_equals")
    assert result.parseoutcomes()["passed"] == 1
    result.stdout.fnmatch_lines("E *InputError: mine:net has no example inputs")


def test_a_value_that_is_neither_a_model_nor_a_factory_is_refused(mine):
    result = mine.runpytest("--fx-model", "mine:number")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: the factory 'mine:number' cannot be called")


def test_markers_and_parameters_take_modules_and_pairs(mine):
    path = mine.makepyfile(
        """
        import mine, pytest, torch

        @pytest.mark.fx(model=mine.pair)
        def test_pair(fx_model, fx_traced, fx_equal):
            assert fx_model.name == "Shifted"
            fx_equal(fx_traced)

        @pytest.mark.fx(model=[mine.pair, mine.keywords, mine.net])
        def test_list(fx_model, fx_traced):
            assert "linear" in fx_traced.code

        @pytest.mark.fx(model=(mine.net, mine.Shifted()))
        def test_two_modules(fx_traced):
            assert "linear" in fx_traced.code

        @pytest.mark.parametrize("fx_model", [mine.net, mine.pair], indirect=True)
        def test_parameters(fx_traced):
            assert "linear" in fx_traced.code
        """
    )
    mine.runpytest(path).assert_outcomes(passed=8)


def test_inputs_unpack(mine):
    path = mine.makepyfile(
        """
        import mine, pytest, torch

        @pytest.mark.fx(model=mine.pair)
        def test_positional(fx_inputs):
            model = mine.pair[0]
            assert torch.equal(model(*fx_inputs), model(mine.pair[1]))

        @pytest.mark.fx(model=[mine.pair, mine.keywords])
        def test_all(fx_inputs, fx_model):
            model = fx_model.fresh()
            assert torch.equal(model(*fx_inputs, **fx_inputs), fx_inputs.call(model))

        @pytest.mark.fx(model=mine.keywords)
        def test_keywords(fx_inputs):
            model = mine.keywords[0]
            assert torch.equal(model(**fx_inputs), model(torch.ones(3, 4), shift=torch.ones(4)))
        """
    )
    mine.runpytest(path).assert_outcomes(passed=4)


def test_inputs_keep_their_dtypes(mine):
    path = mine.makepyfile(
        """
        import torch

        def test_own(fx_model, fx_inputs, fx_traced):
            assert fx_model.dtype == torch.float32
            assert fx_inputs.args[0].dtype == torch.{dtype}
            assert fx_inputs.call(fx_traced).dtype == torch.{dtype}
        """.replace("{dtype}", "float64")
    )
    mine.runpytest(path, "--fx-model", "mine:wide").assert_outcomes(passed=1)
    mine.makepyfile(test_narrow=path.read_text().replace("torch.float64", "torch.float32"))
    mine.runpytest("test_narrow.py", "--fx-model", "mine:wide", "--fx-dtype", "float32").assert_outcomes(passed=1)


def test_a_pass_that_narrows_wide_inputs_is_wrong(mine):
    options = ("--fx-model", "mine:wide", "--fx-no-timing", "-k", "pass_keeps", "--fx-pass")
    mine.runpytest(*options, "canonicalize").assert_outcomes(passed=1, deselected=14)
    result = mine.runpytest(*options, "mine:through_float32")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines("E *LawViolation: law 'dtype'*")


def test_the_error_for_a_model_that_refuses_float64_inputs_explains_how_to_convert_both(mine):
    result = mine.runpytest("--fx-model", "mine:too_wide", "--fx-no-timing", "-k", "well_formed")
    result.assert_outcomes(errors=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(
        [
            "E *InputError: mine:too_wide cannot be called with its own example inputs",
            "*value  [[]0] float64 (3, 4)",
            "*try    return inputs in float32, the dtype of the model, or convert both with --fx-dtype float32",
        ]
    )
    options = ("--fx-model", "mine:too_wide", "--fx-no-timing", "-k", "well_formed")
    assert mine.runpytest(*options, "--fx-dtype", "float32").ret == 0
