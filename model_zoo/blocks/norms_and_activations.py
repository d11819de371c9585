"""Norms, activations and gated feed-forward networks written out of primitive calls."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.blocks.block import Block, block
from model_zoo.blocks.makers import linear, normal, parameter, uniform


@block(normal(2, 5, 8), weight=parameter(8))
def rms_norm_llama(self: Block, hidden_states: Tensor) -> Tensor:
    """Root mean square norm in float32, cast back before the scale (Llama, Mistral, T5)."""
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + 1e-6)
    return self.weight * hidden_states.to(input_dtype)


@block(normal(2, 5, 8), weight=parameter(8))
def rms_norm_gemma(self: Block, x: Tensor) -> Tensor:
    """Root mean square norm with the scale stored minus one (Gemma)."""
    output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    output = output * (1.0 + self.weight.float())
    return output.type_as(x)


@block(normal(3, 7, 12), g=parameter(12))
def rms_norm_normalize(self: Block, x: Tensor) -> Tensor:
    """Root mean square norm as a unit vector times the root of the width (lucidrains)."""
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.g


@block(normal(2, 5, 8), weight=parameter(8), bias=parameter(8))
def layer_norm_by_hand(self: Block, x: Tensor) -> Tensor:
    """Layer norm with the biased variance (BERT)."""
    u = x.mean(-1, keepdim=True)
    s = (x - u).pow(2).mean(-1, keepdim=True)
    x = (x - u) / torch.sqrt(s + 1e-12)
    return self.weight * x + self.bias


@block(normal(2, 12, 4, 5), weight=parameter(1, 12, 1, 1), bias=parameter(1, 12, 1, 1))
def group_norm_by_hand(self: Block, x: Tensor) -> Tensor:
    """Norm over three groups of channels (Wu and He 2018)."""
    N, C, H, W = x.size()
    x = x.view(N, 3, -1)
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
    x = (x - mean) / (var + 1e-5).sqrt()
    return x.view(N, C, H, W) * self.weight + self.bias


@block(normal(3, 8, 4, 5), mean=normal(8), var=uniform(8), weight=parameter(8), bias=parameter(8))
def frozen_batch_norm(self: Block, x: Tensor) -> Tensor:
    """Batch norm with fixed statistics, as a scale and a shift (DETR, torchvision's detectors)."""
    w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
    rv, rm = self.var.reshape(1, -1, 1, 1), self.mean.reshape(1, -1, 1, 1)
    scale = w * (rv + 1e-5).rsqrt()
    return x * scale + (b - rm * scale)


@block(normal(2, 8), weight_v=parameter(12, 8), weight_g=parameter(12, 1), bias=parameter(12))
def weight_norm_by_hand(self: Block, x: Tensor) -> Tensor:
    """Linear layer whose rows have a learned length (Salimans and Kingma 2016)."""
    weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)
    return F.linear(x, weight, self.bias)


@block(normal(2, 5, 8), c_fc=linear(8, 12), c_proj=linear(12, 8))
def gelu_tanh_mlp(self: Block, x: Tensor) -> Tensor:
    """Feed-forward network with GELU by a hyperbolic tangent (GPT-2)."""
    x = self.c_fc(x)
    x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    return self.c_proj(x)


@block(normal(2, 7, 8), dense=linear(8, 12))
def gelu_erf(self: Block, x: Tensor) -> Tensor:
    """Linear layer and exact GELU by the error function (BERT)."""
    x = self.dense(x)
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


@block(normal(2, 5, 8), gate_proj=linear(8, 12, False), up_proj=linear(8, 12, False), down_proj=linear(12, 8, False))
def swiglu_three_layers(self: Block, x: Tensor) -> Tensor:
    """Feed-forward network gated by SiLU (Llama)."""
    return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@block(normal(2, 5, 8), w12=linear(8, 24), w3=linear(12, 8))
def swiglu_split(self: Block, x: Tensor) -> Tensor:
    """Feed-forward network gated by SiLU, one layer for gate and value (DINOv2, PaLM)."""
    x1, x2 = self.w12(x).split(12, dim=-1)
    return self.w3(x1 * torch.sigmoid(x1) * x2)


@block(normal(2, 7, 8), proj=linear(8, 24), out=linear(12, 8), drop=lambda: nn.Dropout(0.1))
def geglu_chunk(self: Block, hidden_states: Tensor) -> Tensor:
    """Feed-forward network gated by GELU, the gate last (Stable Diffusion)."""
    hidden_states, gate = self.proj(hidden_states).chunk(2, dim=-1)
    return self.out(self.drop(hidden_states * F.gelu(gate)))
