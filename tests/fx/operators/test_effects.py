"""Effects of operations besides their values, and the operations that dead-code elimination therefore keeps."""

from __future__ import annotations

import functools
import gc
import math
import operator
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Point, Unhashable
from torch import nn

import fx
from fx.operators.effects import declare_pure, effect_of, has_side_effect, is_impure, why_impure


def user_function(x: Any) -> Any:
    return x


Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Plain:
    x: Any


@dataclass
class Checked:
    x: Any

    def __post_init__(self) -> None:
        print(self.x)


class Nodes:
    """A graph with inputs ``x`` and ``y`` to make calls on."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")
        self.y = self.graph.placeholder("y")

    def function(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.create_node("call_function", target, self._fill(args), kwargs, "node")

    def method(self, target: str, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.create_node("call_method", target, self._fill(args), kwargs, "node")

    def _fill(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple({"x": self.x, "y": self.y}.get(arg, arg) if isinstance(arg, str) else arg for arg in args)


PURE_CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (torch.relu, ("x",), {}),
    (torch.add, ("x", "y"), {"alpha": 2}),
    (torch.add, ("x", "y"), {"out": None}),
    (torch.sort, ("x",), {}),
    (torch.nonzero, ("x",), {"as_tuple": True}),
    (torch.split, ("x", 2), {}),
    (torch.empty, (3,), {}),
    (torch.tensor, ([1.0],), {}),
    (torch.from_numpy, ("x",), {}),
    (torch.linalg.inv, ("x",), {}),
    (torch.fft.fft, ("x",), {}),
    (torch.einsum, ("ij,jk", "x", "y"), {}),
    (torch.norm, ("x",), {}),
    (torch.unique, ("x",), {}),
    (torch.is_tensor, ("x",), {}),
    (torch.sym_int, ("x",), {}),
    (torch.Size, ([1],), {}),
    (torch.device, ("cpu",), {}),
    (torch.Tensor.mul, ("x", 2), {}),
    (torch.ops.aten.relu.default, ("x",), {}),
    (torch.ops.aten.add, ("x", "y"), {}),
    (torch._native_batch_norm_legit, ("x", None, None, True, 0.1, 1e-5), {}),
    (F.relu, ("x",), {}),
    (F.relu, ("x", False), {}),
    (F.linear, ("x", "y"), {}),
    (F.conv2d, ("x", "y"), {}),
    (F.softmax, ("x",), {"dim": 1}),
    (F.interpolate, ("x",), {"scale_factor": 2}),
    (F.max_pool2d, ("x", 2), {}),
    (F.normalize, ("x",), {}),
    (F.embedding, ("x", "y"), {}),
    (F.batch_norm, ("x", "y", "y"), {}),
    (F.batch_norm, ("x", None, None), {"training": True}),
    (F.instance_norm, ("x",), {}),
    (F.instance_norm, ("x", "y", "y"), {"use_input_stats": False}),
    (torch.batch_norm, ("x", None, None, "y", "y", False, 0.1, 1e-5, False), {}),
    (torch.batch_norm, ("x", None, None, None, None, True, 0.1, 1e-5, False), {}),
    (F.dropout, ("x", 0.5, False), {}),
    (F.dropout, ("x",), {"p": 0.0}),
    (F.dropout, ("x",), {"training": False, "inplace": True}),
    (torch.dropout, ("x", 0.5, False), {}),
    (F.rrelu, ("x",), {}),
    (F.scaled_dot_product_attention, ("x", "x", "x"), {}),
    (F.fractional_max_pool2d, ("x", 2, 2), {"_random_samples": 1}),
    (torch.lstm, ("x", ["x"], ["x"], True, 1, 0.0, True, False, False), {}),
    (torch.lstm, ("x", ["x"], ["x"], True, 1, 0.5, False, False, False), {}),
    (operator.add, ("x", "y"), {}),
    (operator.getitem, ("x", 0), {}),
    (operator.index, ("x",), {}),
    (operator.itemgetter(1), ("x",), {}),
    (math.sqrt, ("x",), {}),
    (getattr, ("x", "shape"), {}),
    (len, ("x",), {}),
    (sum, ("x",), {}),
    (int, ("x",), {}),
    (tuple, ("x",), {}),
    (dict, (), {"a": 1}),
    (slice, (1, 2), {}),
    (str.upper, ("a",), {}),
    (Point, ("x", "y"), {}),
    (Pair, ("x", "y"), {}),
    (Plain, ("x",), {}),
]


@pytest.mark.parametrize("target, args, kwargs", PURE_CALLS)
def test_calls_that_only_compute_are_pure(target: Any, args: Any, kwargs: Any) -> None:
    node = Nodes().function(target, *args, **kwargs)
    assert effect_of(node) is None
    assert why_impure(node) is None
    assert not node.is_impure()


WRITES_X = "`%node` writes to `%x`"
STATISTICS = "`%node` updates running statistics"
STATE = "`%node` changes state outside of the program"
CHECK = "`%node` checks a condition"
IMPURE_CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (torch.relu_, ("x",), {}, WRITES_X),
    (torch.add, ("x",), {"other": 1, "out": 7}, "`%node` writes to its argument 7"),
    (torch.ops.aten.mul_.Tensor, ("x", "y"), {}, WRITES_X),
    (torch.ops.aten.mul_, ("x", "y"), {}, WRITES_X),
    (torch.Tensor.mul_, ("x", 2), {}, WRITES_X),
    (torch._native_batch_norm_legit, ("x", None, None, "y", "y", True, 0.1, 1e-5), {}, "`%node` writes to one of its"),
    (F.relu, ("x", True), {}, WRITES_X),
    (F.relu, ("x",), {"inplace": True}, WRITES_X),
    (F.relu_, ("x",), {}, WRITES_X),
    (F.hardtanh, ("x",), {"inplace": True}, WRITES_X),
    (F.dropout, ("x", 0.5, True, True), {}, WRITES_X),
    (F.threshold, ("x", 0.0, 0.0, True), {}, WRITES_X),
    (F.normalize, ("x",), {"out": 7}, "`%node` writes to its argument 7"),
    (F.embedding, ("x", "y"), {"max_norm": 1.0}, "`%node` renormalizes its weight"),
    (F.batch_norm, ("x", "y", "y"), {"training": True}, STATISTICS),
    (torch.ops.aten.cudnn_batch_norm.default, ("x", "x", None, "y", "y", True, 0.1, 1e-5), {}, STATISTICS),
    (F.instance_norm, ("x", "y", "y"), {}, STATISTICS),
    (torch.batch_norm, ("x", None, None, "y", "y", True, 0.1, 1e-5, False), {}, STATISTICS),
    (torch._assert, ("x", "message"), {}, CHECK),
    (torch.ops.aten._assert_async.msg, ("x", "message"), {}, CHECK),
    (torch.ops.aten.sym_constrain_range.default, ("x",), {}, CHECK),
    (torch.ops.profiler._record_function_enter_new, ("name",), {}, STATE),
    (torch._C._set_grad_enabled, (True,), {}, STATE),
    (torch.amp._enter_autocast, ("cpu", None, True, None), {}, STATE),
    (torch.manual_seed, (0,), {}, STATE),
    (torch.seed, (), {}, STATE),
    (torch.save, ("x", "file"), {}, STATE),
    (torch.ops._c10d_functional.all_reduce.default, ("x", "sum", "0"), {}, "`%node` communicates with other processes"),
    (operator.iadd, ("x", "y"), {}, WRITES_X),
    (operator.imatmul, ("x", "y"), {}, WRITES_X),
    (operator.setitem, ("x", 0, "y"), {}, WRITES_X),
    (operator.delitem, ("x", 0), {}, WRITES_X),
    (setattr, ("x", "a", 1), {}, WRITES_X),
    (torch.nn.init.zeros_, ("x",), {}, "which has no operator schema and is not declared pure"),
    (print, ("x",), {}, "`%node` calls `builtins.print`, which has no operator schema and is not declared pure"),
    (user_function, ("x",), {}, f"`%node` calls `{__name__}.user_function`, which has no operator schema"),
    (functools.wraps(F.gelu)(lambda x: x), ("x",), {}, "which has no operator schema and is not declared pure"),
    (functools.wraps(F.softmax)(lambda x: x), ("x",), {}, "which has no operator schema and is not declared pure"),
    (operator.methodcaller("pop"), ("x",), {}, "which has no operator schema"),
    (torch.compile, (user_function,), {}, "which has no operator schema"),
    (Checked, ("x",), {}, "which has no operator schema"),
]


@pytest.mark.parametrize("target, args, kwargs, reason", IMPURE_CALLS)
def test_calls_with_an_effect_name_it(target: Any, args: Any, kwargs: Any, reason: str) -> None:
    node = Nodes().function(target, *args, **kwargs)
    assert reason in (why_impure(node) or "")
    assert node.is_impure() and node.is_impure(impure_random=False)


def test_the_written_output_is_named_by_its_node() -> None:
    nodes = Nodes()
    assert why_impure(nodes.function(torch.add, "x", "x", out=nodes.y)) == "`%node` writes to `%y`"
    only_output = nodes.graph.create_node("call_function", torch.ops.aten.add.out, (nodes.x, 1), {"out": nodes.y})
    assert why_impure(only_output) == "`%add_out` writes to `%y`"


@pytest.mark.parametrize("target", [torch.sort, torch.cummax, torch.aminmax, torch.linalg.qr, torch.frexp])
def test_several_outputs_in_one_tuple_are_written_to(target: Any) -> None:
    nodes = Nodes()
    effect = effect_of(nodes.function(target, nodes.x, out=(nodes.x, nodes.y)))
    assert effect is not None and (effect.kind, effect.written) == ("write", "out")


SEVERAL_WRITES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (torch.ops.aten.sort.values, ("x",), {"values": "x", "indices": "y"}),
    (torch.ops.aten.sort, ("x",), {"values": "x", "indices": "y"}),
    (torch.ops.aten._native_batch_norm_legit.default, ("x", None, None, "x", "y", True, 0.1, 1e-5), {}),
    (torch.ops.aten._fused_sgd_, (["x"], ["x"], ["y"]), {}),
]


@pytest.mark.parametrize("target, args, kwargs", SEVERAL_WRITES)
def test_operators_that_write_to_several_arguments_name_none_of_them(target: Any, args: Any, kwargs: Any) -> None:
    assert why_impure(Nodes().function(target, *args, **kwargs)) == "`%node` writes to several of its arguments"


RANDOM_CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (torch.rand, (2,), {}),
    (torch.randn, ([2],), {}),
    (torch.randint, (4, (2,)), {}),
    (torch.randperm, (4,), {}),
    (torch.rand_like, ("x",), {}),
    (torch.bernoulli, ("x",), {}),
    (torch.multinomial, ("x", 2), {}),
    (torch.normal, ("x", "y"), {}),
    (torch.poisson, ("x",), {}),
    (torch.ops.aten.rand.default, ([2],), {}),
    (torch.ops.aten.native_dropout.default, ("x", 0.5, True), {}),
    (torch.ops.aten.native_dropout.default, ("x", 0.5, None), {}),
    (torch.dropout, ("x", 0.5, True), {}),
    (F.dropout, ("x",), {}),
    (F.dropout2d, ("x", 0.5, True), {}),
    (F.alpha_dropout, ("x",), {"training": True}),
    (F.rrelu, ("x",), {"training": True}),
    (F.gumbel_softmax, ("x",), {}),
    (F.fractional_max_pool2d, ("x", 2, 2), {}),
    (F.scaled_dot_product_attention, ("x", "x", "x"), {"dropout_p": 0.1}),
    (torch.lstm, ("x", ["x"], ["x"], True, 2, 0.5, True, False, False), {}),
]


@pytest.mark.parametrize("target, args, kwargs", RANDOM_CALLS)
def test_random_calls_are_effects_unless_randomness_is_ignored(target: Any, args: Any, kwargs: Any) -> None:
    node = Nodes().function(target, *args, **kwargs)
    assert why_impure(node) == "`%node` draws random numbers"
    assert node.is_impure()
    assert not node.is_impure(impure_random=False)


def test_flags_that_the_program_computes_count_as_set() -> None:
    nodes = Nodes()
    assert is_impure(nodes.function(F.dropout, "x", 0.5, "y"))
    assert is_impure(nodes.function(F.relu, "x", "y"))
    assert is_impure(nodes.function(F.batch_norm, "x", "x", "x", training=nodes.y))


METHODS: dict[str | None, str] = {
    None: "add encode size view sum relu unbind numel dim item numpy keys items values get split upper count index "
    "copy name __getitem__ __add__ __len__ __contains__ __eq__ __float__ _replace sort",
    WRITES_X: "add_ relu_ copy_ uniform_ append extend pop update clear insert remove setdefault __setitem__ __iadd__",
    STATE: "backward retain_grad register_hook record_stream",
    "`%node` draws random numbers": "bernoulli multinomial",
}


@pytest.mark.parametrize(
    "name, reason", [(name, reason) for reason, names in METHODS.items() for name in names.split()]
)
def test_methods_name_their_side_effects(name: str, reason: str | None) -> None:
    assert why_impure(Nodes().method(name, "x")) == reason


@pytest.mark.parametrize("name", ["forward_features", "__call__", "__next__", "__enter__"])
def test_unknown_methods_are_effects(name: str) -> None:
    expected = f"`%node` calls the method `{name}`, which has no operator schema and is not declared pure"
    assert why_impure(Nodes().method(name, "x")) == expected


def test_sort_and_add_are_effects_unless_the_operand_is_surely_a_tensor() -> None:
    nodes = Nodes()
    numbers = nodes.graph.call_method("tolist", (nodes.x,))
    computed = nodes.graph.call_function(user_function, (nodes.x,))
    tensor = nodes.graph.call_function(torch.relu, (nodes.x,))
    call = nodes.graph.call_function(set, ())
    assert why_impure(nodes.graph.call_method("sort", (numbers,))) == "`%sort` writes to `%tolist`"
    assert is_impure(nodes.graph.call_method("add", (computed, 1)))
    assert is_impure(nodes.graph.call_method("add", (call, 1)))
    assert not is_impure(nodes.graph.call_method("add", (tensor, 1)))
    assert not is_impure(nodes.graph.call_method("sort", (tensor,)))


def test_inputs_and_output_are_never_pure() -> None:
    nodes = Nodes()
    output = nodes.graph.output(nodes.x)
    assert why_impure(nodes.x) == "`%x` is an input of the program"
    assert why_impure(output) == "`%output` is what the program returns"
    assert not is_impure(nodes.graph.get_attr("weight"))


def test_declared_functions_are_pure_and_effects_can_be_declared() -> None:
    def declared(x: Any) -> Any:
        return x

    node = Nodes().function(declared, "x")
    assert is_impure(node)
    assert declare_pure(declared) is declared
    assert not is_impure(node)
    assert has_side_effect(declared) is declared
    assert why_impure(node) == "`%node` is declared to have a side effect"


def test_methods_can_be_declared_pure_by_name() -> None:
    node = Nodes().method("a_method_of_the_test", "x")
    assert is_impure(node)
    declare_pure("a_method_of_the_test")
    assert not is_impure(node)


def test_unhashable_functions_count_as_effects() -> None:
    assert "Unhashable" in (why_impure(Nodes().function(Unhashable(), "x")) or "")


def test_custom_operators_are_judged_by_their_schema() -> None:
    @torch.library.custom_op("pytest_fx_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("pytest_fx_tests::double_in_place", mutates_args=("x",))
    def double_in_place(x: torch.Tensor) -> None:
        x.mul_(2)

    assert not is_impure(Nodes().function(doubled, "x"))
    assert why_impure(Nodes().function(double_in_place, "x")) == WRITES_X
    assert not is_impure(Nodes().function(torch.ops.pytest_fx_tests.doubled.default, "x"))


def test_user_functions_are_not_kept_alive_by_asking() -> None:
    def passing(x: Any) -> Any:
        return x

    reference = weakref.ref(passing)
    is_impure(Nodes().function(passing, "x"))
    del passing
    gc.collect()
    assert reference() is None


# Dead-code elimination.


def eliminated(function: Callable[..., Any] | nn.Module) -> str:
    """The names that are left of a traced program after dead-code elimination."""
    program = fx.symbolic_trace(function)
    program.graph.eliminate_dead_code()
    return " ".join(node.name for node in program.graph.nodes)


def test_dead_in_place_methods_are_kept_with_their_operands() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y.mul_(3)
        (x + 1).relu()
        return y

    assert eliminated(function) == "x mul mul_ output"


def test_dead_in_place_modules_and_training_statistics_are_kept() -> None:
    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.norm, self.linear = nn.ReLU(inplace=True), nn.BatchNorm1d(2), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            self.act(x)
            self.norm(x)
            self.linear(x)
            return x

    assert eliminated(Program()) == "x act norm output"
    assert eliminated(Program().eval()) == "x act output"


def test_dead_writes_to_an_output_argument_are_kept() -> None:
    def function(x: Any, y: Any) -> Any:
        torch.add(x, 1, out=y)
        return y

    assert eliminated(function) == "x y add output"


def test_dead_writes_to_several_outputs_are_kept() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        torch.sort(x, out=(y, z))
        return y, z

    assert eliminated(function) == "x y z sort output"


DRAWING_WRITES: list[tuple[Any, tuple[Any, ...], dict[str, Any], bool]] = [
    ("normal_", ("x",), {}, True),
    ("bernoulli_", ("x",), {}, True),
    ("add_", ("x", 1), {}, False),
    (torch.ops.aten.uniform_.default, ("x",), {}, True),
    (torch.dropout_, ("x", 0.5, True), {}, True),
    (torch.relu_, ("x",), {}, False),
    (F.dropout, ("x",), {"inplace": True}, True),
    (F.rrelu_, ("x",), {"training": True}, True),
    (F.relu, ("x", True), {}, False),
]


@pytest.mark.parametrize("target, args, kwargs, draws", DRAWING_WRITES)
def test_writes_that_also_draw_random_numbers_say_so(target: Any, args: Any, kwargs: Any, draws: bool) -> None:
    nodes = Nodes()
    node = (nodes.method if isinstance(target, str) else nodes.function)(target, *args, **kwargs)
    effect = effect_of(node)
    assert effect is not None and effect.kind == "write" and effect.draws == draws


@pytest.mark.parametrize(
    "target, sets_modes",
    [
        (torch._C._set_grad_enabled, True),
        (torch.set_grad_enabled, True),
        (torch.manual_seed, True),
        (user_function, False),
        (torch.ops._c10d_functional.all_reduce.default, False),
    ],
)
def test_effects_tell_whether_they_set_modes(target: Any, sets_modes: bool) -> None:
    effect = effect_of(Nodes().function(target, "x"))
    assert effect is not None and effect.sets_modes == sets_modes
