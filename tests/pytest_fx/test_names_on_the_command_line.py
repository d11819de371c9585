"""Printed names are distinct, and can be pasted back."""

import re
import shlex

import pytest
from building import last_run

from pytest_fx.collection import SUITES

FUSE = """
import torch

def model():
    return torch.nn.Linear(4, 4), torch.ones(2, 4)

def fuse(program):
    for node in program.graph.find_nodes(op="output"):
        with program.graph.inserting_before(node):
            node.args = (program.graph.call_function(torch.mul, (node.args[0], {factor})),)
    program.recompile()
"""
CONTRACT = "test_pass_keeps_its_contract"


@pytest.fixture
def two(pytester):
    """A folder with two modules, whose models and passes have the same names."""
    pytester.makepyfile(first=FUSE.format(factor=1.0), second=FUSE.format(factor=2.0), third=FUSE.format(factor=3.0))
    return pytester


def rows(folder):
    records = last_run(folder)["records"]
    return [(record["row"]["model"], record["row"]["program"]) for record in records]


@pytest.mark.thorough
def test_passes_of_one_name_have_ids_rows_records_and_reproducers_of_their_own(two):
    passes = [text for name in ("first", "second", "third") for text in ("--fx-pass", f"{name}:fuse")]
    result = two.runpytest("--fx-model", "first:model", *passes, "-k", CONTRACT, "-v")
    result.assert_outcomes(passed=1, failed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines([f"*{CONTRACT}?first:model-second:fuse? FAILED*"])
    result.stdout.fnmatch_lines(["*LawViolation: *"])
    verdicts = {"first": "   ", "second": "!  ", "third": "!  "}
    result.stdout.fnmatch_lines([f"{mark}first:model  {name}:fuse *" for name, mark in verdicts.items()])
    assert set(rows(two.path)) == {("first:model", f"{name}:fuse") for name in ("first", "second", "third")}
    written = [path.name for path in (two.path / ".pytest_fx").iterdir() if "fuse" in path.name]
    assert sorted(name.rpartition("_")[0] for name in written) == ["second_fuse_model", "third_fuse_model"]


def test_a_pass_with_a_unique_name_keeps_its_short_name(two):
    result = two.runpytest("--fx-model", "first:model", "--fx-pass", "first:fuse", "-k", CONTRACT)
    result.stdout.fnmatch_lines("first:model  fuse *")


def test_options_tell_passes_of_one_name_apart(pytester):
    passes = ("--fx-pass", "split{at=layer2}", "--fx-pass", "split{at=layer3}")
    result = pytester.runpytest("--fx-model", "resnet_tiny", *passes, "-k", CONTRACT)
    result.stdout.fnmatch_lines(["resnet_tiny  split{at=layer2} *", "resnet_tiny  split{at=layer3} *"])


@pytest.mark.thorough
def test_passes_of_one_name_are_timed_in_rows_of_their_own(two):
    two.makepyfile(third=FUSE.format(factor=1.0))  # wrong passes are not timed
    passes = ("--fx-pass", "first:fuse", "--fx-pass", "third:fuse", "--fx-rounds", "2")
    two.runpytest("--fx-model", "first:model", *passes, "-k", "test_pass_timing")
    assert {program for _, program in rows(two.path)} == {"first:fuse", "third:fuse"}


def test_models_of_one_name_have_rows_of_their_own(two):
    path = two.makepyfile(
        """
        import pytest, first, second

        @pytest.mark.fx(model=[first.model, second.model])
        def test_capture(fx_model, fx_equal):
            fx_equal(fx_model.captured, label="capture")
        """
    )
    assert two.runpytest(path).ret == 0
    assert rows(two.path) == [("first:model", "capture"), ("second:model", "capture")]
    two.runpytest("--fx-model", "first:model", "--fx-model", "second:model", "-k", "capture_equals_eager")
    assert rows(two.path) == [("first:model", "capture"), ("second:model", "capture")]


def ids(result):
    return re.findall(r"^FAILED (\S+?\[.*?\])(?= - |$)", result.stdout.str(), re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "folder, distributed", [(".", ()), ("deeper", ()), ("deeper", ("-n", "1"))], ids=["here", "deeper", "on a worker"]
)
def test_the_id_of_a_test_that_failed_can_be_pasted_back(two, monkeypatch, folder, distributed):
    two.makeini("[pytest]\npythonpath = .")
    two.mkdir("deeper")
    two.mkdir("fx")  # which is not a module, and is not collected in place of the suite
    monkeypatch.chdir(two.path / folder)
    options = ("--fx-model", "first:model", "--fx-pass", "second:fuse", "--fx-no-timing", *distributed)
    (pasted,) = ids(two.runpytest(*options, "-k", CONTRACT))
    assert pasted.endswith(f"fx::{CONTRACT}[first:model-second:fuse]")
    result = two.runpytest(*options, *shlex.split(f'"{pasted}"'))
    result.assert_outcomes(failed=1)
    assert ids(result) == [pasted]


@pytest.mark.parametrize("pyargs", [(), ("--pyargs",)], ids=["", "pyargs"])
@pytest.mark.parametrize(
    "options, name",
    [
        (("--fx-model", "resnet_tiny", "--fx-pass", "split{at=layer3}"), f"{CONTRACT}[resnet_tiny-split{{at=layer3}}]"),
        (("--fx-model", "mlp", "--fx-batch", "1,2"), "test_capture_is_well_formed[mlp-batch2]"),
        (("--fx-check", "fuse-conv-bn", "--fx-examples", "1"), "test_pass_keeps_the_laws[fuse-conv-bn]"),
    ],
    ids=["options of a pass", "batch", "laws"],
)
def test_an_id_leads_to_the_suite_that_has_it(pytester, options, name, pyargs):
    result = pytester.runpytest(*options, *pyargs, f"fx::{name}", "--collect-only", "-q")
    assert result.ret == 0
    assert [line for line in result.outlines if "::" in line] == [f"fx::{name}"]


def test_an_id_goes_with_files_of_the_users(pytester):
    path = pytester.makepyfile("def test_own(fx_model): pass")
    name = "fx::test_capture_is_well_formed[mlp]"
    result = pytester.runpytest("--fx-model", "mlp", name, path, "-v")
    result.assert_outcomes(passed=2)


def test_a_name_that_is_no_test_of_a_suite_is_reported_as_not_found(pytester):
    result = pytester.runpytest("--fx-model", "mlp", "fx::test_nothing[mlp]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: not found: *test_nothing*")


@pytest.mark.thorough
def test_models_of_a_conftest_below_testpaths_are_known_to_a_pasted_id(pytester):
    pytester.makeini("[pytest]\ntestpaths = below")
    pytester.mkdir("below").joinpath("conftest.py").write_text(
        "import torch\nfrom model_zoo import ZooModel\n"
        "def pytest_fx_register(config):\n"
        "    inputs = lambda batch=1, seed=0: (torch.ones(batch, 4),)\n"
        "    return [ZooModel('registered_below', lambda: torch.nn.Linear(4, 4), inputs, source='here')]\n"
    )
    result = pytester.runpytest_subprocess("--fx-model", "registered_below", "fx::test_capture_is_well_formed")
    result.assert_outcomes(passed=1)


def test_every_suite_is_found_by_the_names_of_its_tests():
    assert all(re.search(r"^def test_", path.read_text("utf-8"), re.MULTILINE) for path in SUITES)
