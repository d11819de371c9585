"""Exported programs become ours, equal eager, and check the conditions of their export."""

# No postponed annotations: exporting reads them.

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.triton_kernel_wrap import (
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export
from torch.export.graph_signature import InputKind, OutputKind

import fx
from fx.analysis.verify import find_violation
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.errors import InteropError
from fx.interop import from_export, from_torch, to_torch, torch_export
from model_zoo import get_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Everything(nn.Module):
    """Tied weights, written buffers of both kinds, a constant, written inputs, structures."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x: Any, table: Any, power: float = 2.0, *, scale: Any) -> Any:
        self.count.add_(1)
        self.hidden.mul_(2)
        y = self.second(self.first(self.norm(x))) * scale + self.count + self.hidden + self.constant + power
        table["a"].mul_(2)
        return {"out": y, "sizes": [y.sum(), x.shape[0]]}, None


def inputs(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.linspace(-1.0, 2.0, 3 * batch).reshape(batch, 3)
    return (x, {"a": torch.ones(2)}), {"scale": torch.full((3,), 0.5)}


def exported() -> tuple[Everything, Any]:
    model = Everything()
    args, kwargs = inputs(4)
    shapes = {"x": {0: Dim("batch", min=3, max=9)}, "table": {"a": None}, "scale": None}
    return model, export(model, args, kwargs, dynamic_shapes=shapes)


@pytest.mark.parametrize("decomposed", [False, True], ids=["as exported", "decomposed"])
def test_a_model_in_training_keeps_its_results_writes_and_checks(decomposed: bool) -> None:
    model, program = exported()
    eager = copy.deepcopy(model)
    ours = from_export(program.run_decompositions({}) if decomposed else program)
    assert type(ours).__name__ == "Everything"
    assert list(ours.state_dict()) == list(model.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert ours.first.weight is ours.second.weight is model.first.weight
    assert type(ours.graph._codegen) is PyTreeCodeGen
    assert find_violation(ours.graph) is None
    ours = copy.deepcopy(ours)  # the exported program shares its state with the model
    for batch in (4, 7):
        args, kwargs = inputs(batch)
        expected_args, _ = inputs(batch)
        expected = eager(*expected_args, **kwargs)
        torch.testing.assert_close(ours(*args, **kwargs), expected, rtol=0, atol=0)
        assert torch.equal(args[1]["a"], expected_args[1]["a"])
        for name, tensor in eager.named_buffers():
            torch.testing.assert_close(ours.get_buffer(name), tensor, rtol=0, atol=0)
    assert_checks(ours)


def assert_checks(ours: fx.GraphModule) -> None:
    args, kwargs = inputs(4)
    for batch, message in ((2, "size 0 of x must be at least 3"), (10, "size 0 of x must be at most 9")):
        with pytest.raises(AssertionError, match=message):
            ours(*inputs(batch)[0], **kwargs)
    with pytest.raises(AssertionError, match=r"x must have the shape \(s\d+, 3\): the program was exported for that"):
        ours(torch.ones(4, 3, 1), args[1], **kwargs)
    with pytest.raises(AssertionError, match=r"scale must have the shape \(3,\)"):
        ours(*args, scale=torch.ones(1))
    unchecked = fx.passes.RemoveChecks()(ours)
    assert "_assert" not in unchecked.code
    unchecked(*inputs(2)[0], **kwargs)


def test_nodes_know_the_lines_they_came_from() -> None:
    _, program = exported()
    ours = from_export(program)
    nodes = {node.name: node for node in ours.graph.nodes}
    assert nodes["mul"].source is not None
    assert "self.second(self.first(self.norm(x))) * scale" in nodes["mul"].source.text
    assert nodes["mul"].stack_trace is not None
    assert any(path == "first" for path, _ in nodes["linear"].meta["nn_module_stack"].values())
    assert tuple(nodes["linear"].meta["val"].shape[1:]) == (3,)
    assert nodes["norm_weight"].op == "get_attr"
    placeholders = [node.name for node in ours.graph.find_nodes(op="placeholder")]
    assert placeholders == ["x", "table_a", "scale"]


@pytest.mark.parametrize("name", ["mlp", "functional_convnet", "two_heads", "resnet_tiny"])
def test_models_of_the_zoo_are_unchanged_at_any_batch_size(name: str) -> None:
    entry = get_model(name)
    model, args = entry.build(), entry.example_inputs(batch=2)
    batch = Dim("batch")
    ours = from_export(export(model, args, dynamic_shapes=tuple({0: batch} for _ in args)))
    assert list(ours.state_dict()) == list(model.state_dict())
    for count in (1, 2, 5):
        inputs = entry.example_inputs(batch=count)
        torch.testing.assert_close(ours(*inputs), model(*inputs), rtol=0, atol=0)
    if len(args) > 1:
        with pytest.raises(AssertionError, match="must have the shape"):
            ours(entry.example_inputs(batch=2)[0], entry.example_inputs(batch=3)[1])
    again = from_torch(to_torch(ours))
    assert again.code == ours.code
    pruned = fx.passes.RemoveDeadCode()(again)
    torch.testing.assert_close(pruned(*args), model(*args), rtol=0, atol=0)


def test_a_buffer_that_is_written_and_returned_is_the_buffer() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.count.add_(x)
            return self.count

    ours = from_export(export(Counter(), (torch.ones(2),)).run_decompositions({}))
    assert ours(torch.ones(2)) is ours.count
    assert torch.equal(ours(torch.ones(2)), torch.full((2,), 2.0))


def test_flat_programs_have_the_plain_signature_of_the_original() -> None:
    class Pair(nn.Module):
        def forward(self, x: Any, *, other: Any) -> Any:
            return {"sum": x + other, "both": (x, [other])}

    ours = from_export(export(Pair(), (torch.ones(2),), {"other": torch.ones(2)}))
    source = fx.passes.RemoveChecks()(ours).code.strip().splitlines()
    assert source == [
        "def forward(self, x, other):",
        "    add = x + other",
        "    return {'sum': add, 'both': (x, [other])}",
    ]


def test_sizes_that_depend_on_each_other_are_checked() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x[:-1] + y

    batch = Dim("batch", min=3, max=16)
    ours = from_export(
        export(Shifted(), (torch.ones(4, 2), torch.ones(3, 2)), dynamic_shapes=({0: batch}, {0: batch - 1}))
    )
    assert ours(torch.ones(6, 2), torch.ones(5, 2)).shape == (5, 2)
    with pytest.raises(AssertionError, match=r"x must have the shape \(s\d+ \+ 1, 2\)"):
        ours(torch.ones(6, 2), torch.ones(1, 2))


def test_values_that_are_built_in_are_checked() -> None:
    class Repeated(nn.Module):
        def forward(self, x: Any, times: int, flag: bool = True, extra: Any = None) -> Any:
            return x * times if flag else x

    ours = from_export(export(Repeated(), (torch.ones(2), 3, True, None)))
    assert torch.equal(ours(torch.ones(2), 3, True, None), torch.full((2,), 3.0))
    with pytest.raises(AssertionError, match="times has been specialized to have value 3"):
        ours(torch.ones(2), 4, True, None)
    with pytest.raises(AssertionError, match="extra has been specialized to have value None"):
        ours(torch.ones(2), 3, True, 1)


def test_checks_of_the_program_itself_stay() -> None:
    class Counted(nn.Module):
        def forward(self, x: Any) -> Any:
            count = x.max().item()
            torch._check(count >= 2)
            torch._check(count <= 8)
            return torch.zeros(count) + 1

    ours = fx.passes.RemoveDeadCode()(from_export(export(Counted(), (torch.tensor([3, 4]),))))
    assert torch.equal(ours(torch.tensor([5, 1])), torch.ones(5))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        ours(torch.tensor([9, 1]))


# Control flow.

X = torch.linspace(-1, 2, 8).reshape(2, 4)


class Chosen(nn.Module):
    """A branch with state and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        constant = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return torch.cond(x.sum() > 0, lambda x: self.linear(x) + 1, lambda x: x - constant, (x,))


class Looping(nn.Module):
    """A loop that ends depending on a value."""

    def forward(self, x: Any) -> Any:
        return while_loop(lambda i, y: y.sum() + i < 9, lambda i, y: (i + 1, y + 0.5), (torch.tensor(0), x))


class Mapped(nn.Module):
    """A part for each row."""

    def forward(self, x: Any) -> Any:
        return map_rows(lambda row, other: row * other, x, torch.arange(4.0))


class Scanned(nn.Module):
    """A part for each row that hands something on."""

    def forward(self, x: Any) -> Any:
        return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x)


@pytest.mark.parametrize("model", [Chosen(), Looping(), Mapped(), Scanned()], ids=lambda model: type(model).__name__)
def test_control_flow_stays_one_node_with_its_parts_below_the_program(model: nn.Module) -> None:
    ours = from_export(export(model, (X,), strict=False))
    operators = [node for node in ours.graph.nodes if isinstance(node.target, torch._ops.HigherOrderOperator)]
    assert len(operators) == 1
    parts = [node.target for node in operators[0].all_input_nodes if "_graph_" in str(node.target)]
    assert parts and all(isinstance(ours.get_submodule(str(part)), fx.GraphModule) for part in parts)
    assert list(ours.state_dict()) == list(model.state_dict())
    assert find_violation(ours.graph) is None
    copies = (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), fx.passes.RemoveDeadCode()(ours))
    for program in copies:
        for x in (X, -X):
            torch.testing.assert_close(program(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation])
def test_a_call_of_a_triton_kernel_stays_one_node_that_no_pass_drops(kernel: Any) -> None:
    exported = export(nn.ReLU(), (X,))
    [node] = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    arguments = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(4, 1, 1)], "kwargs": {"in_ptr": node}}
    with exported.graph.inserting_after(node):
        exported.graph.call_function(kernel, (), {**arguments, "tensors_to_clone": []})
    ours = fx.passes.RemoveDeadCode()(from_export(exported))
    [copied] = ours.graph.find_nodes(op="call_function", target=kernel)
    [relu] = ours.graph.find_nodes(op="call_function", target=torch.nn.functional.relu)
    assert copied.kwargs == {**arguments, "kwargs": {"in_ptr": relu}, "tensors_to_clone": []}


# Refusals.


def test_other_operators_that_call_parts_of_the_program_are_refused_with_their_node(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_export, "_LEAVES", ())
    with pytest.raises(InteropError, match="the higher-order operator cond has no counterpart") as caught:
        from_export(export(Chosen(), (X,)))
    assert "value  %cond = call_function[" in str(caught.value)
    assert "try    write it without that operator" in str(caught.value)


def test_state_that_is_called_like_a_part_of_a_program_is_refused() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = nn.Parameter(torch.ones(2))

        def forward(self, x: Any) -> Any:
            return x * self.graph

    with pytest.raises(InteropError, match="the exported module has a parameter or buffer called 'graph'") as caught:
        from_export(export(Named(), (torch.ones(2),)))
    assert "rename it" in str(caught.value)


def test_gradients_and_tokens_are_refused() -> None:
    program = export(nn.Linear(2, 2), (torch.ones(2),))
    output = program.graph_signature.output_specs[0]
    output.kind = OutputKind.GRADIENT_TO_USER_INPUT
    with pytest.raises(InteropError, match="is of the kind GRADIENT_TO_USER_INPUT"):
        from_export(program)
    program.graph_signature.input_specs[-1].kind = InputKind.TOKEN
    with pytest.raises(InteropError, match="orders effects by the token 'input'"):
        from_export(program)


def test_objects_that_are_no_exported_program_are_refused() -> None:
    what = "'exported_program' of from_export is an ExportedProgram, not a Linear"
    with pytest.raises(InteropError, match=rf"{what}\n(.*\n)*  try    pass the result of torch.export.export"):
        from_export(nn.Linear(1, 1))  # type: ignore[arg-type]


# Regions under a mode.


class Modes(nn.Module):
    """A product under autocast, and a part without gradients that has a constant and returns several values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        with torch.no_grad():
            first, second = (self.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])).chunk(2)
        return y.float(), first + second + x[:1], self.linear(x)


def test_parts_under_a_mode_are_computed_in_it_between_nodes_that_set_and_restore_it() -> None:
    model, x = Modes(), torch.linspace(-1, 1, 8).reshape(2, 4)
    ours = from_export(export(model, (x,)))
    functions = [node.target for node in ours.graph.find_nodes(op="call_function")]
    autocast: Any = torch.amp
    assert functions.count(autocast._enter_autocast) == functions.count(autocast._exit_autocast) == 1
    assert functions.count(torch.is_grad_enabled) == 1 and functions.count(torch._C._set_grad_enabled) == 2
    assert list(ours.state_dict()) == list(model.state_dict())
    assert find_violation(ours.graph) is None
    for variant in (ours, copy.deepcopy(ours), fx.passes.RemoveDeadCode()(ours)):
        for actual, expected in zip(variant(x), model(x), strict=True):
            assert torch.equal(actual, expected) and actual.requires_grad == expected.requires_grad


@pytest.mark.parametrize("enabled", [True, False])
def test_the_gradient_mode_of_the_caller_is_restored(enabled: bool) -> None:
    x = torch.ones(2, 4)
    ours = from_export(export(Modes(), (x,)))
    with torch.set_grad_enabled(enabled):
        answer = ours(x)
        assert torch.is_grad_enabled() == enabled and not torch.is_autocast_enabled("cpu")
    assert [tensor.requires_grad for tensor in answer] == [enabled, False, enabled]
