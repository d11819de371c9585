"""Converted models in runs of pytest: ``--fx-pass FILE``, passes that return sessions, and ``fx_equal``."""

import shutil
from pathlib import Path

import pytest
from building import last_run

pytest.importorskip("openvino")

MODEL = """
import torch
from converted_models import RoughHead, exported_model, head, inputs, openvino_model
from torch import nn


def net():
    return head(), inputs()


def to_openvino(module: nn.Module):
    return openvino_model(module)


def roughly(module: nn.Module):
    return openvino_model(head(RoughHead))
"""
RUN = ("--fx-no-timing", "-k", "pass_keeps_its_contract")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with two files of a model."""
    import openvino
    from converted_models import head, openvino_model

    folder = tmp_path_factory.mktemp("files")
    converted = openvino_model(head())
    openvino.save_model(converted, folder / "net.xml", compress_to_fp16=False)
    openvino.save_model(converted, folder / "halved.xml", compress_to_fp16=True)
    return folder


@pytest.fixture
def mine(pytester, monkeypatch, files):
    """A folder with a model, passes that convert it, and the files."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    for path in (Path(__file__).with_name("converted_models.py"), *files.iterdir()):
        shutil.copy(path, pytester.path)
    pytester.makepyfile(mine=MODEL)
    return pytester


def test_a_file_and_a_pass_that_returns_a_model_of_openvino_are_passes(mine):
    names = ("--fx-pass", "net.xml", "--fx-pass", "mine:to_openvino", "--fx-pass", "halved.xml")
    result = mine.runpytest("--fx-model", "mine:net", *names, "-v", *RUN)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "fx::test_pass_keeps_its_contract*net.xml* PASSED*",
            "fx::test_pass_keeps_its_contract*to_openvino* PASSED*",
            "fx::test_pass_keeps_its_contract*halved.xml* FAILED*",
            "*LawViolation: law 'contract': halved.xml changes what mine:net computes",
            "*where halved.xml differs inside, by * of its values:",
            "*differs  %first = *",
        ]
    )


def test_fx_equal_takes_files_and_models_and_names_the_first_wrong_line(mine):
    mine.makepyfile(
        """
        import pytest
        from mine import openvino_model, roughly, RoughHead, head

        pytestmark = pytest.mark.fx(model="mine:net")

        def test_file(fx_equal):
            fx_equal("net.xml")

        def test_model(fx_equal):
            fx_equal(openvino_model(head()), changes=("non-finite",))

        def test_pass(fx_equal):
            fx_equal(roughly)
        """
    )
    result = mine.runpytest()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*differs  %tanh = *", "*in Head.forward:  hidden = torch.tanh(self.first(x))"])


def test_a_file_of_another_model_is_told_in_one_sentence_and_is_not_judged(mine):
    result = mine.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "net.xml", *RUN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*ConversionError: net.xml is not converted from this model, or for other*",
            "fx: not judged: net.xml is not converted from this model, or for other inputs: net.xml of resnet_tiny",
        ]
    )


def test_a_file_that_is_cut_off_leaves_the_verdicts_on_others(mine):
    (mine.path / "net.bin").write_bytes((mine.path / "net.bin").read_bytes()[:-8])
    result = mine.runpytest("--fx-model", "mine:net", "--fx-pass", "net.xml", "--fx-pass", "mine:to_openvino", *RUN)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*ConversionError: OpenVINO cannot read net.xml"])
    record = last_run(mine.path)
    assert {each["program"]: each["verdict"] for each in record["verdicts"]} == {
        "net.xml": "not judged",
        "to-openvino": "right",
    }


def test_a_missing_file_ends_the_run_at_once(mine):
    result = mine.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "none.xml", *RUN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: there is no file none.xml", "  why    .xml is a suffix of OpenVINO"])
