"""pytest_fx.failures.reproducer: a failure on a model is cut out, shrunk, and reproduced from its own file."""

import operator
import os
import re

import pytest
import torch
from catalogue.rows import behind, retarget
from judged import violation_of
from torch import nn

from fx.errors import FxError
from fx.passes import FuseConvBN, close
from pytest_fx.errors import LawViolation
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.reproducer import TrialBudget, find_part
from pytest_fx.failures.reproducer_file import spell_value, write_test
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject

FAULTY = '''
"""A fusion with a fault, which an ini setting of this module takes away."""
import torch
from fx.passes import FuseConvBN

FAULT = 1e-2

def fuse(program):
    norm = program.get_submodule("layer3.0.bn2") if hasattr(program, "layer3") else None
    if norm is not None:
        norm.eps += FAULT
    fused = FuseConvBN()(program)
    if norm is not None:
        norm.eps -= FAULT
    return fused
'''


def failure_of(module, inputs, pass_, contract=close):
    subject = Subject("model", module, lambda input_set: Arguments(inputs))
    return Failure(subject, pass_, contract, violation_of(subject, pass_, contract), "own", "mine:wrong")


def shown_by(subject, pass_, leaves=True):
    """Return a failure of a pass on a subject, without a search for it."""
    error = LawViolation("contract", "what", kind="values of output")
    return Failure(subject, pass_, close, error, "own", "mine:wrong", leaves)


def part_of(module, inputs, pass_, *names, **options):
    return find_part(failure_of(module, inputs, pass_), frozenset(names), **options)


def called(part):
    return [node.name for node in part.program.graph.nodes if node.op.startswith("call")]


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        y = torch.sigmoid(x) * 2
        return torch.exp(self.second(y)).sum(1)


def double_the_sigmoid(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
        behind(node, torch.mul, node, 1.5)
    program.recompile()


def test_the_part_is_the_operation_that_goes_wrong_with_one_sample():
    part = part_of(Steps(), (torch.randn(4, 3),), double_the_sigmoid, "sigmoid")
    assert called(part) == ["sigmoid"]
    (value,) = part.inputs
    assert value.tolist() == [[1.0]]


@pytest.mark.thorough
def test_a_fault_that_needs_its_surroundings_gets_them():
    def wrong_behind_a_sigmoid(program):
        """Goes wrong only where the layer is fed by the product of a sigmoid."""
        for node in program.graph.find_nodes(op="call_module", target="second"):
            product = node.args[0]
            if product.op == "call_function" and product.args[0].op == "call_function":
                node.args = (product.args[0],)
        program.recompile()

    part = part_of(Steps(), (torch.randn(4, 3),), wrong_behind_a_sigmoid, "second")
    assert called(part) == ["sigmoid", "mul", "second"]
    assert [node.name for node in part.program.graph.nodes if node.op == "placeholder"] == ["tanh"]


def test_operations_that_do_not_matter_are_left_out():
    class Long(nn.Module):
        def forward(self, x):
            a = torch.sigmoid(x)
            for _ in range(10):
                x = torch.tanh(x + 1)
            return x * a

    def needs_a_sigmoid(program):
        if program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            program.graph.output_node().args[0].args = (*program.graph.output_node().args[0].args[:1], 3.0)
        program.recompile()

    part = part_of(Long(), (torch.rand(2, 3),), needs_a_sigmoid, "mul")
    assert called(part) == ["sigmoid", "mul"]


class Surrounded(nn.Module):
    """Twenty operations, a sigmoid that is halved, and twenty more."""

    def forward(self, x):
        for _ in range(20):
            x = torch.tanh(x + 1)
        x = torch.sigmoid(x) * 0.5
        for _ in range(20):
            x = -x
        return x


def test_a_fault_that_needs_later_nodes_is_found_without_earlier_nodes():
    def wrong_where_halved(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            if any(user.target is operator.mul for user in node.users):
                node.target = torch.tanh
        program.recompile()

    budget = TrialBudget()
    part = part_of(Surrounded(), (torch.randn(4, 3),), wrong_where_halved, "sigmoid", budget=budget)
    assert called(part) == ["sigmoid", "mul"]
    assert budget.tried < 40


def test_a_fault_of_the_model_may_be_within_rounding_in_a_part():
    """The fault of the tutorial: a fold that forgets the epsilon of a batch norm with large variances."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Linear(32, 10)

        def forward(self, image):
            return self.last(torch.relu(self.norm(self.conv(image))).mean((2, 3)))

    def fold_without_epsilon(program):
        norm = program.get_submodule("norm")
        norm.eps, before = 0.0, norm.eps
        folded = FuseConvBN()(program)
        norm.eps = before
        return folded

    torch.manual_seed(0)
    model = Classifier()
    model(torch.randn(16, 3, 32, 32))
    failure = failure_of(model.eval(), (torch.randn(4, 3, 32, 32),), fold_without_epsilon)
    assert failure.error.kind == "values of output"
    assert called(find_part(failure, frozenset({"conv", "norm"}))) == ["conv", "norm"]


def away_from_one(y, x):
    return y + (x - 0.999) / 2


def test_shrinking_inputs_keeps_the_error_large():
    def right_near_one(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            behind(node, away_from_one, node, node.args[0])
        program.recompile()

    (value,) = part_of(Steps(), (torch.randn(4, 3),), right_near_one, "sigmoid").inputs
    assert value.shape == (1, 1)
    assert abs(value.item() - 0.999) > 0.1


def test_no_part_is_found_where_none_fails_like_the_whole():
    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.marker = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return torch.sigmoid(self.linear(x)) + self.marker

    def wrong_beside_the_marker(program):
        if not hasattr(program, "linear") or not hasattr(program, "marker"):
            raise ValueError("too small")
        if program.linear.weight.dtype == torch.float32:
            calls.append(1)
        if len(calls) == 1:
            double_the_sigmoid(program)

    calls = []
    assert part_of(Marked(), (torch.rand(1, 2),), wrong_beside_the_marker, "sigmoid") is None


@pytest.mark.parametrize("spent", [{"seconds": 0}, {"tries": 0}])
def test_where_nothing_may_be_spent_the_part_is_the_whole_program(spent):
    budget = TrialBudget(**spent)
    part = part_of(Steps(), (torch.randn(4, 3),), double_the_sigmoid, "sigmoid", budget=budget)
    assert called(part) == ["first", "tanh", "sigmoid", "mul", "second", "exp", "sum_1"]
    assert budget.tried == 0


def test_the_spent_budget_names_the_limit_that_ended_the_search():
    assert str(TrialBudget()) == "0 parts tried"
    assert str(TrialBudget(tries=0)) == "0 parts tried, which is the most"
    assert str(TrialBudget(seconds=0)) == "0 parts tried in 0 s of CPU time, which is the most"


def refuse_sigmoids(program):
    if program.graph.find_nodes(op="call_function", target=torch.sigmoid):
        raise ValueError(f"no sigmoids among {len(program.graph.nodes)} nodes")


def test_the_shortest_program_on_which_a_pass_raises_is_found():
    part = part_of(Steps(), (torch.randn(4, 3),), refuse_sigmoids)
    assert called(part) == ["sigmoid"]


def test_another_exception_than_the_models_is_another_failure():
    def refuse_more_on_parts(program):
        if len(program.graph.nodes) < 5:
            raise KeyError("too small")
        refuse_sigmoids(program)

    part = part_of(Steps(), (torch.randn(4, 3),), refuse_more_on_parts)
    assert len(part.program.graph.nodes) == 5


def test_a_changed_output_structure_is_shown_with_the_output():
    class Pair(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x + 1), {"scaled": x * 2}

    def into_a_list(program):
        output = program.graph.output_node()
        if isinstance(output.args[0], tuple):
            output.args = (list(output.args[0]),)
            program.recompile()

    part = part_of(Pair(), (torch.randn(4, 3),), into_a_list)
    assert called(part) == []
    assert part.program.code.count("return (sigmoid, {'scaled': mul})") == 1


def test_inputs_are_cut_in_step_and_made_plain():
    class Joined(nn.Module):
        def forward(self, x, *, mask, scale=2):
            return torch.sigmoid(x) * mask.float() * scale

    subject = Subject(
        "model", Joined(), lambda input_set: Arguments((torch.randn(2, 3, 8, 8),), {"mask": torch.ones(2, 1, 8, 8) > 0})
    )

    def double_what_is_masked(program):
        for node in program.graph.find_nodes(op="call_function", target=operator.mul):
            if len(node.all_input_nodes) == 2:
                behind(node, torch.mul, node, 1.5)
        program.recompile()

    part = find_part(shown_by(subject, double_what_is_masked), frozenset({"mul"}))
    assert [list(value.shape) for value in part.inputs if isinstance(value, torch.Tensor)] == [[1] * 4] * 2


@pytest.mark.parametrize("leaves", [True, False])
def test_a_part_of_a_program_without_leaf_modules_can_be_found_as_well(leaves):
    subject = Subject("model", Steps(), lambda input_set: Arguments((torch.randn(4, 3),)))
    part = find_part(shown_by(subject, double_the_sigmoid, leaves), frozenset({"sigmoid"}))
    assert called(part) == ["sigmoid"]


def test_a_search_leaves_the_random_numbers_alone():
    failure = failure_of(nn.Sequential(Steps(), nn.Dropout()), (torch.ones(4, 3),), double_the_sigmoid)
    state = torch.get_rng_state()
    assert find_part(failure, frozenset({"sigmoid"})) is not None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.thorough
def test_the_file_fails_alone_until_the_pass_is_right(pytester):
    pytester.makepyfile(faulty=FAULTY)
    result = pytester.runpytest(
        "--fx-model", "resnet_tiny", "--fx-pass", "faulty:fuse", "-k", "test_pass_keeps", "-p", "no:cacheprovider"
    )
    assert result.ret == 1
    path = pytester.path / re.search(r"a test of \d nodes that shows it alone:\s+(.*)\n", str(result.stdout))[1]
    assert path.parent.parent == pytester.path / ".pytest_fx"
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        ["failure.md", "inputs.safetensors", "state_dict.pt", path.name]
    )
    assert "fuse changes what resnet_tiny computes, cut out of resnet_tiny at" in path.read_text()
    alone = pytester.runpytest(path)
    alone.assert_outcomes(failed=1)
    alone.stdout.fnmatch_lines("E*fuse changes what part_of_model computes")
    elsewhere = pytester.mkdir("elsewhere")
    os.chdir(elsewhere)
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider", path).ret == 1
    os.chdir(pytester.path)
    (pytester.path / "faulty.py").write_text(FAULTY.replace("1e-2", "0.0"))
    pytester.runpytest_subprocess(path).assert_outcomes(passed=1)


NEGATE = """
import torch

def negate(program):
    for node in program.graph.find_nodes(op="call_module"):
        with program.graph.inserting_after(node):
            new = program.graph.call_function(torch.neg, (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    program.recompile()
"""


def test_a_pass_without_an_importable_name_leaves_no_file(pytester):
    local = NEGATE.replace("\n", "\n    ")
    path = pytester.makepyfile(f"def test_local(fx_equal):{local}\n    fx_equal(negate)")
    result = pytester.runpytest(path, "--fx-model", "mlp")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *the first node that goes wrong:", "E *no test file was made of it: the pass cannot be imported by name"]
    )
    (folder,) = (pytester.path / ".pytest_fx").glob("negate_mlp_*")
    assert [file.name for file in folder.iterdir()] == ["failure.md"]


@pytest.mark.thorough
def test_two_tests_that_fail_keep_a_folder_each_and_a_second_run_replaces_them(pytester):
    pytester.makepyfile(faulty=NEGATE)
    options = ("--fx-model", "mlp", "--fx-pass", "faulty:negate", "--fx-batch", "1,2", "-k", "test_pass_keeps_its")
    for _ in range(2):
        assert pytester.runpytest(*options).parseoutcomes()["failed"] == 2
        folders = [folder for folder in (pytester.path / ".pytest_fx").iterdir() if "negate" in folder.name]
        assert len(folders) == 2
        assert len({folder.joinpath("failure.md").read_text() for folder in folders}) == 2


def shown_after(result, words):
    """Return the path that follows ``words`` in the output of a run."""
    return re.search(rf"{words}:\s+(\S+)\n", str(result.stdout))[1]


def test_a_test_that_was_cut_out_cuts_no_other_out_of_itself(pytester):
    pytester.makepyfile(mine=NEGATE)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-pass", "mine:negate", "-k", "test_pass_keeps_its")
    path = shown_after(result, r"a test of \d nodes that shows it alone")
    alone = pytester.runpytest("-p", "no:cacheprovider", pytester.path / path)
    alone.assert_outcomes(failed=1)
    alone.stdout.fnmatch_lines("*the first node that goes wrong:")
    alone.stdout.no_fnmatch_line("*a test of*")
    assert len(list((pytester.path / ".pytest_fx").glob("*/test_*.py"))) == 1


OF_THE_MODELS_CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)

def model():
    return Model(), torch.randn(2, 3)

def wrong(program):
    for node in program.graph.find_nodes(op="call_function"):
        if "mine.py" in str(node.source):
            node.target = torch.tanh
    program.recompile()
"""


def test_where_no_part_fails_alone_the_test_is_of_the_whole_model(pytester, monkeypatch):
    pytester.makepyfile(mine=OF_THE_MODELS_CODE)
    options = ("--fx-no-timing", "-p", "no:cacheprovider", "-k", "test_pass_keeps_its")
    result = pytester.runpytest(
        "--fx-model", "mine:model", "--fx-pass", "mine:wrong", "--fx-dtype", "float64", *options
    )
    result.stdout.fnmatch_lines("*why    no part fails alone in the same way (* parts tried)")
    path = pytester.path / shown_after(result, "a test of the whole model that shows it")
    assert "model='mine:model'" in path.read_text()
    assert "dtype='float64'" in path.read_text()
    monkeypatch.chdir("/")
    pytester.runpytest("-p", "no:cacheprovider", path).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    "value, text",
    [
        ((1, [2.5, None], {"a": "b"}), "(1, [2.5, None], {'a': 'b'})"),
        (float("-inf"), 'float("-inf")'),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        (torch.float32, "torch.float32"),
        (torch.device("cpu"), "torch.device('cpu')"),
        (slice(1, None, 2), "slice(1, None, 2)"),
        ((torch.ones(1), 3), '(tensors["0"], 3)'),
        (torch.ones(1, dtype=torch.complex64), 'torch.view_as_complex(tensors["0"])'),
        (
            torch.ones(2, 3).t(),
            'torch.empty_strided((3, 2), (1, 3), dtype=torch.float32).copy_(tensors["0"])',
        ),
    ],
)
def test_values_of_many_kinds_can_be_inputs_of_a_file(value, text):
    tensors = {}
    spelled = spell_value(value, tensors)
    assert spelled == text
    again = eval(spelled, {"torch": torch, "tensors": tensors})
    assert str(again) == str(value)
    if isinstance(value, torch.Tensor):
        assert again.stride() == value.stride()


def test_a_value_that_cannot_be_written_is_refused():
    with pytest.raises(FxError, match="cannot be written to a file\n  value  an object of type object"):
        spell_value(object(), {})


def test_numbers_among_the_inputs_are_written_into_the_file(tmp_path):
    class Sized(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x.view(x.size(0), -1))

    subject = Subject("sized", Sized(), lambda input_set: Arguments((torch.rand(2, 3, 4),)))

    def wrong(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            node.target = torch.tanh
        for node in program.graph.find_nodes(op="call_method", target="view"):
            node.meta["kept"] = True
        program.recompile()

    failure = shown_by(subject, wrong)
    part = find_part(failure, frozenset({"view", "sigmoid"}))
    path = write_test(tmp_path, failure, part, "model.py:3")
    text = path.read_text()
    assert "what, cut out of sized at model.py:3." in text
    assert "contract='close(rtol=1e-05, atol=1e-08)'" in text
    compile(text, str(path), "exec")


class Counting(nn.Module):
    """Large, and writes to its buffer whenever it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.register_buffer("mean", torch.zeros(1024))

    def forward(self, x):
        self.mean.add_(x.mean(0))
        return torch.tanh(self.linear(x)) * self.mean


def tanh_wrong(program):
    retarget(program, torch.tanh, torch.sin)


@pytest.mark.thorough
def test_looking_for_a_part_leaves_the_tensors_of_a_large_model_as_they_were_when_time_is_over():
    torch.manual_seed(0)
    failure = failure_of(Counting(), (torch.randn(4, 1024),), tanh_wrong)
    subject = failure.subject
    assert subject.is_large
    subject.shared_copy()
    find_part(failure, budget=TrialBudget(seconds=0.0))
    weights = list(subject.shared_weights().values())
    assert len(weights) == 3
    assert all(torch.equal(each.tensor, each.values) for each in weights)


def test_a_part_includes_in_place_writes_to_the_values_it_reads():
    class Written(nn.Module):
        def forward(self, x):
            hidden = torch.tanh(x)
            hidden[0] = 2.0
            hidden.mul_(0.5)
            return torch.exp(hidden).sum(1)

    def drop_statements(program):
        for node in program.graph.find_nodes(op="call_method", target="mul_"):
            if not node.users:
                program.graph.erase_node(node)
        program.recompile()

    part = part_of(Written(), (torch.randn(4, 3),), drop_statements, "mul_")
    assert called(part)[-2:] == ["mul_", "exp"]
