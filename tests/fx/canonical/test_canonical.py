"""The canonical form: functions only, state in ``get_attr``, arguments by keyword."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import AllLeaves, Calling
from torch import Tensor, nn

import fx
from fx import Graph, GraphModule, Tracer, symbolic_trace
from fx.canonical import CanonicalForm, canonical_form


def with_leaves(root: nn.Module) -> GraphModule:
    return GraphModule(root, AllLeaves().trace(root))


def ops_of(program: GraphModule) -> set[str]:
    return {node.op for node in program.graph.nodes} - {"placeholder", "output"}


def reasons(form: CanonicalForm) -> dict[str, str]:
    return {str(node.target): reason for node, reason in form.leaf_reasons.items()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x))).sum(1)


BRANCHES = "it cannot be captured: symbolically traced variables cannot be used as inputs to control flow"
CONVERTS = "it cannot be captured: cannot convert a traced value to float"
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_modules_and_methods_become_functions_with_keywords() -> None:
    form = canonical_form(symbolic_trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU())))
    assert form.graph_module.code.strip() == (
        "def forward(self, input):\n"
        "    input_1 = input\n"
        '    _0_weight = getattr(self, "0").weight\n'
        '    _0_bias = getattr(self, "0").bias\n'
        "    _0 = torch.nn.functional.linear(input = input_1, weight = _0_weight, bias = _0_bias);  "
        "input_1 = _0_weight = _0_bias = None\n"
        "    _1 = torch.nn.functional.relu(input = _0, inplace = False);  _0 = None\n"
        "    return _1"
    )
    assert form.leaf_reasons == {}


def test_the_given_program_stays_and_shares_its_tensors() -> None:
    program = symbolic_trace(Net())
    code, revision = program.code, program.graph.revision
    form = canonical_form(program)
    assert (program.code, program.graph.revision) == (code, revision)
    assert form.graph_module.linear.weight is program.linear.weight
    assert ops_of(form.graph_module) == {"call_function", "get_attr"}


def test_every_node_represents_one_of_the_given_program() -> None:
    program = symbolic_trace(Net().eval())
    form = canonical_form(program)
    assert list(form.stands_for) == list(form.graph_module.graph.nodes)
    assert set(form.stands_for.values()) == set(program.graph.nodes)
    norm = next(node for node in program.graph.nodes if node.name == "norm")
    inlined = [node for node, original in form.stands_for.items() if original is norm]
    assert {str(node.target) for node in inlined if node.op == "get_attr"} == {
        "norm.running_mean", "norm.running_var", "norm.weight", "norm.bias",
    }  # fmt: skip


def test_nodes_keep_names_lines_and_the_modules_they_come_from() -> None:
    program = symbolic_trace(Net())
    form = canonical_form(program)
    by_name = {node.name: node for node in form.graph_module.graph.nodes}
    assert by_name["linear"].target is F.linear
    assert by_name["norm"].target is F.batch_norm
    for node, original in form.stands_for.items():
        assert node.source == original.source
        assert node.origins == original.origins
    weight = by_name["linear_weight"]
    assert weight.meta["nn_module_stack"] == {"linear": ("linear", nn.Linear)}


def test_batch_norm_in_training_updates_the_same_buffers_by_the_same_bits() -> None:
    eager = Net().train()
    form = canonical_form(symbolic_trace(eager))
    assert form.leaf_reasons == {}
    twin = Net().train()
    twin.load_state_dict(eager.state_dict())
    for _ in range(3):
        assert torch.equal(form.graph_module(X), twin(X))
    assert int(eager.norm.num_batches_tracked) == 3
    for name, value in twin.state_dict().items():
        assert torch.equal(eager.state_dict()[name], value), name


def test_capturing_templates_writes_to_no_buffer() -> None:
    eager = Net().train()
    before = {name: value.clone() for name, value in eager.state_dict().items()}
    canonical_form(symbolic_trace(eager))
    for name, value in eager.state_dict().items():
        assert torch.equal(before[name], value), name


def test_dropout_draws_the_same_numbers() -> None:
    program = symbolic_trace(nn.Sequential(nn.Dropout(0.5)).train())
    form = canonical_form(program)
    (call,) = form.graph_module.graph.find_nodes(op="call_function", target=F.dropout)
    assert call.kwargs["training"] is True
    torch.manual_seed(0)
    expected = program(X)
    torch.manual_seed(0)
    assert torch.equal(form.graph_module(X), expected)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: nn.LSTM(4, 4), "a recurrent module is one operation"),
        (lambda: nn.GRUCell(4, 4), "a recurrent module is one operation"),
        (lambda: nn.TransformerEncoderLayer(4, 2), "attention is one operation"),
        (lambda: torch.jit.script(nn.ReLU()), "it is a TorchScript module"),
        (lambda: nn.InstanceNorm1d(4), BRANCHES),
        (lambda: nn.BatchNorm1d(4, momentum=None).train(), CONVERTS),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_modules_that_are_no_functions_stay_with_a_reason(make: Callable[[], nn.Module], reason: str) -> None:
    graph = Graph()
    graph.output(graph.call_module("m", (graph.placeholder("x"),)))
    form = canonical_form(GraphModule({"m": make()}, graph))
    assert reasons(form) == {"m": reason}


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make, computes",
    [
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), torch._weight_norm),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), dim=None), torch._weight_norm),
        (lambda: nn.utils.parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric()), torch.triu),
    ],
)  # fmt: skip
def test_the_computation_of_a_parametrized_weight_is_part_of_the_program(
    make: Callable[[], nn.Module], computes: Callable[..., Any], training: bool
) -> None:
    module = nn.Sequential(make(), nn.ReLU()).train(training)
    form = canonical_form(symbolic_trace(module))
    assert not reasons(form)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    graph = form.graph_module.graph
    [linear] = graph.find_nodes(op="call_function", target=F.linear)
    assert graph.find_nodes(op="call_function", target=computes)
    assert linear.kwargs["weight"].op == "call_function"
    form.graph_module(x).sum().backward()
    gradients = {name: tensor.grad for name, tensor in form.graph_module.named_parameters()}
    module.zero_grad()
    expected = module(x)
    assert torch.equal(form.graph_module(x), expected)
    expected.sum().backward()
    assert all(torch.equal(gradients[name], tensor.grad) for name, tensor in module.named_parameters())


def test_a_parametrization_that_decides_by_its_values_stays_a_module() -> None:
    form = canonical_form(symbolic_trace(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))))
    assert "symbolically traced variables" in reasons(form)["0"]


def test_modules_with_hooks_or_a_forward_of_their_own_stay() -> None:
    root = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
    root[0].register_forward_hook(lambda module, args, result: result + 1)
    root[1].forward = lambda x: x - 1
    form = canonical_form(symbolic_trace(root))
    assert reasons(form) == {"0": "it has hooks", "1": "it has a forward of its own"}
    assert torch.equal(form.graph_module(X), root(X))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


class Making(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(4.0)


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.add_(1)


class CalledOtherwise(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        return x


class Optional(nn.Module):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x if scale is None else x * scale


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor, *, twice: bool = False) -> dict[str, Any]:
        y = self.inner(x) * self.scale
        return {"y": y * 2 if twice else y, "x": [x, (y,)]}


@pytest.mark.parametrize(
    "module, reason",
    [
        (Counting(), "its forward assigns to the attribute `calls`"),
        (Making(), "it makes tensors of its own while it is captured"),
        (Holding(), "it holds tensors that are neither parameters nor buffers"),
        (CalledOtherwise(), "its class defines __call__"),
        (Branching(), BRANCHES),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_leaves_of_the_user_stay_where_functions_would_be_another_program(module: nn.Module, reason: str) -> None:
    program = with_leaves(nn.Sequential(module))
    state = torch.get_rng_state()
    form = canonical_form(program)
    assert reasons(form) == {"0": reason}
    assert torch.equal(torch.get_rng_state(), state)
    assert getattr(module, "calls", 0) == 0
    assert torch.equal(getattr(module, "table", torch.ones(4)), torch.ones(4))


def test_a_module_that_may_get_none_stays_unless_the_value_is_known_for_a_tensor() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.optional = Optional()

        def forward(self, x, scale):
            return self.optional(x), self.optional(x, scale), self.optional(x, scale=torch.relu(x))

    form = canonical_form(with_leaves(Root()))
    assert list(form.leaf_reasons.values()) == ["whether its input `scale` is None is known only when the program runs"]
    assert torch.equal(form.graph_module(X, None)[1], X)


def test_leaves_may_return_structures_whose_elements_are_used() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scaling = Scaling()

        def forward(self, x):
            first, second = self.scaling(x), self.scaling(x, twice=True)
            return first["y"] + second["x"][1][0], second["y"], self.scaling(x)

    root = Root()
    program = with_leaves(root)
    form = canonical_form(program)
    assert ops_of(form.graph_module) == {"call_function", "get_attr"}
    torch.testing.assert_close(form.graph_module(X), root(X), rtol=0, atol=0)
    assert not form.graph_module.graph.find_nodes(op="call_function", target=operator.getitem)


def test_a_structure_that_is_called_a_method_of_keeps_its_module() -> None:
    form = canonical_form(with_leaves(Calling(lambda m, x: m.scaling(x).copy(), scaling=Scaling())))
    assert reasons(form) == {"scaling": "what it returns is used in ways that only a value of its own allows"}


def test_called_programs_are_inlined_to_any_depth() -> None:
    inner = symbolic_trace(Net().eval())
    middle = symbolic_trace(nn.Sequential(inner, nn.Tanh()))
    outer = Graph()
    x = outer.placeholder("x")
    outer.output((outer.call_module("a.b", (x,)), outer.call_module("a.b", (), {"input": x})))
    program = GraphModule({"a.b": middle}, outer)
    form = canonical_form(program)
    assert ops_of(form.graph_module) == {"call_function", "get_attr"}
    torch.testing.assert_close(form.graph_module(X), program(X), rtol=0, atol=0)


def test_a_module_called_twice_is_written_out_twice_with_its_one_weight() -> None:
    root = Calling(lambda m, x: m.linear(m.linear(x)), linear=nn.Linear(4, 4))
    form = canonical_form(symbolic_trace(root))
    assert len(form.graph_module.graph.find_nodes(op="get_attr", target="linear.weight")) == 2
    assert torch.equal(form.graph_module(X), root(X))


def test_tied_weights_stay_tied() -> None:
    root = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    root[1].weight = root[0].weight
    form = canonical_form(symbolic_trace(root))
    assert torch.equal(form.graph_module(X), root(X))
    fetched = {getattr(form.graph_module, str(n)).weight for n in (0, 1)}
    assert fetched == {root[0].weight}


def test_modules_alike_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = []
    trace = Tracer.trace
    monkeypatch.setattr(Tracer, "trace", lambda self, root, *rest: captured.append(root) or trace(self, root, *rest))
    layers = [nn.Linear(4, 4) for _ in range(5)]
    program = symbolic_trace(nn.Sequential(*layers, nn.Linear(4, 2), nn.ReLU(), nn.ReLU(inplace=True)))
    captured.clear()
    canonical_form(program)
    assert len(captured) == 4


def test_leaves_can_be_named_by_path_and_by_class() -> None:
    program = symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU()))
    form = canonical_form(program, leaves=("Linear", "2"))
    assert reasons(form) == {"0": "it was asked to stay a leaf", "2": "it was asked to stay a leaf"}


def test_methods_that_other_values_have_too_stay_unless_the_receiver_is_known() -> None:
    def program(text, x: Tensor):
        return text.split(","), text.count("a"), x.split(2), torch.relu(x).numel(), text.view(2)

    targets = [
        (node.op, node.target)
        for node in canonical_form(symbolic_trace(program)).graph_module.graph.nodes
        if node.op.startswith("call")
    ]
    assert targets == [
        ("call_method", "split"),
        ("call_method", "count"),
        ("call_function", torch.split),
        ("call_function", F.relu),
        ("call_function", torch.numel),
        ("call_function", Tensor.view),
    ]


def test_functions_of_torch_on_numbers_alone_stay_and_make_tensors() -> None:
    def function(x, n: int, scale=2.0):
        numbers = torch.add(x.shape[0], 1), torch.div(x.size(0) // 2, 4), torch.mul(n, 2), torch.mul(scale, 2)
        return *numbers, torch.add(x, x.dim())

    program = symbolic_trace(function)
    original, canonical = program(X, 3), canonical_form(program).graph_module
    assert [node.target for node in canonical.graph.nodes if node.name in ("add", "div", "mul", "mul_1", "add_1")] == [
        *(torch.add, torch.div, torch.mul, torch.mul, operator.add)
    ]
    for actual, expected in zip(canonical(X, 3), original, strict=True):
        assert type(actual) is torch.Tensor and actual.dtype == expected.dtype and torch.equal(actual, expected)


def test_arguments_that_schemas_do_not_decide_stay_positional() -> None:
    def summed(*args):
        return sum(args)

    graph = Graph()
    x, y, sizes = map(graph.placeholder, ("x", "y", "sizes"))
    graph.output(
        (
            graph.call_function(torch.max, (x, y)),
            graph.call_method("view", (x, sizes)),
            graph.call_function(torch.einsum, ("ij,jk->ik", x, y)),
            graph.call_function(summed, (x, 1)),
            graph.call_function(torch.add, (x, y), {"out": x}),
        )
    )
    program = GraphModule(nn.Module(), graph)
    canonical = canonical_form(program).graph_module
    assert [(node.target, str(node.args)) for node in canonical.graph.nodes if node.op == "call_function"] == [
        (torch.max, "(x, y)"),
        (Tensor.view, "(x, sizes)"),
        (torch.einsum, "('ij,jk->ik', x, y)"),
        (summed, "(x, 1)"),
        (torch.add, "(x, y)"),
    ]


@fx.wrap
def scaled(x, factor=2, *, names=(), table=[]):  # noqa: B006
    return x * factor


def test_functions_of_the_user_get_keywords_and_plain_defaults() -> None:
    canonical = canonical_form(symbolic_trace(lambda x: scaled(x))).graph_module
    (call,) = canonical.graph.find_nodes(op="call_function", target=scaled)
    assert call.args == ()
    assert {name: value for name, value in call.kwargs.items() if name != "x"} == {"factor": 2, "names": ()}
    assert torch.equal(canonical(X), X * 2)


def test_a_wrapper_that_takes_any_arguments_is_called_as_before() -> None:
    import functools

    @functools.wraps(scaled)
    def wrapper(*args, **kwargs):
        return scaled(*args[:1], factor=7)

    graph = Graph()
    graph.output(graph.call_function(wrapper, (graph.placeholder("x"), 3)))
    canonical = canonical_form(GraphModule(nn.Module(), graph)).graph_module
    assert torch.equal(canonical(X), X * 7)


def test_canonical_programs_stay_as_they_are() -> None:
    once = canonical_form(symbolic_trace(Net()))
    twice = canonical_form(once.graph_module)
    assert twice.graph_module.code == once.graph_module.code
    assert [value.name for value in twice.stands_for.values()] == [node.name for node in twice.stands_for]


def test_inputs_that_tracing_specialized_keep_their_structure() -> None:
    program = symbolic_trace(lambda pair: pair[0].relu() + pair[1], concrete_args={"pair": (fx.PH, fx.PH)})
    assert torch.equal(canonical_form(program).graph_module((X, X)), X.relu() + X)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x.new_ones(x.size(-1)),
        lambda x: torch.ones(x.size(0)),
        lambda x: x[0].repeat(x.size(0)),
        lambda x: x[0].permute(x[0].dim() - 1),
    ],
)
def test_a_computed_size_that_may_be_a_number_stays_where_it_is(forward):
    program = fx.symbolic_trace(forward)
    canonical = fx.passes.Canonicalize()(symbolic_trace(forward))
    x = torch.arange(4.0).reshape(2, 2)
    assert torch.equal(canonical(x), program(x))


@pytest.mark.parametrize(
    "forward,keywords",
    [
        (lambda x: x.permute(0), {"dims": (0,)}),
        (lambda x: x.permute(-1), {"dims": (-1,)}),
        (lambda x: x.reshape(3), {"shape": (3,)}),
        (lambda x: x.view(-1), {"size": (-1,)}),
        (lambda x: x.flip(0), {"dims": (0,)}),
        (lambda x: x.repeat(2), {"repeats": (2,)}),
        (lambda x: x.expand(3), {"size": (3,)}),
    ],
)
def test_one_number_that_may_be_one_of_many_is_a_tuple_of_one(forward, keywords):
    canonical = fx.passes.Canonicalize()(symbolic_trace(forward))
    x = torch.arange(3.0)
    assert torch.equal(canonical(x), forward(x))
    call = canonical.graph.output_node().args[0]
    assert keywords.items() <= call.kwargs.items()
