"""Parts of torch that models use beside layers: sequences, parametrizations, complex numbers, views, out=."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, rnn

from .programs import Layered, flags, given, images, labels, one_liners, other_rows, program, rows, sequences, tokens


def lengths(size: int) -> torch.Tensor:
    """The lengths of sequences of four steps, none of them zero."""
    return torch.arange(size) % 4 + 1


class Marked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


@program(sequences, lengths)
class PackedLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, (h, c) = self.lstm(packed)
        out, sizes = rnn.pad_packed_sequence(packed, batch_first=True)
        return out, sizes, h


@program(sequences)
class CellLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 5)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 5)
        outs = []
        for step in range(4):
            h = self.cell(x[:, step], h)
            outs.append(h)
        return torch.stack(outs, dim=1)


@program(sequences)
class LSTMCellState(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(6, 6), nn.LSTMCell(6, 6)])

    def forward(self, x, state=None):
        state = state or [None for _ in self.cells]
        y = x[:, 0]
        for number, cell in enumerate(self.cells):
            h, c = state[number] = cell(y, state[number])
            y = h + c
        return y


@program(sequences, flags)
class FastPathAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x, mask):
        y, weights = self.attention(x, x, x, key_padding_mask=~mask, need_weights=False)
        return y if weights is None else y * 2


@program(sequences)
class EncoderStack(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(4))


@program(rows)
class WeightNormalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(6, 6))

    def forward(self, x):
        with parametrize.cached():
            return self.layer(x) + self.layer(x)


@program(rows)
def spectrum(x):
    z = torch.fft.rfft(x)
    return torch.fft.irfft(z * torch.exp(1j * torch.angle(z)), n=6), z.real.abs()


@program(sequences)
class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(4.0), 1.0 / 10000 ** (torch.arange(0, 6, 2) / 6))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.freqs[: x.shape[1]]).flatten(-2).type_as(x)


@program(rows)
def sparse_product(x):
    sparse = x.detach().relu().to_sparse()
    return torch.sparse.mm(sparse, x.t())


@program(rows, labels)
def sparse_made(x, index):
    places = torch.stack([torch.arange(x.size(0)), index])
    return torch.sparse_coo_tensor(places, x[:, 0], (x.size(0), 6)).to_dense() + x


@program(rows)
def named_dimensions(x):
    y = x.refine_names("N", "C")
    return y.sum("C").rename(None)


@program(rows)
def filled_view(x):
    y = x.clone()
    y[:, 1:].masked_fill_(x[:, 1:] > 0, -1.0)
    y.view(-1, 2, 3)[:, 0].mul_(2)
    return y


@program(rows)
def scattered_view(x):
    y = torch.zeros_like(x)
    y.t()[0].copy_(x[:, 1])
    y.diagonal().add_(1)
    y[:, ::2] -= x[:, ::2]
    return y


@program(rows)
def written_out(x):
    y = torch.empty_like(x)
    with torch.no_grad():
        torch.add(x.detach(), 1, out=y)
        torch.mul(y, 2, out=y)
    return y * x


@program(rows, labels)
def indexed_writes(x, index):
    y = x.clone()
    y[torch.arange(x.size(0)), index] = 0
    y.index_add_(0, torch.zeros(1, dtype=torch.long), x[:1])
    y.scatter_(1, index.unsqueeze(1), 5.0)
    return y.index_fill(1, torch.tensor([0]), 2.0)


one_liners(
    rows,
    subclassed=lambda x: x.as_subclass(Marked) * 2,
    nonzero_rows=lambda x: (x[x[:, 0] > 0], torch.nonzero(x > 0, as_tuple=True)[0]),
)


@program(images)
class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 6))
        self.norm = nn.GroupNorm(1, 3)
        self.body = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, timestep=7):
        half = 4
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angles = torch.full((x.shape[0],), timestep, device=x.device)[:, None] * frequencies[None]
        embedding = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))
        scale, shift = embedding[:, :, None, None].chunk(2, dim=1)
        return x + self.body(F.silu(self.norm(x) * (1 + scale) + shift))


@program(images)
class DetectionHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.boxes = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 8, 1)

    def forward(self, features, image_sizes=None):
        scores = self.scores(features).permute(0, 2, 3, 1).flatten(1)
        boxes = self.boxes(features).permute(0, 2, 3, 1).reshape(features.shape[0], -1, 4)
        top = scores.topk(min(5, 128), dim=1).indices
        kept = boxes.gather(1, top.unsqueeze(-1).expand(-1, -1, 4))
        x1, y1, x2, y2 = kept.unbind(-1)
        return {"boxes": torch.stack([x1, y1, x1 + x2.exp(), y1 + y2.exp()], -1), "scores": scores.gather(1, top)}


@program(rows, labels)
class Losses(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x, target=None):
        logits = self.head(x)
        losses = {"ce": self.criterion(logits, target), "z": torch.logsumexp(logits, -1).pow(2).mean()}
        return sum(losses.values()), {name: loss.detach() for name, loss in losses.items()}


@program(sequences, given(2))
class Chunked(Layered):
    def forward(self, x, parts):
        return torch.cat([self.layer(part) for part in x.tensor_split(2, dim=1)], dim=1) * parts


@program(tokens)
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        for _ in range(2):
            logits = self.head(self.embed(ids).cumsum(1))
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        return ids


@program(tokens)
class Generates(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 10)

    def forward(self, ids):
        while ids.shape[1] < 6:
            ids = torch.cat([ids, self.head(self.embed(ids[:, -1:])).argmax(-1)], dim=1)
        return ids


@program(rows, other_rows)
def quantiles(x, y):
    edges = torch.linspace(-1, 1, 5)
    return torch.bucketize(x.detach(), edges), torch.searchsorted(edges, y.detach()), torch.histc(x.detach(), 3)


@program(rows)
def unique_values(x):
    values, counts = torch.unique(x.detach().round(), return_counts=True)
    return values * 2, counts


@program(images)
def pooled(x):
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, indices, 2) + F.interpolate(y, size=x.shape[-2:], mode="nearest")


@program(images)
def warped(x):
    theta = torch.eye(2, 3).expand(x.size(0), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
