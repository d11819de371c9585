"""Programs that compute with sizes in Python: unpacked, counted, rounded, compared, put into messages and tensors."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .programs import images, longer, one_liners, other_rows, program, rows, sequences

one_liners(
    sequences,
    starred_shape_front=lambda x: x.reshape(*x.shape[:-1], 2, 3),
    starred_shape_back=lambda x: x.reshape(-1, *x.shape[2:]),
    shape_tuple_added=lambda x: x.view(x.shape[:-1] + (3, 2)).sum(-1),
    shape_tuple_before=lambda x: torch.ones((1,) + x.shape[1:]) * x,
    tuple_of_shape=lambda x: torch.ones(tuple(x.shape)) * x,
    math_product_of_shape=lambda x: x.reshape(-1, math.prod(x.shape[1:])),
    shape_by_comprehension=lambda x: x.new_ones([1 if index else size for index, size in enumerate(x.shape)]) + x,
    length_of_shape=lambda x: x.sum(dim=list(range(1, len(x.shape)))),
    length_of_tensor=lambda x: x.sum() / len(x),
    looped_over_tensor=lambda x: sum(one.sum() for one in x),
    transposed_by_class=lambda x: torch.Tensor.transpose(x, 1, 2).contiguous(),
    unbound_spread=lambda x: torch.stack([*x.unbind(1)]),
    unbound_spread_in_call=lambda x: torch.cat((*x.unbind(1),), -1),
    unbound_spread_in_function=lambda x: _added(*x.unbind(1)),
)


one_liners(
    images,
    starred_shape_list=lambda x: x.new_zeros([*x.shape[:2], 1, 1]) + x,
    starred_whole_shape=lambda x: torch.zeros(*x.shape) + x,
    starred_spatial=lambda x: F.avg_pool2d(x, kernel_size=[*x.shape[2:]]),
    ceiled_size=lambda x: F.pad(x, (0, math.ceil(x.shape[-1] / 3) * 3 - x.shape[-1])),
    interpolated_to_sizes=lambda x: F.interpolate(x, size=(x.shape[-2] * 2, int(x.shape[-1] * 2))),
)


@program(sequences)
def starred_in_names(x):
    *batch, features = x.shape
    return x.reshape(batch[0] * batch[1], features)


@program(sequences)
def starred_in_names_first(x):
    batch, *rest = x.shape
    return x.reshape(batch, rest[0] * rest[1])


@program(sequences)
def head_split(x):
    x = x.view(*x.size()[:-1], 3, 2)
    return x.permute(0, 2, 1, 3)


@program(sequences)
def list_of_shape(x):
    shape = list(x.shape)
    shape[-1] = 1
    return torch.ones(shape) * x


@program(sequences)
def product_of_shape(x):
    count = 1
    for size in x.shape[1:]:
        count *= size
    return x.reshape(-1, count)


@program(sequences)
def enumerated_shape(x):
    for index, size in enumerate(x.shape):
        x = x + index * size
    return x


@program(sequences)
def zipped_shapes(x):
    y = x.relu()
    return x * sum(a * b for a, b in zip(x.shape, y.shape))


one_liners(
    rows,
    chunks_starred=lambda x: torch.add(*x.chunk(2, dim=-1)),
    chunks_enumerated=lambda x: torch.cat([part * index for index, part in enumerate(x.chunk(3, -1))], -1),
    chunks_reversed=lambda x: torch.cat(list(reversed(x.chunk(2, -1))), -1),
    split_sections=lambda x: [part.sum() for part in x.split([1, 2, 3], dim=-1)],
    split_by_size_looped=lambda x: [part * 2 for part in x.split(2, dim=-1)],
    split_by_size_of_batch=lambda x: [part * 2 for part in x.split(2)],
    tensor_split_looped=lambda x: sum(part.sum() for part in torch.tensor_split(x, 2, dim=-1)),
    integer_of_size=lambda x: x * int(x.shape[0]),
    integer_of_half_size=lambda x: x[: int(x.shape[0] * 0.5)],
    float_of_size=lambda x: x / float(x.shape[-1]),
    square_root_of_size=lambda x: x / math.sqrt(x.size(-1)),
    rounded_size=lambda x: x * round(x.shape[0] * 1.3),
    rounded_size_digits=lambda x: x * round(x.shape[0] / 3, 2),
    absolute_size=lambda x: x * abs(x.shape[0] - 10),
    sum_of_shape=lambda x: x + sum(x.shape),
    largest_of_shape=lambda x: x + max(x.shape),
    larger_size=lambda x: x + max(x.shape[0], 3),
    smaller_size=lambda x: x[: min(3, x.shape[0])],
    smaller_of_sizes=lambda x: x * min(x.size(0), x.size(1)),
    range_of_size=lambda x: sum(x[index] for index in range(x.shape[0])),
    arange_of_size=lambda x: x + torch.arange(x.shape[0]).unsqueeze(1),
    tensor_of_size=lambda x: x / torch.tensor(x.shape[0]),
    tensor_of_sizes=lambda x: x.sum() / torch.tensor([x.shape[0], x.shape[1]], dtype=torch.float32),
    tensor_of_shape=lambda x: x.sum() + torch.tensor(x.shape),
    as_tensor_of_size=lambda x: x * torch.as_tensor(x.shape[0], dtype=x.dtype),
    as_tensor_of_tensor=lambda x: torch.as_tensor(x) + 1,
    as_tensor_with_dtype=lambda x: torch.as_tensor(x, dtype=torch.float64) + 1,
    tensor_full=lambda x: torch.full((x.shape[0],), 2.0) + x.sum(),
    method_of_class=lambda x: torch.Tensor.flatten(torch.Tensor.relu(x)),
    linspace_of_size=lambda x: torch.linspace(0, 1, x.shape[0]).unsqueeze(-1) + x,
    numpy_default=lambda x, scale=np.float32(2): x * scale,
    numpy_number=lambda x: x.reshape(-1, np.prod((2, 3))).sum(dim=np.int64(1)) * np.float32(0.5),
    numpy_index=lambda x: x[np.int64(1)] + x[:, np.int64(0) : np.int64(1)].sum(),
    numpy_number_returned=lambda x: (x + 1, np.float32(2)),
    numpy_number_squared=lambda x: x * np.sqrt(np.float64(6)) / np.pi,
    numpy_number_first=lambda x: np.float32(2) * x + np.int64(3) * x.shape[0],
    numpy_number_compared=lambda x: torch.where(np.float32(0.5) < x, x, -x),
    numpy_product_of_shape=lambda x: x.view(-1, np.prod(x.shape[1:])) * np.prod([x.shape[0], 2]),
    numpy_function=lambda x: torch.as_tensor(np.asarray(x.detach()) * 2),
    numpy_array_of_tensor=lambda x: x * float(np.array(x.detach()).max()),
    list_sliced=lambda x: x * len([1, 2, 3, 4, 5, 6][: x.size(0)]),
)


@program(rows)
def chunks_listed(x):
    parts = list(x.chunk(3, dim=-1))
    parts[0] = parts[0] * 2
    return torch.cat(parts, -1)


@program(rows)
def chunks_looped(x):
    total = 0
    for part in x.chunk(3, dim=1):
        total = total + part.relu()
    return total


@program(rows, other_rows)
def chunks_zipped(x, y):
    return sum(a * b for a, b in zip(x.chunk(2, -1), y.chunk(2, -1)))


@program(rows)
def chunks_mapped(x):
    a, b = map(torch.sigmoid, x.chunk(2, -1))
    return a - b


@program(rows)
def chunks_counted(x):
    parts = x.chunk(2, -1)
    return parts[len(parts) - 1]


@program(rows)
def split_starred(x):
    first, *rest = x.split([1, 2, 3], dim=-1)
    return first, torch.cat(rest, -1)


@program(longer)
def unbind_of_varying(x):
    hidden = torch.zeros(6)
    for step in x.unbind(1):
        hidden = torch.tanh(hidden + step)
    return hidden


@program(rows)
def divided_size(x):
    q, r = divmod(x.shape[0], 2)
    return x * q + r


@program(rows)
def size_in_message(x):
    if x.shape[1] != 6:
        raise ValueError(f"expected 6, got {x.shape[1]:d} of {tuple(x.shape)}")
    return x + 1


@program(rows)
def size_in_assert_message(x):
    assert x.shape[-1] == 6, f"wrong width {x.shape[-1]:>4}"
    return x * 2


@program(sequences)
def assert_dim_in(x):
    assert x.dim() in (2, 3)
    return x + 1


@program(sequences)
def assert_dim_in_with_message(x):
    assert x.ndim in {3, 4}, f"expected 3 or 4 dimensions, got {x.ndim}"
    return x + 1


@program(sequences)
def raise_unless_dim_in(x):
    if x.dim() not in (2, 3):
        raise ValueError(f"wrong number of dimensions {x.dim()}")
    return x.relu()


@program(sequences)
def assert_shape_tuple(x):
    assert x.shape[1:] == (4, 6), "wrong shape"
    return x + 1


@program(rows, other_rows)
def assert_same_shape(x, y):
    assert x.shape == y.shape
    return x + y


@program(rows, other_rows)
def assert_sizes_equal(x, y):
    assert (x.size(0), x.size(1)) == (y.size(0), 6)
    return x + y


@program(rows)
def assert_size_between(x):
    assert 1 <= x.shape[0] <= 100
    return x + 1


@program(rows)
def assert_isinstance(x):
    assert isinstance(x, torch.Tensor) and x.dim() == 2
    return x + 1


@program(rows)
def assert_divisible(x):
    assert x.shape[-1] % 3 == 0, "not divisible"
    return x.reshape(x.shape[0], x.shape[-1] // 3, 3)


@program(images)
def grid_of_sizes(x):
    height, width = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return x + ys + xs


@program(sequences)
def causal_mask(x):
    n = x.size(1)
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
    return (x @ x.transpose(-1, -2)).masked_fill(mask, float("-inf")).softmax(-1)


@program(rows)
def constant_expanded(x):
    return x.unsqueeze(2) + torch.arange(4.0).expand(x.size(0), 6, 4) + torch.zeros(1).new_ones(x.shape[0], 1, 1)


@program(rows)
class BufferRepeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x):
        rows = self.table.repeat(x.size(0), 1).sin() * torch.ones(2).tile(x.size(0), 3)
        return x + rows


@program(rows)
def constant_sliced(x):
    return x + torch.arange(40.0).reshape(-1, 1)[: x.size(0)] + torch.eye(9)[: x.shape[0], -x.size(1) :]


@program(rows)
def constant_written(x):
    mask = torch.zeros(9, 6)
    mask[: x.size(0)] = 1
    return x * mask[: x.size(0)]


@program(sequences)
def starred_rest_unused(x):
    batch, *_ = x.shape
    return x.reshape(batch, -1)


@program(sequences)
def starred_front_unused(x):
    *_, features = x.shape
    return x.reshape(-1, features)


@program(sequences)
def starred_middle_unused(x):
    batch, *_, features = x.size()
    return x.new_ones(batch, features)


@program(sequences)
def starred_rest_spread(x):
    batch, *rest = x.shape
    return x.new_ones(batch, *rest)


@program(sequences)
def unbound_rest_unused(x):
    first, *_ = x.unbind(1)
    return first * 2


@program(sequences)
def unbound_rest(x):
    first, *rest = x.unbind(1)
    return first + rest[0]


def _added(*parts):
    return sum(parts)


@program(rows)
def chunks_rest(x):
    first, *rest = torch.chunk(x, 3, dim=1)
    return first + rest[0] + rest[1]


@program(rows)
def chunks_rest_of_batch(x):
    first, *rest = torch.chunk(x, 3)
    return [first, *rest]


@program(rows)
def split_rest(x):
    first, *rest = x.split(2, dim=1)
    return [first, *rest]


@program(rows)
def split_rest_unused(x):
    first, *_ = torch.split(x, 2, dim=1)
    return first


@program(rows)
def split_of_batch_rest_unused(x):
    first, *_, last = torch.split(x, 1)
    return first + last


@program(sequences)
def sizes_and_heads(x):
    b, n, _, h = *x.shape, 2
    return x.reshape(b, n, h, -1)
