"""Programs that ask for sizes, lengths, classes and dtypes in ways that only example inputs answer."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from .programs import flags, given, images, longer, one_liners, other_rows, rows, sequences, tokens
from .programs import program as any_program

program = functools.partial(any_program, guided=True)


@program(sequences)
class UnrolledRecurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(12, 6)

    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        for step in range(x.size(1)):
            h = torch.tanh(self.cell(torch.cat([x[:, step], h], -1)))
        return h


@program(sequences)
def steps_unbound(x):
    total = 0
    for step in x.unbind(1):
        total = total + step.relu()
    return total


@program(sequences)
def steps_enumerated(x):
    return torch.stack([part * place for place, part in enumerate(x.transpose(0, 1))])


@program(images)
class WindowsPadded(nn.Module):
    window = 3

    def forward(self, x):
        b, c, h, w = x.shape
        right, bottom = -w % self.window, -h % self.window
        if right > 0 or bottom > 0:
            x = F.pad(x, (0, right, 0, bottom))
        h, w = x.shape[-2:]
        x = x.view(b, c, h // self.window, self.window, w // self.window, self.window)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, self.window * self.window, c)


@program(images)
class PositionsResized(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 3, 4, 4))

    def forward(self, x):
        if x.shape[-2:] != self.positions.shape[-2:]:
            return x + F.interpolate(self.positions, size=x.shape[-2:], mode="bilinear")
        return x + self.positions


@program(images)
class SkipOfAnotherSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 3, 3, stride=3)
        self.up = nn.ConvTranspose2d(3, 3, 3, stride=3)

    def forward(self, x):
        y = self.up(self.down(x))
        dy, dx = x.size(2) - y.size(2), x.size(3) - y.size(3)
        if dy or dx:
            y = F.pad(y, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return torch.cat([x, y], 1)


@program(images)
def same_padding(x):
    pads = [max((math.ceil(size / 3) - 1) * 3 + 5 - size, 0) for size in x.shape[-2:]]
    if any(pad > 0 for pad in pads):
        x = F.pad(x, [pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2])
    return F.avg_pool2d(x, 5, 3)


@program(rows)
def batch_dimension_added(x):
    added = x.dim() == 2
    if added:
        x = x.unsqueeze(0)
    x = x * 2
    return x.squeeze(0) if added else x


@program(rows)
def dimension_asserted_in_set(x):
    assert x.dim() in {2, 3}, "wants a matrix"
    return x.flatten(1)


one_liners(
    rows,
    guided=True,
    strategy_by_dimension=lambda x: {1: torch.sum, 2: torch.mean}[x.ndim](x, -1),
    elements_by_product=lambda x: x.reshape(-1) / math.prod(x.shape[1:]),
    sizes_sorted=lambda x: x * sorted(x.shape[1:])[0],
    last_sizes_zipped=lambda x: [part * size for part, size in zip(x.split(3, 1), x.shape[1:] * 2, strict=True)],
    on_device_type=lambda x: x.half() if x.device.type == "cuda" else x + 1,
)


@program(rows)
def matched_shape(x):
    match x.shape:
        case (_, 6):
            return x * 6
        case (_, _, 6):
            return x * 36
    return x


@program(rows)
def sizes_in_list(x):
    sizes = list(x.shape)
    sizes[0] = -1
    return x.reshape(sizes + [1]) if sizes[1] % 2 == 0 else x


@program(rows)
def half_in_eighth(x):
    width = x.shape[1]
    while width > 2:
        width = width // 2
        x = x[:, :width] + x[:, width : 2 * width]
    return x


@program(rows)
def dtype_low(x):
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float().softmax(-1).to(x.dtype)
    return x.softmax(-1)


@program(rows)
def limit_by_dtype(x):
    limits = {torch.float16: 1e4, torch.float32: 1e9}
    return x.clamp(-limits[x.dtype], limits[x.dtype])


@program(tokens)
def ids_or_features(x):
    if not x.is_floating_point():
        return F.one_hot(x, 10).float()
    return x


@program(rows)
def made_contiguous(x):
    y = x.t()
    if not y.is_contiguous():
        y = y.contiguous()
    return y.view(-1)


@program(rows)
def trained_if_asked(x):
    y = x * 2
    return y.detach() if not y.requires_grad else y


@program(rows, given(None))
def optional_residual(x, residual):
    return x + residual if residual is not None else x


@program(rows, given("mean"))
def reduction_by_name(x, reduction):
    if reduction == "mean":
        return x.mean()
    if reduction == "sum":
        return x.sum()
    return x


@program(rows, given(True))
def flag_input(x, normalize):
    return F.normalize(x) if normalize else x


@program(rows, given(2))
def repeats_input(x, times):
    for _ in range(times):
        x = x.tanh()
    return x


@program(lambda size: [rows(size), other_rows(size)])
def list_of_tensors(inputs):
    result = inputs[0]
    for one in inputs[1:]:
        result = result * one
    return result / len(inputs)


@program(lambda size: {"x": rows(size), "scale": 2.0, "mask": None})
def dict_of_batch(batch):
    x = batch["x"] * batch.get("scale", 1.0)
    if batch.get("mask") is not None:
        x = x * batch["mask"]
    return {name: x for name in batch if name != "mask"}


@program(rows, lambda size: (rows(size), (other_rows(size), None)))
def nested_state(x, state):
    first, (second, third) = state
    x = x + first * second
    return x if third is None else x + third


@program(sequences, flags)
class AttentionWithMask(nn.Module):
    heads = 2

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask.dim() == 2:
            mask = mask[:, None, None, :]
        elif mask.dim() == 3:
            mask = mask[:, None]
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)


@program(longer)
class RotaryCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cosine", torch.linspace(0, 1, 8)[:, None].cos().expand(8, 6).clone())

    def forward(self, x):
        n = x.shape[1]
        if n > self.cosine.shape[0]:
            raise ValueError("too long")
        return x * self.cosine[:n] if n <= len(self.cosine) else x


@program(sequences)
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.gate = nn.Linear(6, 3)

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        result = torch.zeros_like(x)
        for place in range(weights.shape[-1]):
            result = result + weights[..., place : place + 1] * self.experts[place](x)
        return result


@program(images)
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        levels = []
        while min(x.shape[-2:]) >= 2:
            levels.append(self.conv(x))
            x = F.max_pool2d(x, 2)
        top = levels.pop()
        for level in reversed(levels):
            top = F.interpolate(top, size=level.shape[-2:]) + level
        return top


@program(images)
def channels_shuffled(x):
    b, c, h, w = x.size()
    if c % 3 == 0:
        x = x.view(b, 3, c // 3, h, w).transpose(1, 2).reshape(b, c, h, w)
    return x


@program(images)
def global_pool_kernel(x):
    kernel = (int(x.shape[2]), int(x.shape[3]))
    return F.avg_pool2d(x, kernel) if kernel[0] > 1 else x


@program(rows)
def class_of_result(x):
    parts = x.max(-1)
    if isinstance(parts, tuple):
        return parts[0] - parts[1]
    return parts


@program(rows)
def number_or_tensor(x):
    size = x.shape[1]
    return x * size if isinstance(size, int) else x / size


@program(rows, rows)
def shapes_compared(x, y):
    if x.shape == y.shape:
        return x * y
    return x @ y.t()


@program(rows, other_rows)
def broadcast_by_hand(x, y):
    while y.dim() < x.dim() + 1:
        y = y.unsqueeze(-1)
    return x.unsqueeze(-1) * y


@program(rows)
def table_by_size(x):
    names = ["none", "one", "two", "three", "four", "five", "six"]
    return x * len(names[x.shape[1]])


@program(rows)
def halves_of_columns(x):
    columns = x.shape[1]
    order = [*range(0, columns, 2), *range(1, columns, 2)]
    return x[:, order]


@program(rows)
def sum_of_sizes_free(x):
    total = sum(x.shape)
    return x + total if x.shape[-1] == 6 else x


@program(rows)
def caught_by_the_program(x):
    try:
        count = range(x.shape[1])
    except TypeError:
        return x
    return x * len(count)
