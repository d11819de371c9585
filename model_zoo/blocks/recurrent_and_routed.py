"""Recurrent cells, experts, graphs, and interactions of features in recommenders."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from model_zoo.blocks.block import Block, block
from model_zoo.blocks.makers import embedding, integers, linear, normal, parameter, uniform


@block(normal(2, 6), normal(2, 4), normal(2, 4), ih=linear(6, 16), hh=linear(4, 16))
def lstm_cell_by_hand(self: Block, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """A step of an LSTM by its four gates (Hochreiter and Schmidhuber 1997)."""
    gates = self.ih(x) + self.hh(h)
    ingate, forgetgate, cellgate, outgate = gates.chunk(4, 1)
    cy = (torch.sigmoid(forgetgate) * c) + (torch.sigmoid(ingate) * torch.tanh(cellgate))
    return torch.sigmoid(outgate) * torch.tanh(cy), cy


@block(normal(2, 5, 6), ih=linear(6, 12), hh=linear(4, 12), out=linear(4, 3))
def gru_by_hand(self: Block, x: Tensor) -> Tensor:
    """A loop of five steps of a GRU, and its last state (Cho et al. 2014)."""
    h = x.new_zeros(x.size(0), 4)
    for t in range(5):
        i_r, i_z, i_n = self.ih(x[:, t, :]).chunk(3, dim=-1)
        h_r, h_z, h_n = self.hh(h).chunk(3, dim=-1)
        z = torch.sigmoid(i_z + h_z)
        n = torch.tanh(i_n + torch.sigmoid(i_r + h_r) * h_n)
        h = (1 - z) * n + z * h
    return self.out(h)


@block(normal(5, 3, 6), lambda: torch.tensor([5, 4, 2]), lstm=lambda: nn.LSTM(6, 4, bidirectional=True))
def packed_lstm(self: Block, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Padded texts through a bidirectional LSTM, packed (Tacotron 2, taggers)."""
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    packed_output, (hidden, _) = self.lstm(packed)
    output, _ = pad_packed_sequence(packed_output)
    return output, torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1)


@block(normal(2, 3, 8), gate=linear(8, 4, False), experts=lambda: nn.ModuleList([nn.Linear(8, 8) for _ in range(4)]))
def sparse_experts(self: Block, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """The two best of four experts for each token, gathered and added in place (Mixtral)."""
    flat = hidden_states.view(-1, 8)
    router_logits = self.gate(flat)
    routing_weights, selected = torch.topk(F.softmax(router_logits, dim=1, dtype=torch.float), 2, dim=-1)
    routing_weights = routing_weights / routing_weights.sum(dim=-1, keepdim=True)
    final = torch.zeros((6, 8), dtype=flat.dtype)
    for expert_idx in range(4):
        top_x, idx = torch.where(selected == expert_idx)
        current = self.experts[expert_idx](flat[top_x]) * routing_weights[top_x, idx, None]
        final.index_add_(0, top_x, current.to(flat.dtype))
    return final.reshape(2, 3, 8), router_logits


@block(normal(6, 8), integers(6, (2, 9)), lin=linear(8, 5, False), bias=parameter(5))
def graph_convolution(self: Block, x: Tensor, edge_index: Tensor) -> Tensor:
    """Sum over neighbours, normalized by degrees (GCN)."""
    row, col = edge_index[0], edge_index[1]
    deg = torch.zeros(x.size(0)).scatter_add_(0, col, torch.ones(9))
    deg_inv_sqrt = deg.pow(-0.5)
    deg_inv_sqrt = deg_inv_sqrt.masked_fill(deg_inv_sqrt == float("inf"), 0)
    norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
    x = self.lin(x)
    return torch.zeros_like(x).index_add_(0, col, norm.view(-1, 1) * x[row]) + self.bias


@block(normal(3, 4), integers(9, (3, 5)), emb=embedding(9, 4), top=linear(19, 1))
def dot_interaction(self: Block, x: Tensor, sparse: Tensor) -> Tensor:
    """Products of all pairs of features, concatenated with the dense one (DLRM)."""
    T = torch.cat([x.unsqueeze(1), self.emb(sparse)], dim=1)
    Z = torch.bmm(T, torch.transpose(T, 1, 2))
    li, lj = torch.tril_indices(6, 6, offset=-1)
    R = torch.cat([x, Z[:, li, lj]], dim=1)
    return torch.sigmoid(self.top(R)).squeeze(1)


@block(integers(5, (3, 4)), emb=embedding(20, 6), fc=embedding(20, 1), offsets=lambda: torch.arange(4) * 5)
def factorization_machine(self: Block, x: Tensor) -> Tensor:
    """Pairwise interactions as the square of a sum minus a sum of squares (DeepFM)."""
    x = x + self.offsets.unsqueeze(0)
    emb = self.emb(x)
    square_of_sum = torch.sum(emb, dim=1) ** 2
    sum_of_square = torch.sum(emb**2, dim=1)
    ix = 0.5 * torch.sum(square_of_sum - sum_of_square, dim=1, keepdim=True)
    return torch.sigmoid((self.fc(x).sum(dim=1) + ix).squeeze(1))


@block(normal(3, 4, 5), mean=normal(4), var=uniform(4), steps=lambda: torch.tensor(3))
def running_statistics(self: Block, x: Tensor) -> Tensor:
    """Normalize by moving averages that each call updates (observations in reinforcement learning)."""
    mean, var = x.mean((0, 2)), x.var((0, 2), unbiased=False)
    self.mean.mul_(0.9).add_(mean.detach(), alpha=0.1)
    self.var.copy_(0.9 * self.var + 0.1 * var.detach())
    self.steps += 1
    return (x - self.mean[None, :, None]) / torch.sqrt(self.var[None, :, None] + 1e-5)
