"""The part of a pass's own code that random programs reach, and its use in the search."""

import inspect
import itertools
import operator
import re
import sys
from random import Random

import pytest
import torch
from building import Calling
from torch import nn

import fx
from pytest_fx import NothingJudged, check_pass
from pytest_fx.errors import LawViolation
from pytest_fx.search.coverage import PassCode, Point
from pytest_fx.search.nearness import variations
from pytest_fx.search.references import references_of

pytestmark = pytest.mark.usefixtures("little_explored")


def branching(numbers):
    results = []
    for number in numbers:
        if number > 3 and number != 7:
            results.append(number)
        elif number is None:
            results.append(
                0,
            )
        assert number != 100
    try:
        return max(results)
    except ValueError:
        return None


FIRST = branching.__code__.co_firstlineno


def coverage_of(*calls):
    code = PassCode([branching.__code__])
    for numbers in calls:
        with code.recording():
            branching(numbers)
    return code


def places(code):
    """Return the unreached places, by the line below that of ``def``."""
    unreached = code.coverage().unreached
    return [(int(text.split(":")[1].split("-")[0]) - FIRST, text.split(": ", 1)[1]) for text in unreached]


def test_lines_and_the_ways_of_conditions_are_reached_or_not():
    assert coverage_of([1, 4], [7], []).is_whole is False
    assert places(coverage_of([1, 4], [7], [])) == [(6, "results.append(")]
    missing = places(coverage_of([1, 4]))
    assert (12, "except ValueError:") in missing
    # Python 3.10 does not say which part of a line a condition is
    assert ((3, "number != 7 being false") in missing) == (sys.version_info >= (3, 11))
    assert not any("100" in text for _, text in missing), "an assertion need not fail"


def never_true(numbers):
    for number in numbers:
        if number > 99:
            number = 0


def test_the_last_line_of_a_loop_is_not_reached_by_the_jump_back_to_its_head():
    code = PassCode([never_true.__code__])
    with code.recording():
        never_true([1, 2])
    (missing,) = code.coverage().unreached
    assert missing.endswith(f"{never_true.__code__.co_firstlineno + 3}: number = 0")


def halves(a, b):
    if not (a or b): return 1  # fmt: skip  # noqa: E701
    while a and b > 100: b -= 1  # fmt: skip  # noqa: E701
    if isinstance(a, int) and b is not None: return 2  # fmt: skip  # noqa: E701
    return 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not say which part of a line a condition is")
def test_of_a_statement_in_a_line_the_half_is_named_that_was_not_reached():
    code = PassCode([halves.__code__])
    for value in (1, 1.5):
        with code.recording():
            halves(value, 1)
    first = halves.__code__.co_firstlineno
    unreached = [text.split(":", 1)[1].strip() for text in code.coverage().unreached]
    ways = {(int(line) - first, way.strip()) for line, way in (text.split(":", 1) for text in unreached)}
    assert {(1, "a being false"), (1, "b being false"), (2, "a being false"), (2, "b > 100 being true")} <= ways
    assert {way for line, way in ways if line == 3} & {"b is None being true", "b is not None being false"}
    assert not any(way.startswith(("if ", "while ")) for _, way in ways)


def test_coverage_of_one_recording_is_separate_from_the_total():
    code = coverage_of([4])
    before = code.reached
    with code.recording():
        branching([])
    assert code.latest < code.reached and before < code.reached
    assert not code.latest >= before


def test_nothing_is_measured_under_another_tracer():
    if hasattr(sys, "monitoring"):
        pytest.skip("this interpreter tells several of what runs")
    code = PassCode([branching.__code__])
    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: None)
    try:
        with code.recording():
            branching([4])
    finally:
        sys.settrace(before)
    assert code.coverage() is None and code.is_whole


def test_tracing_ends_with_the_recording_also_where_the_pass_raises():
    code, before = PassCode([branching.__code__]), sys.gettrace()
    with pytest.raises(TypeError), code.recording():
        branching(["text"])
    assert sys.gettrace() is before and code.latest


def helper(node):
    return node.target is operator.add


def with_helper(graph_module):
    for node in graph_module.graph.nodes:
        if helper(node):
            node.target = operator.add
        if node.name == "never called so":
            raise RuntimeError(node)
    graph_module.recompile()


def test_the_code_of_a_pass_is_that_of_its_functions_without_libraries_and_patterns():
    def pattern(x):
        return torch.relu(x)

    def pass_(graph_module):
        fx.replace_pattern(graph_module, pattern, pattern)
        return with_helper(graph_module)

    names = {code.co_name for code in references_of(pass_).codes}
    assert names == {"pass_", "with_helper", "helper"}
    assert not PassCode([torch.nn.functional.normalize.__code__]).points


class Renamed(fx.passes.RewritingPass):
    name, contract = "renamed", fx.passes.exact

    def rewrites(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            yield fx.passes.Edit("it is called otherwise")
            node.target = torch.nn.functional.relu


def test_library_code_is_not_own_code_unless_the_pass_is_in_the_library():
    lines = inspect.getsource(Renamed.rewrites).count("\n") - 1
    own = PassCode(references_of(Renamed()).codes, Renamed()).points
    assert len([point for point in own if not point.condition]) == lines
    ours = fx.passes.RemoveDeadCode()
    assert {point.file for point in PassCode(references_of(ours).codes, ours).points} == {inspect.getfile(type(ours))}


def halved(x):
    return _half(x)


def _half(x):
    return x / 2


class Halving(nn.Module):
    def forward(self, x):
        return halved(x)


def halves_by_function(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target, node.kwargs = halved, {}
    graph_module.recompile()


def halves_by_module(graph_module):
    graph_module.add_submodule("halving", Halving())
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.op, node.target, node.kwargs = "call_module", "halving", {}
    graph_module.recompile()


@pytest.mark.parametrize("pass_", [halves_by_function, halves_by_module])
def test_functions_that_a_pass_inserts_into_programs_are_not_counted(pass_):
    code = PassCode(references_of(pass_).codes, pass_)
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    with code.recording():
        pass_(program)
    assert any(text.endswith("return _half(x)") for text in code.coverage().unreached)
    code.leave_out_what_runs_in(program)
    assert code.coverage().unreached == () and code.is_whole


def same_relu(input, *args, **kwargs):
    return torch.relu(input, *args, **kwargs)


@pytest.mark.parametrize("isolate", [False, True])
def test_the_report_omits_code_that_runs_only_in_programs(isolate):
    def renames(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = same_relu
        graph_module.recompile()

    report = check_pass(renames, seed=0, max_examples=4, isolate=isolate)
    assert report.changed and report.coverage is not None and report.coverage.unreached == ()


@pytest.mark.parametrize("isolate", [False, True])
def test_the_report_lists_unreached_code(isolate):
    report = check_pass(with_helper, seed=0, max_examples=10, min_changed=0, isolate=isolate)
    coverage = report.coverage
    assert coverage is not None and coverage.reached == coverage.total - 2  # the line and the way to it
    first, second = str(report).splitlines()
    assert first.endswith(f"{coverage.reached} of {coverage.total} lines and branches of its code were reached")
    assert second.endswith("raise RuntimeError(node)") and "test_coverage.py:" in second


def test_nothing_judged_lists_unreached_code():
    with pytest.raises(NothingJudged, match=r"where +no program reached .*test_coverage.py:\d+: raise RuntimeError"):
        check_pass(with_helper, seed=0, max_examples=4)


@pytest.mark.thorough
def test_a_failure_says_how_much_was_reached():
    def wrong(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.tanh
        graph_module.recompile()

    with pytest.raises(LawViolation, match=r"found after .* of its code were reached"):
        check_pass(wrong, seed=0, max_examples=50)


def unwrap_tuples_of_one(graph_module):
    """Wrong, and rare: another structure."""
    output = graph_module.graph.output_node()
    if isinstance(output.args[0], tuple) and len(output.args[0]) == 1:
        output.args = output.args[0]
    graph_module.recompile()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_variations_of_programs_with_high_coverage_reach_rare_code():
    with pytest.raises(LawViolation) as caught:
        check_pass(unwrap_tuples_of_one, seed=0, max_examples=200, min_changed=0)
    assert caught.value.law == "structure"


def rare(m, x):
    return torch.fft.rfft(torch.softmax(m.norm(m.layer(x)), -1).cumsum(-1)).abs()


def axis_of_sums(graph_module):
    """Wrong, but only on a pattern that no random program has."""
    for node in graph_module.graph.nodes:
        if getattr(node.target, "__name__", "") == "fft_" + "rfft" and node.args[0].target == "cum" + "sum":
            node.args[0].args = (node.args[0].args[0], 0)
    graph_module.recompile()


@pytest.mark.thorough
@pytest.mark.parametrize("inputs", [(), (torch.ones(3, 16),)])
def test_programs_are_near_to_the_one_that_is_shown(inputs):
    program = fx.symbolic_trace(Calling(rare, layer=nn.Linear(16, 12), norm=nn.LayerNorm(12)))
    assert check_pass(axis_of_sums, seed=0, max_examples=20, min_changed=0).changed == 0
    with pytest.raises(LawViolation):
        check_pass(axis_of_sums, like=(program, *inputs) if inputs else program, seed=0, max_examples=20)


def dangling(program):
    for node in program.graph.find_nodes(op="call_module"):
        node.target = "not_there"


def test_a_pass_that_calls_a_module_that_is_not_there_is_wrong_and_nothing_crashes():
    with pytest.raises(LawViolation, match="not_there"):
        check_pass(dangling, max_examples=30)


NEAR = """
import torch
from torch import nn


class Program(nn.Module):
    def forward(self, x, y):
        a = torch.cat([x, y], 1)
        b = a.clamp(min=0.5)
        return b


def build():
    return Program().eval()


def inputs():
    return (torch.ones(2, 3), torch.zeros(2, 3)), {}
"""


def test_variations_read_other_values_repeat_some_box_results_and_have_constants_of_the_pass():
    reached = {NEAR: frozenset({Point("pass.py", 1)})}
    variants = itertools.islice(variations(reached, ("max", 8.25), Random(0)), 40)
    text = "\n".join(program.source for program in variants)
    for form in (r"cat\(\[(x, x|y, y)\]", r"cat\(\[\w, \w, \w\]", r"return \(\w,\)", r"min=8\.25", r"max=8\.25"):
        assert re.search(form, text), form


def with_each(items, edit):
    for item in items:
        edit(item)


def erase_each(graph, nodes):
    with_each(nodes, lambda node: graph.erase_node(node))


def test_an_edit_in_a_lambda_is_reached_where_the_lambda_runs_not_on_its_line():
    code = PassCode(references_of(erase_each).codes)
    graph = fx.Graph()
    with code.recording():
        erase_each(graph, [])
    assert not code.has_edited
    with code.recording():
        erase_each(graph, [graph.placeholder("x")])
    assert code.has_edited


def erase_some(graph, nodes):
    edits = {"keep": lambda node: node, "erase": lambda node: graph.erase_node(node)}
    for node in nodes:
        edits[node.name](node)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no columns in Python 3.10")
@pytest.mark.parametrize("name, edits", [("keep", False), ("erase", True)])
def test_two_lambdas_of_one_line_are_distinguished(name, edits):
    code = PassCode(references_of(erase_some).codes)
    graph = fx.Graph()
    with code.recording():
        erase_some(graph, [graph.placeholder(name)])
    assert code.has_edited == edits
