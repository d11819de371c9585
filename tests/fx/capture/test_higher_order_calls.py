"""Functions of functions (``vmap``, ``grad``, ``cond``, loops) as one operation with captured bodies."""

from __future__ import annotations

import copy
import operator
import pickle
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import grad, jacrev, vjp, vmap
from torch.utils.checkpoint import checkpoint

import fx
import fx.higher_order
from fx.analysis.cost import estimate_cost
from fx.analysis.symbolic_shapes import symbolic_shapes
from fx.analysis.verify import find_violation
from fx.errors import AnalysisError
from fx.higher_order import is_recorded
from fx.operators.effects import is_impure, why_impure
from fx.passes import ShapeProp
from fx.passes.split_module import split_module

X = torch.linspace(-1, 2, 12).reshape(3, 4)


class Mapped(nn.Module):
    """Maps a function that reads a parameter, a buffer and a value of the outer function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        total = x.sum(0)
        return vmap(lambda row: self.inner(row + self.shift) * total)(x)


class Chosen(nn.Module):
    """Takes one of two branches by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, self.small, self.large, (x,))


class Checkpointed(nn.Module):
    """Saves nothing for the backward pass."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return checkpoint(lambda y: self.inner(y).exp().sin().tanh(), x, use_reentrant=False)


def chosen(x: Any, root: Chosen) -> Any:
    """Compute the expected result."""
    return root.small(x) if x.sum() > 0 else root.large(x)


def test_the_body_of_a_function_is_a_program_and_its_closure_becomes_inputs() -> None:
    program = fx.symbolic_trace(Mapped())
    assert program.code.strip().splitlines()[1:] == [
        "    sum_1 = x.sum(0)",
        "    shift = self.shift",
        "    inner_weight = self.inner.weight",
        "    inner_bias = self.inner.bias",
        "    vmap_body_0 = self.vmap_body_0",
        "    vmap = fx_higher_order_vmap(vmap_body_0, (x,), {}, (shift, inner_weight, inner_bias, sum_1));  "
        "vmap_body_0 = x = shift = inner_weight = inner_bias = sum_1 = None",
        "    return vmap",
    ]
    assert program.vmap_body_0.code.strip().splitlines()[1:3] == [
        "    add = row + shift;  row = shift = None",
        "    linear = torch.nn.functional.linear(add, inner_weight, inner_bias);  "
        "add = inner_weight = inner_bias = None",
    ]


@pytest.mark.parametrize("make", [Mapped, Chosen])
def test_a_program_with_bodies_is_one_in_every_form(make: Any, tmp_path: Path) -> None:
    root = make()
    program = fx.symbolic_trace(root)
    assert list(program.state_dict()) == list(root.state_dict())
    assert find_violation(program.graph) is None
    file = tmp_path / "program.fx"
    fx.save(program, file)
    program.to_folder(tmp_path / "package_of_bodies", "Program")
    forms = {
        "itself": program,
        "copy": copy.deepcopy(program),
        "pickle": pickle.loads(pickle.dumps(program)),
        "file": fx.load(file),
        "captured again": fx.symbolic_trace(program),
        "transformed": fx.Transformer(program).transform(),
        "torch.fx": fx.interop.to_torch(program),
        "interpreter": fx.Interpreter(program).run,
    }
    state = {name: value + 0.25 for name, value in root.state_dict().items()}
    for module in (root, *(form for form in forms.values() if isinstance(form, nn.Module))):
        module.load_state_dict(state)
    for name, form in forms.items():
        for x in (X, -X[:2]):
            expected = root(x) if make is Mapped else chosen(x, root)
            torch.testing.assert_close(form(x), expected, msg=name)


def test_a_program_that_is_captured_again_has_the_same_code_and_bodies_that_were_edited() -> None:
    program = fx.symbolic_trace(Mapped())
    assert fx.symbolic_trace(program).code == program.code
    [add] = program.vmap_body_0.graph.find_nodes(op="call_function", target=operator.add)
    add.target = operator.sub
    program.recompile()
    again, twice = fx.symbolic_trace(program), fx.GraphModule(program, program.graph)
    for vmapped in (again, twice):
        assert "= row - shift" in vmapped.vmap_body_0.code
        assert torch.equal(vmapped(X), program(X))


@pytest.mark.thorough
def test_programs_with_bodies_are_compiled_and_exported() -> None:
    for root in (Mapped(), Chosen()):
        program = fx.symbolic_trace(root)
        compiled = torch.compile(program, backend="eager", fullgraph=True)
        for x in (X, -X):
            torch.testing.assert_close(compiled(x), program(x))
    exported = torch.export.export(program, (X,), strict=False).module()  # which loses vmap's own constants
    for x in (X, -X):
        torch.testing.assert_close(exported(x), program(x))
    assert "cond" in exported.code


def test_gradients_reach_the_parameters_that_a_body_closes_over() -> None:
    root, twin = Mapped(), Mapped()
    twin.load_state_dict(root.state_dict())
    fx.symbolic_trace(twin)(X).sum().backward()
    root(X).sum().backward()
    for first, other in zip(root.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(first.grad, other.grad)


def test_the_branch_that_is_not_taken_gives_gradients_of_zeros_as_that_of_torch_cond_does() -> None:
    root = Chosen()
    fx.symbolic_trace(root)(X).sum().backward()
    assert root.small.weight.grad is not None and root.small.weight.grad.any()
    assert [parameter.grad is not None and not parameter.grad.any() for parameter in root.large.parameters()] == [
        True
    ] * 4


# Control flow, each against the loop of Python's that it means.


def test_a_number_that_a_loop_carries_is_a_value_of_the_program() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        i, y = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2 + i), (0, x))
        return y * i

    traced = fx.symbolic_trace(doubled)
    assert "while_loop[0]" in traced.code, traced.code
    assert torch.equal(traced(torch.ones(2)), torch.full((2,), 36.0))


def test_loops_and_maps_are_one_operation_and_mean_the_loop() -> None:
    scale = torch.arange(4.0)

    def looping(x: Any) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + scale), (torch.tensor(0), x))

    steps, y = fx.symbolic_trace(looping)(X)
    expected = X
    for _ in range(3):
        expected = expected * 0.5 + scale
    assert steps == 3 and torch.equal(y, expected)
    unchanged = fx.symbolic_trace(lambda x: while_loop(lambda y: y.sum() > 99, lambda y: (y * 2,), (x,)))(X)[0]
    assert torch.equal(unchanged, X) and unchanged is not X

    def mapping(x: Any) -> Any:
        return map_rows(lambda rows, other: {"sum": rows[0] + rows[1], "product": rows[0] * other}, (x, x * 2), scale)

    mapped = fx.symbolic_trace(mapping)(X)
    assert torch.equal(mapped["sum"], X + X * 2) and torch.equal(mapped["product"], X * scale)


@pytest.mark.parametrize("dim, reverse", [(0, False), (1, False), (0, True)])
def test_a_scan_is_one_operation_and_passes_its_carry(dim: int, reverse: bool) -> None:
    def scanning(x: Any) -> Any:
        start = torch.zeros_like(x.select(dim, 0))
        return scan(lambda carry, row: (carry + row, carry * row), start, x, dim=dim, reverse=reverse)

    carry, outputs = fx.symbolic_trace(scanning)(X)
    rows = list(X.unbind(dim))
    total, expected = torch.zeros_like(rows[0]), []
    for row in rows[::-1] if reverse else rows:
        expected.append(total * row)
        total = total + row
    torch.testing.assert_close(carry, total)
    torch.testing.assert_close(outputs, torch.stack(expected[::-1] if reverse else expected, dim))


def test_an_associative_scan_is_one_operation() -> None:
    def scanning(x: Any) -> Any:
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    program = fx.symbolic_trace(scanning)
    assert "fx_higher_order_associative_scan(associative_scan_body_0, x, 0, ()" in program.code
    torch.testing.assert_close(program(X), X.cumsum(0))


def test_operators_of_torch_are_recorded_with_the_bodies_of_functions_too() -> None:
    def choosing(x: Any) -> Any:
        return torch.ops.higher_order.cond(x.sum() > 0, lambda y: (y * 2,), lambda y: (y - 1,), (x,))[0]

    program = fx.symbolic_trace(choosing)
    assert torch.equal(program(X), X * 2) and torch.equal(program(-X), -X - 1)
    with pytest.raises(
        fx.TraceError, match=r"(?s)operator scan with functions.*try +call torch._higher_order_ops.scan"
    ):
        fx.symbolic_trace(lambda x: torch.ops.higher_order.scan(lambda a, b: (a, b), (x[0],), (x,), ()))


def test_programs_with_operators_of_torch_in_them_are_captured_again() -> None:
    root = nn.Module()
    root.then, root.otherwise = fx.symbolic_trace(lambda x: (x * 2,)), fx.symbolic_trace(lambda x: (x - 1,))
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(torch.gt, (graph.call_method("sum", (x,)), 0))
    parts = graph.get_attr("then"), graph.get_attr("otherwise")
    graph.output(graph.call_function(torch.ops.higher_order.cond, (call, *parts, (x,))))
    program = fx.symbolic_trace(fx.GraphModule(root, graph))
    assert names_of(program) == ["sum_1", "gt", "cond"]
    assert torch.equal(program(X)[0], X * 2) and torch.equal(program(-X)[0], -X - 1)


def test_a_branch_on_the_mode_follows_it_and_one_on_constants_is_decided() -> None:
    class ByMode(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(self.training, lambda y: y * 2, lambda y: y - 1, (x,))

    program = fx.symbolic_trace(ByMode())
    assert torch.equal(program(X), X * 2) and torch.equal(program.eval()(X), X - 1)
    decided = fx.symbolic_trace(lambda x: torch.cond(torch.tensor(True), lambda y: y * 2, lambda y: y - 1, (x,)))
    assert [node.name for node in decided.graph.nodes] == ["x", "mul", "output"]


# Values that take no part in the call, and facts about bodies.


def test_a_value_of_constants_alone_is_a_constant() -> None:
    def masked(x: Any) -> Any:
        rows = torch.arange(4)
        mask = vmap(vmap(lambda i, j: i >= j, (None, 0)), (0, None))(rows, rows)
        return x * mask if mask.shape == (4, 4) else x

    program = fx.symbolic_trace(masked)
    assert [node.name for node in program.graph.nodes] == ["x", "_tensor_constant0", "mul", "output"]
    assert torch.equal(program(torch.ones(4, 4)), torch.ones(4, 4).tril())


def test_a_call_returns_the_structure_of_its_function() -> None:
    def both(x: Any) -> Any:
        out = vmap(lambda row: {"twice": row * 2, "pair": (row, [row.sum()])})(x)
        assert list(out) == ["twice", "pair"] and len(out["pair"]) == 2
        grads, aux = grad(lambda p: ((p["w"] * x).sum(), [p["w"] + 1]), has_aux=True)({"w": x})
        return out["pair"][1][0], {name: value * 1 for name, value in grads.items()}, *aux

    program = fx.symbolic_trace(both)
    sums, grads, aux = program(X)
    torch.testing.assert_close(sums, X.sum(1))
    assert torch.equal(grads["w"], X) and torch.equal(aux, X + 1)
    assert len(program.graph.find_nodes(op="call_function", target=fx.higher_order.vmap)) == 1


@dataclass
class Boxes:
    """A class that torch flattens once it is registered."""

    corners: Any
    sizes: Any


torch.utils._pytree.register_dataclass(Boxes)


def test_an_argument_of_a_registered_class_is_mapped_with_its_fields() -> None:
    def areas(x: Any) -> Any:
        return vmap(lambda boxes: boxes.corners * boxes.sizes.sum())(Boxes(x, x + 1))

    program = fx.symbolic_trace(areas)
    torch.testing.assert_close(program(X), areas(X))
    assert [node.op for node in program.vmap_body_0.graph.nodes].count("placeholder") == 1


def test_the_function_from_vjp_is_called_by_the_program_also_under_vmap() -> None:
    def pulled(x: Any) -> Any:
        out, pull = vjp(lambda y: y * y, x)
        (once,) = pull(torch.ones_like(x))
        return out, once, vmap(pull)(torch.stack([x, x]))[0]

    for actual, expected in zip(fx.symbolic_trace(pulled)(X), pulled(X), strict=True):
        torch.testing.assert_close(actual, expected)


def test_modules_that_branch_on_their_inputs_are_called_whole_and_follow_their_mode() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.norm = nn.GRU(4, 4, batch_first=True), nn.BatchNorm1d(4)

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda y: self.recurrent(y[None])[0][0], lambda y: self.norm(y), (x,))

    root = Whole()
    program = fx.symbolic_trace(root)
    assert list(program.state_dict()) == list(root.state_dict())
    assert "recurrent.__call__(getitem)" in program.cond_true_body_0.code
    torch.testing.assert_close(program(X), root.recurrent(X[None])[0][0])
    before = root.norm.running_mean.clone()
    torch.testing.assert_close(program.eval()(-X), root.norm(-X))
    assert torch.equal(root.norm.running_mean, before)
    program.train()(-X)
    assert not torch.equal(root.norm.running_mean, before)


def test_an_attribute_of_a_value_around_a_body_is_read_around_it() -> None:
    def reading(x: Any) -> Any:
        shape = x.shape
        return vmap(lambda row: row * shape[0])(x), shape[1] + 1

    program = fx.symbolic_trace(reading)
    scaled, more = program(X)
    assert torch.equal(scaled, X * 3) and more == 5


def test_tracers_of_clients_see_the_nodes_of_bodies() -> None:
    class Noting(fx.Tracer):
        def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
            proxy = super().create_proxy(*args, **kwargs)
            proxy.node.meta["depth"] = 1 + max((node.meta["depth"] for node in proxy.node.all_input_nodes), default=0)
            return proxy

    graph = Noting().trace(lambda x: vmap(lambda row: row * 2 + x[0])(x))
    body = graph.constants["vmap_body_0"].graph
    assert [node.meta.get("depth") for node in body.nodes] == [1, 1, 2, 2, 3, None]


# Passes.


def names_of(program: fx.GraphModule) -> list[str]:
    """The operations that are left."""
    return [node.name for node in program.graph.nodes if node.op.startswith("call")]


def test_effects_of_a_body_are_known_to_passes() -> None:
    def several(x: Any) -> Any:
        total = x.sum(0)
        vmap(lambda row: row * 2)(x)
        vmap(lambda row: row + torch.rand(4), randomness="different")(x)
        vmap(lambda row: total.add_(1).sum() + row)(x)
        return total

    program = fx.passes.RemoveDeadCode()(fx.symbolic_trace(several))
    assert names_of(program) == ["sum_1", "vmap_1", "vmap_2"]
    random, writing = program.graph.find_nodes(op="call_function", target=fx.higher_order.vmap)
    reason = "`%vmap_1` calls a program in which `%rand` draws random numbers"
    assert why_impure(random) == reason and not is_impure(random, impure_random=False)
    assert why_impure(writing) == "`%vmap_2` calls a program in which `%add_` writes to `%total`".replace(
        "total", "sum_1"
    )
    assert torch.equal(program(X), X.sum(0) + 1)


def test_dead_code_and_repetitions_in_bodies_go() -> None:
    def body(row: Any) -> Any:
        row.exp()
        return row.sin() + row.sin()

    program = fx.symbolic_trace(lambda x: vmap(body)(x))
    for pass_, count in ((fx.passes.RemoveDeadCode(), 3), (fx.passes.EliminateCommonSubexpressions(), 2)):
        program = pass_(program)
        assert len(names_of(program.vmap_body_0)) == count
        torch.testing.assert_close(program(X), X.sin() * 2)


def test_reads_do_not_move_over_a_write_inside_a_body_to_its_closure() -> None:
    def writing(x: Any) -> Any:
        total = x.sum(0)
        before = total * 1
        out = vmap(lambda row: row + total.add_(1).sum())(x)
        return out, before, total * 1

    program = fx.passes.EliminateCommonSubexpressions()(fx.symbolic_trace(writing))
    _, before, after = program(X)
    assert torch.equal(before, X.sum(0)) and torch.equal(after, before + 1)


def test_a_program_with_bodies_is_split_and_analysed() -> None:
    root = Mapped()
    program = fx.symbolic_trace(root)
    first = ("sum_1",)
    split = split_module(program, root, lambda node: 0 if node.name in first else 1)
    torch.testing.assert_close(split(X), root(X))
    ShapeProp(program, fake=True).propagate(X)
    assert program.graph.find_nodes(op="call_function")[-1].meta["tensor_meta"].shape == (3, 4)
    if torch.__version__ >= "2.12":  # earlier ones have no rule for linear of symbolic sizes under vmap
        assert symbolic_shapes(program, ("rows", 4)).shape_of("vmap") == ("rows", 4)
    assert str(estimate_cost(program, X)).startswith("144 FLOP to 432 FLOP, 48 multiply-adds")
    with pytest.raises(AnalysisError, match="the kernels that cond calls are not known without a run"):
        estimate_cost(fx.symbolic_trace(Chosen()), X)


# With example inputs.


def test_sizes_inside_a_body_are_known_and_guarded() -> None:
    def asking(x: Any) -> Any:
        return vmap(lambda row: row[:3] if row.shape[0] > 3 else row)(x)

    program = fx.symbolic_trace(asking, example_inputs=(X,))
    assert [str(guard).partition(": ")[0] for guard in program.guards] == [
        "the program was captured where row.shape[0] > 3 was True"
    ]
    assert torch.equal(program(torch.ones(7, 4)), torch.ones(7, 3))
    with pytest.raises(fx.GuardError, match=r"row.shape\[0\] > 3 was True"):
        program(torch.ones(7, 2))
    assert fx.passes.RemoveChecks(guards=True)(program).guards == ()


# Errors.


def test_a_value_of_a_body_that_is_used_outside_is_refused_by_its_line() -> None:
    def keeping(x: Any) -> Any:
        recorded = []
        return grad(lambda y: (recorded.append(y * 2), y.sum())[1])(x) + recorded[0]

    with pytest.raises(fx.TraceError) as raised:
        fx.symbolic_trace(keeping)
    what, where, *_, remedy = str(raised.value).splitlines()
    assert what == "a value that a function computed is used outside of it, though the function did not return it"
    assert "test_higher_order_calls.py" in where and "+ recorded[0]" in str(raised.value)
    assert remedy == "  try    return it (grad, vjp and the like take has_aux=True)"


JACOBIAN = jacrev(torch.sin)


def test_a_jacobian_that_was_made_before_is_refused_by_its_line() -> None:
    with pytest.raises(fx.TraceError) as raised:
        fx.symbolic_trace(lambda x: JACOBIAN(x))
    message = str(raised.value)
    assert message.startswith("cannot capture a call of a function that jacrev made before the capture\n  where  ")
    assert "test_higher_order_calls.py" in message and "fx.symbolic_trace(lambda x: JACOBIAN(x))" in message
    assert "\n  try    call jacrev in the program, where its result is called: jacrev(function)(x)" in message


def test_a_function_that_leaves_gradients_switched_is_refused_by_its_line() -> None:
    def switching(y: Any) -> Any:
        torch.set_grad_enabled(False)
        return y.sum()

    with pytest.raises(fx.TraceError) as raised:
        fx.symbolic_trace(lambda x: grad(switching)(x))
    what, *_ = str(raised.value).splitlines()
    assert what == "cannot capture a function that leaves the recording of gradients switched"
    assert "try    switch it in a with statement: with torch.no_grad()" in str(raised.value)
    assert torch.is_grad_enabled()


def test_a_branch_in_a_body_is_refused_by_its_line_and_leaves_nothing_behind() -> None:
    root = Mapped()
    with pytest.raises(fx.TraceError, match=r"(?s)cannot be used as inputs to control flow.*row if row.sum\(\) > 0"):
        fx.symbolic_trace(lambda x: vmap(lambda row: row if row.sum() > 0 else -row)(x))
    assert fx.symbolic_trace(root)(X).shape == (3, 4)
    assert torch.func.jacrev is jacrev and not is_recorded()


def test_an_error_in_a_body_is_explained_as_outside_of_one_and_other_transforms_are_refused_by_their_line() -> None:
    table = [1.0, 2.0]
    with pytest.raises(fx.TraceError, match=r"(?s)^cannot use a traced value as an index of a real list.*table\[row\]"):
        fx.symbolic_trace(lambda x: vmap(lambda row: row * table[row])(x))
    with pytest.raises(fx.TraceError) as raised:
        fx.symbolic_trace(lambda x: torch._functorch.apis.chunk_vmap(torch.sin)(x))
    message = str(raised.value)
    assert message.startswith("cannot transform a function of traced values in this way\n  where  ")
    assert "chunk_vmap(torch.sin)(x))" in message
    assert "\n  try    put the call into a function marked fx.wrap, and pass it all that it uses" in message


def test_a_file_gives_functions_of_functions_nothing_to_call_but_programs_of_it(tmp_path: Path) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(fx.higher_order.vmap, (F.relu, (x,), {}, ())))
    with pytest.raises(fx.SaveError, match="'vmap' is given something else than a program of this one to call"):
        fx.save(fx.GraphModule(nn.Module(), graph), tmp_path / "program.fx")


# Checkpoints.


def test_a_checkpoint_of_a_function_computes_it_again_in_the_backward_pass() -> None:
    inner = nn.Linear(4, 4)
    program = fx.symbolic_trace(Checkpointed(inner))
    recorded: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (recorded.append(one), one)[1], lambda one: one):
        out = program(X)
    assert {id(tensor) for tensor in recorded if tensor.numel()} == {id(X), id(inner.weight), id(inner.bias)}
    out.sum().backward()
    gradient, inner.weight.grad = inner.weight.grad, None
    Checkpointed(inner)(X).sum().backward()
    assert gradient is not None and torch.equal(gradient, inner.weight.grad)


def test_a_thread_that_captures_nothing_calls_functions_of_functions_as_ever() -> None:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def asking(x: Any) -> Any:
        thread = threading.Thread(target=lambda: results.put(jacrev(torch.sin)(torch.zeros(2))))
        thread.start()
        thread.join()
        return x

    fx.symbolic_trace(asking)
    assert torch.equal(results.get_nowait(), torch.eye(2))


def test_a_switch_of_gradients_around_a_body_is_undone_by_a_program_that_is_captured_again() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                return vmap(self.inner)(x)

    program = fx.symbolic_trace(Frozen())
    again = fx.symbolic_trace(program)
    assert again.code == program.code
    with torch.no_grad():
        again(X)
        assert not torch.is_grad_enabled()


def test_parameters_among_the_arguments_are_read_in_the_same_order_when_a_program_is_captured_again() -> None:
    class PerSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            parameters = dict(self.inner.named_parameters())
            return vmap(
                torch.func.grad(lambda held, row: torch.func.functional_call(self.inner, held, (row,)).sum()),
                in_dims=(None, 0),
            )(parameters, x)["weight"]

    root = PerSample()
    program = fx.symbolic_trace(root)
    assert fx.symbolic_trace(program).code == program.code
    torch.testing.assert_close(program(X), root(X))
