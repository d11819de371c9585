"""Each converter of TensorRT builds a network that equals PyTorch, also for varying sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fx
from fx.canonical import canonical_form
from fx.lowering.tensorrt import TensorRT
from fx.lowering.tensorrt.library import find_library
from fx.passes.functional_form import with_items
from fx.quantize.arithmetic import dequantize, dequantize_channels, quantize
from fx.quantize.attention import add_attention_mask, attention_mask
from fx.quantize.recurrence import recurrent

pytestmark = [
    pytest.mark.skipif(find_library() is None, reason="neither tensorrt nor tensorrt_rtx is installed"),
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
]
for _name in ("quantize", "dequantize", "dequantize_channels", "attention_mask", "add_attention_mask", "with_items"):
    fx.wrap(_name)

V, M, IMAGE = (3, 8), (2, 3, 8), (2, 4, 6, 8)  # vectors, sequences, images
Case = tuple[Callable[..., Any], tuple[Any, ...]]


class TakesAll(TensorRT):
    """The backend, which also takes regions that are no faster."""

    __slots__ = ()
    min_size: ClassVar[int] = 0


def weight(*shape: int) -> Tensor:
    return (torch.arange(float(math.prod(shape))) * 12.9898 + sum(shape)).sin().reshape(shape) / 1.5


def recurrence(mode: Any, gates: int, **settings: Any) -> Callable[..., Any]:
    """A recurrent module with five hidden features, which returns everything that it computes."""
    directions = 2 if settings.get("bidirectional") else 1
    shapes: list[tuple[int, ...]] = []
    for layer in range(settings.get("num_layers", 1)):
        matrices = [(5 * gates, 5 * directions if layer else 8), (5 * gates, 5)]
        shapes += (matrices + [(5 * gates,)] * (2 if settings.get("has_biases", True) else 0)) * directions
    weights = tuple(weight(*shape) / 3 for shape in shapes)

    def function(x: Tensor) -> tuple[Any, ...]:
        output, last = recurrent(input=torch.tanh(x * 2), state=None, weights=weights, mode=mode, **settings)
        return (output * 2, *((last[0] + 1, last[1] + 1) if mode == "LSTM" else (last + 1,)))

    return function


def positive(*shape: int) -> Tensor:
    return weight(*shape).abs() + 0.5


def halves(parts: Any) -> tuple[Tensor, Tensor]:
    """Two of several tensors."""
    return parts[0], parts[1]


W3, W4, W5 = weight(6, 4, 3), weight(6, 4, 3, 2), weight(6, 4, 3, 2, 1)
T3, T4, T5 = weight(4, 3, 3), weight(4, 3, 3, 2), weight(4, 3, 3, 2, 1)
C, S = (2, 4, 9), (2, 4, 5, 6, 3)  # signals, volumes


def stored() -> fx.GraphModule:
    """A linear layer whose weight is stored as integers, as in quantized programs."""
    graph = fx.Graph()
    x, whole, scale = graph.placeholder("x"), graph.get_attr("whole"), graph.get_attr("scale")
    real = graph.call_function(dequantize_channels, (), {"weight": whole, "scale": scale})
    graph.output(graph.call_function(F.linear, (x, real)))
    return fx.GraphModule({"whole": (weight(5, 8) * 50).to(torch.int8), "scale": positive(5)}, graph)


def normalized() -> fx.GraphModule:
    """A linear layer whose weight is computed from parameters."""
    graph = fx.Graph()
    x, direction, length = graph.placeholder("x"), graph.get_attr("direction"), graph.get_attr("length")
    whole = graph.call_function(torch._weight_norm, (direction, length, 0))
    graph.output(graph.call_function(F.linear, (x, whole)))
    return fx.GraphModule({"direction": weight(5, 8), "length": positive(5, 1)}, graph)


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": F.relu, "relu6": F.relu6, "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": lambda x: F.elu(x, 0.7), "selu": F.selu,
    "hardsigmoid": lambda x: F.hardsigmoid(x * 4), "softsign": F.softsign, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "silu": F.silu, "mish": F.mish, "hardswish": lambda x: F.hardswish(x * 4), "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": lambda x: F.softplus(x * 20, 2, 15),
    "clamp": lambda x: torch.clamp(x, -0.5, 0.3), "clamp below": lambda x: x.clamp(min=0.1),
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, 1),
    "softmax of another type": lambda x: torch.softmax(x, 0, dtype=torch.float16),
    "dropout": lambda x: F.dropout(x * 2, 0.5, training=False), "square": torch.square, "neg": lambda x: -x, "abs": abs,
}  # fmt: skip
UNARY = "exp reciprocal sin cos tan sinh cosh atan asinh ceil floor erf sign"
LIMITED = {
    "log": lambda x: torch.log(x.abs() + 1), "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1), "asin": lambda x: torch.asin(x.tanh()),
    "acos": lambda x: torch.acos(x.tanh()), "acosh": lambda x: torch.acosh(x.abs() + 1),
    "atanh": lambda x: torch.atanh(x.tanh() / 2),
}  # fmt: skip
CASES: dict[str, Case] = {
    **{name: (function, (V,)) for name, function in ACTIVATIONS.items()},
    **{name: (getattr(torch, name), (V,)) for name in UNARY.split()},
    **{name: (function, (V,)) for name, function in LIMITED.items()},
    "add": (lambda x, y: x + y, (IMAGE, (8,))),
    "sub a constant": (lambda x: 1 - x, (V,)),
    "mul by a tensor of the program": (lambda x: x * W3, ((4, 6, 4, 3),)),
    "div": (lambda x, y: x / (y.abs() + 1), (V, V)),
    "div of integers": (lambda x: (x > 0).sum(1) / 3, (V,)),
    "pow": (lambda x: x.abs() ** 1.5 + x**2 - x**3, (V,)),
    "pow by a tensor": (lambda x: x.abs() ** positive(8), (V,)),
    "comparisons": (lambda x, y: ((x == y) | (x < y)) & ~(x > 0.5), (V, V)),
    "more comparisons": (lambda x, y: (x <= y) ^ (x >= 0.2) ^ (x != y), (V, V)),
    "logic": (lambda x: torch.logical_and(x > 0, torch.logical_not(x > 1)), (V,)),
    "maximum": (lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), (V, V)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (V, (8,))),
    "where a number": (lambda x: torch.where(x > 0, x, -1.0), (V,)),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, float("-inf")), (M, (3, 8))),
    "matmul": (lambda x, y: x @ y, (M, (2, 8, 5))),
    "matmul of other ranks": (lambda x, y: x @ y, (M, (8, 5))),
    "bmm": (torch.bmm, (M, (2, 8, 5))),
    "sum": (lambda x: x.sum(), (M,)),
    "sum of truth values": (lambda x: (x > 0).sum(-1), (M,)),
    "mean": (lambda x: x.mean((0, 2), keepdim=True), (M,)),
    "amax": (lambda x: x.amax(1) + x.amin(-2), (M,)),
    "conv1d": (lambda x: F.conv1d(x, W3, weight(6), 2, 1, 2), (C,)),
    "conv2d": (lambda x: F.conv2d(x, W4, weight(6), (2, 1), (1, 0), (1, 2)), (IMAGE,)),
    "conv2d without bias, grouped": (lambda x: F.conv2d(x, weight(8, 2, 3, 3), groups=2), (IMAGE,)),
    "conv2d same": (lambda x: F.conv2d(x, W4, padding="same"), (IMAGE,)),
    "conv2d valid": (lambda x: F.conv2d(x, W4, padding="valid"), (IMAGE,)),
    "conv2d with a computed weight": (lambda x, w: F.conv2d(x, w.relu(), weight(6)), (IMAGE, (6, 4, 3, 2))),
    "conv1d with a computed weight": (lambda x, w: F.conv1d(x, w.relu()), (C, (6, 4, 3))),
    "conv3d": (lambda x: F.conv3d(x, W5, weight(6), 2, 1), (S,)),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, T3, weight(3), 2, 1, 1), (C,)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, T4, weight(6), 2, 1, 1, 2), (IMAGE,)),
    "conv_transpose2d, dilated": (lambda x: F.conv_transpose2d(x, T4, None, 1, 1, 0, 1, (1, 2)), (IMAGE,)),
    "conv_transpose3d": (lambda x: F.conv_transpose3d(x, T5, None, 2), (S,)),
    "linear": (lambda x: F.linear(x, weight(5, 8), weight(5)), (V,)),
    "linear on images": (lambda x: F.linear(x, weight(5, 8)), (IMAGE,)),
    "linear with a computed weight": (lambda x, w: F.linear(x, w * 2, weight(5)), (M, (5, 8))),
    "batch_norm": (lambda x: F.batch_norm(x, weight(4), positive(4), weight(4), weight(4)), (IMAGE,)),
    "batch_norm of vectors": (lambda x: F.batch_norm(x, weight(8), positive(8)), (V,)),
    "layer_norm": (lambda x: F.layer_norm(x, (8,), weight(8), weight(8)), (M,)),
    "layer_norm over two dimensions": (lambda x: F.layer_norm(x, (6, 8)), (IMAGE,)),
    "weight_norm": (normalized(), (V,)),
    "embedding": (lambda x: F.embedding((x > 0).to(torch.int64), weight(3, 5)), (M,)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), (C,)),
    "max_pool2d": (lambda x: F.max_pool2d(x - 9, (3, 2), 2, (1, 0), ceil_mode=True), (IMAGE,)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, 1), (S,)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (C,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (IMAGE,)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (S,)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), (C,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive_avg_pool2d in windows": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (IMAGE,)),
    "adaptive_avg_pool2d in windows of different sizes": (lambda x: F.adaptive_avg_pool2d(x, (4, 11)), (IMAGE,)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 1), (S,)),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x, y, y * 2), ((2, 4, 5, 8), (2, 4, 7, 8))),
    "attention with a mask": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y + 1, y[:, :1, :5, :6] < 0.5),
        ((2, 4, 5, 8), (2, 4, 6, 8)),
        # not of the same sizes as above: TensorRT for RTX 1.7 crashes if queries attend to the same keys twice
    ),
    "attention with a summand": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y + 1, weight(5, 7), scale=0.3),
        ((2, 5, 8), (2, 7, 8)),
    ),
    "causal attention": (lambda x, y: F.scaled_dot_product_attention(x, y, y, is_causal=True), (M, M)),
    "attention of grouped queries": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y + 1, enable_gqa=True),
        ((2, 4, 5, 8), (2, 2, 7, 8)),
    ),
    "attention with values of other features": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y[..., :3], y[:, :5, :7] < 0.5),
        ((2, 5, 8), (2, 7, 8)),
    ),
    "attention_mask": (
        lambda x, y: x @ x.transpose(-1, -2) + attention_mask(x, attn_mask=y[0] > 1, key_padding_mask=y[:, 0] > 1),
        ((2, 4, 5, 8), (2, 5, 5)),
    ),
    "add_attention_mask": (
        lambda x: F.softmax(add_attention_mask(x, attn_mask=None, key_padding_mask=x[:, 0, 0] > 1), -1),
        ((2, 4, 5, 8),),
    ),
    "reshape": (lambda x: x.relu().reshape(-1, 4), (M,)),
    "view with a size": (lambda x: x.relu().view(x.size(0), -1), (IMAGE,)),
    "view with computed sizes": (lambda x: (x * 2).view(x.size(0) * x.size(1), x.shape[2] // 2, -1), (M,)),
    "flatten": (lambda x: x.relu().flatten(1, 2), (IMAGE,)),
    "unflatten": (lambda x: x.relu().unflatten(-1, (2, 4)), (M,)),
    "permute": (lambda x: x.relu().permute(0, 2, -1, 1).contiguous(), (IMAGE,)),
    "transpose": (lambda x: (x * 2).transpose(1, -1).clone(), (M,)),
    "squeeze": (lambda x: (x * 2).unsqueeze(1).squeeze(1), (V,)),
    "squeeze all": (lambda x: (x * 2).unsqueeze(-1).squeeze(), (V,)),
    "expand": (lambda x: (x[:, :1] * 2).expand(-1, 5, 8) + 1, (M,)),
    "expand to more dimensions": (lambda x: (x * 2).expand(4, 3, 8) + 1, (V,)),
    "cat": (lambda x, y: torch.cat([x, y, x > 0], -1), (V, V)),
    "stack": (lambda x, y: torch.stack((x, y), -1), (V, V)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x * 2, 2), (IMAGE,)),
    "pad": (lambda x: F.pad(x * 2, (1, -2, 0, 3), value=0.5), (M,)),
    "to": (lambda x: (x * 3).to(torch.int32).float(), (V,)),
    "to the type of another": (lambda x: (x > 0).to(x.dtype), (V,)),
    "getitem": (lambda x: (x * 2)[:, None, 1:-1:2, ..., -3] + 1, (IMAGE,)),
    "getitem of a size": (lambda x, y: (x * 2)[:, : y.size(1)] + y, (M, (2, 2, 8))),
    "getitem of a row": (lambda x: (x * 2)[1] + 1, (V,)),
    "narrow": (lambda x: (x * 2).narrow(1, -6, 4) + 1, (V,)),
    "split": (lambda x: torch.stack([*halves((x * 2).split(4, 1))]), (V,)),
    "split in sizes": (lambda x: (x * 2).split((1, 7), -1)[1] + 1, (V,)),
    "chunk": (lambda x: operator.mul(*halves((x * 2).chunk(3, 2))), ((2, 2, 9),)),
    "unbind": (lambda x: operator.mul(*halves((x * 2).unbind(1))), ((2, 2, 3),)),
    "repeat_interleave": (lambda x: (x * 2).repeat_interleave(3, 1) + torch.repeat_interleave(x, 3, dim=-1), (V,)),
    "repeat": (lambda x: (x * 2).repeat(1, 2, 3), (M,)),
    "repeat to more dimensions": (lambda x: (x * 2).repeat(2, 1, 2), (V,)),
    "roll": (lambda x: (x * 2).roll((-2, 9), (1, -1)), (IMAGE,)),
    "flip": (lambda x: (x * 2).flip(-1, 1), (IMAGE,)),
    "tril": (lambda x: (x * 2).tril(1) + x.triu(), (M,)),
    "movedim": (lambda x: (x * 2).movedim(1, -1), (IMAGE,)),
    "getitem of several indices": (lambda x: (x * 2)[:, torch.tensor([0, 2, -1]), torch.tensor([1, 0, 3])], (M,)),
    "getitem of one index": (lambda x: (x * 2)[:, torch.tensor([[0, 2], [1, 1]])], (M,)),
    "gather": (lambda x: torch.gather(x, 1, (x > 0).to(torch.int64)), (M,)),
    "index_select": (lambda x, y: (x * 2).index_select(1, (y > 0).to(torch.int64)), (M, (2,))),
    "scatter": (lambda x: x.scatter(1, (x > 0).to(torch.int64)[:, :1], x[:, 1:2] * 2), (M,)),
    "topk": (lambda x: x.topk(3, -1)[0] + (-x).topk(3, largest=False)[1], (M,)),
    "topk of a vector": (lambda x: (x * 2).topk(3)[0], ((8,),)),
    "argmax": (lambda x: x.argmax(1) + x.argmin(-2), (M,)),
    "max over a dimension": (lambda x: x.max(-1, keepdim=True)[0] + x.min(-1, keepdim=True)[1], (M,)),
    "cumsum": (lambda x: x.cumsum(1) + (x > 0).cumsum(-1), (M,)),
    "embedding_bag": (lambda x: F.embedding_bag((x > 0).to(torch.int64), weight(3, 5), mode="sum"), (V,)),
    "embedding_bag with weights": (
        lambda x: F.embedding_bag((x > 0).to(torch.int64), weight(3, 5), mode="sum", per_sample_weights=x), (V,)
    ),
    "var": (lambda x: x.var(1) + x.std((1,), correction=0), (M,)),
    "var of all but the batch": (lambda x: torch.var(x, (1, 2, 3), keepdim=True), (IMAGE,)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1) + torch.linalg.vector_norm(x, 1, dim=1), (M,)),
    "norm": (lambda x: torch.norm(x * 2, dim=(1, 2), keepdim=True) + (x * 2).norm(2, 2, keepdim=True), (M,)),
    "normalize": (lambda x: F.normalize(x * 3) + F.normalize(x, 1, -1), (M,)),
    "rms_norm": (lambda x: F.rms_norm(x, (8,), weight(8), 1e-6) + F.rms_norm(x, (3, 8)), (M,)),
    "group_norm": (lambda x: F.group_norm(x, 2, weight(4), weight(4)), (IMAGE,)),
    "instance by group_norm": (lambda x: F.group_norm(x, 4), (C,)),
    "addmm": (lambda x: torch.addmm(weight(5), x, weight(8, 5), beta=0.5, alpha=2), (V,)),
    "baddbmm": (lambda x, y: torch.baddbmm(weight(3, 5), x, y), (M, (2, 8, 5))),
    "einsum": (lambda x, y: torch.einsum("b I j, bjk -> bkI", x, y) * 2, (M, (2, 8, 5))),
    "einsum without a result": (lambda x, y: torch.einsum("bij,kj", x, y) * 2, (M, (5, 8))),
    "prelu": (lambda x: F.prelu(x, positive(4)), (IMAGE,)),
    "round": (lambda x: torch.round(x * 3) + torch.trunc(x * 3), (V,)),
    "mod of integers": (lambda x: (x * 9).to(torch.int64) % 4, (V,)),
    "arithmetic of sizes": (lambda x: x * (x.size(1) ** -0.5) + (len(x.shape) % 2) / 3 + (x.size(1) >= 4), (V,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, (12, 16), mode="bilinear"), (IMAGE,)),
    "interpolate between corners": (lambda x: F.interpolate(x, (9, 5), mode="bilinear", align_corners=True), (IMAGE,)),
    "interpolate by cubes": (lambda x: F.interpolate(x, (9, 5), mode="bicubic"), (IMAGE,)),
    "interpolate signals": (lambda x: F.interpolate(x, 18, mode="linear") + F.interpolate(x, 18), (C,)),
    "grid_sample": (lambda x, y: F.grid_sample(x, y, align_corners=False), (IMAGE, (2, 3, 5, 2))),
    "grid_sample at corners": (
        lambda x, y: F.grid_sample(x, y, "nearest", "border", True), (IMAGE, (2, 3, 4, 2)),
    ),
    "adaptive_max_pool": (
        lambda x: F.adaptive_max_pool2d(x, 1) + F.adaptive_max_pool2d(x, (3, 2))[..., :1, :1], (IMAGE,)
    ),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), (C,)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 1), (S,)),
    "ndim": (lambda x: (x * 2) + x.ndim + x.dim(), (V,)),
    "quantize": (
        lambda x: dequantize(input=quantize(input=x, scale=0.05, zero_point=128), scale=0.05, zero_point=128).relu(),
        (V,),
    ),
    "quantize to 7 bits": (
        lambda x: dequantize(
            input=quantize(input=x, scale=0.05, zero_point=20, highest=127), scale=0.05, zero_point=20, highest=127
        ).relu(),
        (V,),
    ),
    "dequantize_channels": (stored(), (V,)),
    "tensors created like another": (
        lambda x: x * 2 + x.new_zeros(8) + x.new_ones(8) + torch.full_like(x, 2) * torch.ones_like(x)
        - torch.zeros_like(x),
        (V,),
    ),
    "tensors created from numbers": (
        lambda x: x * 2 + x.new_full((x.size(1),), 3.5) + torch.zeros(x.shape[-1]) + torch.arange(x.size(-1))
        + torch.ones(x.size(1)) * torch.full((x.size(1),), 0.5),
        (V,),
    ),
    "with_items": (
        lambda x: x * 2 + with_items(with_items(x.new_zeros(8), slice(1, -2), 3), (slice(-2, None),), x.size(1)), (V,),
    ),
    "all and any": (lambda x: (x > -1).all(-1, keepdim=True) & (x > 1).any(1, keepdim=True) & (x > 9).any(), (V,)),
    "recurrent": (recurrence("LSTM", 4, num_layers=2, bidirectional=True), (M,)),
    "recurrent by batch": (recurrence("GRU", 3, batch_first=True), (M,)),
    "recurrent of one sequence": (recurrence("RNN_RELU", 1, has_biases=False), (V,)),
}  # fmt: skip


def inputs_of(case: Case) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in case[1])


def traced(function: Callable[..., Any], count: int) -> fx.GraphModule:
    """The program of a function of one or two tensors, whatever its parameters are called."""
    if isinstance(function, fx.GraphModule):
        return function
    return fx.symbolic_trace((lambda x: function(x)) if count == 1 else (lambda x, y: function(x, y)))


@pytest.mark.parametrize("name", CASES)
def test_a_network_equals_the_program(name: str) -> None:
    function, shapes = CASES[name]
    inputs = inputs_of(CASES[name])
    program = traced(function, len(shapes))
    lowered = fx.lower(program, TakesAll(emulate=True), inputs)
    assert lowered.meta["lowering"].refused == (), str(lowered.meta["lowering"])
    assert len(lowered.meta["lowering"].parts) == 1
    torch.testing.assert_close(lowered(*inputs), program(*inputs), rtol=1e-4, atol=1e-5)


NO_BATCH = {
    "topk of a vector",
    "arithmetic of sizes",
    "expand to more dimensions",
    "getitem of a row",
    "conv2d with a computed weight",
    "squeeze all",
    "tensors created like another",
}
VARYING = [
    name
    for name, (_, shapes) in CASES.items()
    if name not in {*ACTIVATIONS, *UNARY.split(), *LIMITED, *NO_BATCH} and len({shape[0] for shape in shapes}) == 1
]


@pytest.mark.parametrize("name", VARYING)
def test_a_network_for_varying_batches_equals_the_program(name: str) -> None:
    function, shapes = CASES[name]
    inputs = inputs_of(CASES[name])
    program = traced(function, len(shapes))
    ranges = {input_name: {0: (2, 9)} for input_name, _ in zip("xy", shapes, strict=False)}
    lowered = fx.lower(program, TakesAll(emulate=True, ranges=ranges), inputs)
    assert len(lowered.meta["lowering"].parts) == 1, str(lowered.meta["lowering"])
    for batch in (2, 9):
        others = tuple(torch.randn(batch, *shape[1:]) for shape in shapes)
        torch.testing.assert_close(lowered(*others), program(*others), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(find_library(), "ComputeCapability"), reason="tensorrt builds for the GPU here only")
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_tensorrt_builds_every_converters_layers(precision: Any) -> None:
    by_shapes: dict[tuple[Any, ...], list[Callable[..., Any]]] = {}
    for function, shapes in CASES.values():
        by_shapes.setdefault(shapes, []).append(function)
    for shapes, functions in by_shapes.items():
        functions = [function for function in functions if not isinstance(function, fx.GraphModule)]
        program = traced(lambda *values, all_of=functions: tuple(function(*values) for function in all_of), len(shapes))
        inputs = tuple(torch.randn(shape) for shape in shapes)
        lowered = fx.lower(program, TensorRT(targets=("8.6",), precision=precision), inputs, min_size=1)
        assert len(lowered.meta["lowering"].parts) == 1


def test_every_converter_has_a_case() -> None:
    used: set[Any] = set()
    for function, shapes in CASES.values():
        form = canonical_form(traced(function, len(shapes))).graph_module
        used |= {node.target for node in form.graph.nodes if node.op == "call_function"}
    assert [converter.target for converter in TensorRT.converters if converter.target not in used] == []
