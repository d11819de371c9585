"""Attention written as products, masks and softmax, with positions, windows and caches."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.blocks.block import Block, block
from model_zoo.blocks.makers import integers, layer_norm, linear, normal, padding_mask, parameter


@block(normal(2, 5, 8), c_attn=linear(8, 24), c_proj=linear(8, 8), mask=lambda: torch.ones(1, 1, 7, 7).tril())
def attention_gpt(self: Block, x: Tensor) -> Tensor:
    """Causal attention by a buffer of ones and minus infinity (minGPT, nanoGPT)."""
    B, T, C = x.size()
    q, k, v = self.c_attn(x).split(8, dim=2)
    k = k.view(B, T, 2, C // 2).transpose(1, 2)
    q = q.view(B, T, 2, C // 2).transpose(1, 2)
    v = v.view(B, T, 2, C // 2).transpose(1, 2)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
    y = F.dropout(F.softmax(att, dim=-1), p=0.1, training=self.training) @ v
    y = y.transpose(1, 2).contiguous().view(B, T, C)
    return self.c_proj(y)


@block(normal(3, 5, 12), padding_mask(5, 3, 4), query=linear(12, 12), key=linear(12, 12), value=linear(12, 12))
def attention_bert(self: Block, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
    """Attention with an additive mask (BERT)."""
    shape = hidden_states.size()[:-1] + (3, 4)  # noqa: RUF005
    query_layer = self.query(hidden_states).view(shape).permute(0, 2, 1, 3)
    key_layer = self.key(hidden_states).view(shape).permute(0, 2, 1, 3)
    value_layer = self.value(hidden_states).view(shape).permute(0, 2, 1, 3)
    extended_mask = (1.0 - attention_mask[:, None, None, :].to(dtype=torch.float32)) * -10000.0
    attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(4)
    attention_probs = nn.functional.softmax(attention_scores + extended_mask, dim=-1)
    context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
    return context_layer.view(context_layer.size(0), -1, 12)


@block(normal(2, 7, 12), qkv=linear(12, 36), proj=linear(12, 12), attn_drop=lambda: nn.Dropout(0.1))
def attention_vit(self: Block, x: Tensor) -> Tensor:
    """Attention from one projection of queries, keys and values (timm)."""
    B, N, C = x.shape
    qkv = self.qkv(x).reshape(B, N, 3, 3, C // 3).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    attn = (q * 0.5) @ k.transpose(-2, -1)
    attn = self.attn_drop(attn.softmax(dim=-1))
    x = (attn @ v).transpose(1, 2).reshape(B, N, C)
    return self.proj(x)


@block(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4))
def attention_einsum(self: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by Einstein sums, its maximum subtracted (lucidrains)."""
    sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 4**-0.5
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


@block(normal(5, 2, 12), normal(7, 2, 12), q=linear(12, 12), k=linear(12, 12), v=linear(12, 12))
def attention_bmm(self: Block, query: Tensor, memory: Tensor) -> Tensor:
    """Attention with heads in the batch, the length first (fairseq, torch.nn.MultiheadAttention)."""
    q = self.q(query) * 4**-0.5
    q = q.contiguous().view(5, 2 * 3, 4).transpose(0, 1)
    k = self.k(memory).contiguous().view(-1, 2 * 3, 4).transpose(0, 1)
    v = self.v(memory).contiguous().view(-1, 2 * 3, 4).transpose(0, 1)
    attn_weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
    return torch.bmm(attn_weights, v).transpose(0, 1).contiguous().view(5, 2, 12)


@block(normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8))
def attention_grouped(self: Block, query_states: Tensor, key_states: Tensor, value_states: Tensor) -> Tensor:
    """Causal attention with shared keys and values, softmax in float32 (Llama)."""
    b, kv_heads, slen, head_dim = key_states.shape
    key_states = key_states[:, :, None, :, :].expand(b, kv_heads, 2, slen, head_dim).reshape(b, 4, slen, head_dim)
    value_states = value_states[:, :, None, :, :].expand(b, kv_heads, 2, slen, head_dim).reshape(b, 4, slen, head_dim)
    attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) / math.sqrt(8)
    causal_mask = torch.full((5, 5), torch.finfo(torch.float32).min).triu(diagonal=1)
    attn_weights = attn_weights + causal_mask
    attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
    return torch.matmul(attn_weights, value_states).transpose(1, 2).reshape(b, slen, -1)


@block(normal(2, 5, 8), q_proj=linear(8, 8), kv_proj=linear(8, 8), o_proj=linear(8, 8))
def attention_multi_query(self: Block, x: Tensor) -> Tensor:
    """Causal attention of two heads on one of keys and values, by the fused operator (Falcon)."""
    q = self.q_proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
    k, v = self.kv_proj(x).unsqueeze(1).chunk(2, dim=-1)
    k, v = k.expand_as(q), v.repeat(1, 2, 1, 1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
    return self.o_proj(y.transpose(1, 2).flatten(2))


@block(normal(6, 5, 4), normal(6, 5, 4), padding_mask(5, 3), slopes=lambda: 2.0 ** -torch.arange(1, 4))
def alibi_baddbmm(self: Block, query: Tensor, key: Tensor, attention_mask: Tensor) -> Tensor:
    """Scores with a penalty that grows with the distance (BLOOM, Falcon)."""
    arange_tensor = ((attention_mask.cumsum(dim=-1) - 1) * attention_mask)[:, None, :]
    alibi = (self.slopes[..., None] * arange_tensor).reshape(2 * 3, 1, 5)
    matmul_result = alibi.baddbmm(batch1=query, batch2=key.transpose(-1, -2), beta=1.0, alpha=0.5)
    attention_scores = matmul_result.view(2, 3, 5, 5)
    mask = (1 - attention_mask)[:, None, None, :].bool()
    return F.softmax(attention_scores.masked_fill(mask, -1e9), dim=-1)


@block(normal(2, 3, 5, 4), normal(2, 3, 5, 4), causal=lambda: torch.tril(torch.ones(5, 5, dtype=torch.bool)))
def soft_capped_scores(self: Block, q: Tensor, k: Tensor) -> Tensor:
    """Scores bounded by a hyperbolic tangent, then a causal mask by ``where`` (Gemma 2, GPT-J)."""
    attn_weights = torch.matmul(q, k.transpose(-1, -2)) / 2.0
    attn_weights = torch.tanh(attn_weights / 50.0) * 50.0
    attn_weights = torch.where(self.causal, attn_weights, torch.finfo(attn_weights.dtype).min)
    return torch.softmax(attn_weights, dim=-1)


@block(normal(2, 8), normal(2, 7, 12), padding_mask(7, 4), q=linear(8, 6, False), m=linear(12, 6), v=linear(6, 1))
def additive_attention(self: Block, query: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention by a small network, and its weights (Bahdanau et al. 2015, Tacotron)."""
    energies = self.v(torch.tanh(self.q(query.unsqueeze(1)) + self.m(memory))).squeeze(-1)
    energies = energies.masked_fill(mask == 0, -float("inf"))
    attention_weights = F.softmax(energies, dim=1)
    attention_context = torch.bmm(attention_weights.unsqueeze(1), memory).squeeze(1)
    return attention_context, attention_weights


@block(normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(5, 4), normal(5, 4))
def rotary_halves(self: Block, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary positions of queries and keys by halves (GPT-NeoX, Llama)."""
    cos, sin = cos.unsqueeze(0).unsqueeze(1), sin.unsqueeze(0).unsqueeze(1)
    rotated_q = torch.cat((-q[..., q.shape[-1] // 2 :], q[..., : q.shape[-1] // 2]), dim=-1)
    rotated_k = torch.cat((-k[..., k.shape[-1] // 2 :], k[..., : k.shape[-1] // 2]), dim=-1)
    return (q * cos) + (rotated_q * sin), (k * cos) + (rotated_k * sin)


@block(normal(2, 3, 5, 8), inv_freq=lambda: 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))
def rotary_pairs(self: Block, x: Tensor) -> Tensor:
    """Rotary positions by pairs of neighbours (GPT-J, RoFormer)."""
    freqs = torch.einsum("i,j->ij", torch.arange(5).float(), self.inv_freq)
    cos, sin = freqs.cos()[None, None, :, :], freqs.sin()[None, None, :, :]
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten(-2)


@block(normal(4, 3, 6, 6), table=parameter(15, 3), index=integers(15, (6, 6)), window_mask=normal(2, 6, 6))
def relative_position_bias(self: Block, attn: Tensor) -> Tensor:
    """Scores of windows with a bias by relative position and a mask by window (Swin)."""
    bias = self.table[self.index.view(-1)].view(6, 6, -1).permute(2, 0, 1).contiguous()
    attn = attn + bias.unsqueeze(0)
    attn = attn.view(4 // 2, 2, 3, 6, 6) + self.window_mask.unsqueeze(1).unsqueeze(0)
    return attn.view(-1, 3, 6, 6).softmax(dim=-1)


@block(normal(2, 4, 6, 5), norm=layer_norm(5), proj=linear(5, 5))
def window_partition(self: Block, x: Tensor) -> Tensor:
    """Shift an image, cut it into windows of 2×2, and put it together again (Swin)."""
    B, H, W, C = x.shape
    shifted_x = torch.roll(self.norm(x), shifts=(-1, -1), dims=(1, 2))
    windows = shifted_x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 2 * 2, C)
    windows = self.proj(windows).view(-1, 2, 2, C)
    shifted_x = windows.view(B, H // 2, W // 2, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)
    return x + torch.roll(shifted_x, shifts=(1, 1), dims=(1, 2))


@block(normal(2, 1, 8), normal(2, 2, 4, 4), normal(2, 2, 4, 4), k_proj=linear(8, 8), v_proj=linear(8, 8))
def key_value_cache(self: Block, x: Tensor, past_key: Tensor, past_value: Tensor) -> dict[str, Tensor]:
    """Append a token's keys and values to those of a text, and attend with it (GPT-2)."""
    key = self.k_proj(x).view(2, 1, 2, 4).transpose(1, 2)
    value = self.v_proj(x).view(2, 1, 2, 4).transpose(1, 2)
    key, value = torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)
    weights = torch.softmax(x.view(2, 1, 2, 4).transpose(1, 2) @ key.transpose(-1, -2) / 2, dim=-1)
    return {"output": (weights @ value).transpose(1, 2).reshape(2, 1, 8), "key": key, "value": value}
