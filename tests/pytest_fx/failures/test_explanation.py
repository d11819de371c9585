"""pytest_fx.failures.explanation: the message of a failure, and the files about it."""

import pytest
import torch
from building import Calling, Counting
from catalogue.rows import behind, retarget
from judged import violation_of
from torch import nn

import fx
from fx.passes import FuseConvBN, PassPipeline, approximate, close, exact
from pytest_fx.failures.details import LONGEST, format_errors, shortened
from pytest_fx.failures.explanation import FailureExplanation
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.localization import NodeError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject


class Scaled(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 3


def with_tanh(program):
    retarget(program, torch.sigmoid, torch.tanh)


def explained(tmp_path, pass_, name=None, contract=close, module=None, inputs=None, **options):
    arguments = Arguments((torch.rand(2, 3) if inputs is None else inputs,))
    subject = Subject("own", module or Scaled(), lambda input_set: arguments)
    failure = Failure(subject, pass_, contract, violation_of(subject, pass_, contract), "own", name, test="here")
    explanation = FailureExplanation(failure)
    explanation.write(tmp_path, **options)
    return shortened("\n".join(explanation.lines)), tmp_path / failure.slug / "failure.md"


def test_a_pass_that_raises_has_no_node_but_details(tmp_path):
    def refuse(program):
        raise ValueError("not today")

    text, details = explained(tmp_path, refuse)
    assert text.startswith("no test file was made of it: the pass cannot be imported by name\ndetails:")
    written = details.read_text(encoding="utf-8")
    assert written.startswith("# law 'refusal': own crashed with ")
    assert "value  ValueError: not today" in written
    assert "## The program after the pass\n\nThere is none: ValueError." in written


def test_another_structure_of_the_result_is_no_fault_of_a_node(tmp_path):
    def boxed(program):
        program.graph.output_node().args = ([program.graph.output_node().args[0]],)
        program.recompile()

    text, _ = explained(tmp_path, boxed)
    assert "no node computes another value: what differs is what the program returns or writes to" in text


def test_precision_that_only_rounding_shows_is_found_at_its_node(tmp_path):
    def in_half_precision(program):
        if next(iter(program.parameters()), torch.ones(1)).dtype == torch.float64:
            return
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            half = behind(node, "half", node)
            behind(half, "to", half, torch.float32)
        program.recompile()

    layer = Calling(lambda m, x: torch.sigmoid(m.linear(x)) * 3, linear=nn.Linear(3, 30))
    text, details = explained(tmp_path, in_half_precision, module=layer)
    assert "%to = call_method[to](%half, torch.float32)" in text
    assert "## Error of each node, float32 beside float64" in details.read_text(encoding="utf-8")


def test_explaining_changes_neither_the_model_nor_the_random_numbers(tmp_path):
    module = nn.Sequential(Counting(), Scaled())
    hooks = dict(module._forward_hooks)
    x = torch.rand(2, 3)
    state = torch.get_rng_state()
    text, _ = explained(tmp_path, with_tanh, module=module, inputs=x)
    assert "%sigmoid = call_function[torch.tanh](" in text
    assert torch.equal(torch.get_rng_state(), state)
    assert (module[0].calls.item(), module._forward_hooks) == (0, hooks)


@pytest.mark.parametrize("contract", [exact, close])
def test_the_pass_of_a_pipeline_that_goes_wrong_is_named_and_the_file_has_its_report(tmp_path, contract):
    pipeline = PassPipeline([FuseConvBN(), with_tanh, "remove-dead-code"])
    text, details = explained(tmp_path, pipeline, contract=contract)
    assert "the first edit that goes wrong: edit 1 of with-tanh: the pass as a whole" in text
    assert "%sigmoid = call_function[torch.tanh](%x)" in text
    report = details.read_text(encoding="utf-8").partition("## What the pipeline did")[2]
    assert [line.split()[0] for line in report.splitlines() if line][1:5] == [
        "pass", "fuse-conv-bn", "with-tanh", "remove-dead-code",
    ]  # fmt: skip


def test_under_approximate_the_node_that_adds_most_is_shown(tmp_path):
    text, _ = explained(tmp_path, with_tanh, contract=approximate(200))
    assert text.startswith("no node alone is wrong by more than is allowed; the one that adds most:\n  %sigmoid = ")


def test_under_approximate_a_node_that_is_not_finite_is_wrong(tmp_path):
    def to_infinity(program):
        retarget(program, torch.sigmoid, torch.logit)

    text, _ = explained(tmp_path, to_infinity, contract=approximate(20), inputs=torch.ones(2, 3))
    assert text.startswith("the first node that goes wrong:\n  %sigmoid = ")
    assert "error  added by this node inf" in text


def test_a_class_that_is_another_one_has_no_error_but_both_values(tmp_path):
    def last(program):
        retarget(program, torch.argmax, torch.argmin)

    module = Calling(lambda m, x: torch.argmax(torch.sigmoid(x), -1))
    text, _ = explained(tmp_path, last, module=module)
    assert "%argmax" in text and "here" in text
    assert "error  added" not in text


def test_a_second_failure_of_the_same_test_replaces_the_files_of_the_first(tmp_path):
    explained(tmp_path, with_tanh)
    (folder,) = (folder for folder in tmp_path.iterdir() if folder.is_dir())
    (folder / "left.txt").write_text("over")
    explained(tmp_path, with_tanh)
    assert {path.name for path in tmp_path.iterdir()} == {".gitignore", folder.name}
    assert [path.name for path in folder.iterdir()] == ["failure.md"]


def test_an_error_in_the_explanation_does_not_hide_the_failure(tmp_path, monkeypatch):
    def refuse(*parts, **options):
        raise ValueError("no way\nat all")

    monkeypatch.setattr("pytest_fx.failures.explanation.localize", refuse)
    text, details = explained(tmp_path, with_tanh)
    assert text.startswith("the node that goes wrong could not be found: ValueError: no way\n")
    assert details.exists()


def test_a_node_that_takes_more_than_two_lines_of_a_terminal_is_cut_and_no_sentence_is():
    sentence = "  value  RuntimeError: " + "words " * 40 + "Use .reshape(...) instead."
    cut, whole = shortened("  %cat = call_function[torch.cat](" + "%part, " * 40 + f")\n{sentence}").splitlines()
    assert cut.startswith("  %cat = call_function") and cut.endswith(" …") and len(cut) == LONGEST
    assert whole == sentence


def with_a_hint(x):
    raise RuntimeError("the sizes differ\nHint: call contiguous() first\n\nset a variable to see all frames")


fx.wrap("with_a_hint")


def test_hints_of_torch_are_shown_whole_where_a_program_raises(tmp_path):
    def raising(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            node.target = with_a_hint
        program.recompile()

    arguments = Arguments((torch.rand(2, 3),))
    subject = Subject("own", Scaled(), lambda input_set: arguments)
    hint = "RuntimeError: the sizes differ\n         Hint: call contiguous() first"
    assert hint in str(violation_of(subject, raising))
    text, _ = explained(tmp_path, raising)
    assert "it raises RuntimeError: the sizes differ\n           Hint: call contiguous() first" in text
    assert "see all frames" not in text


def test_a_path_that_is_longer_than_a_line_is_kept_whole():
    path = "/a" * 80
    assert shortened(f"details: {path}") == f"details: {path}"


def test_the_table_of_errors_marks_those_that_are_wrong():
    errors = (
        NodeError("%a = f()", "a", frozenset("a"), None, 0.0, 1e-9, 1e-8, 1.0, ulps=3),
        NodeError("%b = g(%a)", "b", frozenset("b"), None, 0.25, 0.0, None, 1.0, mismatch="another shape"),
    )
    assert format_errors(errors).splitlines() == [
        "     added here  ulp  by inputs  rounding  original  node",
        "          1e-09    3          0     1e-08  a         %a = f()",
        "*  another kind    -       0.25         -  b         %b = g(%a)",
    ]
