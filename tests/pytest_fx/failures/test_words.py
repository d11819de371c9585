"""The message of a failure: its contents, and the details that it omits."""

import inspect
import re

import pytest
import torch
from catalogue.rows import behind
from judged import violation_of, violations_of
from torch import nn
from torch.nn import functional as F

from fx.passes import close, exact
from pytest_fx.errors import InputError
from pytest_fx.factories import require_callable
from pytest_fx.failures.explanation import FailureExplanation
from pytest_fx.failures.failure import Failure
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject

ADVICE = "try    a pass that trades accuracy for speed promises approximate(sqnr_db=…)"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.norm(torch.relu(self.first(x)))
        return torch.sub(self.last(F.gelu(x)), 3)


class Mixed(nn.Module):
    def __init__(self, cast):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.cast = nn.Linear(8, 16), nn.Linear(16, 4).half(), cast

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(x.half() if self.cast else x)


class Plain(nn.Module):
    def forward(self, x, y):
        return torch.sub(torch.relu(x), y)


def with_target(program, target, other):
    for node in program.graph.find_nodes(op="call_function", target=target):
        node.target = other
    program.recompile()


def relu_to_gelu(program):
    with_target(program, torch.relu, F.gelu)


def swapped(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.sub):
        node.args = node.args[::-1]
    program.recompile()


def without_eps(program):
    norm = program.norm
    program.norm = nn.LayerNorm(16, eps=1e-3)
    program.norm.load_state_dict(norm.state_dict())
    program.norm.to(norm.weight.dtype).eval()


def another_shape(program):
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        output.args = (program.graph.call_method("flatten", (output.args[0],)),)
    program.recompile()


def reordered(program):
    (node,) = program.graph.find_nodes(op="call_module", target="last")
    with program.graph.inserting_before(node):
        node.args = (program.graph.call_function(torch.mul, (node.args[0], 3.0)),)
    last = nn.Linear(16, 4, dtype=program.last.weight.dtype)
    last.weight, last.bias = nn.Parameter(program.last.weight / 3), program.last.bias
    program.last = last.eval()
    program.recompile()


def scaled(program):
    program.last = nn.Linear(16, 4).to(program.last.weight.dtype)


def tanh_gelu(program):
    for node in program.graph.find_nodes(op="call_function", target=F.gelu):
        node.kwargs = {"approximate": "tanh"}
    program.recompile()


def in_half_precision(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        half = behind(node, "half", node)
        behind(half, "float", half)
    program.recompile()


def rounded_weights(program):
    last = nn.Linear(16, 4)
    last.weight = nn.Parameter(program.last.weight.detach().half().to(program.last.weight.dtype))
    last.bias = program.last.bias
    program.last = last.eval()


def half_weights(program):
    last = nn.Linear(16, 4)
    last.load_state_dict(program.last.state_dict())
    program.last = last.half().eval()


def half_in_place(program):
    program.last.half()


def half_layer(program):
    half_weights(program)
    (node,) = program.graph.find_nodes(op="call_module", target="last")
    with program.graph.inserting_before(node):
        node.args = (program.graph.call_method("half", node.args),)
    behind(node, "float", node)
    program.recompile()


def doubled(program):
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(2)


def subject(module=None, *inputs, dtype=None):
    inputs = inputs or (torch.linspace(-1, 1, 40).reshape(5, 8),)

    def made(input_set):
        return Arguments(tuple(each + input_set / 8 for each in inputs))

    return Subject("network", module or Net(), made, working_dtype=dtype)


def message_of(pass_, of=None, contract=close):
    """Return the message about a pass as one line, without the place of the fault."""
    return words(violation_of(of or subject(), pass_, contract))


def located(pass_, of):
    """Return the explanation of the place where the pass goes wrong, as one line."""
    return words("\n".join(FailureExplanation(Failure(of, pass_, close, violation_of(of, pass_), "own", None)).lines))


def words(text):
    return re.sub(r"\s+", " ", str(text))


@pytest.mark.parametrize("pass_", [relu_to_gelu, swapped, without_eps, another_shape, scaled])
def test_a_plain_fault_gets_no_advice_on_a_looser_contract(pass_):
    text = message_of(pass_)
    assert text.startswith("law '")
    assert "approximate(" not in text


def test_a_dropped_operation_with_a_small_effect_is_no_rounding_error():
    def without_norm(program):
        (node,) = program.graph.find_nodes(op="call_module", target="1")
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
        program.recompile()

    text = message_of(without_norm, subject(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval()))
    assert text.startswith("law 'contract'") and "ulp" in text
    assert "approximate(" not in text


@pytest.mark.parametrize("pass_", [tanh_gelu, in_half_precision, rounded_weights, half_layer])
def test_a_pass_that_trades_accuracy_gets_advice_on_a_contract(pass_):
    text = message_of(pass_)
    assert text.startswith("law 'contract'")
    assert text.endswith(words(ADVICE))


def test_a_pass_with_other_bits_that_is_close_is_advised_to_promise_close():
    advice = "try promise `close` if the pass reorders arithmetic"
    assert advice not in message_of(relu_to_gelu, contract=exact)
    assert message_of(reordered, contract=exact).endswith(advice)


def test_counts_of_ulp_and_ratios_that_say_nothing_are_left_out():
    text = message_of(relu_to_gelu) + located(relu_to_gelu, subject())
    assert " ulp" not in text
    assert text.count("SQNR") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("module, count", [(Net, 1), (Plain, 2)])
def test_messages_speak_of_the_users_dtype(dtype, module, count):
    of = subject(module(), *[torch.linspace(-1, 1, 40).reshape(5, 8)] * count, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    text = message_of(swapped, of)
    assert f"element(s), {name} value eager " in text
    assert f"eager's rounding error in {name} is at most" in text
    assert "element(s), both in float64" in located(swapped, of)


@pytest.mark.thorough
def test_a_cast_is_reported_in_the_users_dtype_where_float64_makes_another_kind_of_value_of_it():
    assert "element(s), float32" in message_of(in_half_precision)
    text = located(in_half_precision, subject())
    assert "%float_1 = call_method[float](%half)" in text
    assert "float64" not in text
    assert "element(s), float32" in text


def test_weights_that_a_pass_has_converted_are_named():
    note = "note last.weight, last.bias are float16 in the program, float32 in the model"
    assert note in message_of(half_layer)
    first, *others = violations_of(subject(), half_weights)
    text = words(first.with_others(others))
    assert "raise where eager does not" in text
    assert note in text
    first, *others = violations_of(subject(), half_in_place)
    text = words(first.with_others(others))
    assert "it made float16 of last.weight, last.bias" in text
    assert text.count("raise where eager does not") == 1
    assert "also same error under 'inputs untouched', " in text


def test_weights_of_a_model_in_two_dtypes_are_named():
    note = "last.weight, last.bias of the model are float16, others float32"
    assert f"note {note}" in message_of(relu_to_gelu, subject(Mixed(cast=True)))
    of = subject(Mixed(cast=False))
    with pytest.raises(InputError, match="cannot be called with its own example inputs") as caught:
        require_callable(of, of.arguments())
    assert note in words(caught.value)
    assert "try convert all of the model, .half() or .float()" in words(caught.value)


def test_a_damaged_original_is_not_the_reference():
    assert located(doubled, subject()).startswith("the first node that goes wrong: %first = call_module[first]")


def in_functions_alone_too(program):
    relu_to_gelu(program)


def otherwise_in_functions_alone(program):
    if program.graph.find_nodes(op="call_module"):
        relu_to_gelu(program)
    else:
        swapped(program)


@pytest.mark.thorough
@pytest.mark.parametrize("pass_, count", [(in_functions_alone_too, 1), (otherwise_in_functions_alone, 2)])
def test_a_failure_in_functions_alone_is_reported_if_it_is_another_one(pytester, monkeypatch, pass_, count):
    monkeypatch.setattr("pytest_fx.failures.explanation.find_part", lambda *given: None)  # which takes seconds
    parts = (Net, with_target, relu_to_gelu, swapped, pass_)
    source = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    source += "\n".join(map(inspect.getsource, parts)) + "\ndef model():\n    return Net(), torch.ones(5, 8)\n"
    pytester.makepyfile(own=source)
    run = ("--fx-model", "own:model", "--fx-pass", f"own:{pass_.__name__}", "--fx-no-timing", "-rs", "-v")
    result = pytester.runpytest(*run, "-k", "keeps_its_contract")
    text = words(result.stdout)
    assert text.count("LawViolation: law 'contract'") == count
    assert ("breaks the law 'contract' in the way that another test reports" in text) == (count == 1)
    assert "no leaf modules wrong: contract 14 -> 14" in text
