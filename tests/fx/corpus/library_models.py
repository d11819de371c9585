"""Models of libraries: their functions call others, of other files, which ask what they are given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .library_masks import applied, mean_of_rows, needed, positions_of, shared
from .library_outputs import Scaling
from .programs import flags, one_liners, program, rows, sequences, tokens


@program(sequences, flags)
class AttentionWithoutMaskWhereAllCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 18)

    def forward(self, x, mask):
        query, key, value = self.project(x).chunk(3, -1)
        mask = needed(mask)
        if mask is not None:
            mask = mask[:, None, :] | torch.eye(4, dtype=torch.bool)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@program(sequences, flags)
def mask_told_from_number(x, mask):
    return applied(x, mask[:, :, None])


one_liners(
    rows,
    mean_by_length=lambda x: mean_of_rows(x),
    shared_by_size=lambda x: shared(x),
    scaled_by_an_object=lambda x: Scaling(0.5)(x),
)


@program(tokens)
class TypesAndPositionsFromBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.types, self.places = nn.Embedding(10, 6), nn.Embedding(2, 6), nn.Embedding(8, 6)
        self.register_buffer("positions", torch.arange(8)[None], persistent=False)
        self.register_buffer("type_numbers", torch.zeros(1, 8, dtype=torch.int64), persistent=False)

    def forward(self, x, offset=0):
        batch, length = x.size()
        places = self.positions[:, offset : length + offset]
        types = self.type_numbers.expand(places.shape[0], -1).gather(1, places).expand(batch, length)
        return self.words(x) + self.types(types) + self.places(places) + positions_of(x, offset)[:, None]


@program(sequences, guided=True)
class AttentionInFullPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 12)

    def forward(self, x):
        key, value = self.project(x).chunk(2, -1)
        if x.device.type != "meta":
            with torch.autocast(device_type=x.device.type, enabled=False):
                return F.pad(value, (0, 1), value=1.0).transpose(1, 2) @ F.relu(key)
        return value


@program(sequences, guided=True)
class BiasesByDevice(nn.Module):
    scales = {"cpu": 0.5, "cuda:0": 1.0}

    def forward(self, x):
        key = str(x.device)
        if key not in self.scales:
            return x
        return x * self.scales[key] if f"{x.dtype}".startswith("torch.float") else x
