"""Programs that compute from buffers and parameters alone, write to them, or hold them under several names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .programs import Layered, images, program, rows, sequences, tokens


@program(images)
class FrozenBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(3))
        self.register_buffer("bias", torch.zeros(3))
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))

    def forward(self, x):
        w = self.weight.reshape(1, -1, 1, 1)
        b = self.bias.reshape(1, -1, 1, 1)
        rv = self.running_var.reshape(1, -1, 1, 1)
        rm = self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


@program(rows)
class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.linspace(-1, 1, 24).reshape(4, 6))

    def forward(self, x):
        codes = F.normalize(self.codes, dim=-1)
        distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ codes.t() + codes.pow(2).sum(1)
        return codes[distance.argmin(1)]


@program(sequences)
class RelativeBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 14).reshape(7, 2))
        index = torch.arange(4)[:, None] - torch.arange(4)[None] + 3
        self.register_buffer("index", index)

    def forward(self, x):
        bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous()
        scores = x @ x.transpose(1, 2)
        return scores.unsqueeze(1) + bias.unsqueeze(0)


@program(sequences)
class CausalMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 8, 8))

    def forward(self, x):
        scores = x @ x.transpose(1, 2)
        length = x.size(1)
        return scores.masked_fill(self.mask[:, :length, :length] == 0, float("-inf")).softmax(-1)


@program(sequences)
class FixedMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        mask = self.mask[:4, :4] == 0
        return (x @ x.transpose(1, 2)).masked_fill(mask, -1e9).softmax(-1)


@program(rows)
class PlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(1, 2, 6)

    def forward(self, x):
        return x * (self.scale * 2)


@program(rows)
class ParameterAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36).reshape(6, 6))

    def forward(self, x):
        return x @ (self.weight / self.weight.norm(dim=1, keepdim=True))


@program(rows)
class BufferResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x):
        return x, self.table * 2, self.table


@program(rows)
class BufferRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(18.0).reshape(3, 6))

    def forward(self, x):
        for row in self.table:
            x = x + row
        return x


@program(rows)
class BufferChunks(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(12.0))

    def forward(self, x):
        return x * sum(self.table.chunk(2)) + self.table.split(6)[1]


@program(rows)
class BufferLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(18.0).reshape(3, 6))

    def forward(self, x):
        for index in range(len(self.table)):
            x = x + self.table[index]
        return x * self.table.shape[0] + self.table.numel()


@program(rows)
class BufferItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return x * self.scale.item()


@program(rows)
class BufferBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("enabled", torch.tensor(True))

    def forward(self, x):
        if self.enabled:
            return x * 2
        return x


@program(rows)
class BufferBranchOnValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        if self.scale > 2.1:
            return x * self.scale
        return x


@program(rows)
class BufferList(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("levels", torch.tensor([2, 3]))

    def forward(self, x):
        return torch.stack([x * level for level in self.levels.tolist()])


@program(rows)
class BufferFloat(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return x * float(self.scale)


@program(rows)
class BufferNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x):
        return x * torch.from_numpy(self.table.numpy() * 2)


@program(rows)
class BufferNonzero(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 0, 1, 1]))

    def forward(self, x):
        return x[:, self.mask.nonzero().squeeze(-1)]


@program(rows)
class BufferMaskIndex(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, False, True, True]))
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x):
        return x[:, self.mask] * self.table[self.mask]


@program(tokens)
class EmbeddedPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.positions = nn.Embedding(8, 6)
        self.register_buffer("position_ids", torch.arange(8).expand((1, -1)), persistent=False)

    def forward(self, ids):
        return self.words(ids) + self.positions(self.position_ids[:, : ids.size(1)])


@program(tokens)
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


@program(rows)
class TiedModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.decoder = self.encoder

    def forward(self, x):
        return self.decoder(self.encoder(x).relu())


@program(rows)
class TiedInList(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.Linear(6, 6)
        self.layers = nn.ModuleList([layer, layer, nn.Linear(6, 6)])
        self.first = layer

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@program(rows)
class UnusedHead(Layered):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(6, 3)
        self.register_buffer("version", torch.tensor(3))


@program(rows)
class MovingAverageThroughData(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        self.average.data = self.average.data * 0.9 + x.detach().mean(0) * 0.1
        return x - self.average


@program(rows)
class DecayedThroughData(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x):
        self.scale.data.mul_(0.9)
        return x * self.scale.clone()


@program(rows)
class CounterBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        return x / self.steps


@program(rows)
class ViewWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 6))

    def forward(self, x):
        row = self.table[1]
        row.copy_(x.detach()[0])
        return x + self.table.sum(0)


@program(rows)
class ItemWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 6))

    def forward(self, x):
        self.table[0] = 5
        self.table[1] = x.detach()[0]
        return x + self.table.sum(0)


@program(rows)
class ClampedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 6))

    def forward(self, x):
        self.weight.data.clamp_(-1, 1)
        return x * self.weight


@program(rows)
class ClampedThroughParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 6))

    def forward(self, x):
        for p in self.parameters():
            p.data.clamp_(-1, 1)
        return x * self.weight


@program(rows)
class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 6))

    def forward(self, x):
        with torch.no_grad():
            self.weight.sub_(self.weight.mean())
        return x * self.weight


@program(rows)
class FreezesParameters(Layered):
    def forward(self, x):
        for p in self.layer.parameters():
            p.requires_grad = False
        return self.layer(x)


@program(rows)
class FreezesByMethod(Layered):
    def forward(self, x):
        self.layer.requires_grad_(False)
        return self.layer(x)


@program(rows)
class ZeroesGradients(Layered):
    def forward(self, x):
        self.layer.weight.grad = None
        return self.layer(x)


@program(rows)
class ListOfTensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = [torch.arange(6.0), torch.ones(6)]

    def forward(self, x):
        return x * self.tables[0] + self.tables[1] * 2


@program(rows)
class BufferOfInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        scale = self.norm.weight * (self.norm.running_var + self.norm.eps).rsqrt()
        return x * scale + (self.norm.bias - self.norm.running_mean * scale)


@program(rows)
class BufferDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(6, dtype=torch.float64))

    def forward(self, x):
        return x.to(self.scale.dtype) * self.scale


@program(rows)
class ExpandedByBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls = nn.Parameter(torch.ones(1, 6))
        self.register_buffer("offset", torch.arange(6.0)[None])

    def forward(self, x):
        return torch.cat((self.cls.expand(x.shape[0], -1), x + self.offset.expand(x.shape[0], -1)))


@program(rows)
class UsedInPlaceChain(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x):
        y = self.table.clone().mul_(2).add_(1)
        return x * y


@program(rows)
class NoneBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None)
        self.register_parameter("bias", None)

    def forward(self, x):
        if self.mask is not None:
            x = x * self.mask
        return x if self.bias is None else x + self.bias
