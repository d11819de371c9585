"""--fx-model: which models, and which tests run on them."""

import re

import pytest

from model_zoo import get_model, list_models


def test_the_suite_runs_on_a_zoo_model_from_an_empty_folder(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "fx: models: mlp; passes: all that apply; 1 thread(s)",
            "fx::test_capture_is_well_formed?mlp?*PASSED*",
            "fx::test_capture_equals_eager?mlp?*PASSED*",
        ]
    )


@pytest.mark.thorough
def test_the_suite_runs_alone_where_the_folder_has_tests_of_its_own(pytester):
    pytester.makepyfile(test_own="raise RuntimeError('collected')")
    pytester.makeini("[pytest]\ntestpaths = .\npython_functions = check_*\npython_files = check_*.py")
    result = pytester.runpytest("--fx-model", "mlp")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*test_own*")
    result.stdout.fnmatch_lines("fx *")


def test_files_on_the_command_line_run_instead_of_the_suite(pytester):
    path = pytester.makepyfile("def test_own(fx_model):\n    assert fx_model.name == 'mlp'")
    result = pytester.runpytest("--fx-model", "mlp", path)
    result.assert_outcomes(passed=1)


@pytest.mark.thorough
def test_suite_and_files_run_together_when_both_are_named(pytester):
    path = pytester.makepyfile("def test_own(fx_model):\n    assert fx_model.name == 'mlp'")
    result = pytester.runpytest("--fx-model", "mlp", "--pyargs", "pytest_fx.suites.model_suite", path, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["fx::test_capture_equals_eager?mlp?*PASSED*", "*::test_own?mlp? PASSED*"])


def test_each_model_is_tested_and_a_repeated_name_counts_once(pytester):
    options = ("--fx-model", "mlp", "--fx-model", "two_heads", "--fx-model", "mlp")
    result = pytester.runpytest(*options, "-k", "test_capture_equals_eager", "-v")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes().get("deselected", 0))
    result.stdout.fnmatch_lines(["*eager?mlp?*PASSED*", "*eager?two_heads?*PASSED*"])


@pytest.mark.parametrize("factory", ["pair", "pair_of_one_tensor", "pair_with_keywords", "zoo"])
def test_a_factory_of_the_users_is_found_from_the_current_folder(user, factory):
    result = user.runpytest("--fx-model", f"mine:{factory}", "-k", "test_capture_equals_eager")
    assert result.parseoutcomes()["passed"] == 1


def test_a_module_without_inputs_is_captured_and_fails_once_with_how_to_give_them(user):
    result = user.runpytest("--fx-model", "mine:bare", "--fx-no-timing", "-rs")
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"], set(outcomes)) == (1, 3, {"failed", "passed", "skipped"})
    result.stdout.fnmatch_lines(
        [
            "E *InputError: mine:bare has no example inputs",
            "*try *let its factory return a pair: (module, inputs), inputs a tuple (positional), a dict *",
            "SKIPPED*mine:bare has no example inputs: another of its tests says how to give them",
        ]
    )


WRONG_INPUTS = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask=None):
        return self.linear(input_ids)

def shape():
    return Tokens(), torch.ones(3, 5)

def dtype():
    return Tokens(), torch.ones(3, 4, dtype=torch.int64)

def key():
    return Tokens(), {"input_id": torch.ones(3, 4)}

def mapping():
    return Tokens(), {"a": torch.ones(3, 4), "b": 2}

def many():
    return Tokens(), (torch.ones(3, 4), None, [torch.ones(2)])

def nothing():
    return Tokens(), ()
"""


@pytest.mark.parametrize(
    "factory, lines",
    [
        (
            "shape",
            [
                "*where *wrong.py:10, in forward:  return self.linear(input_ids)",
                "*value *[[]0] float32 (3, 5)",
                "*why *RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x5 and 4x4)",
                "*try *return others from the factory: *",
            ],
        ),
        ("dtype", ["*value *[[]0] int64 (3, 4)", "*why *RuntimeError: mat1 and mat2 must have the same dtype*"]),
        (
            "key",
            [
                "*where *wrong.py:9, in Tokens.forward(input_ids, attention_mask=None)",
                "*value *input_id float32 (3, 4)",
                "*why *forward has no parameter 'input_id'; it has input_ids, attention_mask",
                "*try *did you mean 'input_ids'?",
            ],
        ),
        (
            "mapping",
            [
                "*value *a float32 (3, 4), b 2",
                "*try *a dict of example inputs is keyword arguments; one that is an argument itself is written ({…},)",
            ],
        ),
        (
            "many",
            [
                "*value *[[]0] float32 (3, 4), [[]1] None, [[]2] list(tensor)",
                "*why *too many positional arguments; forward has input_ids, attention_mask",
            ],
        ),
        ("nothing", ["*value *no arguments", "*why *missing a required argument: 'input_ids'; forward has *"]),
    ],
)
def test_inputs_that_the_model_rejects_are_one_error_and_its_other_tests_are_skipped(user, factory, lines):
    user.makepyfile(wrong=WRONG_INPUTS)
    for batch in ((), ("--fx-batch", "6")):
        if batch and factory == "nothing":
            continue
        result = user.runpytest("--fx-model", f"wrong:{factory}", "--fx-pass", "mine:unchanged", *batch, "-rs")
        outcomes = result.parseoutcomes()
        assert (outcomes["errors"], set(outcomes)) == (1, {"errors", "skipped"})
        result.stdout.fnmatch_lines([f"E *InputError: wrong:{factory} cannot be called with its own example inputs"])
        result.stdout.fnmatch_lines(lines)
        result.stdout.fnmatch_lines("SKIPPED*cannot be called with its example inputs: the first of its tests says why")
        assert len(result.outlines) < 30


@pytest.mark.thorough
def test_the_users_module_is_not_changed(user):
    user.makepyfile(
        shared="""
        import torch
        from torch import nn
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

        def factory():
            return module, torch.randn(2, 3, 8, 8)
        """
    )
    user.makeconftest(
        """
        def pytest_unconfigure():
            import shared
            assert shared.module.training
            for name, tensor in shared.module.state_dict().items():
                assert tensor.equal(shared.before[name])
            print("untouched")
        """
    )
    result = user.runpytest("--fx-model", "shared:factory", "-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines("*untouched*")


@pytest.mark.parametrize(
    "name, lines",
    [
        ("resnet5", ["ERROR: there is no model named 'resnet5'", "*did you mean 'resnet50'*"]),
        ("tag:vsion", ["ERROR: no model has the tag 'vsion'", "*known tags: paper, *vision*"]),
        ("mine.pair", ["ERROR: there is no model named 'mine.pair'", "*with a colon *", "*did you mean 'mine:pair'?"]),
        ("mine:piar", ["ERROR: there is no factory named 'mine:piar'", "*did you mean 'mine:pair'*"]),
        (
            "mnie.nn:pair",
            ["ERROR: cannot import the module of the factory *", "*where  searched in *", "*No module named 'mnie'"],
        ),
        ("main:pair", ["*No module named 'main'", "*did you mean 'mine:pair'?"]),
        ("main:other", ["*No module named 'main'"]),
        ("torch.nn.Lineer", ["*no model named 'torch.nn.Lineer'", "*did you mean 'torch.nn:Linear' or *"]),
        ("mine:Linear.forwrad", ["*there is no factory *", "*no attribute 'forwrad'", "*'mine:Linear.forward'*"]),
        ("mine:not_callable", ["ERROR: the factory 'mine:not_callable' cannot be called"]),
        ("broken:pair", ["ERROR: cannot import*", "*where *broken.py:1, in <module>:  1 / 0", "*ZeroDivisionError: *"]),
        ("broken.pair", ["ERROR: there is no model named 'broken.pair'", "*with a colon before the attribute"]),
        ("of_broken:pair", ["*where *broken.py:1, in <module>:  1 / 0", "*ZeroDivisionError: division by zero"]),
        ("script:pair", ["*where *script.py:2, in <module>:  sys.exit(3)", "*why    SystemExit: 3"]),
        ("unwritten:pair", ["*where *unwritten.py:1:  def pair(:", "*why    SyntaxError: invalid syntax*"]),
    ],
)
def test_an_unknown_model_is_a_usage_error_with_a_remedy(user, name, lines):
    user.makepyfile(broken="1 / 0", of_broken="import broken", script="import sys\nsys.exit(3)", unwritten="def pair(:")
    result = user.runpytest("--fx-model", name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)
    result.stderr.no_fnmatch_line("*Traceback*")
    if "did you mean" not in "".join(lines) and "forwrad" not in name:
        result.stderr.no_fnmatch_line("*did you mean*")


def test_the_error_of_a_factory_that_returns_no_model_describes_a_factory(user):
    result = user.runpytest("--fx-model", "mine:number", "-k", "well_formed")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*CannotLoadError: the factory 'mine:number' returned no model", "*a factory returns an nn.Module, a pair*"]
    )


def test_all_names_every_model_but_the_small_siblings(pytester):
    result = pytester.runpytest("--fx-model", "all", "--collect-only", "-q", "-k", "well_formed")
    names = set(re.findall(r"well_formed\[(\w+)\]", result.stdout.str()))
    assert {"resnet50", "deep_recommender", "unet", "mlp"} <= names
    assert not any(name.endswith("_small") for name in names) and "resnet_tiny" not in names


def test_a_tag_names_the_models_that_carry_it(pytester):
    result = pytester.runpytest("--fx-model", "tag:text", "--fx-size", "small", "-k", "well_formed", "-v")
    small = {model.small for model in map(get_model, list_models()) if "text" in model.tags and model.small}
    result.assert_outcomes(passed=len(small), deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*lstm_classifier_small*PASSED*", "*transformer_encoder_small*PASSED*"])


RAISING = """
import torch
from torch import nn
from model_zoo import ZooModel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(-1, 2)

def in_torch():
    return Net()

def own():
    raise ValueError("no weights here")

def of_a_builder():
    return ZooModel("built", Net, lambda batch=1, seed=0: (torch.ones(batch, 4),), source="here")

def of_inputs():
    def inputs(batch=1, seed=0):
        return 1 / 0
    return ZooModel("fed", lambda: nn.Linear(2, 2), inputs, source="here")
"""


@pytest.mark.parametrize(
    "factory, error, line",
    [
        (
            "in_torch",
            "RuntimeError: Trying to create tensor with negative dimension*",
            "self.linear = nn.Linear(-1, 2)",
        ),
        ("own", "ValueError: no weights here", 'raise ValueError("no weights here")'),
        ("of_a_builder", "RuntimeError: Trying to create tensor *", "self.linear = nn.Linear(-1, 2)"),
        ("of_inputs", "ZeroDivisionError: division by zero", "return 1 / 0"),
    ],
)
def test_a_factory_that_raises_is_reported_once_with_the_users_line(user, factory, error, line):
    user.makepyfile(raising=RAISING)
    result = user.runpytest("--fx-model", f"raising:{factory}", "--fx-pass", "mine:unchanged", "-rs")
    outcomes = result.parseoutcomes()
    assert (outcomes["errors"], set(outcomes)) == (1, {"errors", "skipped"})
    result.stdout.fnmatch_lines([f"E *{error}", f"*the factory of raising:{factory} raised it", f"*raising.py:*{line}"])
    result.stdout.fnmatch_lines(f"SKIPPED*raising:{factory} cannot be made: the first of its tests says why")
    for ours in ("fx_model", "load_subject", "_subject", "_zoo_arguments"):
        result.stdout.no_fnmatch_line(f"*def {ours}(*")
        result.stdout.no_fnmatch_line(f"*: in {ours}")


UNCOPIED = """
from torch import nn

class Uncopied(nn.Module):
    def __deepcopy__(self, memo):
        raise ValueError("there is one of me")

def factory():
    return Uncopied(), ()
"""


def test_an_error_of_a_copy_of_the_model_is_not_reported_as_the_factorys(user):
    user.makepyfile(uncopied=UNCOPIED)
    result = user.runpytest("--fx-model", "uncopied:factory", "-k", "capture_equals_eager")
    result.stdout.fnmatch_lines(
        ["E *ValueError: there is one of me", "*copying or calling the model of uncopied:factory raised it"]
    )
    result.stdout.no_fnmatch_line("*the factory of uncopied:factory raised it")


def test_a_factory_that_asks_for_arguments_is_refused_with_its_line_and_none_of_ours(user):
    user.makepyfile(asking="def asking(width, depth=2):\n    return width")
    result = user.runpytest("--fx-model", "asking:asking", "-k", "capture_equals_eager")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "E *CannotLoadError: the factory 'asking:asking' cannot be called without arguments",
            "*where *asking.py:1, in asking(width, depth=2)",
            "*why    missing a required argument: 'width'",
            "*try    give its other parameters defaults, or name a function that calls it with what it needs",
        ]
    )
    result.stdout.no_fnmatch_line("*watched_tests.py*")


def test_a_factory_that_raises_leaves_the_tests_of_other_models_alone(user):
    user.makepyfile(raising=RAISING)
    options = ("--fx-model", "raising:own", "--fx-model", "mlp", "-k", "capture_equals_eager or well_formed")
    outcomes = user.runpytest(*options).parseoutcomes()
    assert (outcomes["errors"], outcomes["skipped"], outcomes["passed"]) == (1, 1, 2)


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("mypackge.models:pair", "'mypackage.models:pair'"),
        ("mypackage.model:pair", "'mypackage.models:pair'"),
        ("mypackage.nested.deap:pair", "'mypackage.nested.deep:pair'"),
        ("mien:pair", "'mine:pair'"),
        ("mypackage/models.py:pair", "'mypackage.models:pair'"),
        ("mine.py:pair", "'mine:pair'"),
        ("mypackage.doted:torch", "'mypackage.dotted:torch'"),
    ],
)
def test_a_misspelt_module_is_answered_with_the_nearest_ones(user, name, nearest):
    package = user.mkpydir("mypackage")
    (package / "models.py").write_text("from mine import pair")
    (package / "dotted.py").write_text("import torch.nn")
    (package / "nested").mkdir()
    (package / "nested" / "deep.py").write_text("from mine import pair")
    for option in ("--fx-model", "--fx-pass"):
        result = user.runpytest(option, name)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: cannot import the module of the * '{name}'", f"*did you mean {nearest}*"])


def test_a_module_that_lacks_another_one_is_not_called_misspelt(user):
    user.makepyfile(lacking="import torchvisoin")
    result = user.runpytest("--fx-model", "lacking:pair")
    result.stderr.fnmatch_lines(
        [
            "*where *lacking.py:1, in <module>:  import torchvisoin",
            "*why    ModuleNotFoundError: No module named 'torch*",
            "*try    correct the name, or install the package that has 'torchvisoin' into the environment of pytest",
        ]
    )
    result.stderr.no_fnmatch_line("*did you mean*")


MINE = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(28800, 2))
    return layers.eval(), torch.randn(4, 3, 32, 32)
"""


def test_a_documented_loss_of_nan_in_a_backend_kernel_is_no_failure(mine):
    result = mine.runpytest("--fx-model", "mine:network", "--fx-pass", "lower", "--fx-no-timing", "-k", "contract")
    assert result.parseoutcomes()["passed"] >= 1 and "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["mine:network * lower * right*"])
