"""Programs that write to memory, captured with ``check_mutable_operations``: each must be refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .programs import program, rows


def refused(definition):
    return program(rows, must_refuse=True, check_mutable_operations=True)(definition)


@refused
def in_place_method(x):
    return x.add_(1)


@refused
def in_place_function(x):
    return torch.relu_(x)


@refused
def item(x):
    x[0] = 1
    return x


@refused
def item_augmented(x):
    x[0] += 1
    return x


@refused
def copied_into(x):
    y = torch.zeros(6)
    y.copy_(x[0])
    return y


@refused
def flag(x):
    return F.relu(x, inplace=True)


@refused
def flag_by_position(x):
    return F.relu(x * 2, True)


@refused
def flag_of_dropout(x):
    return F.dropout(x, 0.5, True, True)


@refused
def out(x):
    y = torch.empty(2, 6)
    return torch.add(x, 1, out=y)


@refused
def filled(x):
    x.fill_(2)
    return x


@refused
def zeroed_through_attribute(x):
    x.data.zero_()
    return x


@refused
def scattered(x):
    return x.scatter_(0, torch.zeros(1, 6, dtype=torch.long), 1.0)


@refused
def index_put(x):
    return x.index_put_((torch.tensor([0]),), torch.tensor(1.0))


@refused
class LeafInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(x)


@refused
class BufferInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x


@refused
def input_augmented(x):
    x += 1
    return x


@refused
def view_augmented(x):
    y = x * 2
    z = y[1:]
    z *= 3
    return y


@program(rows, check_mutable_operations=True)
def augmented_where_nobody_can_tell(x):
    y = x * 2
    y += 1
    return y


@program(rows, check_mutable_operations=True)
def reads_only(x):
    y = x * 2
    return y.relu() + F.dropout(y, 0.0, False)
