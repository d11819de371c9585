"""Programs divided into submodules by a callback, or at named modules."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import in_functions, operations
from torch import Tensor, nn

import fx
from fx.errors import PassError
from fx.passes import PassPipeline
from fx.passes.split_module import Split, split_module
from fx.pipelines.registered_passes import get_pass
from model_zoo import get_model, list_models


def by_name(**parts: int) -> Callable[[fx.Node], int]:
    return lambda node: parts[node.name]


def code(program: Any) -> str:
    return "\n".join(line.strip() for line in program.code.strip().splitlines())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 3)
        self.scale, self.shift = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(3))
        self.register_buffer("offset", torch.rand(3), persistent=False)

    def forward(self, x: Tensor, *, factor: float = 2.0) -> Tensor:
        y = self.stem(x) * self.scale
        return self.head(y) * factor + self.shift + self.offset


def halves(node: fx.Node) -> int:
    return int(node.name not in ("stem_0", "stem_1", "mul"))


def test_partitions_become_submodules_and_values_are_handed_on() -> None:
    model = Net().eval()
    program = fx.symbolic_trace(model)
    paths: dict[str, str] = {}
    split = split_module(program, model, halves, paths)
    split.graph.lint()
    assert code(split) == (
        "def forward(self, x : torch.Tensor, *, factor : float = 2.0) -> torch.Tensor:\n"
        "submod_0 = self.submod_0(x);  x = None\n"
        "submod_1 = self.submod_1(submod_0, factor);  submod_0 = factor = None\n"
        "return submod_1"
    )
    assert code(split.submod_0).splitlines()[1:] == [
        'stem_0 = getattr(self.stem, "0")(x);  x = None',
        'stem_1 = getattr(self.stem, "1")(stem_0);  stem_0 = None',
        "scale = self.scale",
        "mul = stem_1 * scale;  stem_1 = scale = None",
        "return mul",
    ]
    assert paths == {
        "submod_0.stem.0": "stem.0",
        "submod_0.stem.1": "stem.1",
        "submod_0.scale": "scale",
        "submod_1.head": "head",
        "submod_1.shift": "shift",
        "submod_1.offset": "offset",
    }
    x = torch.randn(2, 4)
    assert torch.equal(split(x, factor=3.0), model(x, factor=3.0))
    assert torch.equal(split(x), model(x))


def test_state_is_shared_and_keeps_its_paths_inside_the_submodules(untouched: Any) -> None:
    model = untouched(Net().eval())
    program = fx.symbolic_trace(model)
    before = str(program.graph)
    split = split_module(program, model, halves)
    assert sorted(split.state_dict()) == [
        "submod_0.scale",
        "submod_0.stem.0.bias",
        "submod_0.stem.0.weight",
        "submod_1.head.bias",
        "submod_1.head.weight",
        "submod_1.shift",
    ]
    assert split.submod_0.scale is model.scale
    assert split.submod_1.get_buffer("offset") is model.offset  # not persistent there either
    assert split.get_submodule("submod_0.stem.0") is model.stem[0]
    assert not split.training
    assert not split.submod_0.training
    assert str(program.graph) == before
    assert split.meta["partition_names"] == {"submod_0", "submod_1"}


def test_parameters_that_several_partitions_fetch_are_passed_to_them() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))

        def forward(self, x: Any) -> Any:
            weight = self.weight
            return (x * weight).relu() + weight

    model = Shared()
    split = split_module(fx.symbolic_trace(model), model, by_name(mul=0, relu=0, add=1))
    assert code(split).splitlines()[1:3] == ["weight = self.weight", "submod_0 = self.submod_0(x, weight);  x = None"]
    assert list(split.state_dict()) == ["weight"]
    x = torch.rand(3)
    split(x).sum().backward()
    assert model.weight.grad is not None
    assert torch.equal(split(x), model(x))


def test_a_module_that_two_partitions_call_is_in_both() -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    split = split_module(fx.symbolic_trace(model), model, lambda node: 0 if node.name in ("_0", "_1") else 1)
    assert split.get_submodule("submod_0.0") is split.get_submodule("submod_1.0") is layer
    assert len(list(split.parameters())) == 2


def test_names_and_tuples_follow_the_options() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(torch.relu(x)))
    split = split_module(
        program,
        None,
        by_name(relu=0, relu_1=1),
        keep_original_node_name=True,
        keep_original_input_name=False,
        partition_affix="stage",
        tuple_return=True,
    )
    assert code(split) == (
        "def forward(self, x):\n"
        "submod_stage_0 = self.submod_stage_0(x);  x = None\n"
        "getitem = submod_stage_0[0];  submod_stage_0 = None\n"
        "submod_stage_1 = self.submod_stage_1(getitem);  getitem = None\n"
        "getitem_1 = submod_stage_1[0];  submod_stage_1 = None\n"
        "return getitem_1"
    )
    assert code(split.submod_stage_1) == (
        "def forward(self, arg_0):\nrelu_1 = torch.relu(arg_0);  arg_0 = None\nreturn (relu_1,)"
    )
    renamed = split_module(program, None, by_name(relu=0, relu_1=1))
    assert code(renamed.submod_1) == "def forward(self, relu):\nrelu_1 = torch.relu(relu);  relu = None\nreturn relu_1"


def test_signatures_with_stars_defaults_and_trees_are_kept() -> None:
    def function(x: Any, scale: float = 2.0, *rest: Any) -> Any:
        return {"y": x * scale, "z": rest[0]}

    program = fx.symbolic_trace(function)
    split = split_module(program, None, lambda node: node.name, None, True, True)
    x, y = torch.rand(2), torch.rand(2)
    assert torch.equal(split(x, 3.0, y)["y"], x * 3)
    assert split(x, 3.0, y)["z"] is y
    tree = fx.symbolic_trace(lambda pair: pair["a"] + pair["b"], concrete_args={"pair": {"a": fx.PH, "b": fx.PH}})
    assert torch.equal(split_module(tree, None, lambda node: 0)({"a": x, "b": y}), x + y)


def test_every_node_keeps_its_line_metadata_and_origins() -> None:
    program = fx.symbolic_trace(Net())
    for node in program.graph.nodes:
        node.meta["note"] = node.name
        node.meta["val"] = node.name
    split = split_module(program, None, halves, keep_original_node_name=True)
    copied = {node.name: node for part in split.children() for node in part.graph.nodes}
    for node in program.graph.nodes:
        if node.op.startswith("call"):
            assert copied[node.name].meta == node.meta
            assert copied[node.name].source == node.source
            assert copied[node.name].origins == (node.name,)
    call = split.graph.find_nodes(op="call_module")[0]
    assert call.origins == ("stem_0", "stem_1", "scale", "mul")
    assert call.source is not None
    assert call.meta == {"val": "mul"}  # metadata of the output value is that of the call


def test_programs_without_operations_have_no_submodules() -> None:
    split = split_module(fx.symbolic_trace(lambda x: x), None, lambda node: 0)
    assert not list(split.children())
    assert split(3) == 3


def test_the_callback_is_called_once_for_each_operation_in_order() -> None:
    recorded: list[str] = []

    def callback(node: fx.Node) -> int:
        recorded.append(node.name)
        return 0

    split_module(fx.symbolic_trace(Net()), None, callback)
    assert recorded == ["stem_0", "stem_1", "mul", "head", "mul_1", "add", "add_1"]


# Order.


def independent(x: Tensor) -> tuple[Tensor, ...]:
    return torch.relu(x), torch.neg(x), torch.exp(x)


def test_partitions_keep_the_order_of_the_program_if_asked_to() -> None:
    program = fx.symbolic_trace(independent)
    split = split_module(program, None, by_name(relu=2, neg=1, exp=0), keep_original_order=True)
    assert [node.name for node in split.graph.nodes][1:4] == ["submod_2", "submod_1", "submod_0"]
    split = split_module(program, None, by_name(relu=2, neg=1, exp=0))
    assert [node.name for node in split.graph.nodes][1:4] == ["submod_0", "submod_1", "submod_2"]


@pytest.mark.parametrize("keep_original_order", [False, True])
def test_a_partition_waits_for_its_operands_even_if_it_begins_earlier(keep_original_order: bool) -> None:
    def function(x: Tensor) -> Tensor:
        first, second = torch.relu(x), torch.neg(x)
        return first + second

    program = fx.symbolic_trace(function)
    split = split_module(program, None, by_name(relu=0, neg=1, add=0), keep_original_order=keep_original_order)
    assert [node.name for node in split.graph.nodes][1:3] == ["submod_1", "submod_0"]
    assert torch.equal(split(x := torch.randn(3)), function(x))


def written_between(x: Tensor) -> Tensor:
    y = x * 2
    z = y + 1
    y.add_(1)
    return y + z


@pytest.mark.parametrize("keep_original_order", [False, True])
def test_partitions_that_move_a_write_over_a_read_are_refused(keep_original_order: bool) -> None:
    program = fx.symbolic_trace(written_between)
    with pytest.raises(PassError) as caught:
        split_module(program, None, by_name(mul=0, add=1, add_=0, add_1=1), keep_original_order=keep_original_order)
    what, where, value, why, remedy = str(caught.value).splitlines()
    assert what == "cycle exists between partitions! submod_0, submod_1 need each other"
    assert where.startswith("  where  ") and __file__ in where
    assert "%mul (submod_0) -> %add (submod_1)" in value and "%add (submod_1) -> %add_ (submod_0)" in value
    assert why.startswith("  why    a submodule runs as a whole; `%add_` writes to `%mul`")
    assert remedy == "  try    put these nodes into one submodule, or divide those that they are in"


def test_partitions_that_only_a_write_orders_run_in_that_order() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x + 0
        y = y + 0
        z = torch.relu(x)
        x.add_(1)
        return z, y + x

    program = fx.symbolic_trace(function)
    parts = by_name(add=5, add_1=5, relu=0, add_=1, add_2=2)
    for keep_original_order in (False, True):
        split = split_module(program, None, parts, keep_original_order=keep_original_order)
        x = torch.randn(3)
        assert all(map(torch.equal, split(x, x), function(x, x)))


def test_random_numbers_and_checks_keep_their_order() -> None:
    def function(x: Tensor) -> Tensor:
        first, second = F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)
        torch._assert(x.sum() > 0, "first")
        torch._assert(x.sum() > 100, "second")
        return first - second

    program = fx.symbolic_trace(function)
    split = split_module(program, None, lambda node: node.name)
    x = torch.ones(50)
    torch.manual_seed(3)
    with pytest.raises(AssertionError, match="first"):
        split(-x)
    with pytest.raises(AssertionError, match="second"):
        split(x)
    x = x * 5
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.equal(split(x), expected)
    with pytest.raises(PassError, match="need each other"):
        split_module(program, None, lambda node: node.name in ("dropout_1", "_assert"))


def program_with_effects(choose: random.Random) -> fx.GraphModule:
    """Views, writes, random numbers and pure operations on each other's results, all of them returned."""
    graph = fx.Graph()
    inputs = [graph.placeholder("x"), graph.placeholder("y")]
    values = [graph.call_method("clone", (value,)) for value in (*inputs, *inputs)]
    for _ in range(8):
        first, second = choose.choice(values), choose.choice(values)
        kind = choose.choice(["add", "add", "neg", "add_", "relu_", "view", "bernoulli_"])
        if kind in ("add", "add_"):
            values.append(graph.call_method(kind, (first, second)))
        else:
            values.append(graph.call_method(kind, (first, 4) if kind == "view" else (first,)))
    graph.output(tuple(values))
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("keep_original_order", [False, True])
def test_programs_with_effects_compute_the_same_or_are_refused(keep_original_order: bool) -> None:
    choose = random.Random(0)
    divided = 0
    for _ in range(150):
        program = program_with_effects(choose)
        parts: dict[fx.Node, int] = {}
        for node in program.graph.nodes:  # no cycles except by effects
            parts[node] = max((parts[used] for used in node.all_input_nodes), default=0) + choose.choice([0, 0, 1])
        try:
            split = split_module(program, None, parts.__getitem__, keep_original_order=keep_original_order)
        except PassError:
            continue
        divided += 1
        results = []
        for run in (program, split):
            torch.manual_seed(1)
            results.append(run(torch.arange(4.0), -torch.ones(4)))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert divided > 15


def test_a_cycle_is_refused_with_the_nodes_on_it() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(torch.neg(torch.relu(x))))
    with pytest.raises(PassError) as caught:
        split_module(program, None, by_name(relu=0, neg=1, relu_1=0))
    assert (
        "  value  %relu (submod_0) -> %neg (submod_1); %neg (submod_1) -> %relu_1 (submod_0)\n"
        "  why    a submodule runs as a whole\n"
    ) in str(caught.value)


def test_long_cycles_are_shortened() -> None:
    def function(x: Any) -> Any:
        for _ in range(20):
            x = torch.relu(x)
        return x

    program = fx.symbolic_trace(function)
    with pytest.raises(PassError, match="; … and 13 more\n"):
        split_module(program, None, lambda node: node.name if node.name != "relu_19" else "relu")


# Refused.


def test_names_with_dots_are_refused() -> None:
    program = fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(PassError) as caught:
        split_module(program, None, lambda node: 0.5)
    assert str(caught.value).startswith("a submodule cannot be called 'submod_0.5'\n")
    assert "\n  why    dots separate the names of modules in a path\n  try    let split_callback return numbers" in str(
        caught.value
    )


def test_names_of_attributes_that_stay_outside_are_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    graph = fx.Graph()
    x, fetched = graph.placeholder("x"), graph.get_attr("submod_0.weight")
    graph.output((graph.call_function(torch.add, (x, fetched)), graph.call_function(torch.mul, (x, fetched))))
    program = fx.GraphModule({"submod_0.weight": weight}, graph)
    with pytest.raises(PassError) as caught:
        split_module(program, None, by_name(add=0, mul=1))
    assert str(caught.value).startswith(
        "a submodule cannot be called 'submod_0': the program has an attribute of that name\n"
    )
    assert "try    give submodules another name: partition_affix of split_module, prefix of fuse_partitions" in str(
        caught.value
    )
    assert split_module(program, None, by_name(add=0, mul=1), partition_affix="part")(torch.ones(2))[1].sum() == 2


def test_errors_of_the_callback_name_its_node() -> None:
    with pytest.raises(KeyError) as caught:
        split_module(fx.symbolic_trace(lambda x: x + 1), None, by_name())
    assert caught.value.__notes__[0].startswith("while split_callback was called on %add : ")


# The result is a program like any other.


def test_split_programs_copy_pickle_split_again_and_train() -> None:
    model = Net()
    split = split_module(fx.symbolic_trace(model), model, halves)
    x = torch.randn(2, 4)
    expected = model(x)
    for other in (
        copy.deepcopy(split),
        pickle.loads(pickle.dumps(split)),
        split_module(split, None, lambda node: 7),
        fx.symbolic_trace(split),
    ):
        assert torch.equal(other(x), expected)
    split(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in list_models() if "small" in get_model(name).tags])
def test_small_models_compute_the_same_bit_for_bit_in_three_parts(name: str) -> None:
    model = get_model(name)
    module = model.build()
    program = fx.symbolic_trace(module)
    calls = [node for node in program.graph.nodes if node.op.startswith("call")]
    part = {node: 3 * index // len(calls) for index, node in enumerate(calls)}
    split = split_module(program, module, part.__getitem__)
    split.graph.lint()
    inputs = model.example_inputs(batch=2)
    torch.testing.assert_close(split(*inputs), module(*inputs), rtol=0, atol=0)


def test_deep_programs_are_divided_without_recursion() -> None:
    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(2_500):
        value = graph.call_function(torch.neg, (value,))
    graph.output(value)
    program = fx.GraphModule(nn.Module(), graph)
    number = {node: index for index, node in enumerate(graph.nodes)}
    for keep_original_order in (False, True):
        split = split_module(program, None, lambda node: number[node] // 2, keep_original_order=keep_original_order)
        assert len(split.graph.nodes) == 2 + 1251


# The pass.


def test_split_cuts_before_the_first_operation_of_a_module() -> None:
    split = Split(at=("head",))(fx.symbolic_trace(Net()))
    assert operations(split.submod_0) == ["stem_0", "stem_1", "mul"]
    assert [name for name, _ in split.named_children()] == ["submod_0", "submod_1"]


def test_split_takes_several_places_in_any_order_and_names_of_nodes() -> None:
    program = fx.symbolic_trace(Net())
    split = Split(at=("add", "stem.1", "stem"))(program)
    assert [operations(part) for part in split.children()] == [
        ["stem_0"],
        ["stem_1", "mul", "head", "mul_1"],
        ["add", "add_1"],
    ]


def test_split_finds_modules_in_programs_without_leaves() -> None:
    model = Net()
    split = Split("head")(in_functions(model))  # type: ignore[arg-type]
    assert operations(split.submod_1) == ["linear_1", "mul_1", "add", "add_1"]
    assert torch.equal(split(x := torch.randn(2, 4)), model(x))


def test_split_of_a_residual_network_divides_its_stages() -> None:
    model = get_model("resnet_tiny")
    module = model.build()
    split = Split(at=("layer3",))(fx.symbolic_trace(module))
    assert [name for name, _ in split.submod_1.named_children()] == ["layer3", "layer4", "avgpool", "fc"]
    inputs = model.example_inputs(batch=2)
    torch.testing.assert_close(split(*inputs), module(*inputs), rtol=0, atol=0)


def test_inputs_stay_first_where_a_check_of_an_earlier_one_is_before_them() -> None:
    def forward(x: Any, *, scale: float = 2.0, z: Any) -> Any:
        return torch.relu(x).sub(z)

    program = fx.symbolic_trace(forward, concrete_args={"scale": 2.0})
    assert [node.op for node in program.graph.nodes][:3] == ["placeholder", "placeholder", "call_function"]
    parts = PassPipeline("split{at=sub}")(program)  # which checks that inputs come first
    x, z = torch.randn(2), torch.randn(2)
    torch.testing.assert_close(parts(x, z=z), forward(x, z=z))


def test_splitting_nowhere_returns_the_program() -> None:
    program = fx.symbolic_trace(Net())
    assert Split()(program) is program
    assert get_pass("split")(program) is program


def test_an_unknown_place_lists_the_nearest_names() -> None:
    program = fx.symbolic_trace(Net())
    with pytest.raises(PassError) as caught:
        Split(at=("stem.2",))(program)
    assert str(caught.value) == (
        "cannot split at 'stem.2': no operation comes from a module of that path or has that name\n"
        "  try    did you mean 'stem.1' or 'stem.0' or 'stem'?"
    )
    with pytest.raises(PassError) as caught:
        Split(at=("zzz",))(program)
    assert "  value  modules and nodes: stem_0, stem, stem.0, stem_1, stem.1, mul, head, " in str(caught.value)


def test_the_pass_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Split().at = ("x",)  # type: ignore[misc]
