"""Models as repositories have them: attention, experts, detection heads, graphs, time series, losses."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from .programs import flags, given, images, labels, longer, other_rows, program, rows, sequences, tokens


class _CausalSelfAttention(nn.Module):
    def __init__(self, width=6, heads=2, block=8, dropout=0.0):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.n_head, self.n_embd = heads, width
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.c_proj(y)


@program(sequences)
class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = _CausalSelfAttention()

    def forward(self, x):
        return x + self.attention(x)


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.attn = _CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


@program(tokens)
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(10, 6),
                "wpe": nn.Embedding(8, 6),
                "h": nn.ModuleList([_Block() for _ in range(2)]),
                "ln_f": nn.LayerNorm(6),
            }
        )
        self.lm_head = nn.Linear(6, 10, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx):
        device = idx.device
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


@program(tokens)
class GPTWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = GPT()

    def forward(self, idx, targets=None):
        logits = self.body(idx)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 10), targets.view(-1))


@program(tokens, tokens)
class GPTWithTargets(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = GPT()

    def forward(self, idx, targets=None):
        logits = self.body(idx)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 10), targets.view(-1))


@program(sequences)
class FlashAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.dropout = 0.1

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return x.transpose(1, 2).reshape(B, N, C)


@program(sequences)
class MultiheadLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        y, weights = self.attention(x, x, x)
        return y + x, weights


@program(sequences, flags)
class MaskedMean(nn.Module):
    def forward(self, x, mask):
        mask = mask.unsqueeze(-1).to(x.dtype)
        return (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


@program(sequences, flags)
class MaskedAttention(nn.Module):
    def forward(self, x, mask=None):
        scores = x @ x.transpose(-1, -2) / math.sqrt(x.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1), float("-inf"))
        return scores.softmax(-1) @ x


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


def _rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (100.0 ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[1], device=x.device).type_as(self.inv_freq)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


@program(sequences)
class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(6)
        self.rotary = Rotary(6)
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        cos, sin = self.rotary(x)
        q = x * cos + _rotate_half(x) * sin
        h = x + F.scaled_dot_product_attention(q, q, x, is_causal=True)
        y = self.norm(h)
        return h + self.down(F.silu(self.gate(y)) * self.up(y))


@program(sequences)
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


@program(sequences)
class SparseExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        flat = x.reshape(-1, 6)
        chosen = self.gate(flat).argmax(-1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            where = (chosen == index).nonzero(as_tuple=True)[0]
            out[where] = expert(flat[where])
        return out.view_as(x)


@program(sequences)
class ExpertsIfAny(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])

    def forward(self, x):
        mask = x.sum(-1) > 0
        y = x
        if mask.any():
            y = self.experts[0](y)
        return y


@program(images)
class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@program(images)
class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 3, 1)

    def forward(self, x):
        scale = F.adaptive_avg_pool2d(x, 1)
        scale = F.hardsigmoid(self.fc2(F.relu(self.fc1(scale), inplace=True)))
        return scale * x


@program(images)
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 3, 3, padding=1)

    def forward(self, x):
        skip = x
        y = F.max_pool2d(self.down(x).relu(), 2)
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        dy, dx = skip.size(2) - y.size(2), skip.size(3) - y.size(3)
        y = F.pad(y, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.up(torch.cat([skip, y], dim=1))


@program(images)
class InterpolatedToSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        size = x.shape[-2:]
        return F.interpolate(self.conv(x), size=size, mode="bilinear", align_corners=False)


@program(images)
class AnchorHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls, self.box = nn.Conv2d(3, 2 * 4, 1), nn.Conv2d(3, 2 * 4, 1)

    def forward(self, x):
        n, _, h, w = x.shape
        cls = self.cls(x).view(n, 2, 4, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 4)
        box = self.box(x).view(n, -1, 4, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 4)
        return {"scores": cls.sigmoid(), "boxes": box}


@program(images)
class YoloDecode(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0]]))
        self.stride = 8
        self.conv = nn.Conv2d(3, 2 * 7, 1)

    def forward(self, x):
        x = self.conv(x)
        bs, _, ny, nx = x.shape
        x = x.view(bs, 2, 7, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        yv, xv = torch.meshgrid([torch.arange(8), torch.arange(8)], indexing="ij")
        grid = torch.stack((xv, yv), 2).view(1, 1, 8, 8, 2).float()
        y = x.sigmoid()
        y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + grid) * self.stride
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 2, 1, 1, 2)
        return y.view(bs, -1, 7)


@program(images)
class CoordConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 2, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        ys = torch.linspace(-1, 1, 8).view(1, 1, 8, 1).expand(b, 1, h, w)
        xs = torch.linspace(-1, 1, 8).view(1, 1, 1, 8).expand(b, 1, h, w)
        return self.conv(torch.cat((x, ys, xs), 1))


@program(images)
class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 6, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.pos_embed = nn.Parameter(torch.ones(1, 5, 6) * 0.02)

    def forward(self, x):
        B = x.shape[0]
        x = self.proj(x).flatten(2).transpose(1, 2)
        cls_tokens = self.cls_token.expand(B, -1, -1)
        return torch.cat((cls_tokens, x), dim=1) + self.pos_embed


@program(images)
class PatchEmbeddingChecked(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_size = (8, 8)
        self.proj = nn.Conv2d(3, 6, 4, 4)

    def forward(self, x):
        B, C, H, W = x.shape
        assert H == self.img_size[0] and W == self.img_size[1], f"Input size ({H}*{W}) doesn't match."
        return self.proj(x).flatten(2).transpose(1, 2)


@program(images)
class WindowPartition(nn.Module):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        B, H, W, C = x.shape
        windows = x.view(B, H // 4, 4, W // 4, 4, C).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 4, C)
        back = windows.view(B, H // 4, W // 4, 4, 4, -1).permute(0, 1, 3, 2, 4, 5).contiguous()
        return back.view(B, H, W, -1)


@program(images)
class ShiftedWindows(nn.Module):
    def __init__(self):
        super().__init__()
        mask = torch.zeros(1, 8, 8, 1)
        for number, part in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            mask[:, part] = number
        self.register_buffer("attn_mask", mask)

    def forward(self, x):
        shifted = torch.roll(x, shifts=(-2, -2), dims=(2, 3))
        mask = self.attn_mask.permute(0, 3, 1, 2)
        return shifted.masked_fill(mask == 1, 0.0)


@program(images)
class ChannelShuffle(nn.Module):
    def forward(self, x):
        x = torch.cat((x, x), 1)
        b, c, h, w = x.size()
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)


@program(images)
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.pools = nn.ModuleList([nn.AdaptiveAvgPool2d(size) for size in (1, 2)])

    def forward(self, x):
        return torch.cat([x, *(F.interpolate(pool(x), x.size()[2:]) for pool in self.pools)], 1)


@program(images)
class GroupNormByHand(nn.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        y = x.reshape(n, 3, -1)
        y = (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-5)
        return y.reshape(n, c, h, w)


@program(images)
class NormalizedImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor([0.4, 0.5, 0.6]).view(-1, 1, 1), False)
        self.register_buffer("pixel_std", torch.tensor([0.2, 0.3, 0.4]).view(-1, 1, 1), False)

    def forward(self, x):
        return (x - self.pixel_mean) / self.pixel_std


@program(images)
class NormalizedByConstants(nn.Module):
    def forward(self, x):
        mean = torch.tensor([0.4, 0.5, 0.6], device=x.device).view(1, 3, 1, 1)
        return x - mean


@program(rows)
class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        a = a / a.norm(dim=-1, keepdim=True)
        b = b / b.norm(dim=-1, keepdim=True)
        logits = self.logit_scale.exp() * a @ b.t()
        return logits, logits.t()


@program(rows)
class ContrastiveLoss(nn.Module):
    def forward(self, x):
        z = F.normalize(torch.cat((x, x.flip(0))), dim=1)
        similarity = z @ z.t() / 0.5
        eye = torch.eye(z.shape[0], dtype=torch.bool, device=z.device)
        return similarity.masked_fill(eye, -9e15).logsumexp(-1).mean()


@program(rows, labels)
class FocalLoss(nn.Module):
    def forward(self, x, y):
        ce = F.cross_entropy(x, y, reduction="none")
        return ((1 - torch.exp(-ce)) ** 2 * ce).mean()


@program(rows, labels)
class LabelSmoothing(nn.Module):
    def forward(self, x, y):
        log = x.log_softmax(-1)
        with torch.no_grad():
            target = torch.zeros_like(log)
            target.fill_(0.1 / 5)
            target.scatter_(1, y.unsqueeze(1), 0.9)
        return torch.mean(torch.sum(-target * log, dim=-1))


@program(rows)
class VectorQuantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.embedding.weight.data.uniform_(-0.2, 0.2)

    def forward(self, z):
        d = z.pow(2).sum(1, keepdim=True) + self.embedding.weight.pow(2).sum(1) - 2 * z @ self.embedding.weight.t()
        index = d.argmin(1)
        q = self.embedding(index)
        loss = F.mse_loss(q.detach(), z) + 0.25 * F.mse_loss(q, z.detach())
        return z + (q - z).detach(), loss, index


@program(rows)
class ExponentialCodebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("embed", torch.linspace(-1, 1, 24).reshape(4, 6))
        self.register_buffer("cluster_size", torch.ones(4))

    def forward(self, x):
        flat = x.detach()
        index = torch.cdist(flat, self.embed).argmin(-1)
        onehot = F.one_hot(index, 4).type(flat.dtype)
        quantized = F.embedding(index, self.embed)
        if self.training:
            self.cluster_size.data.mul_(0.99).add_(onehot.sum(0), alpha=0.01)
            self.embed.data.add_((onehot.t() @ flat) * 0.01)
        return x + (quantized - x).detach()


@program(rows)
class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(6, 6)

    def forward(self, x):
        adjacency = (x @ x.t() > 0).float()
        adjacency = adjacency + torch.eye(x.size(0))
        degree = adjacency.sum(-1).clamp(min=1).pow(-0.5)
        return degree[:, None] * adjacency * degree[None] @ self.weight(x)


@program(rows)
class ScatterAggregation(nn.Module):
    def forward(self, x):
        index = torch.tensor([0, 1, 0, 1, 2, 2])
        out = x.new_zeros(x.size(0), 3)
        return out.index_add(1, index, x)


@program(longer)
class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 6)

    def forward(self, x):
        h = torch.zeros(2, 6)
        outs = []
        for step in range(x.size(1)):
            h = self.cell(x[:, step], h)
            outs.append(h)
        return torch.stack(outs, 1)


@program(sequences)
class UnrolledFixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 6)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 6)
        for step in range(4):
            h = self.cell(x[:, step], h)
        return h


@program(sequences)
class LSTMTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return self.out(y), h[-1], c[-1]


@program(sequences)
class LSTMWithState(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), 5).to(x.device)
        c0 = torch.zeros(1, x.size(0), 5).to(x.device)
        out, _ = self.lstm(x, (h0, c0))
        return out[:, -1, :]


@program(sequences)
class TemporalConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, padding=2)

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))
        return y[:, :, :-2].contiguous().transpose(1, 2)


@program(sequences)
class SeriesDecomposition(nn.Module):
    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, 1, 1)
        end = x[:, -1:, :].repeat(1, 1, 1)
        padded = torch.cat([front, x, end], dim=1).permute(0, 2, 1)
        trend = F.avg_pool1d(padded, 3, 1).permute(0, 2, 1)
        return x - trend, trend


@program(sequences)
class ReversibleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Parameter(torch.ones(6))

    def _statistics(self, x):
        dims = tuple(range(1, x.ndim - 1))
        self.mean = torch.mean(x, dim=dims, keepdim=True).detach()
        self.stdev = torch.sqrt(torch.var(x, dim=dims, keepdim=True, unbiased=False) + 1e-5).detach()

    def forward(self, x):
        self._statistics(x)
        y = (x - self.mean) / self.stdev * self.affine
        return y * self.stdev + self.mean


@program(sequences)
class ReversibleNormFixed(nn.Module):
    def forward(self, x):
        self.mean = x.mean(1, keepdim=True).detach()
        self.stdev = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return (x - self.mean) / self.stdev * 2 + self.mean


@program(rows)
class KAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 8).expand(6, -1).contiguous())
        self.weight = nn.Parameter(torch.ones(6, 4) / 4)

    def forward(self, x):
        x = x.unsqueeze(-1)
        bases = ((x >= self.grid[:, :-1]) & (x < self.grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (x - self.grid[:, : -(k + 1)]) / (self.grid[:, k:-1] - self.grid[:, : -(k + 1)])
            right = (self.grid[:, k + 1 :] - x) / (self.grid[:, k + 1 :] - self.grid[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        return (bases * self.weight).sum(-1)


@program(rows)
class PolynomialFeatures(nn.Module):
    def forward(self, x):
        return torch.cat([x**power for power in range(1, 4)], dim=-1)


@program(rows)
class DeepAndWide(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8)])
        self.wide = nn.Linear(6, 1)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        y = x
        for index, layer in enumerate(self.deep):
            y = layer(y)
            if index < len(self.deep) - 1:
                y = F.relu(y)
        return torch.sigmoid(self.out(y) + self.wide(x)).squeeze(-1)


@program(rows)
class FactorizationMachine(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.linspace(-1, 1, 18).reshape(6, 3))

    def forward(self, x):
        return 0.5 * ((x @ self.v).pow(2) - x.pow(2) @ self.v.pow(2)).sum(1)


@program(rows)
class CrossNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.ones(6) / 6) for _ in range(2)])

    def forward(self, x):
        x0 = x
        for w in self.w:
            x = x0 * (x @ w).unsqueeze(1) + x
        return x


@program(rows)
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(6, 2), nn.Linear(6, 1)
        self.log_std = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x):
        mean = self.actor(x)
        std = self.log_std.exp().expand_as(mean)
        return mean, std, self.critic(x)


@program(rows)
class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.advantage = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x):
        a = self.advantage(x)
        return self.value(x) + a - a.mean(1, keepdim=True)


@program(rows)
class FeatureDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})

    def forward(self, x):
        return {name: layer(x) for name, layer in self.layers.items()}


@program(rows)
class ChosenActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = partial(F.leaky_relu, negative_slope=0.2)
        self.table = {"relu": F.relu, "tanh": torch.tanh}

    def forward(self, x):
        return self.act(x) + self.table["tanh"](x)


@program(rows)
class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 6)
        self.a = nn.Parameter(torch.ones(2, 6) / 6)
        self.b = nn.Parameter(torch.ones(6, 2) / 2)
        self.merged = False

    def forward(self, x):
        if self.merged:
            return F.linear(x, self.base.weight + self.b @ self.a, self.base.bias)
        return self.base(x) + x @ self.a.t() @ self.b.t() * 2.0


@program(rows)
class WeightStandardized(nn.Linear):
    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        weight = self.weight
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5)
        return F.linear(x, weight, self.bias)


@program(rows)
class EqualizedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6))
        self.gain = 1 / math.sqrt(6)

    def forward(self, x):
        return x.matmul((self.weight * self.gain).to(x.dtype).t())


@program(rows)
class FakeQuantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.1))
        self.register_buffer("minimum", torch.tensor(0.0))

    def forward(self, x):
        if self.training:
            self.minimum.copy_(torch.min(self.minimum, x.detach().min()))
        q = torch.clamp(torch.round(x / self.scale), -128, 127)
        return (q * self.scale - x).detach() + x


@program(rows)
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList([nn.Linear(6, 3) for _ in range(3)])

    def forward(self, x):
        outs = torch.stack([member(x) for member in self.members])
        return outs.mean(0), outs.var(0)


@program(rows)
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        y = self.first(x).softmax(-1)
        if y.max() > 0.99:
            return y
        return self.second(x).softmax(-1)


@program(sequences)
class SortedByLength(nn.Module):
    def forward(self, x):
        lengths = (x.abs().sum(-1) > 0.1).sum(1)
        order = lengths.argsort(descending=True)
        return x[order], lengths[order]


@program(sequences)
class Alibi(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x):
        t = x.size(1)
        position = torch.arange(t, device=x.device)
        distance = position[None, :] - position[:, None]
        return (x @ x.transpose(1, 2)).unsqueeze(1) + distance * self.slopes.view(-1, 1, 1)


@program(sequences)
class MadeCausalMask(nn.Module):
    def forward(self, x):
        t = x.size(1)
        mask = torch.triu(torch.ones(t, t, device=x.device), diagonal=1).bool()
        return (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf")).softmax(-1)


@program(sequences)
class FullCausalMask(nn.Module):
    def forward(self, x):
        mask = torch.full((4, 4), float("-inf")).triu(1)
        return (x @ x.transpose(1, 2) + mask).softmax(-1)


@program(sequences)
class ExtendedMask(nn.Module):
    def forward(self, x):
        mask = (x.sum(-1) > 0).to(x.dtype)[:, None, :]
        mask = (1.0 - mask) * torch.finfo(x.dtype).min
        return (x @ x.transpose(1, 2) + mask).softmax(-1)


@program(sequences)
class MeanPoolOrFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = "mean"

    def forward(self, x):
        x = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
        return x.to(torch.float64)


@program(sequences)
class StackedHidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])

    def forward(self, x):
        hidden = ()
        for layer in self.layers:
            hidden = hidden + (x,)
            x = layer(x).tanh()
        return x, hidden + (x,)


@program(sequences)
class GatedUnits(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 12)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


@program(sequences)
class SpatialGating(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.proj = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        res, gate = x.chunk(2, dim=-1)
        return self.proj(self.norm(gate)) * res


@program(sequences)
class LinearAttention(nn.Module):
    def forward(self, x):
        q, k = F.elu(x) + 1, F.elu(x) + 1
        kv = torch.einsum("bnd,bne->bde", k, x)
        z = 1 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)
        return torch.einsum("bnd,bde,bn->bne", q, kv, z)


@program(sequences)
class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_log = nn.Parameter(torch.log(torch.arange(1, 4).float()).repeat(6, 1))
        self.d = nn.Parameter(torch.ones(6))

    def forward(self, x):
        a = -torch.exp(self.a_log.float())
        state = torch.zeros(x.size(0), 6, 3, device=x.device)
        outs = []
        for step in range(4):
            state = state * torch.exp(a) + x[:, step, :, None]
            outs.append(state.sum(-1))
        return torch.stack(outs, 1) + x * self.d


@program(rows, other_rows)
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 4), nn.ReLU())

    def forward_once(self, x):
        return self.net(x)

    def forward(self, x, y):
        a, b = self.forward_once(x), self.forward_once(y)
        return F.pairwise_distance(a, b), F.cosine_similarity(a, b)


@program(rows, given(0.5))
class Interpolating(nn.Module):
    def forward(self, x, weight=1.0):
        return torch.lerp(x, x.flip(0), weight)


@program(rows)
class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(6, n) for n in (1, 2, 3)])

    def _forward(self, x):
        return [branch(x) for branch in self.branches]

    def forward(self, x):
        return torch.cat(self._forward(x), 1)


@program(rows)
class StochasticDepthResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.p = 0.2

    def forward(self, x):
        y = self.layer(x)
        if self.training and self.p > 0:
            keep = 1 - self.p
            y = y * y.new_empty((y.shape[0], 1)).bernoulli_(keep).div_(keep)
        return x + y
