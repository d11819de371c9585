"""--fx-save-answers, --fx-layer and --fx-reference FILE: answers of one machine as the reference on another."""

import json
import struct

import pytest

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.shift = 0.0

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if hidden.sum() > 0:  # no tracer takes it
            hidden = hidden * 0.5
        return {"scores": self.third(torch.tanh(self.second(hidden) + self.shift)), "hidden": (hidden, None)}


def net():
    return Net().eval(), torch.linspace(-1, 1, 12).reshape(3, 4)


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1e-4


def shifted():
    model, x = net()
    model.second.__class__ = Shifted
    return model, x


def other_weights():
    model, x = net()
    with torch.no_grad():
        model.third.bias[0] += 1
    return model, x


def other_inputs():
    model, x = net()
    return model, (x[0],)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Identity()).eval(), torch.linspace(-1, 1, 12).reshape(3, 4)


def half_of_it(program):
    for node in program.graph.find_nodes(op="call_module", target="2"):
        with program.graph.inserting_after(node):
            halved = program.graph.call_function(torch.mul, (node, 0.5))
        node.replace_all_uses_with(halved, lambda user: user is not halved)
    program.recompile()
"""


@pytest.fixture
def mine(pytester, monkeypatch):
    """A folder with the user's models."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    pytester.makepyfile(mine=MODEL)
    return pytester


def renamed(mine, name):
    """Give the only answers in the file the name of another factory, as if that had been called ``net`` there."""
    path = mine.path / "net.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = json.loads(header["__metadata__"]["fx"])
    data["models"][0]["model"] = f"mine:{name}"
    data["models"][0]["machine"] |= {"host": "other-host", "machine": "Other CPU"}
    header["__metadata__"]["fx"] = json.dumps(data)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


def saved(mine, *options, model="mine:net"):
    result = mine.runpytest("--fx-model", model, "--fx-save-answers", "net.safetensors", *options)
    result.assert_outcomes(passed=1)
    return result


def compared(mine, model, *options):
    return mine.runpytest("--fx-model", model, "--fx-reference", "net.safetensors", *options)


def test_a_model_that_cannot_be_captured_is_saved_and_compared(mine):
    saved(mine).stdout.fnmatch_lines(["mine:net: 8 answers, 3 layers each, in net.safetensors"])
    result = compared(mine, "mine:net")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["mine:net: largest error *, and * where net.safetensors was saved"])


def test_a_file_of_answers_is_read_by_any_reader_of_safetensors(mine):
    from safetensors import safe_open

    saved(mine, "--fx-layer", "Linear")
    with safe_open(mine.path / "net.safetensors", "pt") as file:
        (model,) = json.loads(file.metadata()["fx"])["models"]
        names = [name for path, kind, name in model["sets"][0]["output"] if kind == "tensor"]
        assert len(names) == 2 and file.get_tensor(names[0]).shape == (3, 2)
    assert model["machine"]["versions"]["torch"] and [each["path"] for each in model["sets"][0]["layers"]] == [
        "first", "second", "third"
    ]  # fmt: skip
    assert float(model["sets"][0]["errors"]["['scores']"]) > 0


def test_a_difference_is_told_by_output_and_layer_with_both_machines(mine):
    saved(mine)
    renamed(mine, "shifted")
    result = compared(mine, "mine:shifted")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "E*AnswerViolation: mine:shifted does not give the answers in net.safetensors",
            "*where  output[[]'scores'[]]*",
            "*there  host other-host, Other CPU, torch *",
            "*here   host *",
            "*layer  second (Linear) is the first of 3 saved that differs, by 0.0001; 1 before it are right",
        ]
    )


def test_a_pass_is_compared_with_the_answers_too(mine):
    saved(mine, model="mine:plain")
    result = compared(mine, "mine:plain", "--fx-pass", "remove-dead-code", "--fx-pass", "mine:half_of_it")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["E*AnswerViolation: half-of-it on mine:plain does not give the answers in net.safetensors"]
    )


def test_several_models_share_a_file_and_a_model_replaces_its_own_answers(mine):
    for _ in range(2):
        saved(mine, model="mine:net")
        saved(mine, model="mine:plain")
    result = compared(mine, "mine:net", "--fx-model", "mine:plain")
    result.assert_outcomes(passed=2, skipped=2)


@pytest.mark.parametrize(
    "model, lines",
    [
        ("other_weights", ["E*the answers in net.safetensors are of other weights of mine:other_weights",
                           "*why    1 of 6 parameters and buffers differ, 'third.bias' first"]),
        ("other_inputs", ["E*the answers in net.safetensors are of other inputs",
                          "*value  [[]0[]] float32 [[]3, 4[]] there, [[]0[]] float32 [[]4[]] here"]),
    ],
)  # fmt: skip
def test_answers_of_other_weights_and_inputs_are_refused(mine, model, lines):
    saved(mine)
    renamed(mine, model)
    compared(mine, f"mine:{model}").stdout.fnmatch_lines(lines)


def test_answers_of_another_model_and_files_of_other_kinds_are_refused_in_one_sentence(mine):
    saved(mine)
    compared(mine, "mine:plain").stdout.fnmatch_lines(
        ["E*net.safetensors has no answers of mine:plain in mode 'eval'", "*why    it has mine:net (eval)"]
    )
    path = mine.path / "net.safetensors"
    whole = path.read_bytes()
    for content, words in (
        (whole[:-40], "*is not where the file has its bytes"),
        (b"import os\n" * 9, "*cut off, or no*"),
    ):
        path.write_bytes(content)
        result = compared(mine, "mine:net")
        result.assert_outcomes(errors=1, skipped=1)
        result.stdout.fnmatch_lines([f"E*AnswerError: * is no file of answers: {words}"])
    path.unlink()
    compared(mine, "mine:net").stdout.fnmatch_lines(["E*AnswerError: there is no file net.safetensors"])


def test_answers_are_not_written_over_a_damaged_file(mine):
    saved(mine)
    path = mine.path / "net.safetensors"
    damaged = path.read_bytes()[:-40]
    path.write_bytes(damaged)
    result = mine.runpytest("--fx-model", "mine:plain", "--fx-save-answers", "net.safetensors")
    result.stdout.fnmatch_lines(["E*AnswerError: * is no file of answers: *"])
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "options, lines",
    [
        (
            ("--fx-model", "mine:plain", "--fx-layer", "0"),
            ["*--fx-layer has no effect", "  try    --fx-save-answers FILE"],
        ),
        (("--fx-save-answers", "a.safetensors"), ["*--fx-save-answers has no effect*"]),
        (
            ("--fx-model", "mine:plain", "--fx-save-answers", "a.safetensors", "--fx-pass", "remove-dead-code"),
            ["*--fx-pass has no effect"],
        ),
    ],
)
def test_options_that_cannot_act_are_errors(mine, options, lines):
    result = mine.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)
