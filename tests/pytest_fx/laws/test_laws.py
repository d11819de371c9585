"""Each law catches a pass that breaks just it, and leaves a right pass alone."""

import copy
import itertools
import math
import operator
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from catalogue import WRONG, of_theme
from catalogue.on_models import scale_the_weights
from catalogue.rows import behind, bypass, case, node_of, of, replace, substitute
from catalogue.single_laws import Calling, checked, net, relu_by_function, rename_an_input, replaced
from catalogue.single_laws_of_outputs import cut_the_gradient, drop_checks, fuse_gelu
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fx
from fx.errors import PassError
from fx.passes import PassPipeline, approximate, close, exact
from fx.pipelines.verification import MAY_CHANGE
from pytest_fx import LawViolation, check_program, laws
from pytest_fx.errors import CannotLoadError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import TABLE, broken_laws, choose_laws, is_kept_without, law_called


def judge(pass_, witness=net, **options):
    """Apply a pass to a program of the catalogue, and check that it keeps the laws."""
    mode = "train" if witness().module.training else "eval"
    check_program(pass_, lambda: witness().module, lambda: (witness().inputs, {}), **{"mode": mode, **options})


def violation_by(pass_, witness=net, **options):
    """Return the violation of the first law that a pass breaks."""
    with pytest.raises(LawViolation) as caught:
        judge(pass_, witness, **options)
    return caught.value


def broken_by(pass_, witness=net, **options):
    """The law that a pass breaks first, or None."""
    try:
        judge(pass_, witness, **options)
    except LawViolation as violation:
        return violation.law
    return None


def answer(witness):
    """Return the outputs of the witness."""
    case = witness()
    return case.module(*case.inputs)


def violation_of(row, **options):
    """Return the violation by a wrong pass of the catalogue on its witness."""
    return violation_by(row.pass_, row.witness, contract=row.contract, seconds=0.2, **options)


# Right passes.


def leave_alone(graph_module):
    return graph_module


def rebuilt(graph_module):
    graph = fx.Graph()
    values = {}
    graph.output(graph.graph_copy(graph_module.graph, values))
    return fx.GraphModule(graph_module, graph)


def refuse(graph_module):
    raise PassError("not this one")


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("pass_", [leave_alone, relu_by_function, rebuilt, refuse, "remove-dead-code", "fuse-conv-bn"])
def test_a_right_pass_keeps_every_law(pass_, mode):
    assert broken_by(pass_, mode=mode) is None


# Wrong passes, each with the law that it breaks.

ROWS = of_theme("single_laws", "single_laws_of_outputs")


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_pass_that_breaks_one_law_gets_its_name_and_a_message(row):
    if row.kind == "on demand":
        assert broken_by(row.pass_, contract=row.contract) is None
    violation = violation_of(row, laws=row.laws if row.kind == "on demand" else None)
    assert violation.law in row.laws
    assert row.says[0] in str(violation)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_law_can_be_checked_alone(row):
    assert violation_of(row, laws=row.laws[:1]).law == row.laws[0]


def test_a_pass_may_replace_a_check_by_its_own():
    def refuse_sooner(graph_module):
        graph = graph_module.graph
        x, first = list(graph.nodes)[:2]
        with graph.inserting_before(first):
            rows = graph.call_function(operator.getitem, (graph.call_function(getattr, (x, "shape")), 0))
            graph.call_function(
                torch._assert, (graph.call_function(operator.eq, (rows, 2)), f"{author} needs two rows")
            )
        graph_module.recompile()

    author = "refuse-sooner"
    assert broken_by(refuse_sooner, checked) is None
    author = "somewhere"
    assert broken_by(refuse_sooner, checked) is not None


def test_a_pass_that_declares_it_may_remove_checks():
    def without_checks(graph_module):
        drop_checks(graph_module)

    without_checks.may_change = ("checks",)
    assert broken_by(without_checks, checked) is None
    assert broken_by("remove-checks", checked) is None


def test_a_check_of_how_a_computed_value_lies_in_memory_binds_no_pass():
    def lay_out_anew(graph_module):
        exp = node_of(graph_module, torch.exp)
        behind(exp, "contiguous", exp)
        graph_module.recompile()

    def of_its_own(self, x):
        y = torch.exp(x)
        assert y.is_contiguous()
        return y + 1

    def of_the_input(self, x):
        assert x.is_contiguous()
        return torch.exp(x) + 1

    assert broken_by(lay_out_anew, of(of_its_own, (3, 4)), laws=("checks",)) is None
    assert broken_by(drop_checks, of(of_the_input, (3, 4)), laws=("checks",)) == "checks"


def test_all_broken_laws_are_reported_numbers_first():
    first, *others = str(violation_by(scale_the_weights)).splitlines()
    assert first.startswith("law 'contract': scale-the-weights changes what the program computes")
    assert any("also   law 'original untouched': " in line and "it wrote to linear.weight" in line for line in others)


def reshapes_its_input(self, x):
    output = x.sum()
    x.unsqueeze_(0)
    return output


def adds_to_its_input(self, x):
    output = x.sum()
    x.add_(1)
    return output


def adds_to_a_buffer(self, x):
    output = x.sum()
    self.total.add_(output)
    return output


@pytest.mark.parametrize(
    "forward, target, written, place",
    [
        (reshapes_its_input, "unsqueeze_", "inputs", "input[0] has the shape [1, 2] in eager"),
        (adds_to_its_input, "add_", "inputs", "where  input[0][0], the worst of 2"),
        (adds_to_a_buffer, "add_", "buffers", "where  buffer total, the worst of 1"),
    ],
    ids=["shape of an input", "values of an input", "values of a buffer"],
)
def test_the_message_names_the_differently_written_value(forward, target, written, place):
    def write_twice(graph_module):
        node = node_of(graph_module, target)
        with graph_module.graph.inserting_after(node):
            graph_module.graph.call_method(target, node.args)
        graph_module.recompile()

    text = str(violation_by(write_twice, of(forward, torch.ones(2), total=nn.Buffer(torch.zeros(())))))
    assert f"changes what the program writes to its {written}" in text
    assert place in text


def test_every_law_of_the_table_is_broken_by_a_pass_of_the_catalogue():
    of_forms = {law.name for law in TABLE if law.of == "forms"}  # tests/pytest_fx/forms
    elsewhere = {"other weights"} | of_forms  # the first is a law of programs that no pass has made
    assert {law for row in ROWS for law in row.laws} | elsewhere == {law.name for law in TABLE}
    assert {law for row in WRONG.values() for law in row.laws} > {law.name for law in TABLE} - of_forms


FILES_OF_LAWS = [path for path in sorted(Path(laws.__path__[0]).glob("*.py")) if path.stem != "__init__"]


def test_every_function_that_checks_a_law_is_in_the_table_under_its_name():
    texts = [path.read_text("utf-8") for path in FILES_OF_LAWS]
    names = {
        name for text in texts for name in re.findall(r"^def ([a-z]\w*)\(pass_run: PassRun\) -> None:", text, re.M)
    }
    assert names == {law.name.replace(" ", "_").replace("-", "_") for law in TABLE}
    assert all(getattr(laws, name) is law_called(name_of_law(name)).check for name in names)
    with pytest.raises(AttributeError, match="no attribute 'contracts'"):
        laws.contracts


def name_of_law(function):
    (name,) = [law.name for law in TABLE if law.check.__name__ == function]
    return name


class Counted(TorchDispatchMode):
    """Counts calls of a program that has one ReLU, and captures."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        trace = fx.Tracer.trace

        def counted(*args, **kwargs):
            self.count += 1
            return trace(*args, **kwargs)

        monkeypatch.setattr(fx.Tracer, "trace", counted)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += operator in (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
        return operator(*args, **(kwargs or {}))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        torch._assert(x.dim() == 4, "images")
        torch._assert(x.shape[1] == 3, "three colours")
        return self.linear(torch.relu(self.layers(x)).mean((2, 3)))


OF_CAPTURES = [law for law in TABLE if law.of != "forms"]  # the others need a pass in such a form


@pytest.mark.parametrize("law", OF_CAPTURES, ids=[law.name for law in OF_CAPTURES])
def test_the_table_has_the_calls_that_a_law_takes(law, monkeypatch):
    def images(number):
        return Arguments((torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number)),))

    def respell(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = F.relu
        program.recompile()

    pass_run = PassRun(Subject("images", Images().eval(), images, batch=2), respell)
    assert not broken_laws([law_called("contract")], pass_run)
    with Counted(monkeypatch) as counted:
        broken_laws([law], pass_run)
    assert counted.count == law.calls


def test_every_law_is_in_the_guide_with_its_waivers():
    guide = (Path(laws.__path__[0]).parents[1] / "docs" / "properties.md").read_text("utf-8")
    for law in TABLE:
        assert f"\n{law.name} ({law.kind})\n" in guide
        assert not law.may_change or (law.may_change in MAY_CHANGE and f'`"{law.may_change}"`' in guide)


def test_a_program_that_writes_to_buffers_without_its_inputs_is_captured_again():
    def count(self, x):
        self.count.add_(x.dim())
        return x + self.count

    def write_down_the_rank(graph_module):
        node = node_of(graph_module, "dim")
        node_of(graph_module, "add_").update_arg(1, 2)
        graph_module.graph.erase_node(node)
        graph_module.recompile()
        assert fx.symbolic_trace(copy.deepcopy(graph_module)).code == graph_module.code

    assert broken_by(write_down_the_rank, of(count, (2, 3), count=nn.Buffer(torch.zeros(())))) is None


def test_a_check_that_names_the_pass_refuses_inputs_and_another_one_does_not():
    def add_check(graph_module, message):
        node = node_of(graph_module, torch.relu)
        with graph_module.graph.inserting_before(node):
            holds = graph_module.graph.call_function(operator.lt, (graph_module.graph.call_method("dim", node.args), 0))
            graph_module.graph.call_function(torch._assert, (holds, message))
        graph_module.recompile()

    def refuse_inputs(graph_module):
        add_check(graph_module, "refuse-inputs takes none")

    def fail(graph_module):
        add_check(graph_module, "never")

    assert broken_by(refuse_inputs) is None
    assert broken_by(PassPipeline(["remove-dead-code", refuse_inputs])) is None
    assert broken_by(fail) == "contract"


def test_a_parameter_that_is_folded_away_for_one_of_its_uses_need_not_keep_its_gradient():
    def fold_second(graph_module):
        second = graph_module.graph.find_nodes(op="call_module", target="linear")[1]
        graph_module.folded = torch.nn.utils.fusion.fuse_linear_bn_eval(graph_module.linear, graph_module.norm)
        second.target = "folded"
        substitute(node_of(graph_module, "norm"), second)
        graph_module.recompile()

    torch.manual_seed(0)
    twice = of(
        lambda m, x: m.linear(x) + m.norm(m.linear(x + 1)), (2, 3), linear=nn.Linear(3, 3), norm=nn.BatchNorm1d(3)
    )
    assert broken_by(fold_second, twice) is None


def test_a_violation_says_what_where_which_values_and_why():
    violation = violation_by(cut_the_gradient)
    assert violation.law == "gradients"
    lines = str(violation).splitlines()
    assert lines[0].startswith("law 'gradients': cut-the-gradient changes the gradient of ")
    assert lines[1].startswith("  where  element [")
    assert lines[2].startswith("  value  eager ")
    assert lines[3] == "  why    there is none any more"


def test_a_broken_gradient_of_a_pass_that_approximates_is_its_own_business():
    assert broken_by(cut_the_gradient, contract=approximate(sqnr_db=40)) is None


def test_a_pass_declares_its_intended_changes():
    def renamed(graph_module):
        rename_an_input(graph_module)

    renamed.may_change = ("signature",)
    assert broken_by(renamed) is None


def test_rounding_that_eager_itself_cannot_decide_is_no_fault_of_a_pass():
    def reassociated(graph_module):
        replaced(graph_module, torch.div, lambda a, b: a * (1 / b))

    tenths = torch.arange(60, dtype=torch.float64).reshape(2, 30) / 10
    witness = of(lambda m, x: torch.floor(torch.div(x, 0.1)), tenths)
    assert broken_by(reassociated, witness, contract=exact, laws=("contract",)) == "contract"
    assert broken_by(reassociated, witness, contract=close, laws=("contract",)) is None


def test_a_wrong_name_of_a_law_gets_the_nearest():
    with pytest.raises(CannotLoadError, match="did you mean 'aliasing'"):
        choose_laws(without=("aliassing",))


def test_laws_are_switched_off_and_demanded_by_name():
    names = [law.name for law in choose_laws(without=("aliasing",), demand=("idempotent",))]
    assert "aliasing" not in names
    assert "idempotent" in names
    assert "shrinks the graph" not in names


def test_parameters_that_are_not_numbers_are_not_taken_for_written():
    def with_a_constant(graph_module):
        fetched = node_of(graph_module, "weight")
        graph_module.register_buffer("constant", graph_module.weight.detach().clone())
        fetched.target = "constant"
        graph_module.delete_all_unused_submodules()
        del graph_module.weight
        graph_module.recompile()

    weight = nn.Parameter(torch.tensor([float("nan"), 1.0]))
    judge(with_a_constant, of(lambda m, x: x * m.weight, (2,), weight=weight), laws=("state",))


def attention_of_one_head(graph_module):
    attention = copy.copy(graph_module.attention)
    attention.num_heads, attention.head_dim = 1, attention.embed_dim
    graph_module.add_submodule("attention", attention)


def hooked(graph_module):
    linear = nn.Linear(2, 2)
    linear.weight, linear.bias = graph_module.linear.weight, graph_module.linear.bias
    linear.register_forward_hook(lambda module, given, output: output.round())
    graph_module.add_submodule("linear", linear.eval())


def copied_alone(graph_module):
    graph_module.add_submodule("linear", copy.deepcopy(graph_module.linear))


@pytest.mark.parametrize("pass_,changed", [(attention_of_one_head, True), (hooked, True), (copied_alone, False)])
def test_a_module_with_other_settings_or_hooks_is_a_change_and_an_equal_one_is_none(pass_, changed):
    program = GivenProgram(lambda: Calling().eval(), Arguments((torch.ones(1, 2, 2),), {}))
    assert PassRun(Subject.of(program), pass_).changed is changed


def fill_in_the_number(graph_module):
    node = node_of(graph_module, torch.where)
    with graph_module.graph.inserting_before(node):
        others = graph_module.graph.call_function(torch.logical_not, (node.args[0],))
    replace(node, torch.masked_fill, node.args[1], others, node.args[2])
    graph_module.recompile()


def test_random_numbers_that_depend_on_strides_are_no_fault_of_a_pass():
    x = torch.arange(-3.0, 3.0).reshape(3, 2).t()
    witness = of(lambda m, x: F.dropout(torch.where(x > 0, torch.sigmoid(x), 0.5), training=True), x)
    chosen, filled = torch.where(x > 0, torch.sigmoid(x), 0.5), torch.sigmoid(x).masked_fill(~(x > 0), 0.5)
    assert chosen.stride() != filled.stride(), "torch has changed, and this test needs another function"
    assert broken_by(fill_in_the_number, witness, contract=close) is None


def test_gradients_that_torch_computes_wrongly_in_some_layouts_are_no_fault_of_a_pass():
    def by_arithmetic(graph_module):
        node = node_of(graph_module, "norm")
        with graph_module.graph.inserting_before(node):
            centred = graph_module.graph.call_function(torch.sub, (node.args[0], 0.5))
        replace(node, torch.mul, centred, (1 + 1e-5) ** -0.5)
        graph_module.recompile()

    norm = nn.BatchNorm2d(2, affine=False)
    norm.running_mean.fill_(0.5)
    images = torch.arange(6.0).sin().reshape(1, 2, 3, 1)
    witness = of(lambda m, x: m.norm(x).transpose(1, 2), images, norm=norm)
    assert broken_by(by_arithmetic, witness, contract=close, laws=("contract", "gradients")) is None


def test_a_parameter_of_a_module_called_input_is_not_taken_for_an_input():
    layers = {"conv": nn.Conv1d(2, 2, 1), "input": nn.BatchNorm1d(2)}
    assert broken_by("fuse-conv-bn", of(lambda m, x: m.input(m.conv(x)), torch.ones(2, 2, 2), **layers)) is None


def test_gradients_of_non_finite_values_are_not_judged():
    def take_the_second_of_two(graph_module):
        node = node_of(graph_module, F.relu6)
        with graph_module.graph.inserting_before(node):
            two = graph_module.graph.call_function(torch.stack, ((node.args[0], node.args[0]), -1))
            second = graph_module.graph.call_function(operator.getitem, (two, (..., 1)))
        node.args = (second,)
        graph_module.recompile()

    for value in (math.nan, 1.0):
        witness = of(lambda m, x: F.relu6(x), torch.full((8,), value))
        assert broken_by(take_the_second_of_two, witness, contract=close) is None


@pytest.mark.parametrize(
    "folded",
    [torch.arange(24.0).sin().reshape(4, 6).t(), torch.arange(6.0).sin()[:, None].expand(6, 4)],
    ids=["transposed", "expanded"],
)
def test_a_program_through_a_file_is_compared_with_its_tensors_laid_out_as_before(folded):
    def fold(graph_module):
        graph_module.register_buffer("folded", folded)
        node = node_of(graph_module, "weight")
        node.target = "folded"
        graph_module.recompile()

    rows = torch.arange(18.0).cos().reshape(3, 6)
    witness = of(lambda m, x: (x @ m.weight).logsumexp(0), rows, weight=nn.Parameter(folded))
    assert broken_by(fold, witness, contract=close, laws=("round trips",)) is None


def tanh_by_quotient(graph_module):
    fx.replace_pattern(graph_module, lambda x: torch.tanh(x), lambda x: torch.sinh(x) / torch.cosh(x))


def test_values_computed_from_an_infinity_are_not_compared():
    witness = of(lambda m, x: torch.sigmoid(torch.tanh(x)), torch.full((8,), torch.inf))
    assert broken_by(tanh_by_quotient, witness, contract=close) is None
    assert broken_by(tanh_by_quotient, witness, contract=exact) == "contract"


@pytest.mark.parametrize("cast", [lambda x: x.to(torch.float16), lambda x: x.half(), lambda x: x.type(torch.float16)])
def test_values_after_an_overflowing_conversion_are_not_compared(cast):
    def divide_first(graph_module):
        # x * 60 / 2 in half precision overflows where x * 30 does not
        node_of(graph_module, operator.mul).update_arg(1, 30.0)
        bypass(graph_module, operator.truediv)

    def wrong(graph_module):
        node_of(graph_module, operator.mul).update_arg(1, 62.0)
        graph_module.recompile()

    witness = of(lambda m, x: cast(x * 60.0) / 2, torch.tensor([1.0, 2.0, 2000.0]))
    assert answer(witness).isinf().tolist() == [False, False, True]
    assert broken_by(divide_first, witness, contract=close, laws=("contract",)) is None
    assert broken_by(wrong, witness, contract=close, laws=("contract",)) == "contract"


def softmax_of_exponentials(graph_module):
    fx.replace_pattern(graph_module, lambda x: torch.exp(x) / torch.exp(x).sum(-1, True), lambda x: x.softmax(-1))


@pytest.mark.parametrize("largest", [100.0, 1e5], ids=["finite in float64", "in float64, too"])
def test_overflows_that_eager_turns_into_nan_are_not_compared(largest):
    witness = of(lambda m, x: torch.exp(x) / torch.exp(x).sum(-1, True), torch.tensor([[1.0, 2.0], [1.0, largest]]))
    assert answer(witness).isnan().any(1).tolist() == [False, True]
    assert broken_by(softmax_of_exponentials, witness, contract=close, laws=("contract",)) is None
    assert broken_by(softmax_of_exponentials, witness, contract=exact) == "contract"


def test_a_container_that_is_constant_in_the_second_capture_may_be_lost():
    def without_dropout(graph_module):
        bypass(graph_module, nn.Dropout)

    attributes = {"table": nn.Buffer(torch.ones(2, 2)), "dropout": nn.Dropout()}
    witness = of(lambda m, x: (x, torch.max(m.dropout(m.table), dim=-1)), (2, 3), **attributes)
    assert broken_by(without_dropout, witness, contract=exact) is None


def test_results_of_a_strided_weight_may_have_other_last_bits():
    def fold(graph_module):
        graph_module.folded = nn.Parameter(graph_module.weight @ graph_module.weight.t())
        relu_by_function(graph_module)

    def witness():
        weight = nn.Parameter(torch.linspace(-1, 1, 64 * 128).reshape(64, 128)[:, ::2])
        return case(lambda m, x: torch.relu(x @ m.weight), torch.ones(2, 64), weight=weight)

    assert broken_by(fold, witness, laws=("deterministic",)) is None


def rsqrt_by_function(graph_module):
    fx.replace_pattern(graph_module, lambda x: 1.0 / torch.sqrt(x), lambda x: torch.rsqrt(x))


def test_a_program_may_write_in_place_to_a_saved_tensor_of_an_operation():
    witness = of(lambda m, x: (1.0 / torch.sqrt(x)).relu_(), torch.ones(2, 2))
    assert broken_by(rsqrt_by_function, witness, contract=close) is None


def test_a_program_may_write_in_place_to_the_operand_of_an_operation():
    def forward(self, x):
        y = x * 0.5 * (1.0 + torch.erf(x / 2**0.5))
        return y, x.add_(1)

    assert broken_by(fuse_gelu, of(forward, torch.ones(2, 2)), contract=close) is None


def test_random_numbers_for_constants_alone_are_drawn_by_each_call_of_a_second_capture():
    attributes = {"row": nn.Buffer(torch.ones(64)), "nothing": nn.Identity()}
    witness = of(lambda m, x: F.dropout(m.nothing(m.row), training=True) + x, (64,), **attributes)
    assert broken_by("remove-identities", witness, laws=("retraceable",)) is None


def test_a_call_that_gives_a_buffer_another_shape_is_undone():
    def by_function(graph_module):
        node_of(graph_module, torch.relu).target = F.relu
        graph_module.recompile()

    def reshape(self, x):
        return torch.relu(x + self.rows), self.rows.mul_(x.mean()).unsqueeze_(0)

    witness = of(reshape, torch.arange(6.0).reshape(2, 3), rows=nn.Buffer(torch.ones(3)))
    for mode in ("eval", "train"):
        assert broken_by(by_function, witness, mode=mode, contract=exact) is None


def test_gradients_made_of_rounding_errors_are_no_fault_of_a_pass():
    weight = nn.Parameter(torch.full((2, 2, 2, 3), 1e-40))
    witness = of(lambda m, x: (m.weight / m.weight, torch.relu(m.weight / m.weight)), (2, 2), weight=weight)
    judge("eliminate-common-subexpressions", witness, laws=("gradients",))


def relu_by_a_factor(factor):
    def pass_(graph_module):
        node_of(graph_module, torch.relu).target = lambda x: (torch.relu(x) * factor).to(x.dtype)
        graph_module.recompile()

    return pass_


def test_a_write_that_repeats_the_old_values_may_have_other_rounding_errors():
    def average(self, x):
        self.mean.copy_(torch.relu(x).mean(0))
        return x + 1

    mean = torch.tensor([0.25, 0.5, 0.75])
    witness = of(average, mean.repeat(2, 1), mean=nn.Buffer(mean))  # which holds it already
    judge(relu_by_a_factor(1 + 1e-6), witness, laws=("state",), contract=approximate(40))
    for factor, contract in ((1 + 1e-6, exact), (1.5, approximate(40))):
        assert "buffer mean" in str(violation_by(relu_by_a_factor(factor), witness, laws=("state",), contract=contract))


def write_to_a_buffer(program):
    program.get_buffer("norm.num_batches_tracked").add_(1)


def set_a_setting(program):
    program.get_submodule("linear").qconfig = "int8"


def set_a_setting_and_say_so(program):
    set_a_setting(program)


set_a_setting_and_say_so.may_change = ("tensors",)


@pytest.mark.parametrize(
    "pass_, helps", [(write_to_a_buffer, True), (set_a_setting, False), (set_a_setting_and_say_so, False)]
)
def test_the_message_advises_to_declare_changed_tensors_only_if_that_helps(pass_, helps):
    violation = violation_by(pass_)
    assert violation.law == "original untouched"
    assert ("may_change" in str(violation)) == helps and ("copy.deepcopy" in str(violation)) != helps


def test_a_law_that_the_capture_itself_breaks_is_reported_and_the_others_are_judged_in_full():
    """Other inputs at every request: eager and its capture are never equal."""
    count = itertools.count()
    subject = Subject("model", nn.Linear(3, 2), lambda input_set: Arguments((torch.full((2, 3), float(next(count))),)))
    pass_run = PassRun(subject, lambda program: setattr(program, "unused", nn.Linear(2, 2)), contract=exact)
    broken = [violation.law for violation in broken_laws([law_called("contract"), law_called("state")], pass_run)]
    assert broken == ["contract"] and pass_run.looks_twice
    assert not is_kept_without(law_called("contract"), pass_run)


def log_of_softmax(self, x):
    return torch.log(torch.softmax(x, -1))


def of_exponentials(self, x):
    y = torch.exp(torch.exp(x))
    return y / y.sum(-1, keepdim=True)


def test_a_better_formula_is_right_where_eager_overflows_on_larger_inputs():
    def better(graph_module):
        if logs := graph_module.graph.find_nodes(op="call_function", target=torch.log):
            substitute(logs[0].args[0], replace(logs[0], torch.log_softmax, logs[0].args[0].args[0], -1))
        for node in graph_module.graph.find_nodes(op="call_function", target=operator.truediv):
            replace(node, torch.softmax, node.args[0].args[0], -1)
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()

    assert broken_by(better, of(log_of_softmax, torch.tensor([[0.0, 30.0, 80.0]]))) is None
    assert broken_by(better, of(of_exponentials, torch.tensor([[0.1, 0.5, 0.84]]))) is None
    assert broken_by(lambda program: bypass(program, torch.log), of(log_of_softmax, (2, 3))) is not None
