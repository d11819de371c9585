"""Models as repositories have them: attention, experts, detection heads, graphs, time series, losses."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .programs import flags, images, labels, longer, program, rows, sequences, tokens


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
class GPTWithTargets(GPTWithLoss):
    pass


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
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.pools = nn.ModuleList([nn.AdaptiveAvgPool2d(size) for size in (1, 2)])

    def forward(self, x):
        return torch.cat([x, *(F.interpolate(pool(x), x.size()[2:]) for pool in self.pools)], 1)


@program(images)
class NormalizedByConstants(nn.Module):
    def forward(self, x):
        mean = torch.tensor([0.4, 0.5, 0.6], device=x.device).view(1, 3, 1, 1)
        return x - mean


@program(rows)
class ContrastiveLoss(nn.Module):
    def forward(self, x):
        z = F.normalize(torch.cat((x, x.flip(0))), dim=1)
        similarity = z @ z.t() / 0.5
        eye = torch.eye(z.shape[0], dtype=torch.bool, device=z.device)
        return similarity.masked_fill(eye, -9e15).logsumexp(-1).mean()


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
class WeightStandardized(nn.Linear):
    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        weight = self.weight
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5)
        return F.linear(x, weight, self.bias)


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
class MeanPoolOrFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = "mean"

    def forward(self, x):
        x = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
        return x.to(torch.float64)
