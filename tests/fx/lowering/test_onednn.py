"""oneDNN: layers absorb the operations after them, layouts are restored, and all valid inputs still work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling, WithoutLeaves, body
from torch import Tensor, nn

import fx
from fx.canonical import canonical_form
from fx.graph_module import GraphModule
from fx.lowering.onednn import OneDNN, modules
from fx.lowering.onednn.modules import Activation, FusedConvolution, FusedLinear
from fx.passes import PassPipeline, ShapeProp
from model_zoo import get_model

pytestmark = pytest.mark.skipif(OneDNN().why_unavailable() is not None, reason=f"oneDNN: {OneDNN().why_unavailable()}")

Module = Callable[..., Any]


@pytest.fixture(autouse=True)
def _small_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for small inputs too."""
    torch.manual_seed(0)
    monkeypatch.setattr(modules, "LEAST_WORK", 0)
    monkeypatch.setattr(modules, "LEAST_LINEAR_WORK", 0)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of oneDNN that were called."""
    called: list[str] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            packet = getattr(torch.ops.mkldnn, name)

            class Called:
                binary = staticmethod(lambda *args: (called.append(f"{name}.binary"), packet.binary(*args))[1])

                def __call__(self, *args: Any) -> Any:
                    if "reorder" not in name:
                        called.append(name)
                    return packet(*args)

            return Called()

    monkeypatch.setattr(modules, "_kernels", Recording())
    return called


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def lower(module: Any) -> GraphModule:
    program = fx.symbolic_trace(module.eval() if isinstance(module, nn.Module) else module)
    lowered = fx.lower(program)
    lowered.graph.lint()
    return lowered


def assert_lowered_same(module: nn.Module, *inputs: Tensor) -> GraphModule:
    """Return the lowered program after checking that it equals the module and leaves its inputs unchanged."""
    lowered, copies = lower(module), [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        assert_close(lowered(*copies), module(*inputs))
    assert all(map(torch.equal, copies, inputs))
    return lowered


def layers(program: GraphModule) -> list[Any]:
    return [module for module in program.modules() if isinstance(module, (FusedConvolution, FusedLinear))]


class Block(nn.Module):
    """A bottleneck's end: two branches that are added, then an activation in place."""

    def __init__(self, shortcut: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.shortcut = nn.Conv2d(4, 6, 1) if shortcut else None
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y = y + (x[:, :1] if self.shortcut is None else self.shortcut(x))
        return F.relu(y, inplace=True)


def test_batch_norm_sum_and_activation_become_part_of_the_convolution(kernels: list[str]) -> None:
    lowered = assert_lowered_same(Block(), torch.randn(2, 4, 8, 8))
    assert body(lowered) == ["onednn_0 = self.onednn_0(x)", "return onednn_0"]
    assert body(lowered.onednn_0) == [
        "shortcut = self.shortcut(x)",
        "conv = self.conv(x, shortcut)",
        "contiguous = conv.contiguous()",
        "return contiguous",
    ]
    assert kernels == ["_convolution_pointwise", "_convolution_pointwise.binary"]
    assert repr(lowered.onednn_0.conv) == (
        "FusedConvolution(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, "
        "activation=relu)"
    )


def test_origins_and_lines_lead_back_to_the_captured_program() -> None:
    lowered = lower(Block())
    conv = next(node for node in lowered.onednn_0.graph.nodes if node.name == "conv")
    assert {"conv", "norm", "add", "relu"} <= {*conv.origins}
    assert conv.source is not None
    assert conv.source.file == __file__


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu(0.1)": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh(0.0, 6.0)": F.relu6,
    "hardtanh(-0.5, 0.5)": lambda x: F.hardtanh(x, -0.5, 0.5),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "gelu('none')": F.gelu,
    "gelu('tanh')": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_every_activation_is_that_of_pytorch(name: str, kind: str, kernels: list[str]) -> None:
    layer = nn.Conv2d(3, 5, 3) if kind == "convolution" else nn.Linear(256, 256)
    module = Calling(lambda self, x: ACTIVATIONS[name](self.layer(x)), layer=layer)
    x = torch.randn(2, 3, 9, 9) if kind == "convolution" else torch.randn(7, 256)
    (lowered,) = layers(assert_lowered_same(module, x))
    assert str(lowered.activation) == name
    assert len(kernels) == 1
    with torch.no_grad():
        assert_close(lowered._plain(x) if kind == "linear" else lowered._plain(x, None), module(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_sums_take_up_relu_and_leave_other_activations_behind_them(name: str, kernels: list[str]) -> None:
    children = {side: nn.Conv2d(3, 4, 3) for side in ("left", "right")}
    module = Calling(lambda self, x: ACTIVATIONS[name](self.left(x) + self.right(x)), **children)
    lowered = assert_lowered_same(module, torch.randn(2, 3, 8, 8))
    assert [str(layer.activation) for layer in layers(lowered)] == ["none", "relu" if name == "relu" else "none"]
    assert kernels == ["_convolution_pointwise", "_convolution_pointwise.binary"]


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"padding": 2, "dilation": 2}, {"groups": 2}, {"groups": 4}, {"bias": False}, {"kernel_size": 1},
     {"padding": 1, "padding_mode": "circular"}],
    ids=str,
)  # fmt: skip
def test_every_setting_of_convolutions_is_kept(options: dict[str, Any], kernels: list[str]) -> None:
    module = nn.Conv2d(4, 8, **{"kernel_size": 3, **options})
    assert_lowered_same(nn.Sequential(module), torch.randn(2, 4, 10, 11))
    assert kernels == ["_convolution_pointwise"]


def test_an_activation_that_others_look_past_is_not_taken_up() -> None:
    module = Calling(lambda self, x: F.relu(y := self.conv(x)) + y, conv=nn.Conv2d(3, 3, 1))
    lowered = assert_lowered_same(module, torch.randn(1, 3, 4, 4))
    assert [str(layer.activation) for layer in layers(lowered)] == ["none"]


# Sums in all the orders in which a summand may be needed elsewhere.


def used_later(self: Any, x: Tensor) -> Tensor:
    first = self.a(x)
    total = F.relu(self.b(x) + first)
    return self.c(first) + total


def its_own_input(self: Any, x: Tensor) -> Tensor:
    first = F.relu(self.a(x))
    return self.b(first) + first


def returned(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    first = F.relu(self.a(x))
    return self.b(x) + first, first


def seen_through_a_view(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    first = F.relu(self.a(x))
    return self.b(x) + first, F.dropout(first, 0.5, False) + 1


def moved(self: Any, x: Tensor) -> Tensor:
    first = F.relu(self.a(x))
    late = self.b(first)  # moves after the other sum
    return late + F.max_pool2d(F.relu(self.c(x) + first), 3, 1, 1)


@pytest.mark.parametrize("call", [used_later, its_own_input, returned, seen_through_a_view, moved])
def test_sums_are_part_of_a_convolution_even_if_the_summand_has_other_users(call: Any, kernels: list[str]) -> None:
    module = Calling(call, **{name: nn.Conv2d(3, 3, 3, padding=1) for name in "abc"})
    assert_lowered_same(module.eval(), torch.randn(2, 3, 6, 6))
    assert "_convolution_pointwise.binary" in kernels


def test_a_sum_with_something_smaller_is_broadcast_as_before(kernels: list[str]) -> None:
    assert_lowered_same(Block(shortcut=False), torch.randn(2, 4, 8, 8))
    with torch.no_grad():

        class Sum(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return F.relu(self.conv(x) + torch.sigmoid(y))

        module = Sum()
        program = fx.symbolic_trace(module)
        ShapeProp(program).propagate(torch.randn(2, 3, 6, 6), torch.randn(2, 4, 4, 4))
        lowered = PassPipeline("lower")(program)
        assert len(lowered.onednn_0.graph.find_nodes(op="call_module")[0].args) == 2
        for shape in ((1, 4, 4, 4), (2, 4, 4, 4), (4, 1, 1), (1,)):
            x, y = torch.randn(2, 3, 6, 6), torch.randn(shape)
            assert_close(lowered(x, y), module(x, y))


# Inputs that the kernels do not take.


def inputs_beside_the_kernels() -> dict[str, Tensor]:
    x = torch.randn(2, 3, 8, 8)
    return {
        "unbatched": x[0],
        "an empty batch": x[:0],
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3),
        "expanded": x[:1].expand(4, -1, -1, -1),
    }


@pytest.mark.parametrize("name", inputs_beside_the_kernels())
def test_inputs_of_any_layout_and_rank_are_taken(name: str) -> None:
    assert_lowered_same(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), inputs_beside_the_kernels()[name])


def test_wrong_inputs_raise_the_error_of_pytorch() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3))
    lowered = lower(module)
    for wrong in (torch.randn(1, 5, 8, 8), torch.randn(1, 3, 2, 8), torch.randn(1, 3, 8, 8, dtype=torch.float64)):
        with pytest.raises(RuntimeError) as expected:
            module(wrong)
        with pytest.raises(RuntimeError) as actual:
            lowered(wrong)
        assert str(actual.value) == str(expected.value)


def test_gradients_of_inputs_are_right() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), torch.randn(1, 3, 8, 8)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    lower(module)(ours).sum().backward()
    module(theirs).sum().backward()
    assert_close(ours.grad, theirs.grad)


def test_autocast_computes_in_its_dtype() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert lower(module)(x).dtype == module(x).dtype == torch.bfloat16


def test_small_inputs_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch, kernels: list[str]) -> None:
    monkeypatch.setattr(modules, "LEAST_WORK", 10**9)
    monkeypatch.setattr(modules, "LEAST_LINEAR_WORK", 10**9)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 512))
    assert_lowered_same(module, x := torch.randn(1, 3, 8, 8))
    assert_lowered_same(module, x.contiguous(memory_format=torch.channels_last))
    assert kernels == []


def test_any_batch_size_runs_for_any_example() -> None:
    model = get_model("resnet_tiny")
    module = model.build()
    lowered = lower(module)
    with torch.no_grad():
        for batch in (1, 3, 8):
            (x,) = model.example_inputs(batch=batch)
            assert_close(lowered(x), module(x))


# Layouts.


def test_results_lie_in_memory_as_callers_know_them() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert lower(module)(x).is_contiguous()
        program = fx.symbolic_trace(module)
        x = x.contiguous(memory_format=torch.channels_last)
        ShapeProp(program).propagate(x)
        assert PassPipeline("lower")(program)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_view_behind_a_region_works() -> None:
    module = Calling(lambda self, x: self.conv(x).view(x.size(0), -1), conv=nn.Conv2d(3, 4, 3))
    assert_lowered_same(module, torch.randn(2, 3, 8, 8))


# State.


def test_the_lowered_program_copies_pickles_and_keeps_names_of_state(kernels: list[str]) -> None:
    block, x = Block(), torch.randn(2, 4, 8, 8)
    lowered = lower(block)
    assert sorted(lowered.state_dict()) == [
        f"onednn_0.{name}" for name in ("conv.bias", "conv.weight", "shortcut.bias", "shortcut.weight")
    ]
    with torch.no_grad():
        for other in (copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered)), copy.copy(lowered)):
            kernels.clear()
            assert_close(other(x), block(x))
            assert kernels == ["_convolution_pointwise", "_convolution_pointwise.binary"]


def test_weights_are_shared_with_the_captured_module_and_packed_again_after_a_write() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 8, 8)
    lowered = lower(module)
    (layer,) = layers(lowered)
    assert layer.weight.data_ptr() == module[0].weight.data_ptr()
    with torch.no_grad():
        module[0].weight.mul_(2)
        assert_close(lowered(x), module(x))
        lowered.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in lowered.state_dict().items()})
        assert not lowered(x).any()


def test_a_lowered_program_can_change_its_dtype() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    lowered = lower(module).double()
    with torch.no_grad():
        torch.testing.assert_close(lowered(x.double()), copy.deepcopy(module).double()(x.double()))
        assert_close(lowered.float()(x), module(x))


def test_shapes_of_a_lowered_program_can_be_found_out_without_computing() -> None:
    lowered = lower(Block())
    with torch.no_grad():
        lowered(torch.randn(2, 4, 8, 8))
    ShapeProp(lowered, fake=True).propagate(torch.randn(2, 4, 8, 8))
    assert lowered.graph.output_node().meta["tensor_meta"].shape == (2, 6, 8, 8)


def test_a_second_capture_of_the_lowered_program_keeps_its_layers() -> None:
    block, x = Block(), torch.randn(2, 4, 8, 8)
    lowered = lower(block)
    again = fx.symbolic_trace(lowered)
    assert body(again) == [
        "onednn_0_shortcut = self.onednn_0.shortcut(x)",
        "onednn_0_conv = self.onednn_0.conv(x, onednn_0_shortcut)",
        "contiguous = onednn_0_conv.contiguous()",
        "return contiguous",
    ]
    with torch.no_grad():
        assert torch.equal(again(x), lowered(x))


def test_a_capture_without_leaf_modules_goes_through_the_layers_to_plain_functions() -> None:
    for module, x in (
        (Block().eval(), torch.randn(2, 4, 8, 8)),
        (nn.Sequential(nn.Linear(512, 256)), torch.randn(3, 512)),
    ):
        lowered = lower(module)
        again = GraphModule(lowered, WithoutLeaves().trace(lowered))
        assert not again.graph.find_nodes(op="call_module")
        with torch.no_grad():
            assert_close(again(x), module(x))


def test_lowering_and_the_canonical_form_leave_lowered_parts_alone() -> None:
    lowered = lower(Block())
    with pytest.warns(fx.LoweringWarning):
        assert fx.lower(lowered) is lowered
    assert set(canonical_form(lowered).leaf_reasons.values()) == {"it runs a kernel of oneDNN"}


def test_a_layer_without_weights_in_memory_cannot_be_packed_and_says_so() -> None:
    convolution = FusedConvolution(torch.randn(2, 2, 1, 1), None, (1, 1), (0, 0), (1, 1), 1)
    convolution.append(Activation("relu"))
    assert convolution.double()._packed_weight(torch.Size((1, 2, 4, 4))) is None


# What is refused, and why.


def reasons(module: nn.Module, *inputs: Tensor) -> dict[str, str]:
    program = fx.symbolic_trace(module.eval())
    coverage = fx.lower(program, example_inputs=inputs or None, dry_run=True)
    return {refusal.target: refusal.reason or "" for refusal in coverage.refused}


def test_reasons_name_dtype_size_and_computed_weights() -> None:
    conv = nn.Conv2d(3, 4, 3)
    assert reasons(copy.deepcopy(conv).double())["torch.conv2d"] == (
        "its weight is float64 on cpu; oneDNN here is for float32 on CPU"
    )
    assert reasons(nn.Linear(4, 4))["linear"] == "a weight of 16 numbers is too small for oneDNN to gain anything"

    computed = Calling(lambda self, x: F.conv2d(x, self.weight * 2), weight=nn.Parameter(torch.randn(4, 3, 3, 3)))
    assert reasons(computed)["torch.conv2d"].startswith("its weight is computed, or may change in a run")
    image = nn.Parameter(torch.randn(1, 3, 8, 8))
    constant = Calling(lambda self, x: x + self.conv(self.image), conv=conv, image=image)
    assert reasons(constant)["torch.conv2d"] == "its input is not a computed value"
    reason = reasons(nn.Conv2d(3, 4, 3, padding="same"))["torch.conv2d"]
    assert reason == "its padding or stride is not a tuple of numbers"
    large = reasons(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 8, 8))
    assert large["torch.conv2d"].endswith("in 1 steps, too few for what a step costs")


def test_a_program_of_float64_is_left_alone() -> None:
    program = fx.symbolic_trace(Block().double().eval())
    with pytest.warns(fx.LoweringWarning):
        assert fx.lower(program) is program


# The zoo.


@pytest.mark.parametrize(
    "name",
    ["resnet_tiny", "unet_small", "two_heads", "functional_convnet", "shared_convnet", "mlp", "deep_recommender_small",
     "dlrm_small", "learning_to_paint_actor_small", "learning_to_paint_critic_small",
     "learning_to_paint_renderer_small", "lstm_classifier_small", "transformer_encoder_small", "bert_small",
     "gpt2_small", "llama_small", "vit_small"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::fx.LoweringWarning")  # of some, oneDNN takes nothing
def test_models_of_the_zoo_compute_the_same_and_keep_their_tensors(name: str) -> None:
    model = get_model(name)
    module = model.build()
    state = copy.deepcopy(module.state_dict())
    lowered = lower(module)
    with torch.no_grad():
        for seed in (0, 1):
            inputs = model.example_inputs(batch=2, seed=seed)
            torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(tensor, state[key]) for key, tensor in module.state_dict().items())


def random_convnet(seed: int) -> nn.Module:
    """A convnet with branches, sums, activations, pooling and concatenation, drawn from a seed."""
    chance = torch.Generator().manual_seed(seed)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=chance))

    activations = [F.relu, torch.tanh, lambda x: F.relu(x, inplace=True), F.silu, lambda x: F.leaky_relu(x, 0.2)]

    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions = nn.ModuleList(
                nn.Conv2d(4, 4, 3, padding=1, groups=1 + draw(2), bias=bool(draw(2))) for _ in range(8)
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(8))
            self.plan = [(draw(7), draw(100), draw(100), draw(len(activations)), draw(8)) for _ in range(14)]

        def forward(self, x: Tensor) -> Any:
            values = [x]
            for kind, first, other, activation, layer in self.plan:
                left, right = values[-1 - first % min(3, len(values))], values[-1 - other % min(4, len(values))]
                if kind < 3:
                    values.append(self.convolutions[layer](left))
                    if kind == 2:
                        values.append(self.norms[layer](values.pop()))
                elif kind == 3:
                    values.append(left + right)
                elif kind == 4:
                    values.append(activations[activation](left + 0 if left is x else left))
                elif kind == 5:
                    values.append(F.max_pool2d(left, 3, 1, 1) - right)
                else:
                    values.append(self.convolutions[layer](torch.cat([left[:, :2], right[:, 2:]], 1)))
            return values[-1], values[-2]

    return Random().eval()


@pytest.mark.parametrize("seed", range(40))
def test_random_convnets_compute_the_same(seed: int) -> None:
    torch.manual_seed(seed)
    module, x = random_convnet(seed), torch.randn(2, 4, 6, 6)
    lowered, copied = lower(module), x.clone()
    with torch.no_grad():
        expected = module(x.clone())
        torch.testing.assert_close(lowered(copied), expected, rtol=1e-3, atol=1e-4)
        assert torch.equal(copied, x)


@pytest.mark.parametrize("before", [False, True])
def test_a_constant_of_a_layer_that_is_used_beside_it_stays(before: bool) -> None:
    def call(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        return F.relu(self.conv(y + self.conv.bias if before else y)) + self.conv.bias

    module = Calling(call, first=nn.Conv2d(3, 3, 3, padding=1), conv=nn.Conv2d(3, 3, 1)).eval()
    lowered, x = lower(module), torch.randn(1, 3, 3, 3)
    with torch.no_grad():
        for program in (lowered, copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered))):
            assert_close(program(x), module(x))


def test_layers_that_share_a_weight_under_two_names_keep_their_biases() -> None:
    module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    module[1].weight = module[0].weight
    assert len(layers(assert_lowered_same(module, torch.randn(1, 3, 6, 6)))) == 2


def test_paths_of_layers_are_unique_where_weights_are_shared() -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    module = Calling(lambda self, x: F.relu(self.conv(torch.tanh(self.conv(x)))), conv=conv)
    lowered = assert_lowered_same(module, torch.randn(1, 3, 6, 6))
    assert [str(layer.activation) for layer in layers(lowered)] == ["tanh", "relu"]
