"""Embeddings, conditioning, heads in several spellings, adapters, quantization by hand, and losses."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.blocks.block import Block, block
from model_zoo.blocks.makers import embedding, integers, layer_norm, linear, normal, padding_mask, parameter


@block(
    integers(9, (2, 5)), integers(2, (2, 5)), w=embedding(9, 8), p=embedding(7, 8), t=embedding(2, 8), ln=layer_norm(8)
)
def bert_embeddings(self: Block, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
    """Words, positions and types, added and normalized (BERT)."""
    embeddings = self.w(input_ids) + self.t(token_type_ids)
    embeddings += self.p(torch.arange(5).expand(2, -1))
    return F.dropout(self.ln(embeddings), p=0.1, training=self.training)


@block(integers(20, (2, 5)), wte=embedding(20, 8), wpe=embedding(7, 8))
def tied_language_head(self: Block, idx: Tensor) -> Tensor:
    """Scores of the next token with the embedding matrix (GPT-2)."""
    pos = torch.arange(0, idx.size(-1), dtype=torch.long, device=idx.device)
    x = self.wte(idx) + self.wpe(pos)
    return F.linear(x[:, [-1], :], self.wte.weight)


@block(integers(3, (2, 7)), embed=embedding(9, 6))
def positions_from_mask(self: Block, input_ids: Tensor) -> Tensor:
    """Positions counted without padding (RoBERTa)."""
    mask = input_ids.ne(1).int()
    incremental_indices = torch.cumsum(mask, dim=1).type_as(mask) * mask
    return self.embed(incremental_indices.long() + 1)


@block(integers(1000, (3,)), mlp=lambda: nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 6)))
def timestep_embedding(self: Block, timesteps: Tensor) -> Tensor:
    """Sines and cosines of a diffusion step, and a small network (DDPM)."""
    freqs = torch.exp(-math.log(10000) * torch.arange(0, 4, dtype=torch.float32) / 4)
    args = timesteps[:, None].float() * freqs[None]
    return self.mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))


@block(normal(2, 5, 8), normal(2, 6), norm=layer_norm(8, elementwise_affine=False), ada=linear(6, 24), mlp=linear(8, 8))
def modulated_residual(self: Block, x: Tensor, c: Tensor) -> Tensor:
    """Norm shifted, scaled and gated by a condition (DiT's AdaLN)."""
    shift, scale, gate = self.ada(F.silu(c)).chunk(3, dim=1)
    y = self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return x + gate.unsqueeze(1) * self.mlp(y)


@block(normal(3, 6, 5, 4), fc=linear(6, 10), avgpool=lambda: nn.AdaptiveAvgPool2d((1, 1)))
def head_by_flatten(self: Block, x: Tensor) -> Tensor:
    """Pooled features, flattened from dimension 1 on, to class scores (ResNet)."""
    return self.fc(torch.flatten(self.avgpool(x), 1))


@block(normal(3, 4, 6, 5), fc1=linear(24, 8), fc2=linear(8, 10))
def head_by_view(self: Block, x: Tensor) -> Tensor:
    """Features viewed as rows, two layers and a logarithmic softmax (LeNet)."""
    x = F.max_pool2d(x, 2)
    x = x.view(-1, 4 * 3 * 2)
    x = F.dropout(F.relu(self.fc1(x)), training=self.training)
    return F.log_softmax(self.fc2(x), dim=1)


@block(normal(3, 6, 5, 4), classifier=linear(6, 10))
def head_by_mean(self: Block, x: Tensor) -> dict[str, Tensor]:
    """Class scores of means, with the best class and its probability (MobileNetV2)."""
    logits = self.classifier(x.mean([2, 3]))
    values, indices = F.softmax(logits, dim=-1).max(dim=-1)
    return {"logits": logits, "labels": indices, "scores": values}


@block(normal(3, 6, 4, 4), fc=linear(6, 10))
def head_by_squeeze(self: Block, x: Tensor) -> Tensor:
    """Pooled features, their last two dimensions squeezed, to the best class as one hot (EfficientNet ports)."""
    x = F.avg_pool2d(x, x.shape[2]).squeeze(-1).squeeze(-1)
    return F.one_hot(self.fc(x).argmax(dim=1), num_classes=10).float()


@block(normal(2, 5, 8), padding_mask(5, 3))
def masked_mean_pooling(self: Block, token_embeddings: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of the tokens without padding, as a unit vector (Sentence-BERT)."""
    input_mask_expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
    sum_embeddings = torch.sum(token_embeddings * input_mask_expanded, 1)
    pooled = sum_embeddings / torch.clamp(input_mask_expanded.sum(1), min=1e-9)
    return F.normalize(pooled, p=2, dim=1)


@block(normal(3, 5, 8), padding_mask(5, 3, 4), score=linear(8, 2, False))
def last_token_head(self: Block, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
    """Scores of the last token of each text (Llama for classification)."""
    last = attention_mask.sum(dim=1) - 1
    index = last.view(-1, 1, 1).expand(-1, 1, hidden_states.size(-1))
    return self.score(hidden_states.gather(1, index).squeeze(1))


@block(normal(2, 5, 8), dense=linear(8, 8), cls=linear(8, 3), bbox=linear(8, 4))
def first_token_heads(self: Block, sequence: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Several heads on a sequence, one of them split by index (BERT, DETR)."""
    pooled_output = torch.tanh(self.dense(sequence[:, 0]))
    cx, cy, w, h = self.bbox(sequence).sigmoid().unbind(-1)
    boxes = torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)
    return self.cls(pooled_output), boxes[:, 1:], [pooled_output, boxes[..., 0]]


@block(normal(3, 8), integers(10, (3,)), weight=parameter(10, 8))
def cosine_head(self: Block, x: Tensor, label: Tensor) -> Tensor:
    """Cosines with the vectors of classes, minus a margin for the true class (CosFace)."""
    cosine = F.linear(F.normalize(x), F.normalize(self.weight))
    return 30.0 * (cosine - 0.35 * F.one_hot(label, 10))


@block(normal(2, 20))
def sampling_head(self: Block, logits: Tensor) -> Tensor:
    """Probabilities of the best tokens at a temperature (nanoGPT's generate)."""
    logits = logits / 0.8
    v, _ = torch.topk(logits, 5)
    logits = logits.masked_fill(logits < v[:, [-1]], -float("inf"))
    probs = F.softmax(logits, dim=-1)
    return torch.cumsum(torch.sort(probs, descending=True)[0], dim=-1)


@block(normal(2, 5, 8), linear=linear(8, 12), lora_A=parameter(3, 8), lora_B=parameter(12, 3))
def lora_linear(self: Block, x: Tensor) -> Tensor:
    """Linear layer with a correction of low rank (LoRA)."""
    result = self.linear(x)
    return result + (F.dropout(x, 0.05, self.training) @ self.lora_A.T @ self.lora_B.T) * (16 / 3)


@block(normal(2, 5, 8), weight=parameter(12, 8))
def quantized_linear(self: Block, x: Tensor) -> Tensor:
    """Fake quantization of weights to 8 bits by row, with a straight-through gradient (quantization-aware training)."""
    scale = self.weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-5) / 127
    quantized = torch.clamp(torch.round(self.weight / scale), -128, 127).to(torch.int8)
    weight = self.weight + (quantized.float() * scale - self.weight).detach()
    return F.linear(x, weight)


@block(normal(3, 8), normal(3, 4), fc_mu=linear(8, 4), fc_var=linear(8, 4))
def variational_latent(self: Block, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Latent values from given noise, and their divergence from the prior (VAE)."""
    mu, logvar = self.fc_mu(x), self.fc_var(x)
    std = torch.exp(0.5 * logvar)
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1), dim=0)
    return mu + eps * std, kld


@block(normal(2, 5, 11), integers(11, (2, 5)), padding_mask(5, 3))
def shifted_cross_entropy(self: Block, logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of the next token, without padding (causal language models)."""
    labels = labels.masked_fill(mask == 0, -100)
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100)


@block(normal(2, 5, 11), integers(11, (2, 5)), padding_mask(5, 3))
def smoothed_masked_loss(self: Block, logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean over a mask of the smoothed negative log-likelihood (fairseq, recurrent captioners)."""
    lprobs = F.log_softmax(logits, dim=-1)
    nll_loss = -lprobs.gather(dim=-1, index=target.unsqueeze(-1)).squeeze(-1)
    loss = 0.9 * nll_loss + 0.1 * -lprobs.mean(dim=-1)
    return (loss * mask).sum() / mask.sum()


@block(normal(2, 3, 5, 4), lambda: torch.rand(2, 3, 5, 4).round())
def focal_loss(self: Block, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with lower weights for easy examples (RetinaNet)."""
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    alpha_t = 0.25 * targets + (1 - 0.25) * (1 - targets)
    return (alpha_t * ce_loss * ((1 - p_t) ** 2)).mean(1).sum() / 2


@block(normal(2, 3, 5, 4), integers(3, (2, 5, 4)))
def dice_loss(self: Block, logits: Tensor, target: Tensor) -> Tensor:
    """One minus the overlap with the true masks (V-Net)."""
    probs = F.softmax(logits, dim=1)
    one_hot = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
    intersection = torch.sum(probs * one_hot, dim=(2, 3))
    union = torch.sum(probs + one_hot, dim=(2, 3))
    return 1 - ((2.0 * intersection + 1e-6) / (union + 1e-6)).mean()


@block(normal(3, 4), normal(3, 4), normal(3, 1))
def huber_by_hand(self: Block, input: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Squares for small differences, absolute values for large ones, weighted (Faster R-CNN)."""
    n = torch.abs(input - target)
    loss = torch.where(n < 1.0, 0.5 * n**2, n - 0.5)
    return (loss * weight).sum(dim=-1).mean()


@block(normal(4, 8), normal(4, 8), encoder=linear(8, 6), logit_scale=lambda: nn.Parameter(torch.tensor(2.6)))
def contrastive_siamese(self: Block, left: Tensor, right: Tensor) -> Tensor:
    """Contrastive loss on two inputs with one encoder: each has to identify its partner (SimCLR, CLIP)."""
    first, second = self.encoder(left), self.encoder(right)
    first = first / first.norm(dim=-1, keepdim=True)
    second = second / second.norm(dim=-1, keepdim=True)
    logits = self.logit_scale.exp() * first @ second.t()
    labels = torch.arange(4, device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
