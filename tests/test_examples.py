"""The examples run and print the promised output."""

import copy
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import fx
from fx.passes import approximate, close
from fx.quantize import report
from model_zoo import get_model
from pytest_fx import (
    InputSets,
    LawViolation,
    assert_equal_to_answers,
    assert_equal_to_eager,
    between,
    check_pass,
    compare_training,
    measure_drop,
)
from pytest_fx.errors import AnswerViolation, InputError
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.laws.output_laws import contract
from pytest_fx.loading import load_contract
from pytest_fx.search.seed_models import load_models

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_fusion_of_the_paper_with_its_harness_takes_less_than_75_lines_and_fuses_a_resnet():
    path = EXAMPLES / "fusion.py"
    assert len(path.read_text("utf-8").splitlines()) < 75
    fold = runpy.run_path(str(path))["fold_batch_norms"]
    model = get_model("resnet_tiny").build().eval()
    inputs = get_model("resnet_tiny").example_inputs(2)
    fused = fold(fx.symbolic_trace(model))
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in fused.modules())
    torch.testing.assert_close(fused(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fusion", "existing_suite"])
def test_the_tests_of_an_example_pass(name):
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", f"{name}.py"]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "3 passed" in run.stdout


def test_the_pass_of_an_existing_suite_uses_silu_and_computes_the_same():
    names = runpy.run_path(str(EXAMPLES / "existing_suite.py"))
    model, x = names["gate"]()
    program = names["use_silu"](torch.fx.symbolic_trace(model))
    assert program.code.count("silu(") == 1 and "sigmoid" not in program.code
    torch.testing.assert_close(program(x), model(x))
    names["test_outputs_are_close"]()


def test_a_model_is_fused_and_all_its_layers_are_quantized():
    names = runpy.run_path(str(EXAMPLES / "fuse_and_quantize.py"))
    model, data = names["network"](), torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        by_name = names["programs"](model, data)
        wanted = model(data)
        assert names["signal_to_noise"](wanted, by_name["fused"](data)) > 100
        assert 15 < names["signal_to_noise"](wanted, by_name["quantized"](data)) < 100
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in by_name["fused"].modules())
    assert str(report(by_name["quantized"])).startswith("3 of 3 layers in 8 bits")


def test_a_backend_is_chosen_by_its_speed_and_refused_for_its_outputs(capsys):
    names = runpy.run_path(str(EXAMPLES / "choose_backend.py"))
    model, x = names["Head"]().eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        lowered = names["candidates"](fx.symbolic_trace(model), x)
        assert "onednn" in lowered and "onednn: takes" in capsys.readouterr().out
        assert names["fastest"](model, {"onednn": lowered["onednn"]}, x, rounds=3) in {"eager", "onednn"}
        with pytest.raises(AssertionError, match="not close"):
            names["fastest"](model, {"wrong": lambda x: model(x) + 1}, x, rounds=3)


def test_the_example_of_random_programs_finds_the_mistake(tmp_path):
    names = runpy.run_path(str(EXAMPLES / "property_test.py"))
    with pytest.raises(LawViolation, match="drop-double-transposes"):
        check_pass(names["drop_double_transposes"], max_examples=20, seed=0, folder=tmp_path)
    program = fx.symbolic_trace(lambda x: torch.transpose(torch.transpose(torch.transpose(x, 0, 1), 1, 2), 2, 1))
    x = torch.randn(2, 3, 4)
    right = names["drop_inverse_transposes"](program)
    assert right.code.count("torch.transpose(") == 2  # the first, and an unread one
    assert torch.equal(right(x), x.transpose(0, 1))


@pytest.mark.thorough
def test_the_pass_of_the_example_is_right_on_random_programs_without_the_mistake(tmp_path):
    names = runpy.run_path(str(EXAMPLES / "property_test.py"))
    assert check_pass(names["drop_inverse_transposes"], max_examples=100, seed=0, folder=tmp_path).programs == 100


def test_a_model_of_hugging_face_is_captured_and_rewritten():
    pytest.importorskip("transformers", reason="the example captures a model of transformers")
    names = runpy.run_path(str(EXAMPLES / "hugging_face.py"))
    model, inputs = names["bert"]()
    program = names["use_tanh_in_gelu"](names["captured"](model, inputs))
    assert program.code.count("approximate = 'tanh'") == 2
    with torch.no_grad():
        torch.testing.assert_close(program(**inputs)[0], model(**inputs)[0], rtol=1e-2, atol=1e-2)


def test_a_converted_model_is_right_rough_or_wrong_at_a_line():
    pytest.importorskip("openvino")
    names = runpy.run_path(str(EXAMPLES / "converted_model.py"))
    model, images = names["classifier"]()
    assert assert_equal_to_eager(model, names["to_openvino"], images).largest_error() < 1e-6
    with pytest.raises(LawViolation, match=r"differs  %gelu[\s\S]*features = nn.functional.gelu"):
        assert_equal_to_eager(model, names["another_model"](), images)


@pytest.mark.thorough
def test_a_conversion_in_half_precision_breaks_the_contract_of_rounding():
    pytest.importorskip("openvino")
    names = runpy.run_path(str(EXAMPLES / "converted_model.py"))
    model, images = names["classifier"]()
    with pytest.raises(LawViolation, match="law 'contract'"):
        assert_equal_to_eager(model, names["to_openvino_roughly"], images)


def test_answers_of_another_process_are_compared_by_output_and_layer(tmp_path, capsys):
    path = str(tmp_path / "answers.safetensors")
    command = [sys.executable, str(EXAMPLES / "saved_answers.py"), "save", path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.stdout == f"saved in {path}\n", run.stderr
    names = runpy.run_path(str(EXAMPLES / "saved_answers.py"))
    names["main"]("compare", path)
    assert "the same: largest error" in capsys.readouterr().out
    model, inputs = names["decoder"]()
    model.steps[2].register_forward_hook(lambda module, args, output: output + 1e-3)
    with pytest.raises(AnswerViolation, match=r"layer  steps.2 \(Linear\) is the first of 4 saved that differs"):
        assert_equal_to_answers(model, inputs, path)


def test_a_pass_is_judged_on_a_model_on_two_devices(pytester):
    command = ("--fx-model", "two_devices:ranker", "--fx-pass", "fuse-conv-bn", "--fx-no-timing", "-k", "contract")
    copied(pytester, "two_devices")
    pytester.runpytest(*command).assert_outcomes(passed=1, skipped=1)


def copied(pytester, name):
    """Copy an example into the folder of an inner run."""
    (pytester.path / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text("utf-8"), "utf-8")


def test_the_layer_that_reads_a_year_stays_in_higher_precision(pytester):
    copied(pytester, "keep_layers")
    promise = ("--fx-model", "keep_layers:demand", "--fx-contract", "approximate(30)")
    advised = pytester.runpytest(*promise, "--fx-advise", "bfloat16")
    advised.assert_outcomes(passed=1)
    output = " ".join(advised.stdout.str().split())
    argument = output.partition("keep 1 of 3 layers: ")[2].partition(" alone in")[0]
    assert "keep=calendar" in argument
    options = ("--fx-no-timing", "-k", "pass_keeps_its_contract")
    pytester.runpytest(*promise, *options, *shlex.split(argument)).assert_outcomes(passed=1)
    without = argument.replace(",keep=calendar", "")
    pytester.runpytest(*promise, *options, *shlex.split(without)).assert_outcomes(failed=1)


def test_a_pattern_with_another_epsilon_is_explained_and_the_mended_one_matches(capsys):
    names = runpy.run_path(str(EXAMPLES / "explain_match.py"))
    names["main"]()
    ours, of_torch, mended, *code = capsys.readouterr().out.splitlines()
    assert "`%add` has 1e-05 as argument 2 where the pattern has 1e-06" in ours
    assert "`%add` has 1e-05 where the pattern has 1e-06" in of_torch
    assert mended.endswith("1 match") and "eps = 1e-05" in "".join(code)
    program, x = fx.symbolic_trace(names["Norm"]()), torch.randn(2, 8)
    fx.replace_pattern(program, names["norm_of_any_epsilon"], names["use_rms_norm"])
    torch.testing.assert_close(program(x), names["Norm"]()(x))


def test_a_pass_that_was_right_at_the_last_commit_fails_beside_it(capfd):
    assert runpy.run_path(str(EXAMPLES / "beside_revision.py"))["main"]() == 1
    output = capfd.readouterr().out
    assert "base   at HEAD" in output and "it is right" in output
    assert "clamps-as-relu at HEAD  right" in output


def test_a_pass_that_is_right_for_pixels_is_judged_on_pixels_if_they_are_declared():
    names = runpy.run_path(str(EXAMPLES / "input_domain.py"))
    model, pixels = names["of_pixels"]()
    assert assert_equal_to_eager(model, names["drop_clamps"], pixels).largest_error() < 1e-5
    model, numbers = names["of_numbers"]()
    with pytest.raises(LawViolation, match=r"law 'other values'[\s\S]*inputs of opposite signs"):
        assert_equal_to_eager(model, names["drop_clamps"], numbers)
    model, _ = names["of_pixels"]()
    beyond = InputSets([((torch.full((1, 3, 4, 4), 2.0),), {})], domain={0: between(0, 1)})
    with pytest.raises(InputError, match="the inputs of Stem are outside of their own domain"):
        assert_equal_to_eager(model, names["drop_clamps"], beyond)


def made_up_digits(count):
    """Return images in which a bright row says the class."""
    labels = torch.arange(count) % 10
    images = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0)) / 2
    images[torch.arange(count), 0, 2 * labels + 3] += 0.5
    return images, labels


def test_a_model_in_8_bits_is_accepted_by_its_accuracy_and_one_that_lost_a_class_is_not():
    names = runpy.run_path(str(EXAMPLES / "acceptance.py"))
    images, labels = made_up_digits(640)
    trained = names["train"](images, labels, epochs=2)
    promise = names["promise"](images, labels, max_drop=0.02)
    drop = measure_drop(trained, names["in_8_bits"](trained, images[:200]), promise)
    assert drop.reference > 0.9 and drop.right and drop.samples == 640
    lost = measure_drop(trained, lambda x: trained(x) - 99 * torch.eye(10)[3], promise)
    assert not lost.right and set(lost.changed_samples) >= {3, 13, 23} and "digits changed class" in lost.changes


@pytest.mark.thorough
def test_a_file_of_onnx_runtime_in_8_bits_is_accepted_by_its_accuracy(tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the example converts by ONNX Runtime")
    names = runpy.run_path(str(EXAMPLES / "acceptance.py"))
    images, labels = made_up_digits(640)
    trained = names["train"](images, labels, epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        session = names["in_onnx_runtime"](trained, images[:200], tmp_path)
    assert measure_drop(trained, session, names["promise"](images, labels, max_drop=0.02)).right


def test_a_detector_in_half_precision_keeps_a_contract_for_each_output_and_none_for_all():
    names = runpy.run_path(str(EXAMPLES / "detector.py"))
    (subject,) = load_models(names["model"](), ["eval"])
    program = names["InHalfPrecision"](subject.fresh())
    contract(PassRun.given(subject, program, load_contract(names["CONTRACT"])))
    for other in (close, approximate(30), load_contract({**names["CONTRACT"], "features": approximate(30)})):
        with pytest.raises(LawViolation, match="law 'contract'"):
            contract(PassRun.given(subject, program, other))


def test_a_pass_that_keeps_training_is_right_and_one_with_equal_outputs_alone_is_not():
    names = runpy.run_path(str(EXAMPLES / "train_steps.py"))
    model, x = names["model"]()
    silu, detached = (
        names[name](fx.symbolic_trace(copy.deepcopy(model))) for name in ("use_silu", "use_detached_gate")
    )
    torch.testing.assert_close(detached(x), model(x))
    assert compare_training(model, silu, names["steps"]()).right
    assert not compare_training(model, detached, names["steps"]()).right


def test_a_decoder_is_judged_token_by_token_and_a_cache_in_half_precision_from_the_second_on():
    names = runpy.run_path(str(EXAMPLES / "decode_steps.py"))
    model, steps = names["model"]()
    assert assert_equal_to_eager(model, fx.symbolic_trace(model), steps=steps).largest_error() < 1e-6
    halves = names["HalfCache"](model)
    assert_equal_to_eager(model, halves, names["prompt"]())
    with pytest.raises(LawViolation, match="HalfCache changes what Decoder on step 2 of 12 computes"):
        assert_equal_to_eager(model, halves, steps=steps)
    assert_equal_to_eager(model, halves, steps=steps, contract=approximate(50))


@pytest.mark.thorough
def test_a_decoder_of_onnx_runtime_is_right_in_all_steps():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the example converts by ONNX Runtime")
    names = runpy.run_path(str(EXAMPLES / "decode_steps.py"))
    model, steps = names["model"]()
    assert assert_equal_to_eager(model, names["to_onnx"](model), steps=steps).largest_error() < 1e-5
