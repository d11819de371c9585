"""Capture: recorded operations, unchanged objects, and the data of every node."""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from building import WithoutLeaves
from torch import nn

import fx
from fx.capture import patching


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.again = nn.ModuleList([Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        return self.again[0](x) + math.pi


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


# Where nodes come from.


def test_every_node_knows_the_users_file_line_and_module() -> None:
    graph = fx.symbolic_trace(Net()).graph
    nodes = {node.name: node for node in graph.nodes}
    linear = nodes["again_0_layers_0"]
    assert linear.source is not None
    assert linear.source.file == __file__
    assert linear.source.line == line_of("return self.layers(x) * self.scale")
    assert list(linear.meta["nn_module_stack"].values()) == [
        ("again.0", Block),
        ("again.0.layers", nn.Sequential),
        ("again.0.layers.0", nn.Linear),
    ]
    assert nodes["add"].source is not None
    assert nodes["add"].source.line == line_of("self.again[0](x) + math.pi")
    assert nodes["add"].stack_trace is not None
    assert "self.again[0](x) + math.pi" in nodes["add"].stack_trace


def test_nodes_made_inside_torch_point_at_the_users_call() -> None:
    graph = WithoutLeaves().trace(Net())
    linear = next(iter(graph.find_nodes(op="call_function", target=torch.nn.functional.linear)))
    assert linear.source is not None
    assert linear.source.line == line_of("return self.layers(x) * self.scale")


def test_a_model_of_torch_modules_only_points_into_torch() -> None:
    node = next(iter(fx.symbolic_trace(nn.Sequential(nn.ReLU())).graph.find_nodes(op="call_module")))
    assert node.source is not None
    assert node.source.file.endswith("container.py")


def test_a_module_called_again_has_a_numbered_entry_in_the_stack() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.relu(x))

    first, second = fx.symbolic_trace(Twice()).graph.find_nodes(op="call_module")
    assert list(first.meta["nn_module_stack"]) == ["relu"]
    assert list(second.meta["nn_module_stack"]) == ["relu@1"]


def test_recorded_stack_traces_show_every_frame_of_the_program() -> None:
    class Recording(fx.Tracer):
        record_stack_traces = True

    graph = Recording().trace(Net())
    linear = next(iter(graph.find_nodes(op="call_module")))
    assert linear.stack_trace is not None
    assert "x = self.block(x)" in linear.stack_trace
    assert "return self.layers(x) * self.scale" in linear.stack_trace
    assert "symbolic_trace" not in linear.stack_trace


# What the traced module is after.


def test_the_traced_module_is_unchanged_by_assignments_in_forward() -> None:
    class Stashing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.calls = 0
            self.last: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last = self.linear(x)
            self.new = x
            self.linear.extra = x  # type: ignore[assignment]
            return self.last + torch.ones(2)

    module = Stashing()
    before = {**module.__dict__}
    traced = fx.symbolic_trace(module)
    assert module.__dict__ == before
    assert not hasattr(module.linear, "extra")
    assert not [name for name, _ in module.named_buffers()]
    x = torch.randn(1, 2)
    assert torch.equal(traced(x), module.linear(x) + 1)


def test_assigning_a_traced_value_to_a_buffer_is_refused_with_the_line() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
            return x - self.mean

    module = Counting()
    mean = module.mean
    with pytest.raises(fx.TraceError, match=r"(?s)buffer or parameter.*self.mean = 0.9 \* self.mean") as info:
        fx.symbolic_trace(module)
    assert "copy_" in str(info.value)
    assert module.mean is mean


def test_tensor_constants_live_in_the_graph_module_not_in_the_traced_one() -> None:
    constant = torch.tensor([3.0])

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + constant + constant * torch.tensor([2.0])

    module = Adds()
    traced = fx.symbolic_trace(module)
    assert dict(module.named_buffers()) == {}
    assert len(dict(traced.named_buffers())) == 2
    assert traced._tensor_constant0 is constant
    assert torch.equal(traced(torch.zeros(1)), torch.tensor([9.0]))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_patches_are_undone_after_any_exception(error: type[BaseException]) -> None:
    call, getattribute, sqrt = nn.Module.__call__, nn.Module.__getattr__, math.sqrt

    def fails(x: torch.Tensor) -> torch.Tensor:
        assert nn.Module.__call__ is not call
        assert math.sqrt is not sqrt
        raise error("stop")

    with pytest.raises(error):
        fx.symbolic_trace(fails)
    assert nn.Module.__call__ is call
    assert nn.Module.__getattr__ is getattribute
    assert math.sqrt is sqrt
    assert not fx.is_fx_tracing()


def test_tracing_within_tracing_records_each_program_apart() -> None:
    inner_graphs: list[fx.Graph] = []

    class Nested(fx.Tracer):
        def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            inner_graphs.append(fx.symbolic_trace(Block()).graph)
            return super().call_module(m, forward, args, kwargs)

    graph = Nested().trace(nn.Sequential(nn.ReLU()))
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"]
    assert len(inner_graphs) == 1
    assert len(inner_graphs[0].nodes) == 6


def test_four_threads_trace_and_run_the_same_models_unharmed() -> None:
    net = Net().eval()
    x = torch.randn(3, 4)
    expected = net(x)
    expected_code = fx.symbolic_trace(net).code
    original_call = nn.Module.__call__
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(traces: bool) -> None:
        try:
            start.wait(10)
            for _ in range(60):
                if traces:
                    traced = fx.symbolic_trace(net)
                    assert traced.code == expected_code
                    assert torch.equal(traced(x), expected)
                else:
                    assert not fx.is_fx_tracing()
                    assert torch.equal(net(x), expected)
                    assert math.sqrt(4.0) == 2.0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert nn.Module.__call__ is original_call
    assert not patching._replacements


# Overriding.


def test_each_overridable_method_sees_its_part_of_the_trace() -> None:
    visited: set[str] = set()

    class Watching(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            visited.add(f"leaf {module_qualified_name}")
            return super().is_leaf_module(m, module_qualified_name)

        def path_of_module(self, mod: nn.Module) -> str:
            visited.add("path")
            return super().path_of_module(mod)

        def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
            visited.add(f"getattr {attr}")
            return super().getattr(attr, attr_val, parameter_proxy_cache)

        def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> Any:
            visited.add(f"proxy {kind}")
            return super().create_proxy(kind, *args, **kwargs)

        def create_node(self, kind: str, *args: Any, **kwargs: Any) -> Any:
            visited.add(f"node {kind}")
            return super().create_node(kind, *args, **kwargs)

        def create_arg(self, a: Any) -> Any:
            visited.add(f"arg {type(a).__name__}")
            return super().create_arg(a)

        def proxy(self, node: fx.Node) -> Any:
            visited.add("proxy()")
            return super().proxy(node)

    Watching().trace(Net())
    assert visited >= {
        "leaf block", "leaf block.layers.0", "path", "getattr block", "getattr scale", "proxy placeholder",
        "proxy call_module", "node get_attr", "node output", "arg Tensor", "arg tuple", "arg Proxy", "proxy()",
    }  # fmt: skip


def test_a_tracer_can_answer_for_values_that_are_not_known() -> None:
    class Deciding(fx.Tracer):
        def to_bool(self, obj: fx.Proxy) -> bool:
            return True

        def iter(self, obj: fx.Proxy) -> Any:
            return iter([obj[0], obj[1]])

    def program(x: torch.Tensor) -> torch.Tensor:
        total = x if x.sum() > 0 else -x
        for row in x:
            total = total + row
        return total

    traced = fx.GraphModule({}, Deciding().trace(program))
    assert torch.equal(traced(torch.eye(2)), torch.eye(2) + 1)


def test_buffers_are_read_as_nodes_where_the_tracer_asks_for_it() -> None:
    class Buffers(fx.Tracer):
        proxy_buffer_attributes = True

    graph = Buffers().trace(Net())
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["block.scale", "again.0.scale"]


def test_shapes_of_parameters_are_real_where_the_tracer_asks_for_it() -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(self.weight.shape[0], self.weight.size(1)) if self.weight.dim() == 2 else x

    module = Reshaping()
    graph = fx.Tracer(param_shapes_constant=True).trace(module)
    reshape = graph.find_nodes(op="call_method", target="reshape")[0]
    assert reshape.args[1:] == (2, 3)


def test_mutating_operations_are_refused_where_the_tracer_asks_for_it() -> None:
    class Pure(fx.Tracer):
        check_mutable_operations = True

    with pytest.raises(RuntimeError, match=r"mutable operation aten::sigmoid.out"):
        Pure().trace(lambda x: torch.sigmoid(x, out=x))


def test_a_tracer_can_be_copied() -> None:
    tracer = WithoutLeaves()
    tracer.trace(Net())
    copied = copy.deepcopy(tracer)
    assert str(copied.graph) == str(tracer.graph)
    assert copied.graph is not tracer.graph


def test_a_tracer_can_be_used_again() -> None:
    tracer = fx.Tracer()
    first = tracer.trace(Net())
    second = tracer.trace(Net())
    assert str(first) == str(second)
    assert first is not second


# What cannot be traced at all.


def test_roots_that_are_no_programs_are_refused() -> None:
    with pytest.raises(fx.TraceError, match="Expected FunctionType") as info:
        fx.symbolic_trace(torch.relu)
    assert "def program(x)" in str(info.value)


def test_a_module_outside_the_root_is_named_with_the_line() -> None:
    outside = nn.Linear(2, 2)

    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return outside(x)

    with pytest.raises(fx.TraceError, match=r"(?s)not installed as a submodule.*return outside\(x\).*Linear"):
        fx.symbolic_trace(Uses())


def test_a_parameter_outside_the_root_is_named_with_the_line() -> None:
    outside = nn.Parameter(torch.ones(2))

    def uses(x: torch.Tensor) -> torch.Tensor:
        return x + outside

    with pytest.raises(fx.TraceError, match=r"(?s)parameter is not a member of this module.*return x \+ outside"):
        fx.symbolic_trace(uses)


def test_tracing_a_program_again_keeps_the_lines_it_was_made_from() -> None:
    first = fx.symbolic_trace(Net())
    again = fx.symbolic_trace(first)
    lines = [[node.source and node.source.line for node in module.graph.nodes] for module in (first, again)]
    assert lines[1][1:-1] == lines[0][1:-1]
    assert all(node.source.file == __file__ for node in again.graph.nodes if node.source and node.op == "call_module")


def roots(x: torch.Tensor) -> Any:
    return math.sqrt(x.size(0))


def test_threads_that_trace_at_the_same_time_all_record_functions_of_math() -> None:
    real = [math.sqrt]
    failures: list[Any] = []

    def work() -> None:
        for _ in range(100):
            try:
                targets = [node.target for node in fx.symbolic_trace(roots).graph.find_nodes(op="call_function")]
                assert targets == real
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[:3]
    assert math.sqrt is real[0]


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x, alpha=0.5)
        return x - self.mean


def test_a_write_that_no_traced_value_takes_part_in_is_recorded_and_not_carried_out() -> None:
    class Buffers(fx.Tracer):
        proxy_buffer_attributes = True

    for tracer in (fx.Tracer(), Buffers()):
        eager, root = Averaging(), Averaging()
        traced = fx.GraphModule(root, tracer.trace(root))
        assert torch.equal(root.mean, torch.ones(2))
        for _ in range(3):
            assert torch.equal(traced(torch.zeros(2)), eager(torch.zeros(2)))


class Positioned(nn.Module):
    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(24.0).view(2, 12))
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.read(self.positions, x)


def _written_up_to(positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    positions[:, : x.size(1)] = 1.0
    return positions.sum()


@pytest.mark.parametrize(
    "read",
    [
        lambda positions, x: positions[:, : x.size(1)],
        lambda positions, x: positions[..., -x.shape[-1] :],
        lambda positions, x: positions[0][: x.size(1)].expand(x.size(0), -1),
        lambda positions, x: positions.new_ones(x.size(0), x.size(1)),
        _written_up_to,
    ],
)
def test_buffers_can_be_sliced_and_resized_by_traced_sizes(read: Callable[..., torch.Tensor]) -> None:
    eager, root = Positioned(read), Positioned(read)
    tracer = fx.Tracer()
    traced = fx.GraphModule(root, tracer.trace(root))
    for sizes in ((2, 3), (2, 12)):
        assert torch.equal(traced(torch.ones(sizes)), eager(torch.ones(sizes)))
    assert torch.equal(traced.positions, eager.positions)
    assert not tracer.proxy_buffer_attributes
    assert fx.symbolic_trace(traced).code == traced.code
    with torch.device("meta"):
        assert fx.symbolic_trace(Positioned(read)).code == traced.code
    with pytest.raises(TypeError, match=r"slice indices|takes 1 positional"):
        torch.fx.symbolic_trace(Positioned(read))


def test_a_failure_with_traced_buffers_equals_that_without_them() -> None:
    program = Positioned(lambda positions, x: torch.narrow_copy(positions, 0, 0, [1, 2][x.size(0)]))
    with pytest.raises(fx.TraceError, match="as an index of a real list"):
        fx.symbolic_trace(program)


class Remembering(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3))
        self.compute = compute

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self.kept, x)


def written(change: Callable[[torch.Tensor, torch.Tensor], Any], compute: Callable[[torch.Tensor], Any]) -> Any:
    def both(kept: torch.Tensor, x: torch.Tensor) -> Any:
        change(kept, x)
        return compute(kept)

    return both


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, x: kept.copy_(x),
        lambda kept, x: kept.__setitem__(Ellipsis, x),
        lambda kept, x: kept[:2].copy_(x[:2]),
        lambda kept, x: torch.relu_(kept.add_(x)),
    ],
    ids=["method", "item", "view", "function"],
)
@pytest.mark.parametrize(
    "compute",
    [
        lambda kept: kept.abs() + 1,
        lambda kept: 2 - kept,
        lambda kept: torch.cat([kept, torch.ones(1)]),
        lambda kept: kept[1:].real,
        lambda kept: nn.functional.gelu(kept) if kept.dim() == 1 and kept.shape[0] == 3 else None,
        lambda kept: kept.where(kept > 0, torch.zeros(3)),
    ],
    ids=["method", "operator", "function", "attribute", "layout", "two"],
)
def test_reads_of_a_buffer_after_a_write_are_recorded_without_a_proxy(change: Any, compute: Any) -> None:
    module, x = Remembering(written(change, compute)), torch.tensor([1.0, -5.0, 3.0])
    captured = fx.symbolic_trace(copy.deepcopy(module))
    for _ in range(2):
        assert torch.equal(captured(x), module(x))
    assert torch.equal(captured.kept, module.kept)


def test_a_branch_on_a_buffer_that_was_written_to_is_refused() -> None:
    module = Remembering(lambda kept, x: x if kept.copy_(x).sum() > 0 or kept.sum() > 0 else -x)
    with pytest.raises(fx.TraceError, match="control flow"):
        fx.symbolic_trace(module)
    module = Remembering(written(lambda kept, x: kept.copy_(x), lambda kept: kept if float(kept.sum()) > 0 else -kept))
    with pytest.raises(fx.TraceError):
        fx.symbolic_trace(module)


def test_modes_of_the_traced_code_are_left_in_its_order() -> None:
    def compute(kept: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.device("meta"):
            kept.copy_(x)
        kept.add_(x)
        return kept * torch.ones(3)

    module, x = Remembering(compute), torch.tensor([1.0, -5.0, 3.0])
    assert torch.equal(fx.symbolic_trace(copy.deepcopy(module))(x), module(x))
    assert torch.ones(1).device.type == "cpu"


def test_a_buffer_that_the_program_writes_is_read_after_the_write() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.copy_(x)
            return self.state * 1

    traced = fx.symbolic_trace(Writes())
    assert torch.equal(traced(torch.ones(2)), torch.ones(2))


def test_an_attribute_keeps_its_value_at_the_read() -> None:
    def program(x: torch.Tensor) -> Any:
        turned, unused, shape = x.mT, x.ndim, x.shape
        del unused
        x.unsqueeze_(0)
        return turned, shape, x, x.shape, x.mT

    captured = fx.symbolic_trace(program)
    for ours, eagers in zip(captured(torch.ones(2, 3)), program(torch.ones(2, 3)), strict=True):
        assert ours == eagers if isinstance(ours, torch.Size) else torch.equal(ours, eagers)
    assert "ndim" not in captured.code


def test_an_attribute_that_is_read_before_a_write_and_not_used_is_not_recorded() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        turned, again = x.mT, x.mT.mT  # noqa: F841 - kept until the end
        y.unsqueeze_(0)
        return y.relu()

    captured = fx.symbolic_trace(program)
    assert [node.op for node in captured.graph.nodes] == [
        node.op for node in torch.fx.symbolic_trace(program).graph.nodes
    ]


def test_a_module_that_ran_before_is_traced_like_one_that_did_not() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x * 2
            return x + 1

    module = Keeps()
    before = fx.symbolic_trace(module).code
    module(torch.ones(2))
    assert fx.symbolic_trace(module).code == before
    assert torch.equal(module.last, torch.full((2,), 2.0))


def test_a_trace_leaves_the_filters_of_warnings_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(0).T + torch.nn.functional.gelu(x.grad)

    fx.symbolic_trace(program)  # looks up torch's methods
    monkeypatch.setattr(warnings, "catch_warnings", None)
    monkeypatch.setattr(warnings, "filterwarnings", None)
    assert "call_method" in {node.op for node in fx.symbolic_trace(program).graph.nodes}


def test_a_recaptured_program_keeps_the_names_of_tied_tensors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.ones(4, 2))
            self.register_buffer("scale", torch.ones(2))
            self.decoder = nn.Module()
            self.decoder.words, self.decoder.last = self.words, nn.Linear(2, 2)
            self.decoder.register_buffer("scale", self.scale)
            self.encoder = nn.ModuleList([nn.Linear(2, 2)])
            self.encoder[0].weight = self.decoder.last.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.encoder[0](nn.functional.embedding(x, self.decoder.words)) * self.decoder.scale
            return self.decoder.last(x) + self.decoder.last.weight.sum()

    program = fx.symbolic_trace(Tied())
    again = fx.symbolic_trace(program)
    named = [node.target for node in program.graph.find_nodes(op="get_attr")]
    assert named == ["words", "scale", "decoder.last.weight"] and again.code == program.code
