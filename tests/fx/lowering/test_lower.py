"""``fx.lower``: parts of a program become modules that a backend makes, the rest stays, and the report says why."""

from __future__ import annotations

import copy
import operator
import re
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from building import Calling, body
from torch import Tensor, nn
from toy_backend import Tape, Toy, make_converters

import fx
from fx.errors import LoweringError, LoweringWarning
from fx.graph_module import GraphModule
from fx.lowering import Backend, Converter, Converters, Coverage, Lower, get_backend, list_backends, register_backend
from fx.lowering.known_program import KnownProgram
from fx.lowering.support import all_of, any_of, has_dtype, has_own_memory, has_shape, is_pure
from fx.passes import PassPipeline, ShapeProp


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.cumsum(F.relu(self.first(x)), 1)
        return F.relu(self.last(-x))

    return Calling(forward, first=nn.Linear(4, 8), last=nn.Linear(8, 2)).eval()


def test_parts_become_modules_of_the_backend_and_the_rest_stays_python(model: nn.Module) -> None:
    program, toy, x = fx.symbolic_trace(model), Toy(), torch.randn(3, 4)
    code = program.code
    lowered = fx.lower(program, toy)
    assert isinstance(lowered, GraphModule)
    assert body(lowered) == [
        "toy_0 = self.toy_0(x)",
        "cumsum = torch.cumsum(toy_0, 1)",
        "toy_1 = self.toy_1(cumsum)",
        "return toy_1",
    ]
    assert [type(lowered.get_submodule(name)) for name in ("toy_0", "toy_1")] == [Tape, Tape]
    assert torch.equal(lowered(x), model(x))
    assert program.code == code
    assert torch.equal(program(x), model(x))


def test_code_that_stays_in_python_is_unchanged() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.relu(self.layer(x.view(x.size(0), -1)))
        return self.unused(self.norm(y).softmax(1) @ y.t())

    layers = {"layer": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "unused": nn.Linear(4, 4, bias=False)}
    module, x = Calling(forward, **layers).eval(), torch.randn(4, 2, 2)
    lowered = fx.lower(fx.symbolic_trace(module), Toy())
    assert body(lowered) == [
        "size = x.size(0)",
        "view = x.view(size, -1)",
        "toy_0 = self.toy_0(view)",
        "norm = self.norm(toy_0)",
        "softmax = norm.softmax(1)",
        "t = toy_0.t()",
        "matmul = softmax @ t",
        "unused = self.unused(matmul)",
        "return unused",
    ]
    assert lowered.norm is module.norm
    torch.testing.assert_close(lowered(x), module(x))


def test_an_operation_stays_canonical_where_its_operand_is_a_new_value_by_now() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.neg(x)
        F.relu(y, inplace=True)
        return torch.cumsum(y, 0)

    program, x = fx.symbolic_trace(function), torch.randn(6)
    lowered = fx.lower(program, Toy())
    assert body(lowered)[-2:] == ["cumsum = torch.cumsum(input = toy_0, dim = 0, dtype = None)", "return cumsum"]
    assert torch.equal(lowered(x), function(x))


def test_a_program_that_was_canonical_can_be_captured_again_after_lowering() -> None:
    program = PassPipeline("canonicalize")(fx.symbolic_trace(lambda x: torch.relu(x.view(x.size(0), -1))))
    lowered, x = fx.lower(program, Toy()), torch.randn(2, 3, 4)
    assert body(lowered)[:2] == ["size = x.size(dim = 0)", "view = x.view(size = (size, -1))"]
    assert body(fx.symbolic_trace(lowered))[:2] == body(lowered)[:2]
    assert torch.equal(lowered(x), program(x))


def test_the_pass_refuses_a_program_that_refuses_its_own_data() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train())
    with pytest.raises(LoweringError, match="Expected more than 1 value per channel when training") as error:
        Lower().with_data([((torch.ones(1, 3, 1, 1),), {})])(program)
    assert error.value.__cause__ is None  # else it would be a fault of the pass


def test_operations_that_depend_on_no_input_are_not_lowered() -> None:
    weight = nn.Parameter(torch.randn(3))
    constant = Calling(lambda self, x: torch.cumsum(x, 0) + torch.relu(self.weight), weight=weight)
    coverage = fx.lower(fx.symbolic_trace(constant), Toy(), dry_run=True)
    assert [refusal.reason for refusal in coverage.refused if refusal.target == "relu"] == [
        "nothing in its region depends on an input: fold-constants would compute it once"
    ]


def test_constants_are_shared_with_the_captured_module(model: nn.Module) -> None:
    toy = Toy()
    fx.lower(fx.symbolic_trace(model), toy)
    assert toy.built[0].steps[0][1][1] is model.first.weight


def test_a_program_without_lowered_parts_is_returned_itself() -> None:
    program = fx.symbolic_trace(lambda x: torch.cumsum(x, 0))
    line = next(node.source.line for node in program.graph.nodes if node.source is not None)
    with pytest.warns(LoweringWarning) as caught:
        assert fx.lower(program, Toy()) is program
    assert str(caught[0].message).splitlines()[:2] == [
        "nothing was lowered: toy takes 0 of 1 operations (0%)",
        f"  eager    torch.cumsum: {program.meta['lowering'].refused[0].reason} ({__file__}:{line})",
    ]
    assert caught[0].filename == __file__


def test_a_warning_has_the_first_reasons() -> None:
    program = fx.symbolic_trace(lambda x: x.sort().values.cumsum(0).cumprod(0).flip(0).roll(1).tril().triu())
    with pytest.warns(LoweringWarning, match=r"and 4 more$"):
        fx.lower(program, Toy())
    assert len(program.meta["lowering"].refused) == 8


def test_a_lowering_that_builds_no_part_warns(model: nn.Module) -> None:
    with pytest.warns(LoweringWarning, match="not built, no space"):
        lowered = fx.lower(fx.symbolic_trace(model), Broken(RuntimeError("no space")), on_failure="eager")
    x = torch.randn(3, 4)
    assert torch.equal(lowered(x), model(x))


def test_the_record_of_an_earlier_lowering_stays(model: nn.Module) -> None:
    lowered = fx.lower(fx.symbolic_trace(model), Toy())
    coverage = lowered.meta["lowering"]
    with pytest.warns(LoweringWarning):
        assert fx.lower(lowered, Toy(), veto=lambda node: True) is lowered
    assert lowered.meta["lowering"] is coverage


def test_the_pass_leaves_a_program_alone_without_a_warning() -> None:
    program = fx.symbolic_trace(lambda x: torch.cumsum(x, 0))
    result = PassPipeline([Lower()]).run(program)
    assert not result.changed
    assert result.graph_module.meta["lowering"].parts == ()
    assert fx.lower(program, Toy(), dry_run=True).parts == ()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        return torch.relu(self.norm(self.layer(x)) + y * factor)


X, Y = torch.ones(2, 4), torch.ones(2, 4)


@pytest.mark.parametrize(
    "inputs, what, why",
    [
        ((torch.ones(2, 5), Y), "input 1, `x`, is float32[2, 5]", "RuntimeError: mat1 and mat2 shapes"),
        ((X.double(), Y), "input 1, `x`, is float64[2, 4]", "RuntimeError: mat1 and mat2 must have the same dtype"),
        ((X.long(), Y), "input 1, `x`, is int64[2, 4]", "RuntimeError: mat1 and mat2 must have the same dtype"),
        (("x", Y), "input 1, `x`, is 'x', a str", "TypeError: "),
        ((None, Y), "input 1, `x`, is None, a NoneType", "TypeError: "),
        ((X, "y", 2.5), "input 2, `y`, is 'y', a str and input 3, `factor`, is 2.5, a float", "TypeError: "),
        ((X, torch.ones(3, 4)), "input 1, `x`, is float32[2, 4] and input 2, `y`, is float32[3, 4]", "RuntimeError: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", [True, False])
def test_example_inputs_that_do_not_fit_are_named(inputs: Any, what: str, why: str, dry_run: bool) -> None:
    model = TwoInputs()
    program, before = fx.symbolic_trace(model), copy.deepcopy(model.state_dict())
    with pytest.raises(LoweringError) as failure:
        fx.lower(program, Toy(), inputs, dry_run=dry_run)
    first, *lines = str(failure.value).splitlines()
    assert first.startswith(f"example_inputs do not fit the program: {what}")
    assert lines[0].startswith(f"  where  {__file__}:")
    assert lines[1].startswith("  value  %")
    assert lines[2].startswith(f"  why    {why}")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_input_that_is_left_out_and_has_to_be_given_is_named():
    def program(x, mask=None):
        return x if mask is None else x * mask

    with_mask = fx.symbolic_trace(program, concrete_args={"mask": fx.PH})
    with pytest.raises(LoweringError) as failure:
        fx.lower(with_mask, Toy(), (X,))
    first, *lines = str(failure.value).splitlines()
    assert first == "example_inputs do not fit the program: input 2, `mask`, is left out"
    assert lines[1].startswith("  why    GuardError: the program was captured where mask is given")


@pytest.mark.parametrize(
    "inputs, what",
    [
        ((X,), "lower was given 1 input, but the program takes 2 to 3\n  value  forward(x, y, factor=1.0)"),
        ((), "lower was given 0 inputs, but the program takes 2 to 3"),
        ((X, Y, 1.0, X), "lower was given 4 inputs, but the program takes 2 to 3"),
        (X, "'example_inputs' of lower is a Sequence or None, not a Tensor"),
        ("xy", "'example_inputs' of lower is a Sequence or None, not a str"),
        ({"x": X, "y": Y}, "'example_inputs' of lower is a Sequence or None, not a dict"),
        (3, "'example_inputs' of lower is a Sequence or None, not an int"),
    ],
)
def test_example_inputs_are_one_for_each_input(inputs: Any, what: str) -> None:
    with pytest.raises(LoweringError) as failure:
        fx.lower(fx.symbolic_trace(TwoInputs().eval()), Toy(), inputs)
    assert str(failure.value).startswith(what)


def test_example_inputs_of_another_structure_are_refused() -> None:
    class Structured(nn.Module):
        def forward(self, pair: Any) -> Any:
            return torch.relu(pair["a"] + pair["b"])

    program = fx.symbolic_trace(Structured(), concrete_args={"pair": {"a": fx.PH, "b": fx.PH}})
    with pytest.raises(LoweringError, match="they are not structured like its inputs"):
        fx.lower(program, Toy(), ({"a": X},))
    assert fx.lower(program, Toy(), ({"a": X, "b": X},), dry_run=True).flop_share is not None


def test_operations_that_need_real_elements_are_not_blamed_on_the_inputs() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x) + as_list(x)[0][0])
    coverage = fx.lower(program, Toy(), (X,), dry_run=True)
    assert "shapes are not known from where shape propagation fails" in coverage.notes[0]


def test_a_product_of_two_dtypes_that_runs_is_no_fault() -> None:
    program = fx.symbolic_trace(nn.Linear(4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coverage = fx.lower(program, Toy(), (X.bfloat16(),), dry_run=True)
    assert coverage.notes == ()
    with pytest.raises(LoweringError, match=r"input 1, `input`, is bfloat16\[2, 4\]"):
        fx.lower(program, Toy(), (X.bfloat16(),), dry_run=True)


def as_list(x: Tensor) -> Any:
    return x.numpy().tolist()


fx.wrap("as_list")


def test_a_constant_that_several_parts_use_is_in_each() -> None:
    layer = nn.Linear(3, 3)
    module, x = Calling(lambda self, x: self.layer(torch.cumsum(self.layer(x), 1)), layer=layer), torch.randn(2, 3)
    lowered = fx.lower(fx.symbolic_trace(module), Toy())
    assert [node.target for node in lowered.graph.nodes if node.op == "call_module"] == ["toy_0", "toy_1"]
    assert len(lowered.graph.find_nodes(op="call_module")[0].all_input_nodes) == 1
    torch.testing.assert_close(lowered(x), module(x))


def test_a_constant_that_is_fetched_once_for_several_parts_is_in_each() -> None:
    graph, root = fx.Graph(), nn.Module()
    root.weight, root.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
    x, weight, bias = graph.placeholder("x"), graph.get_attr("weight"), graph.get_attr("bias")
    first = graph.call_function(F.linear, (x, weight, bias))
    between = graph.call_function(torch.cumsum, (first, 1))
    graph.output(graph.call_function(F.linear, (between, weight, bias)))
    program, toy, x = GraphModule(root, graph), Toy(), torch.randn(2, 3)
    lowered = fx.lower(program, toy)
    assert [call.all_input_nodes for call in lowered.graph.find_nodes(op="call_module")] == [
        [node] for node in list(lowered.graph.nodes) if node.name in ("x", "cumsum")
    ]
    assert all(tape.steps[0][1][1] is root.weight for tape in toy.built)
    assert torch.equal(lowered(x), program(x))


@pytest.mark.filterwarnings("ignore::fx.LoweringWarning")
def test_writes_that_callers_see_stay_in_python() -> None:
    program = fx.symbolic_trace(lambda x: F.relu(x, inplace=True))
    assert (fx.lower(program, Toy(), dry_run=True).refused[0].reason or "").startswith("`%relu` writes to")
    x = torch.tensor([-1.0, 1.0])
    fx.lower(program, Toy())(x)
    assert x.tolist() == [0.0, 1.0]


def test_weights_that_the_program_writes_to_are_no_constants() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.layer.weight.add_(1)
        return y

    program = fx.symbolic_trace(Calling(forward, layer=nn.Linear(3, 3).requires_grad_(False)))
    coverage = fx.lower(program, Toy(), dry_run=True)
    (layer,) = [refusal for refusal in coverage.refused if refusal.target == "linear"]
    assert layer.reason.startswith("its weight is computed, or may change in a run; canonicalize and fold-constants")


def test_the_report_is_of_nodes_work_and_bytes_with_a_reason_for_each_refusal(model: nn.Module) -> None:
    coverage = fx.lower(fx.symbolic_trace(model), Toy(), (torch.randn(3, 4),), dry_run=True)
    assert isinstance(coverage, Coverage)
    assert coverage.node_share == 5 / 6
    assert coverage.flop_share == 1.0
    assert coverage.boundary_bytes == 4 * 3 * (4 + 8 + 8 + 2)
    assert [(part.name, part.nodes, part.flops, part.bytes_in, part.bytes_out) for part in coverage.parts] == [
        ("toy_0", 2, 2 * 3 * 4 * 8, 48, 96),
        ("toy_1", 3, 2 * 3 * 8 * 2, 96, 24),
    ]
    text = re.sub(r"\(.*/(test_lower.py):\d+\)", r"(\1)", str(coverage))
    assert text.splitlines() == [
        "toy takes 5 of 6 operations (83%), 100.0% of the floating-point operations; 264 B cross the boundary",
        "  toy_0    2 operations, 0.000192 MFLOP, 48 B in, 96 B out",
        "  toy_1    3 operations, 9.6e-05 MFLOP, 96 B in, 24 B out",
        "  eager    torch.cumsum: toy has no converter for `torch.cumsum` (test_lower.py)",
    ]


def test_without_inputs_the_report_counts_nodes_alone(model: nn.Module) -> None:
    coverage = fx.lower(fx.symbolic_trace(model), Toy(), dry_run=True)
    assert coverage.flop_share is None
    assert coverage.boundary_bytes is None
    assert str(coverage).startswith("toy takes 5 of 6 operations (83%)\n  toy_0    2 operations\n")


def test_example_inputs_are_not_computed_with_and_change_no_state() -> None:
    module = Calling(lambda self, x: F.dropout(F.relu(self.norm(x))), norm=nn.BatchNorm1d(4))
    x, state = torch.randn(2, 4), torch.get_rng_state()
    fx.lower(fx.symbolic_trace(module), Toy(), (x,), dry_run=True)
    assert module.norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_program_that_depends_on_elements_is_followed_up_to_there() -> None:
    coverage = fx.lower(fx.symbolic_trace(lambda x: torch.relu(x)[x > 0].neg()), Toy(), (torch.randn(3),), dry_run=True)
    assert coverage.parts
    assert coverage.notes[0].startswith("shapes are not known from where shape propagation fails: Dynamic")


@pytest.mark.parametrize(
    "veto, node, reason",
    [
        (["first"], "first", "vetoed by the caller: first"),
        (["relu"], "relu", "vetoed by the caller: relu"),
        (lambda node: node.name == "relu", "relu", "vetoed by the caller"),
        (lambda node: "too hot" if node.name == "relu" else None, "relu", "too hot"),
    ],
)
def test_the_caller_keeps_operations_out(model: nn.Module, veto: Any, node: str, reason: str) -> None:
    coverage = fx.lower(fx.symbolic_trace(model), Toy(), veto=veto, dry_run=True)
    assert [(refusal.node, refusal.reason) for refusal in coverage.refused if refusal.target != "torch.cumsum"] == [
        (node, reason)
    ]


def test_regions_with_too_few_operations_that_pay_are_dropped(model: nn.Module) -> None:
    coverage = fx.lower(fx.symbolic_trace(model), Toy(), min_size=3, dry_run=True)
    assert not coverage.parts
    assert coverage.refused[0].reason == "its region has 2 operations that the backend is faster for, and needs 3"
    program = fx.symbolic_trace(lambda x: -x)
    assert fx.lower(program, Toy(), dry_run=True).refused[0].reason == (
        "its region has 0 operations that the backend is faster for, and needs 1"
    )


@pytest.mark.parametrize(
    "option, least, left, reason",
    [
        ("flops_per_byte", 1.2, "toy_0", "96 floating-point operations, too few for the 120 bytes that cross into it"),
        ("flops_per_operation", 60, "toy_0", "96 floating-point operations in 2 steps, too few for what a step costs"),
    ],
)
def test_regions_that_do_little_are_dropped(
    model: nn.Module, option: str, least: float, left: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, option, least)
    coverage = fx.lower(fx.symbolic_trace(model), Toy(), (torch.randn(3, 4),), dry_run=True)
    assert [part.name for part in coverage.parts] == [left]
    assert coverage.refused[-1].reason == f"its region does {reason}"


# Predicates.


def operations(function: Any, *inputs: Tensor) -> dict[str, Any]:
    program = fx.symbolic_trace(function)
    if inputs:
        ShapeProp(program).propagate(*inputs)
    subject = KnownProgram(program)
    return {node.name: subject.operation(node) for node in program.graph.nodes}


def test_predicates_say_why_not() -> None:
    unknown = operations(lambda x: x.relu_())["relu_"]
    node = operations(lambda x: x.neg(), torch.ones(2, dtype=torch.float64))["neg"]
    assert is_pure(unknown) == "`%relu_` writes to `%x`"
    assert has_shape(unknown) == "the shape of `%x` is not known: give example_inputs"
    assert has_shape(node) is None
    assert has_dtype(torch.float32)(unknown) == "the dtype of `%x` is not known: give example_inputs"
    assert has_dtype(torch.float32, torch.float16)(node) == "`%x` is float64, not float32 or float16"
    assert has_dtype(torch.float64)(node) is None


def test_predicates_compose() -> None:
    node = operations(lambda x: x.neg(), torch.ones(2))["neg"]
    single, double = has_dtype(torch.float32), has_dtype(torch.float64)
    assert all_of(single, is_pure)(node) is None
    assert all_of(single, double)(node) == "`%x` is float32, not float64"
    assert any_of(double, single)(node) is None
    reason = "`%x` is float32, not float64, and `%x` is float32, not int64"
    assert any_of(double, has_dtype(torch.int64))(node) == reason


# Failures.


class Failing(Toy):
    __slots__ = ()
    name: ClassVar[str] = "failing"
    converters: ClassVar[Converters] = Converters("failing")


Failing.converters.register(Converter(F.relu, lambda tape, input, inplace: tape.add(torch.relu, input)))
Failing.converters.register(Converter(torch.sin, lambda tape, input: None))


def raise_out_of_memory(tape: Tape, input: Any) -> int:
    raise MemoryError("engine arena: 3 GiB asked for, 2 GiB there")


Failing.converters.register(Converter(torch.cos, raise_out_of_memory))


def test_a_converter_that_raises_is_named_with_the_line_and_its_words() -> None:
    with pytest.raises(LoweringError) as caught:
        fx.lower(fx.symbolic_trace(lambda x: torch.relu(torch.cos(x))), Failing())
    # Python 3.10 knows the last part of a function's name
    text = re.sub(
        r"  where .*/(test_lower.py):\d+, in ([\w.]+\.)?<lambda>", r"  where  \1, in <lambda>", str(caught.value)
    )
    assert text.splitlines() == [
        "the converter of failing for `%cos` failed",
        "  where  test_lower.py, in <lambda>:"
        "  fx.lower(fx.symbolic_trace(lambda x: torch.relu(torch.cos(x))), Failing())",
        "  value  %cos = call_function[torch.cos](input=%x)",
        "  why    MemoryError: engine arena: 3 GiB asked for, 2 GiB there",
        '  try    exclude the operation with veto=…, or keep failing regions in eager Python with on_failure="eager"',
    ]
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_converter_that_returns_nothing_is_an_error() -> None:
    with pytest.raises(LoweringError, match="the converter of failing for `%sin` returned nothing"):
        fx.lower(fx.symbolic_trace(lambda x: torch.sin(x)), Failing())


def test_unbuilt_parts_may_stay_eager_and_are_reported() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(torch.cumsum(torch.cos(x), 0))

    x = torch.randn(5)
    lowered = fx.lower(fx.symbolic_trace(function), Failing(), on_failure="eager")
    assert torch.equal(lowered(x), function(x))
    first, second = lowered.meta["lowering"].parts
    assert first.failure.startswith("the converter of failing for `%cos` failed")
    assert second.failure is None
    assert "failing_0 1 operation: not built, the converter of failing" in str(lowered.meta["lowering"])
    assert isinstance(lowered.failing_0, GraphModule)
    assert isinstance(lowered.failing_1, Tape)


class Broken(Backend):
    __slots__ = ("result",)
    name: ClassVar[str] = "broken"
    converters: ClassVar[Converters] = make_converters()

    def __init__(self, result: Any) -> None:
        self.result = result

    def build(self, region: GraphModule) -> nn.Module:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_backend_that_fails_is_an_error_with_the_region_and_its_words(model: nn.Module) -> None:
    with pytest.raises(LoweringError) as caught:
        fx.lower(fx.symbolic_trace(model), Broken(OSError("no device")))
    lines = str(caught.value).splitlines()
    assert lines[0] == "the backend 'broken' cannot build broken_0, 2 operations from `%first` on"
    assert lines[1].startswith("  where ")
    assert lines[2] == "  why    OSError: no device"


def test_a_backend_that_returns_no_module_is_an_error(model: nn.Module) -> None:
    message = "the backend 'broken' returned an int in the place of a region, not a module"
    with pytest.raises(LoweringError, match=message):
        fx.lower(fx.symbolic_trace(model), Broken(3))


def test_a_backend_that_is_missing_here_is_an_error_but_for_a_dry_run(model: nn.Module) -> None:
    toy = Toy("the package toy is not installed")
    with pytest.raises(LoweringError) as caught:
        fx.lower(fx.symbolic_trace(model), toy)
    assert str(caught.value) == (
        "the backend 'toy' is not available here\n"
        "  why    the package toy is not installed\n"
        "  try    dry_run=True shows what it would take, without the backend"
    )
    coverage = fx.lower(fx.symbolic_trace(model), toy, dry_run=True)
    assert str(coverage).endswith("  note     the package toy is not installed")


def test_wrong_arguments_are_errors(model: nn.Module) -> None:
    program = fx.symbolic_trace(model)
    with pytest.raises(LoweringError, match="there is no backend named 'onedn'\n  try    did you mean 'onednn'"):
        fx.lower(program, "onedn")
    with pytest.raises(
        LoweringError, match=r"'gm' of lower is a GraphModule, not a Calling\n(.*\n)*  try    capture it first"
    ):
        fx.lower(model)  # type: ignore[call-overload]
    for message, options in (
        ("'backend' of lower is a str or a Backend or an Auto, not an int", {"backend": 3}),
        ("'on_failure' of lower is 'raise' or 'eager', not 'ignore'", {"on_failure": "ignore"}),
        ("'min_size' of lower is an int of at least 1 or None, not 0", {"min_size": 0}),
    ):
        with pytest.raises(LoweringError, match=message):
            fx.lower(program, **options)  # type: ignore[call-overload]


# Registries.


def test_a_second_converter_for_a_target_is_refused_by_name() -> None:
    converters = make_converters()
    with pytest.raises(LoweringError, match=r"toy has two converters for `torch\.nn\.functional\.relu`"):
        converters.register(Converter(F.relu, raise_out_of_memory))
    assert converters.replace(Converter(F.relu, raise_out_of_memory)) is not None
    match = converters.find(F.relu)
    assert match is not None and match.build is raise_out_of_memory
    converters.remove(F.relu)
    assert converters.find(F.relu) is None


@torch.library.custom_op("tests_lowering::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_users_register_converters_for_their_own_operators() -> None:
    toy, program = Toy(), fx.symbolic_trace(lambda x: torch.ops.tests_lowering.cube(torch.relu(x)))
    assert "no converter for" in str(fx.lower(program, toy, dry_run=True))
    target = torch.ops.tests_lowering.cube
    Toy.converters.register(Converter(target, lambda tape, x: tape.add(operator.pow, x, 3.0)))
    try:
        lowered, x = fx.lower(program, toy), torch.randn(3)
    finally:
        Toy.converters.remove(target)
    assert body(lowered) == ["toy_0 = self.toy_0(x)", "return toy_0"]
    torch.testing.assert_close(lowered(x), torch.relu(x) ** 3)


def test_backends_are_known_by_name() -> None:
    assert "onednn" in list_backends()
    assert get_backend("onednn").name == "onednn"
    register_backend(get_backend("onednn"))

    class Other(Toy):
        __slots__ = ()
        name: ClassVar[str] = "onednn"

    with pytest.raises(LoweringError, match="two backends are named 'onednn'"):
        register_backend(Other())


ROOM = Path(fx.lowering.__path__[0])


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(ROOM.glob("*/__init__.py"))])
def test_the_backend_in_a_folder_is_known_imported_tested_and_in_the_guide(name: str) -> None:
    assert f"\nfrom fx.lowering.{name} import" in (ROOM / "__init__.py").read_text("utf-8")
    backend = type(get_backend(name))
    assert backend.__name__ in fx.lowering.__all__ and backend.__doc__
    assert list(Path(__file__).parent.glob(f"test_{name}.py"))
    assert f"`{name}`" in (ROOM.parents[1] / "docs" / "lowering.md").read_text("utf-8")


# As a pass.


def test_the_pass_reads_its_options_from_text() -> None:
    (pass_,) = PassPipeline("lower{backend=onednn,on-failure=eager,min-size=2,veto=fc+layer1}").passes
    assert pass_ == Lower("onednn", "eager", 2, ("fc", "layer1"))


def test_a_pipeline_checks_and_reports_the_pass_like_any_other(model: nn.Module) -> None:
    model.last = nn.Linear(8, 300)
    program = PassPipeline("lower").run(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()))
    (report,) = program.reports
    assert (report.name, report.changed) == ("lower", True)
    assert program.graph_module.graph.history == ("lower",)
    unchanged = PassPipeline("lower").run(fx.symbolic_trace(copy.deepcopy(model)))
    assert not unchanged.reports[0].changed


def test_the_pass_makes_no_promise_about_gradients_and_nan_where_engines_have_none() -> None:
    assert {Lower(name).may_change for name in ("onednn", "openvino")} == {("gradients", "non-finite")}
    assert Lower("tensorrt").may_change == ("gradients", "non-finite", "sizes")


class Halves(NamedTuple):
    first: Tensor
    others: list[Tensor]


def test_views_of_one_memory_that_are_returned_in_a_named_tuple_stay_in_the_program() -> None:
    def halves(x: Tensor) -> Halves:
        first, other = torch.split(x + x, 1, dim=-1)
        return Halves(first, [other])

    refusals = {name: has_own_memory(operation) for name, operation in operations(halves).items()}
    assert refusals["getitem"] == refusals["getitem_1"] == "the program returns several views of this memory"
    assert refusals["add"] is None
