"""Programs about operators, indexing, methods and tensor functions."""

from __future__ import annotations

import math
from math import floor

import torch
import torch.nn.functional as functional

from .programs import given, integers, mask, matrix, program, square, vector

CONSTANT = torch.linspace(0.0, 1.0, 6)
OTHER_CONSTANT = torch.full((6,), 2.0)


@program(vector, vector)
def arithmetic(x, y):
    return x + y - x * y / 2 + (x % 3) + (x // 2) - x**2


@program(vector)
def reflected_arithmetic(x):
    return (1 + x) + (1 - x) + (2 * x) + (3 / x) + (7 // x) + (7 % x) + 2**x


@program(square, square)
def matrix_product(x, y):
    return x @ y @ CONSTANT[:3].reshape(3, 1)


@program(vector)
def unary(x):
    return abs(-x) + (+x)


@program(mask, integers)
def inversion(x, y):
    return ~x, ~y


@program(vector, vector)
def comparisons(x, y):
    return x == y, x != 1, x < y, x <= 0, x > y, x >= 0.5, 1 < x  # noqa: SIM300


@program(integers, integers)
def bitwise(x, y):
    return (x & y) | (x ^ 3), x << 2, y >> 1, 5 & x, 1 | x, 6 ^ x, 1 << x, 64 >> y


@program(vector, vector)
def augmented(x, y):
    x += y
    x *= 2
    x -= 1
    x /= y
    x **= 2
    return x


@program(vector)
def in_place_methods(x):
    y = x.clone()
    y.add_(1).mul_(x)
    return y


@program(matrix)
def indexing(x):
    return x[0], x[-1, 2], x[1:3], x[:, ::2], x[..., 0], x[None], x[[0, 2]], x[(1, 2)], x[True], x[range(2)]


@program(matrix)
def indexing_by_values(x):
    rows = x.shape[0]
    return x[: rows - 1], x[rows - 1], x[x > 1.0], x[:, : x.size(1) // 2], x[1 : x.size(0) : 2, None]


@program(integers)
def index_of_constant(x):
    return CONSTANT[x - 1], CONSTANT[None, x - 1]


@program(vector)
def constants_on_either_side(x):
    return x + CONSTANT, CONSTANT + x, CONSTANT - x, torch.add(CONSTANT, x), torch.cat([x, CONSTANT, OTHER_CONSTANT])


@program(vector)
def unnamed_constants(x):
    return x * torch.ones(6) + torch.arange(6) - torch.tensor(2.0)


@program(matrix)
def shape_reads(x):
    rows, columns = x.shape
    return x.reshape(columns, rows), x.view(x.size(0), -1), x.shape[1], x.size(), x.dim(), x.numel()


@program(matrix)
def attributes(x):
    return x.T, x.mT, x.dtype, x.device, x.ndim, x.is_cuda, x.T.shape


@program(matrix)
def attribute_order(x):
    shape = x.shape
    y = x + 1
    return y.reshape(shape[1], shape[0])


@program(matrix)
def methods(x):
    return x.neg().relu().sum(dim=1, keepdim=True).expand(-1, 2).contiguous().to(torch.float64)


@program(matrix)
def keyword_arguments(x):
    return torch.sum(x, dim=1, keepdim=True), torch.clamp(x, min=0.5, max=1.5), torch.softmax(input=x, dim=-1)


@program(matrix)
def pooled_statistics(x):
    values, indices = torch.max(x, dim=1)
    deviation, mean = torch.std_mean(x, dim=0)
    return values, indices, deviation, mean, x.max(dim=1).values


@program(matrix)
def unpacking(x):
    left, middle, right = x.chunk(3, dim=1)
    (first, second), third = torch.split(left, 2, dim=0), middle
    return first - second, third * right


@program(matrix)
def parts_by_index(x):
    parts = torch.chunk(x, 2, dim=0)
    return parts[1] - parts[0], parts[0:1][0]


@program(vector, vector)
def several_tensors(x, y):
    return torch.cat([x, y]), torch.stack((x, y), dim=1), torch.cat(tensors=[x, y, x]), torch.where(x > y, x, y)


@program(matrix)
def types_and_devices(x):
    y = x.to(torch.float16).to(torch.device("cpu"), torch.float32)
    return y, x.to(dtype=torch.int64), x.type(torch.float64), x.to("cpu"), torch.zeros_like(x, dtype=torch.bool)


@program(given(torch.linspace(0, 1, 16).reshape(1, 2, 2, 4)))
def memory_formats(x):
    return x.contiguous(memory_format=torch.channels_last), torch.empty_like(x).to(
        memory_format=torch.channels_last
    ).shape


@program(matrix)
def factories(x):
    return (
        torch.arange(x.size(0)),
        torch.zeros((x.shape[0], 2), device=x.device),
        x.new_ones(2, x.size(1)),
        torch.full_like(x, 3.0),
        torch.ones(3, dtype=torch.int32),
        torch.eye(x.shape[0]),
    )


@program(vector)
def odd_floats(x):
    low, high = float("-inf"), float("inf")
    return torch.clamp(x, low, high), torch.nan_to_num(x, nan=float("nan")), x * 1e-30, x + 0.1, x * 1j, x - (2 - 3j)


@program(vector)
def big_and_odd_constants(x):
    return x + 10**10, x * -0.0, x * True, torch.add(x, 1, alpha=-3)


@program(matrix)
def functionals(x):
    y = functional.relu(x)
    y = functional.gelu(y, approximate="tanh")
    y = functional.layer_norm(y, [6])
    y = functional.dropout(y, 0.3, training=False)
    y = functional.leaky_relu(y, negative_slope=0.2)
    return functional.softmax(y, dim=1), functional.linear(y, y), functional.pad(y, (1, 2), value=2.0)


@program(matrix)
def whole_python_functionals(x):
    y = functional.interpolate(x[None], scale_factor=2.0)
    return functional.normalize(y, dim=1), functional.cosine_similarity(x, x), functional.one_hot(x.long(), 5)


@program(given(torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)))
def convolution_functionals(x):
    weight = torch.linspace(-1, 1, 5 * 3 * 3 * 3).reshape(5, 3, 3, 3)
    y = functional.conv2d(x, weight, None, stride=2, padding=(1, 1))
    return functional.max_pool2d(y, 2), functional.adaptive_avg_pool2d(y, (1, None)), torch.conv2d(x, weight)


@program(matrix)
def overloads(x):
    return torch.ops.aten.add.Tensor(x, 1), torch.ops.aten.relu.default(x), torch.ops.aten.sum.dim_IntList(x, [0], True)


@program(square)
def equations(x):
    return torch.einsum("ij,jk->ik", x, x), torch.einsum("ii", x), torch.linalg.norm(x, ord=2), torch.fft.fft(x)


@program(vector)
def mathematics(x):
    scale = math.sqrt(4.0)
    return x * scale, x * math.pi, math.floor(x.shape[0] / 4), floor(x.size(0) / 4), math.sqrt(x.numel())


@program(vector)
def names_clash(x):
    y = torch.sum(x) + torch.max(x) + torch.abs(x).sum() + torch.min(x) + x.pow(2).all() + x.any()
    return torch.relu(y) + torch.relu(torch.relu(y)) + x.type(torch.float32).sum()


@program(matrix)
def nested_arguments(x):
    return (
        torch.ops.aten.index.Tensor(x, [None, x[0].long()]),
        torch.cat([x, x.split(2)[0], x]),
        x.view(torch.Size([24])),
    )


@program(vector)
def explicit_magic_methods(x):
    return x.__add__(2), x.__getitem__(0), x.__radd__(1), x.__neg__()
