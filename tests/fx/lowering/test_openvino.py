"""OpenVINO: lowered operations equal PyTorch, engines follow sizes and weights, and all valid inputs still work."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from selection import thorough_except
from torch import Tensor, nn

import fx
from fx.canonical import canonical_form
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering import Converter, Lower, OpenVINO
from fx.lowering.openvino import package
from fx.lowering.openvino.engine import OpenVINOEngine
from fx.lowering.openvino.module import OpenVINORegion
from fx.lowering.openvino.operations import converters
from fx.operators.families import operators
from fx.quantize import prepare, reference
from model_zoo import get_model
from pytest_fx.harness.evaluation import threads

pytestmark = pytest.mark.skipif(OpenVINO().why_unavailable() is not None, reason=f"{OpenVINO().why_unavailable()}")


def lower(module: Any, *inputs: Any, min_size: int = 1, **options: Any) -> Any:
    program = fx.symbolic_trace(module.eval() if isinstance(module, nn.Module) else module)
    lowered = fx.lower(program, OpenVINO(), inputs, min_size=min_size, **options)
    if isinstance(lowered, GraphModule):
        lowered.graph.lint()
    return lowered


def regions(lowered: GraphModule) -> list[OpenVINORegion]:
    return [module for module in lowered.modules() if isinstance(module, OpenVINORegion)]


def assert_same(lowered: Any, module: Any, *inputs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def module_of(function: Callable[..., Any]) -> nn.Module:
    return Calling(lambda self, x: function(x))


torch.manual_seed(0)
CONSTANT = torch.randn(4)
MASK = torch.tensor([True, False, True, False])
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sigmoid tanh": lambda x: x.sigmoid() + x.tanh(),
    "exp log sqrt": lambda x: (x.exp() + 1).log().sqrt(),
    "sin cos": lambda x: x.sin() * x.cos(),
    "erf floor ceil": lambda x: x.erf() + x.floor() - x.ceil(),
    "sign atan": lambda x: x.sign() + x.atan(),
    "sinh cosh asinh": lambda x: x.sinh() + x.cosh() - x.asinh(),
    "neg abs": lambda x: abs(-x) * 2,
    "softplus": F.softplus,
    "relu silu mish": lambda x: F.relu(x) + F.silu(x) - F.mish(x),
    "hardswish hardsigmoid": lambda x: F.hardswish(x) + F.hardsigmoid(x),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "relu6 hardtanh": lambda x: F.relu6(x) + F.hardtanh(x, -0.3, 0.4),
    "clamp": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.2),
    "rsqrt reciprocal square": lambda x: (x.square() + 1).rsqrt() + (x.square() + 1).reciprocal(),
    "arithmetic": lambda x: (2 - x) * 3 / (x * x + 1) + CONSTANT,
    "pow": lambda x: (x.abs() + 1) ** 1.5,
    "maximum minimum": lambda x: torch.maximum(x, CONSTANT) - torch.minimum(x, CONSTANT),
    "comparisons": lambda x: (x > 0.1, x >= CONSTANT, x < 0, x <= CONSTANT, x == 0, x != 0),
    "logic": lambda x: ((x > 0) & (x < 1)) | ~(x > -1) ^ (x > 2),
    "where": lambda x: torch.where(x > 0, x, CONSTANT),
    "masked_fill": lambda x: x.masked_fill(MASK, -1.5),
    "to": lambda x: (x > 0).to(x.dtype) + (x > 1).float(),
    "linear": lambda x: F.linear(x, torch.ones(3, 4), torch.ones(3)),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "bmm baddbmm": lambda x: torch.baddbmm(torch.bmm(x, x.transpose(1, 2)), x, x.transpose(1, 2)),
    "addmm": lambda x: torch.addmm(CONSTANT, F.relu(x)[0], F.relu(x)[1, :4]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3),
    "layer_norm": lambda x: F.layer_norm(x, (4,)) + F.layer_norm(x, (5, 4), torch.ones(5, 4), torch.ones(5, 4)),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 2),
    "softmax": lambda x: F.softmax(x, -1) + F.log_softmax(x, 1),
    "reductions": lambda x: (x.mean(), x.sum((0, 2)), x.amax(1), x.amin((1,), keepdim=True), x.mean(-1)),
    "cumsum": lambda x: x.cumsum(1),
    "view": lambda x: x.view(x.size(0), -1) * 2,
    "reshape flatten unflatten": lambda x: x.reshape(-1, 2).flatten().unflatten(0, (4, -1)) + 1,
    "squeeze unsqueeze": lambda x: (x.unsqueeze(1) * 2).squeeze(1).unsqueeze(-1) + 1,
    "expand": lambda x: (x.unsqueeze(1) + 1).expand(-1, 3, -1, -1),
    "permute transpose": lambda x: (x + 1).permute(2, 0, 1).transpose(0, 1),
    "pad": lambda x: F.pad(x * 2, (1, 2)) + F.pad(x + 1, (1, 2), mode="replicate") + F.pad(x * 3, (2, 1), value=3.0),
    "cat stack": lambda x: (torch.cat([x, x * 2], -1), torch.stack([x + 1, x], 1)),
    "split chunk": lambda x: ((x + 1).split(2, 1)[0], (x + 1).split(2, 1)[2], (x + 2).chunk(2, -1)[1]),
    "unbind": lambda x: torch.stack([(x + 1).unbind(-1)[1], (x + 1).unbind(2)[0]], 1),
    "repeat_interleave": lambda x: (x + 1).repeat_interleave(3, 1) * torch.repeat_interleave(x + 2, 3, dim=-2),
    "getitem": lambda x: (x + 1)[:, 1:3, None, ..., 0],
    "getitem last": lambda x: (x + 1)[..., -1] + (x + 1)[:, -2][:, :1],
    "getitem by constants": lambda x: (x + 1)[:, torch.tensor([0, -1]), torch.tensor([1, 2])],
    "narrow": lambda x: (x + 1).narrow(1, 1, 2),
    "dropout contiguous": lambda x: F.dropout(x * 2, 0.5, False).contiguous() + 1,
    "shape arithmetic": lambda x: (x + 1).reshape(x.shape[0] * x.shape[1], x.size(2) - 2 + 2),
    "size divided": lambda x: (x + 1).reshape(x.shape[0] * 2, -1, x.size(2) // 2),
}


GROUP = 9
"""Functions in one program: a program takes longer to build than to run."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that the engine ran, in order."""
    called: list[str] = []
    run = OpenVINOEngine.__call__
    monkeypatch.setattr(
        OpenVINOEngine, "__call__", lambda self, inputs: (called.append("engine"), run(self, inputs))[1]
    )
    return called


@pytest.mark.parametrize("first", range(0, len(FUNCTIONS), GROUP))
def test_every_function_is_that_of_pytorch_on_all_batch_sizes(first: int, calls: list[str]) -> None:
    functions = dict(list(FUNCTIONS.items())[first : first + GROUP])
    module = Calling(lambda self, x: tuple(function(x) for function in functions.values()))
    lowered = lower(module, torch.randn(3, 5, 4))
    assert len(regions(lowered)) == 1, lowered.meta.get("lowering")
    assert not lowered.meta["lowering"].refused
    for batch in (3, 2, 7):
        x = torch.randn(batch, 5, 4)
        with torch.no_grad():
            for name, result, expected in zip(functions, lowered(x), module(x), strict=True):
                torch.testing.assert_close(
                    result, expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
                )
    assert calls == ["engine"] * 3


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, bias=False), (2, 4, 9, 9)),
    "conv2d groups": (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 9, 9)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 5)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 5)),
    "conv_transpose2d groups": (nn.ConvTranspose2d(4, 6, 2, groups=2), (2, 4, 5, 5)),
    "batch_norm": (nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "linear": (nn.Linear(4, 3), (2, 5, 4)),
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), (2, 3, 9, 9)),
    "max_pool2d ceil": (nn.MaxPool2d(2, 2, ceil_mode=True), (2, 3, 9, 9)),
    "avg_pool2d": (nn.AvgPool2d(3, 2, 1), (2, 3, 9, 9)),
    "avg_pool2d without padding": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 9, 9)),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d(1), (2, 3, 9, 9)),
    "adaptive_avg_pool2d larger": (nn.AdaptiveAvgPool2d((2, 4)), (2, 3, 9, 9)),
    "pixel_shuffle": (nn.Sequential(nn.ReLU(), nn.PixelShuffle(2)), (2, 8, 3, 3)),
}


QUICK_LAYERS = ("conv1d", "conv2d groups", "conv_transpose2d groups", "batch_norm", "linear", "max_pool2d ceil",
                "adaptive_avg_pool2d")  # fmt: skip


@pytest.mark.parametrize("name", thorough_except(QUICK_LAYERS, LAYERS))
def test_every_layer_is_that_of_pytorch(name: str, calls: list[str]) -> None:
    module, shape = LAYERS[name]
    module = nn.Sequential(module.eval())
    lowered = lower(module, torch.randn(shape))
    assert len(regions(lowered)) == 1, lowered.meta.get("lowering")
    for batch in (shape[0], shape[0] + 1):
        assert_same(lowered, module, torch.randn(batch, *shape[1:]))
    assert calls == ["engine"] * 2


def test_every_operator_on_each_element_that_is_taken_has_a_case() -> None:
    used: set[Any] = set()
    for function in FUNCTIONS.values():
        form = canonical_form(fx.symbolic_trace(module_of(function))).graph_module
        used |= {node.target for node in form.graph.nodes if node.op == "call_function"}
    rows = operators("activation", "function", "arithmetic", "comparison", "logic", "extreme", "softmax")
    targets = {converter.target for converter in converters}
    missing = [row.function for row in rows if row.function in targets and row.function not in used]
    assert missing == []


def test_embeddings_are_those_of_pytorch() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.table(x).sum(1) + self.bag(x) + (x == 0).to(torch.float32).sum(1, keepdim=True)

    module = Calling(forward, table=nn.Embedding(9, 4), bag=nn.EmbeddingBag(9, 4, mode="mean"))
    x = torch.randint(0, 9, (3, 4))
    lowered = lower(module, x)
    assert lowered.meta["lowering"].node_share == 1
    assert_same(lowered, module, x)


SMALL = ["deep_recommender_small", "dlrm_small", "learning_to_paint_actor_small", "learning_to_paint_renderer_small",
         "resnet_tiny", "transformer_encoder_small", "unet_small",
         "bert_small", "gpt2_small", "llama_small", "vit_small"]  # fmt: skip


ANOTHER_BATCH = ("dlrm_small", "resnet_tiny", "llama_small")
"""Models that are built with a free batch, too."""


QUICK_MODELS = ("deep_recommender_small", "learning_to_paint_renderer_small", "resnet_tiny", "bert_small")


@pytest.mark.parametrize("name", thorough_except(QUICK_MODELS, SMALL))
def test_models_are_one_engine_each(name: str, calls: list[str]) -> None:
    model = get_model(name)
    module = model.build().eval()
    lowered = lower(module, *model.example_inputs(batch=2))
    assert lowered.meta["lowering"].node_share == 1
    assert len(regions(lowered)) == 1
    batches = (2, 3) if name in ANOTHER_BATCH else (2,)
    for batch in batches:
        inputs = model.example_inputs(batch=batch)
        with torch.no_grad():
            torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)
    assert calls == ["engine"] * len(batches)


# Which inputs an engine takes.


def layer() -> nn.Module:
    return Calling(lambda self, x: F.relu(self.linear(x)), linear=nn.Linear(4, 4))


def test_sizes_that_differ_become_free_and_need_one_more_engine(calls: list[str]) -> None:
    module = layer()
    lowered = lower(module, torch.randn(2, 3, 4))
    (region,) = regions(lowered)
    for shape in ((2, 3, 4), (5, 3, 4), (6, 3, 4), (2, 7, 4), (1, 1, 4)):
        assert_same(lowered, module, torch.randn(shape))
    assert [sizes for _, sizes in region._engines] == [((2, 3, 4),), ((None, 3, 4),), ((None, None, 4),), ((1, 1, 4),)]
    assert calls == ["engine"] * 5


def test_a_size_of_1_is_distinguished_from_others(calls: list[str]) -> None:
    module = module_of(lambda x: F.relu(x).squeeze(0) * 2 + 1)
    lowered = lower(module, torch.randn(3, 4))
    for size in (3, 2, 1, 5):
        assert_same(lowered, module, torch.randn(size, 4))
    lowered = lower(module, torch.randn(2, 3, 4))
    assert_same(lowered, module, torch.randn(2, 6, 4))
    assert calls == ["engine"] * 5


def test_sizes_that_pytorch_treats_differently_run_in_the_program(calls: list[str]) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return F.relu(x) + F.relu(y)

    lowered = lower(add, torch.randn(2, 4), torch.randn(2, 4))
    for sizes, engines in (((3, 3), 1), ((5, 5), 2), ((1, 5), 3), ((1, 7), 4), ((6, 6), 5)):
        assert_same(lowered, add, *(torch.randn(size, 4) for size in sizes))
        assert calls == ["engine"] * engines

    def split(x: Tensor) -> Tensor:
        return torch.stack(F.relu(x).chunk(2), 0) * 2

    lowered = lower(split, torch.randn(4, 4))
    for size in (6, 8, 2):
        assert_same(lowered, split, torch.randn(size, 4))


def test_integers_are_values_for_which_engines_are_built(calls: list[str]) -> None:
    def function(x: Tensor, n: Any) -> Tensor:
        return F.relu(x) * n + x * (n + 1)

    lowered = lower(function, torch.randn(2, 4), 3)
    assert not lowered.meta["lowering"].refused
    for number in (3, 4, 7, 1, -2):
        assert_same(lowered, function, torch.randn(2, 4), number)
    assert calls == ["engine"] * 5


INPUTS: dict[str, Callable[[], Tensor]] = {
    "of another dtype": lambda: torch.randn(2, 4, dtype=torch.float64),
    "with another number of dimensions": lambda: torch.randn(2, 3, 4),
    "without elements": lambda: torch.randn(0, 4),
    "that requires gradients": lambda: torch.randn(2, 4, requires_grad=True),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_other_inputs_go_through_the_program(kind: str, calls: list[str]) -> None:
    module, x = layer(), INPUTS[kind]()
    lowered = lower(module, torch.randn(2, 4))
    if x.dtype is torch.float64:
        lowered, module = lowered.double(), copy.deepcopy(module).double()
    torch.testing.assert_close(lowered(x), module(x))
    assert calls == []
    if x.requires_grad:
        lowered(x).sum().backward()
        assert x.grad is not None


def test_autocast_and_transforms_of_functions_go_through_the_program(calls: list[str]) -> None:
    module, x = layer(), torch.randn(2, 4)
    lowered = lower(module, x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert lowered(x).dtype is torch.bfloat16
    assert calls == []
    with torch.no_grad():
        mapped = torch.func.vmap(lowered)(torch.randn(3, 2, 4))
    assert mapped.shape == (3, 2, 4)


def test_wrong_inputs_raise_the_error_of_eager() -> None:
    lowered = lower(layer(), torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lowered(torch.randn(2, 5))


def test_inputs_of_any_strides_are_taken_and_outputs_have_those_of_eager(calls: list[str]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    lowered = lower(module, x)
    with torch.no_grad():
        assert lowered(x).stride() == module(x).stride()
    assert_same(lowered, module, x)
    assert_same(lowered, module, torch.randn(2, 8, 8, 3).permute(0, 3, 1, 2)[:, :, ::1])
    assert calls == ["engine"] * 3


def test_results_that_show_the_same_memory_or_that_of_an_input_are_right() -> None:
    def function(x: Tensor) -> Any:
        y = F.relu(x)
        return torch.cumprod(x.view(-1), 0), torch.cumprod(y.view(-1), 0), y, F.relu(x), x.to(torch.float32) * 1, y[1]

    x = torch.rand(4, 3)
    lowered = lower(function, x)
    for value in (x, torch.rand(4, 3), torch.rand(2, 3)):
        assert_same(lowered, function, value)


def test_a_result_may_be_an_operand_that_is_one_too() -> None:
    def function(x: Tensor) -> Any:
        a = x * 3
        return a.cumprod(0), F.relu(a), a.to(x.dtype).cumprod(0)

    x = torch.rand(3)
    lowered = lower(function, x)
    for size in (3, 5):
        assert_same(lowered, function, torch.rand(size))


def test_an_unused_operation_may_be_lowered() -> None:
    def function(x: Tensor) -> Tensor:
        F.relu(x)
        return x

    x = torch.randn(3)
    assert torch.equal(lower(function, x)(x), x)


def test_results_are_memory_of_their_own() -> None:
    lowered = lower(layer(), torch.randn(2, 4))
    with torch.no_grad():
        x = torch.randn(2, 4)
        first = lowered(x)
        before = first.clone()
        lowered(torch.randn(2, 4))
        lowered(torch.randn(3, 4))
    assert torch.equal(first, before)


def test_threads_run_one_engine_at_a_time_each() -> None:
    module = layer()
    lowered = lower(module, torch.randn(8, 4))
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.set_num_threads(1)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = module(x)
            wrong.extend(seed for _ in range(50) if not torch.allclose(lowered(x), expected, atol=1e-5))

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(work, range(4)))
    assert wrong == []


def numbers(lowered: GraphModule) -> list[int]:
    """For how many threads the engines are that are kept."""
    return [number for number, _ in regions(lowered)[0]._engines]


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: one])
@pytest.mark.parametrize("made_under", [1, 2])
def test_engines_have_as_many_threads_as_pytorch_and_are_built_once_for_each_number(
    made_under: int, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = OpenVINORegion._build
    monkeypatch.setattr(
        OpenVINORegion, "_build", lambda self, *sizes: (built.append(torch.get_num_threads()), build(self, *sizes))[1]
    )
    module, x = layer(), torch.randn(2, 4)
    with threads(made_under):
        program = lower(module, x)
    assert built == [made_under]
    lowered = way(program)
    for number in (1, 2, 1, 2):
        with threads(number):
            assert_same(lowered, module, x)
    assert sorted(built) == sorted([1, 2] if lowered is program else [made_under, 1, 2])
    assert sorted(numbers(lowered)) == [1, 2]


def test_engines_for_the_last_two_numbers_of_threads_are_kept() -> None:
    module = layer()
    with threads(1):
        lowered = lower(module, torch.randn(2, 4))
    for number, numbers_left in ((3, {1, 3}), (1, {1, 3}), (2, {1, 2}), (2, {1, 2}), (3, {2, 3})):
        with threads(number):
            for size in (2, 5):
                assert_same(lowered, module, torch.randn(size, 4))
        assert set(numbers(lowered)) == numbers_left


@pytest.mark.parametrize("number", [1, 2])
def test_many_engines_are_built_and_dropped(number: int) -> None:
    with threads(number):
        for size in range(1, 6):
            x = torch.randn(size, 4)
            module = layer()
            assert_same(lower(module, x), module, x)


# Weights.


def test_weights_that_were_written_to_are_used() -> None:
    module, x = layer(), torch.randn(2, 4)
    lowered = lower(module, x)
    with torch.no_grad():
        module.linear.weight.mul_(2)
    assert_same(lowered, module, x)
    other = layer()
    state = {f"openvino_0.program.{name}": value for name, value in other.state_dict().items()}
    lowered.load_state_dict(state)
    assert_same(lowered, other, x)


def test_tensors_are_shared_with_the_captured_module() -> None:
    module = layer()
    (region,) = regions(lower(module, torch.randn(2, 4)))
    assert region.program.linear.weight.data_ptr() == module.linear.weight.data_ptr()
    assert not [*region.parameters()]


@pytest.mark.parametrize("trip", [copy.deepcopy, lambda lowered: pickle.loads(pickle.dumps(lowered))])
def test_copies_and_pickles_compute_the_same(trip: Callable[[Any], Any]) -> None:
    module, x = layer(), torch.randn(2, 4)
    lowered = lower(module, x)
    copied = trip(lowered)
    for value in (x, torch.randn(5, 4)):
        assert_same(copied, module, value)
    assert copied.state_dict().keys() == lowered.state_dict().keys()


def test_retracing_keeps_the_region_whole() -> None:
    lowered = lower(layer(), torch.randn(2, 4))
    assert "self.openvino_0(" in fx.symbolic_trace(lowered).code


# What is refused, and why.


def why_refused(function: Callable[..., Any], *inputs: Tensor) -> str:
    report = fx.lower(fx.symbolic_trace(function), OpenVINO(), inputs or None, min_size=1, dry_run=True)
    return "; ".join(f"{refusal.reason}" for refusal in report.refused)


REFUSED: dict[str, tuple[Callable[..., Any], Tensor, str]] = {
    "float64": (lambda x: F.relu(x), torch.randn(2, dtype=torch.float64), "is float64, which engines do not take"),
    "integers": (lambda x: x + 1, torch.ones(2, dtype=torch.int64), "is int64, and only float32 is computed as"),
    "a mask as index": (
        lambda x: x[x > 0].sum(),
        torch.ones(2),
        "picks elements by a tensor|has no converter|not known",
    ),
    "a write": (lambda x: (x * 2).add_(1), torch.ones(2), "writes to"),
    "a view": (lambda x: x.view(-1), torch.ones(2, 2), "may return it as a view of memory that may be memory of the"),
    "a large number": (lambda x: x == 2**40, torch.ones(2, dtype=torch.int64), "a number that is too large"),
    "training": (lambda x: F.dropout(x, 0.5, True), torch.ones(2), "its training is True|random"),
    "ceil": (lambda x: F.avg_pool1d(x, 2, ceil_mode=True), torch.ones(1, 2, 5), "rounds the number of windows up"),
    "no batch": (lambda x: F.max_pool2d(x, 2), torch.ones(1, 4, 4), "its input has 3 dimensions, not 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_operations_with_other_results_are_refused_with_the_reason(what: str) -> None:
    function, x, reason = REFUSED[what]
    assert re.search(reason, why_refused(function, x))


def test_shapes_have_to_be_known() -> None:
    assert "is not known: give example_inputs" in why_refused(lambda x: F.relu(x))


def test_small_regions_stay_in_eager_python() -> None:
    report = lower(layer(), torch.randn(2, 4), min_size=5, dry_run=True)
    assert "that the backend is faster for, and needs 5" in str(report)
    assert OpenVINO.min_size == 5


# Precision.


def test_bfloat16_is_less_precise() -> None:
    with pytest.raises(LoweringError, match=r"'float32' or 'bfloat16'(.|\n)*float64"):
        OpenVINO("float64")  # type: ignore[arg-type]
    module, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(8, 64)
    program = fx.symbolic_trace(module)
    lowered = fx.lower(program, OpenVINO("bfloat16"), (x,), min_size=1)
    assert "precision=bf16" in repr(lowered.openvino_0)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), module(x), rtol=0.05, atol=0.05)


def test_quantized_programs_stay_so_in_one_engine() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    x = torch.randn(4, 3, 8, 8)
    prepared = prepare(fx.symbolic_trace(module.eval()), example_inputs=(x,))
    with torch.no_grad():
        prepared(x)
        meaning = reference(prepared)
        lowered = fx.lower(meaning, OpenVINO(), (x,))
        assert lowered.meta["lowering"].node_share == 1
        step = (meaning(x) - module(x)).abs().max()
        assert (lowered(x) - meaning(x)).abs().max() < step


def test_an_engine_follows_scales_that_are_loaded() -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).eval(),
        torch.randn(32, 8),
    )
    lowered: list[Any] = []
    with torch.no_grad():
        for scale in (1.0, 0.1):
            prepared = prepare(fx.symbolic_trace(model), None, (x,))
            prepared(x * scale)
            lowered.append(fx.lower(reference(prepared), OpenVINO(), (x,), min_size=1))
        first, second = lowered
        assert not torch.allclose(first(x), second(x), atol=0.1)
        second.load_state_dict(first.state_dict())
        assert torch.equal(first(x), second(x))


# Faults.


def test_operations_unknown_to_the_importer_are_reported_with_the_line() -> None:
    converters.register(Converter(torch.logcumsumexp))
    try:
        module, x = (
            Calling(lambda self, x: torch.logcumsumexp(self.linear(x), 0), linear=nn.Linear(4, 4)),
            torch.ones(2, 4),
        )
        failed = "No conversion rule found for operations: aten.logcumsumexp"
        with pytest.raises(
            LoweringError, match=rf"does not take the region from `%linear` on(.|\n)*test_openvino.py(.|\n)*{failed}"
        ):
            lower(module, x)
        with pytest.warns(fx.LoweringWarning, match=f"not built(.|\n)*{failed}"):
            lowered = lower(module, x, on_failure="eager")
        assert lowered.meta["lowering"].parts[0].failure is not None
        assert_same(lowered, module, x)
    finally:
        converters.remove(torch.logcumsumexp)


def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("No module named 'openvino'")

    monkeypatch.setattr(package, "load", fail)
    package.why_missing.cache_clear()
    try:
        reason = "No module named 'openvino': pip install 'pytest-fx[openvino]'"
        assert OpenVINO().why_unavailable() == reason
        assert Lower("openvino").why_unavailable() == reason
        with pytest.raises(LoweringError, match=r"'openvino' is not available here(.|\n)*pip install"):
            lower(layer(), torch.randn(2, 4))
        assert "operations" in str(lower(layer(), torch.randn(2, 4), dry_run=True))
    finally:
        package.why_missing.cache_clear()


def test_an_engine_that_fails_where_eager_does_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OpenVINOEngine, inputs: Any) -> Any:
        raise RuntimeError("out of memory")

    lowered = lower(layer(), torch.randn(2, 4))
    lowered(torch.randn(3, 4))
    monkeypatch.setattr(OpenVINOEngine, "__call__", fail)
    with pytest.raises(LoweringError, match=r"failed where eager Python does not(.|\n)*out of memory"):
        lowered(torch.randn(2, 4))
    assert lowered(torch.randn(3, 4)).shape == (3, 4)  # an engine that was not requested


def test_values_of_constants_alone_are_no_memory_for_results():
    image = nn.Parameter(torch.ones(1, 1, 1, 1), requires_grad=False)
    model = Calling(lambda self, x: torch.relu(self.conv(self.image) + x), image=image, conv=nn.Conv2d(1, 1, 1)).eval()
    x = torch.ones(1)
    program = fx.lower(fx.symbolic_trace(model), "openvino", (x,), min_size=1)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(program(x), model(x))
    assert [node.op for node in program.graph.nodes].count("call_module") == 2  # the convolution, and the engine
