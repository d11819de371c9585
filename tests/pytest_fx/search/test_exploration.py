"""The exploration of the places where a pass acts: varied properties, counted trials, and faults."""

import ast
import itertools
import operator
import re
from collections import Counter, defaultdict
from random import Random

import hypothesis
import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

import fx
from pytest_fx import LawViolation, check_pass
from pytest_fx.generation.bias import choices_for
from pytest_fx.harness.subject import Subject
from pytest_fx.search.coverage import Point
from pytest_fx.search.exploration import trials
from pytest_fx.search.growth import growths, starts
from pytest_fx.search.growth_steps import operated, operation_variations
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed, flattened
from pytest_fx.search.reduction import written
from pytest_fx.search.syntax import applies, edited, loaded, stored, uses_of
from pytest_fx.search.tensor_variations import wider
from pytest_fx.search.use_variations import use_variations

QUICK = hypothesis.settings(database=None, phases=[hypothesis.Phase.generate])
CONVOLUTION = """
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.ones(4, 1, 1))

    def forward(self, x, y):
        a = torch.relu(self.norm(self.conv(x))) * 2.0
        b = torch.cat([a, a * self.scale], 1)
        return torch.softmax(b + y, 1)


def build():
    torch.default_generator.manual_seed(0)
    return Program().eval()


def inputs():
    return (torch.arange(240.0).add(1).sin().reshape(2, 4, 5, 6), torch.ones(1)), {}
"""


class DrawnTexts:
    """Texts of programs that differ from one in a single property. As many are drawn as the tests look at."""

    def __init__(self, text, *modes, operations=()):
        self._singles = itertools.islice(
            trials([(text, "eval")], modes, (), Random(0), {}, operations=operations), 1500
        )
        self._texts = defaultdict(list)

    def of(self, name):
        """Yield the programs that differ in a property."""
        for number in itertools.count():
            while number >= len(self._texts[name]):
                trial = next(self._singles, None)
                if trial is None:
                    return
                self._texts[trial.properties[0]].append(trial.program.source)
            yield self._texts[name][number]


@pytest.fixture(scope="module")
def varied():
    return DrawnTexts(CONVOLUTION, "eval", "train")


@pytest.mark.parametrize(
    "name, text",
    {
        "argument groups of Conv2d": "nn.Conv2d(4, 4, 3, groups=2)",
        "argument padding_mode of Conv2d": "padding_mode=",
        "argument dilation of Conv2d": "dilation=",
        "argument bias of Conv2d": "bias=False",
        "argument eps of BatchNorm2d": "eps=",
        "argument affine of BatchNorm2d": "affine=False",
        "argument dtype of softmax": "dtype=torch.float64",
        "argument alpha of add": "alpha=",
        "by keyword": "input=",
        "spelling": "torch.mul(",
        "argument dim of cat": ", -1)",
        "size 1": "reshape(1, 4, 5, 6)",
        "odd size": "reshape(2, 4, 7, 6)",
        "rank": "reshape",
        "float16": ".to(torch.float16)",
        "float64 of one tensor": "dtype=torch.float64",
        "zeros": "torch.tensor([0.0])",
        "large values": "30000.0",
        "a NaN": "nan",
        "ties": "1.0, 1.0, 2.0",
        "rows of zeros of weight of Conv2d": "[:1].zero_()",
        "channels last": "channels_last",
        "storage offset": "[1:]",
        "expanded": "expand_as",
        "returned": "return",
        "a weight read again": "self.conv.weight * 2",
        "a buffer written": "self.scale.add_(1)",
        "written at once": ".mul_(2)",
        "written through a view at the end": ".view(-1)[::2].add_(1)",
        "written through an earlier view": "[:1]",
        "computed twice": "more1",
        "again with another dim": "more1",
        "applied to another value": "* 2",
        "result in a given tensor": "out=",
        "a result unused": "relu_(",
        "dropout between": "dropout(",
        "cast between": ".double()",
        "strides between": ".contiguous().transpose",
        "operands swapped": "2.0 *",
        "integers with equal numbers of two types": "* 2 + 1",
        "order of a list": "torch.cat([t",
        "a tensor in the place of a number": "self.more1",
        "a forward hook": "register_forward_hook",
        "a hook before forward": "register_forward_pre_hook",
        "frozen parameters": "requires_grad_(False)",
        "a parametrized weight": "parametrizations.",
        "the mode of one module": ".train()",
        "a parameter": "self.scale = nn.Parameter",
        "a buffer that is not saved": "persistent=False",
        "inside of another module": "self.inner = Inner()",
        "the other mode": "class Program",
    }.items(),
)
def test_a_property_is_varied(varied, name, text):
    assert any(text in source for source in varied.of(name)), [*varied.of(name)]


def test_a_counter_is_read_between_two_of_its_steps():
    text = """\
import torch
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        a = self.count.add_(1)
        b = self.count.add_(2)
        return x + b


def build():
    return Program().eval()


def inputs():
    return (torch.ones(2, 3),), {}
"""
    observed = Observed.of(text, "eval")
    texts = [written(edited(observed.tree, each.edits)) for each in use_variations(observed)]
    between = [lines.partition("add_(1)")[2].partition("add_(2)")[0] for lines in texts]
    assert any("= self.count * 2" in each for each in between)


LOSS = """
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("target", torch.tensor([0, 1, 1]))

    def forward(self, x, y):
        return F.nll_loss(x + y, self.target)


def build():
    return Program().eval()


def inputs():
    return (torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)), {}
"""


@pytest.mark.parametrize(
    "name, texts",
    [("rank of all tensors", ["ones(3, 4, 2)", "repeat(2).reshape(3, 2)"]), ("large integers", ["16777217"])],
)
def test_properties_of_several_tensors_and_of_their_types_are_varied(name, texts):
    programs = DrawnTexts(LOSS, "eval")
    assert any(all(text in source for text in texts) for source in programs.of(name)), [*programs.of(name)]


def test_a_group_that_no_size_divides_comes_with_another_size(varied):
    groups = (
        re.search(r"nn\.Conv2d\(\d+, \d+, 3, groups=(\d)\)", text) for text in varied.of("argument groups of Conv2d")
    )
    numbers = (group[1] for group in groups if group)
    assert "2" in numbers and "3" in numbers


def test_a_module_may_be_in_another_mode_than_the_rest(varied):
    modes = set()
    for text in itertools.islice(varied.of("the mode of one module"), 2):
        subject = Subject.of(running(text), "eval")
        modes.add((subject.mode, subject.fresh().conv.training, subject.fresh().norm.training))
    assert modes == {("eval", True, False), ("eval", False, True)}
    assert Subject.of(running(text), "train").fresh().conv.training


PLAIN = """
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def forward(self, x, y):
        a, b = x.chunk(2, dim=1)
        c = torch.cat([a, b], dim=1)
        d = F.avg_pool2d(c, 2)[:, :1]
        return F.avg_pool2d(d, 2) + y * 3


def build():
    return Program().eval()


def inputs():
    return (torch.arange(256.0).add(1).sin().reshape(1, 4, 8, 8), torch.ones(1)), {}
"""


@pytest.fixture(scope="module")
def varied_without_layers():
    return DrawnTexts(PLAIN, "eval")


@pytest.mark.parametrize(
    "name, texts",
    [
        ("a module between", ["self.more1 = nn.Dropout(0.5)", "self.more1("]),
        ("a tensor in the place of a number", ["register_buffer", "self.more1"]),
        ("written by a module", ["nn.ReLU(inplace=True)", "self.more2(a)"]),
        ("argument index of getitem", ["t0[:, :-1]"]),
        ("argument index of getitem", ["t0[:, :2]"]),
        ("order of a list", ["torch.cat([b, a], dim=1)"]),
        ("argument dim of cat left out", ["torch.cat([a, b])"]),
        ("argument ceil_mode of several calls", ["t0 = F.avg_pool2d(c, 2, ceil_mode=True)", "d, 2, ceil_mode=True"]),
        ("argument dim of several calls", ["chunk(2, dim=-1)", "[a, b], dim=-1"]),
        ("equal numbers of two types", ["more1 * 2 + 1, more1 * 2.0 + 1"]),
        ("written as a given result at once", ["torch.neg(a, out=a)"]),
        ("float64", [".to(torch.float64)"]),
    ],
)  # fmt: skip
def test_a_property_is_varied_where_there_are_no_layers(varied_without_layers, name, texts):
    sources = varied_without_layers.of(name)
    assert any(all(text in source for text in texts) for source in sources), [*varied_without_layers.of(name)]


def test_a_layer_is_called_beside_another_one_with_other_arguments(varied):
    texts = varied.of("again with another dilation")
    assert any("nn.Conv2d(4, 4, 3)" in text and "nn.Conv2d(4, 4, 3, dilation=" in text for text in texts)


def test_each_property_is_varied_once_before_any_is_varied_again():
    near = trials([(CONVOLUTION, "eval")], ("eval",), (), Random(0), {})
    names = [trial.properties[0] for trial in itertools.islice(near, 80)]
    assert len(set(names)) == len(names)


def test_several_properties_follow_of_those_on_which_the_pass_acted():
    acted = {"zeros": 1, "returned": 9, "ties": 1, "read again": 1}
    near = itertools.islice(trials([(CONVOLUTION, "eval")], ("eval",), (), Random(0), acted), 400)
    several = [trial.properties for trial in near if len(trial.properties) > 1]
    assert {2, 3} <= set(map(len, several)) and {*itertools.chain(*several)} <= acted.keys()
    seldom, often = (sum(name in properties for properties in several) for name in ("ties", "returned"))
    assert seldom > often, "what was varied often comes less often"


def test_other_operations_of_the_pass_replace_a_call():
    texts = DrawnTexts(CONVOLUTION, "eval", operations=(torch.tanh, nn.Sigmoid))
    assert any("torch.tanh(" in text for text in texts.of("tanh instead"))
    assert any("nn.Sigmoid()" in text for text in texts.of("Sigmoid instead"))


def test_a_layer_that_updates_its_buffers_replaces_a_call():
    names = {variation.name for variation in operation_variations(Observed.of(CONVOLUTION, "eval"), ())}
    assert {"BatchNorm1d instead", "BatchNorm2d instead"} <= names


def test_a_line_that_fits_no_new_value_is_left_out_and_the_new_value_returned():
    observed = Observed.of(
        CONVOLUTION.replace("return torch.softmax(b + y, 1)", "c = a[y.long()]\n        return c"), "eval"
    )
    index = observed.lines[-2]
    (reader,) = uses_of(observed.lines[-1], {ast.unparse(index.targets[0])})
    several = [
        operated(observed, [(observed.lines[-1], reader)], choices_for(torch.tanh), Random(seed)) for seed in range(20)
    ]
    texts = [written(edited(observed.tree, edits)) for edits in several if edits is not None]
    left_out = [text for text in texts if "a[" not in text]
    assert left_out and all("more1 = torch.tanh(" in text and "return more1" in text for text in left_out)


def test_slices_are_written_with_colons_and_vary():
    text = PLAIN.replace("[:, :1]", "[slice(None, None, None), slice(None, 1, None)]")
    assert "[:, :1]" in written(Observed.of(text, "eval").tree)


def test_a_setting_that_is_none_varies_as_one_that_is_left_out():
    text = PLAIN.replace("F.avg_pool2d(d, 2)", "F.softmax(d, 1, dtype=None)")
    near = itertools.islice(trials([(text, "eval")], ("eval",), (), Random(0), {}), 400)
    assert any("dtype=torch.float64" in trial.program.source for trial in near)


def test_a_factory_of_a_traced_size_is_called_by_all_its_overloads():
    text = PLAIN.replace("F.avg_pool2d(d, 2)", "F.avg_pool2d(d, 2) + torch.arange(d.size(0)).sum()")
    near = itertools.islice(trials([(text, "eval")], ("eval",), (), Random(0), {}), 1500)
    texts = [trial.program.source for trial in near]
    assert any("torch.arange(1, " in text for text in texts)
    assert any("torch.arange(t2 * 0.5)" in text for text in texts)


def test_padding_that_does_not_fit_a_kernel_comes_with_a_larger_kernel():
    text = PLAIN.replace("F.avg_pool2d(c, 2)[:, :1]", "c[:, :1]").replace("F.avg_pool2d(d, 2)", "F.avg_pool2d(d, 1)")
    near = itertools.islice(trials([(text, "eval")], ("eval",), (), Random(0), {}), 500)
    assert any("avg_pool2d(d, 2, padding=" in trial.program.source for trial in near)


def test_names_come_in_their_order_in_each_process():
    names = [f"value{number}" for number in range(9, 0, -1)]
    statement = ast.parse(f"{', '.join(names)} = call({', '.join(names)})")
    assert [*stored(statement)] == names and [*loaded(statement)] == ["call", *names]


def relu_under_one_name(graph_module):
    """Make layers of functions, under a name that a program may have already."""
    for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.relu)):
        graph_module.relu_layer = nn.ReLU()
        with graph_module.graph.inserting_before(node):
            node.replace_all_uses_with(graph_module.graph.call_module("relu_layer", node.args))
        graph_module.graph.erase_node(node)
    graph_module.recompile()


def test_names_that_the_pass_makes_are_taken_in_some_programs(tmp_path):
    with pytest.raises(LawViolation) as caught:
        check_pass(relu_under_one_name, max_examples=40, seed=0, folder=tmp_path, settings=QUICK)
    assert "relu_layer" in str(caught.value)


def test_arguments_that_the_pass_does_not_mention_come_first():
    near = trials([(CONVOLUTION, "eval")], ("eval",), {"dim", "padding"}, Random(0), {})
    names = [trial.properties[0] for trial in itertools.islice(near, 12)]
    assert all(name.startswith(("argument ", "order of numbers", "numbers of a call")) for name in names), names
    assert not any(name.startswith(("argument dim of", "argument padding of")) for name in names), names


def test_a_program_with_one_call_a_line_computes_the_same():
    observed = Observed.of(CONVOLUTION, "eval")
    assert observed is not None
    lines = written(observed.tree)
    assert "t0 = self.conv(x)" in lines and "a = t2 * 2.0" in lines
    assert written(flattened(observed.tree)) == lines
    assert observed.values["b"].shape == (2, 8, 3, 4)


# Wrong passes that forget one property each.


def relu_of_what_is_detached(graph_module):
    """Lose the gradient of each relu, and the dtype of some."""
    for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.relu)):
        if len(node.args) == 1:
            with graph_module.graph.inserting_before(node):
                value = graph_module.graph.call_method("detach", node.args)
                value = graph_module.graph.call_method("float", (value,))
                node.replace_all_uses_with(graph_module.graph.call_method("clamp", (value, 0)))
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def reuse_products(graph_module):
    """Merge equal multiplications, where 2 and 2.0 are equal."""
    first_calls = {}
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.mul):
        if len(node.all_input_nodes) == 1 and not any(n.op == "call_method" for n in graph_module.graph.nodes):
            first = first_calls.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph_module.graph.erase_node(node)
    graph_module.recompile()


def last_part_by_index(graph_module):
    """Read the second of two parts by an index along the first dimension, whichever was cut."""
    for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.sigmoid)):
        part = node.args[0]
        if not isinstance(part, fx.Node) or part.target is not operator.getitem or part.args[1] != 1:
            continue
        parts = part.args[0]
        if parts.target is torch.chunk and parts.args[1:2] == (2,):
            with graph_module.graph.inserting_before(node):
                half = graph_module.graph.call_function(operator.getitem, (parts.args[0], slice(2, None)))
            node.args = (half,)
    graph_module.recompile()


@pytest.mark.parametrize("pass_", [reuse_products, last_part_by_index])
def test_a_forgotten_property_is_found(pass_, tmp_path):
    with pytest.raises(LawViolation):
        check_pass(pass_, seed=0, folder=tmp_path, settings=QUICK, modes=("eval",))


def test_wrong_values_are_looked_for_behind_wrong_gradients(tmp_path):
    with pytest.raises(LawViolation) as caught:
        check_pass(relu_of_what_is_detached, seed=0, folder=tmp_path, settings=QUICK, max_examples=40)
    assert caught.value.law == "dtype"


def relu_by_name(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=F.relu):
        if not node.kwargs.get("inplace") and len(node.args) == 1:
            node.target, node.kwargs = torch.relu, {}
    graph_module.recompile()


def test_the_report_counts_seeds_trials_and_properties(tmp_path):
    report = check_pass(relu_by_name, max_examples=6, seed=0, folder=tmp_path, settings=QUICK)
    assert report.programs >= 6 and report.seeds > 0
    assert report.trials == 30 <= report.varied
    assert 20 < len(report.varied_properties) <= 100
    assert f"{len(report.varied_properties)} properties of {report.seeds} programs were varied" in str(report)
    assert not {*report.varied_properties} & {*report.unvaried_properties}


def relu_beside_much_else(graph_module):
    for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.relu)):
        node.target = F.relu
    graph_module.recompile()


def test_the_search_explores_the_place_where_the_pass_acts(tmp_path, monkeypatch):
    seeds = []

    def noting(texts, *others):
        seeds.extend(text for text, _ in texts)
        return trials(texts, *others)

    monkeypatch.setattr("pytest_fx.search.search.trials", noting)
    check_pass(relu_beside_much_else, max_examples=4, seed=0, folder=tmp_path, settings=QUICK)
    lines = [len(Observed.of(text, "eval").lines) for text in seeds]
    assert seeds and max(lines) <= 8 and min(lines) == 1, seeds


def clean_up(graph_module):
    """Act on a pattern that no program has, and drop layers that nothing calls."""
    for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.relu)):
        if len(node.users) > 99:
            graph_module.graph.erase_node(node)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()


def test_layers_that_nothing_calls_are_dropped_by_no_edit_of_the_pass(tmp_path):
    report = check_pass(clean_up, max_examples=40, seed=1, min_changed=0, folder=tmp_path, settings=QUICK)
    assert report.changed == report.trials == 0


def test_programs_grow_where_conditions_were_met_one_way_only():
    def chain_of_three(graph_module):
        for node in list(graph_module.graph.find_nodes(op="call_function", target=torch.sigmoid)):
            if is_call(node.args[0], torch.tanh) and is_call(node.args[0].args[0], torch.erf):
                node.target = torch.tanh
        graph_module.recompile()

    def is_call(node, target):
        return isinstance(node, fx.Node) and node.target is target

    with pytest.raises(LawViolation):
        check_pass(chain_of_three, max_examples=5, seed=0, settings=QUICK)


def test_programs_grow_toward_a_pass_by_the_conditions_that_they_meet():
    reached = {program.source: frozenset({(Point("start", 1), 0)}) for program in starts()}
    operations = (torch.chunk, torch.sigmoid, operator.getitem)
    for program in itertools.islice(growths(reached, operations, Random(0), lambda text: ()), 400):
        met = [mark for mark in ("torch.chunk", "[0]", "torch.sigmoid") if mark in program.source]
        reached[program.source] = frozenset((Point(mark, 1), 0) for mark in met)
        if len(met) == 3:
            break
    assert any(len(points) == 3 for points in reached.values())


def test_a_pattern_is_tried_as_a_program_of_its_own(tmp_path):
    def pattern(scores, target):
        return F.nll_loss(F.log_softmax(scores, dim=-1), target)

    def by_cross_entropy(graph_module):
        fx.replace_pattern(graph_module, pattern, lambda scores, target: F.cross_entropy(scores, target))

    report_or_law = None
    try:
        report_or_law = check_pass(by_cross_entropy, max_examples=1, seed=0, folder=tmp_path, settings=QUICK)
    except LawViolation as violation:
        report_or_law = violation
    assert isinstance(report_or_law, LawViolation) or report_or_law.changed > 0


def rare_row(x):
    return torch.erf(torch.logcumsumexp(torch.atan(x).flip(0), 0))


def rows_of_a_table(graph_module: torch.fx.GraphModule):
    for row in (rare_row,):
        torch.fx.replace_pattern(graph_module, row, torch.tanh)


def rows_by_a_matcher(graph_module: torch.fx.GraphModule):
    matcher = SubgraphMatcher(torch.fx.symbolic_trace(rare_row).graph)
    for match in matcher.match(graph_module.graph):
        match.returning_nodes[0].target = torch.tanh
    graph_module.recompile()


@pytest.mark.parametrize("pass_", [rows_of_a_table, rows_by_a_matcher])
def test_patterns_are_found_in_any_holder(pass_, tmp_path):
    with pytest.raises(LawViolation):
        check_pass(pass_, max_examples=5, seed=0, folder=tmp_path, settings=QUICK)


LARGE = """
import torch
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        return {result}


def build():
    return Program().eval()


def inputs():
    return (torch.ones({size}),), {{}}
"""


@pytest.mark.parametrize("result, size", [("x * 2", 2_000_000), ("torch.ones(3_000_000_000).sum() + x", 3)])
def test_programs_that_need_much_memory_are_not_tried(result, size):
    assert running(LARGE.format(result="x * 2", size=4)) is not None
    assert running(LARGE.format(result=result, size=size)) is None


PERMUTED = """
import torch
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        a = x.permute(0, 1, 2)
        b = torch.softmax(a, 0)
        return b.permute((0, 1, 2))


def build():
    return Program().eval()


def inputs():
    return (torch.arange(72.0).sin().reshape(6, 3, 4),), {}
"""


def test_numbers_in_a_row_are_one_argument_and_that_of_two_calls_may_fit_each_other():
    names, pairs, inverse = set(), set(), {("1, 2, 0", "2, 0, 1"), ("2, 0, 1", "1, 2, 0")}
    acted = Counter()
    for trial in itertools.islice(trials([(PERMUTED, "eval")], ("eval",), (), Random(0), acted), 700):
        names.update(trial.properties)
        acted.update({} if "argument dims of permute" in trial.properties else trial.properties)
        if trial.properties == ("argument dims of permute of two calls",):
            pairs.add(tuple(re.findall(r"permute\((?:dims=)?\(?([\d, ]+)\)", trial.program.source)))
        if "argument dims of permute" in names and pairs & inverse:
            break
    assert "argument dims of permute" in names
    assert pairs & inverse, pairs


REPEATED = PERMUTED.replace("permute(0, 1, 2)", "relu()").replace(
    "return b.permute((0, 1, 2))", "c = x.relu()\n        return a + b * c"
)


def test_an_operation_replaces_all_calls_that_compute_the_same():
    observed = Observed.of(REPEATED, "eval")
    drawn = [each.drawn() for each in operation_variations(observed, [torch.tanh])]
    texts = [written(edited(observed.tree, edits)) for edits in drawn if edits is not None]
    assert any(text.count("tanh(") == 2 and "relu" not in text for text in texts), "\n".join(texts)


def test_a_wider_program_names_the_new_dimension_too():
    matrix = PERMUTED.replace("0, 1, 2", "0, 1").replace("arange(72.0)", "arange(18.0)").replace("6, 3, 4", "6, 3")
    observed = Observed.of(matrix, "eval")
    text = written(edited(observed.tree, wider(observed)))
    assert "permute(0, 1, 2)" in text and "permute((0, 1, 2))" in text and running(text) is not None


def test_an_argument_that_was_made_a_keyword_cannot_be_left_out_by_its_value():
    tree = ast.parse("f(a)")
    (call,) = (part for part in ast.walk(tree) if isinstance(part, ast.Call))
    argument = call.args[0]
    by_keyword = edited(tree, {call: [ast.Call(call.func, [], [ast.keyword("x", argument)])]})
    assert ast.unparse(ast.fix_missing_locations(by_keyword)) == "f(x=a)"
    assert applies({argument: []}, tree)
    assert not applies({argument: []}, by_keyword)
    assert applies({argument: [ast.Constant(1)]}, by_keyword)


def test_random_numbers_are_drawn_at_two_places_in_training():
    acted, results = Counter(), []
    for trial in itertools.islice(trials([(PERMUTED, "eval")], ("eval", "train"), (), Random(0), acted), 700):
        acted.update(trial.properties)
        if trial.properties == ("dropout at two places",):
            results.append(trial)
        if len(results) == 3:
            break
    assert results and {trial.mode for trial in results} == {"train"}
    assert all(trial.program.source.count("dropout(") == 2 for trial in results)


def test_tensors_get_a_further_dimension_where_one_is_counted_from_the_end():
    acted, results = Counter(), []
    text = PERMUTED.replace("permute(0, 1, 2)", "relu()").replace("b.permute((0, 1, 2))", "b")
    for trial in itertools.islice(trials([(text, "eval")], ("eval",), (), Random(0), acted), 900):
        acted.update(trial.properties)
        if trial.properties == ("rank of all inputs",):
            results += re.findall(r"softmax\(\w+, (-?\d)\)", trial.program.source)
        if "-1" in results:
            break
    assert any(dim.startswith("-") for dim in results), results
