"""Attention as the layers and products that it is, so that its projections can be quantized (paper, section 6.2.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.quantize.declaration import operation
from fx.quantize.expansion import CannotExpand, Expansion

_TENSORS = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@operation
def attention_mask(
    query: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
) -> Tensor | None:
    """Return the summand for products of queries and keys: -inf where a mask is true; float masks as they are.

    Args:
        query: of shape (..., heads, queries, features).
        attn_mask: of shape (queries, keys), or a mask for each head, with the batch in the same dimension.
        key_padding_mask: of shape (..., keys).

    >>> attention_mask(torch.zeros(1, 1, 2), key_padding_mask=torch.tensor([False, True]))
    tensor([[[0., -inf]]])
    """
    masks: list[Tensor] = []
    if attn_mask is not None:
        summand = _as_float(attn_mask, query.dtype)
        is_whole = summand.dim() <= 2
        masks.append(summand if is_whole else summand.reshape(*query.shape[:-2], *summand.shape[-2:]))
    if key_padding_mask is not None:
        masks.append(_as_float(key_padding_mask, query.dtype).unsqueeze(-2).unsqueeze(-2))
    return None if not masks else masks[0] if len(masks) == 1 else masks[0] + masks[1]


def _as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask if mask.dtype != torch.bool else mask.to(dtype).masked_fill(mask, -math.inf)


@operation
def add_attention_mask(
    scores: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
) -> Tensor:
    """Return products of queries and keys, of shape (..., heads, queries, keys), with :func:`attention_mask` added.

    >>> add_attention_mask(torch.ones(1, 1, 2), torch.tensor([[False, True]]))
    tensor([[[1., -inf]]])
    """
    mask = attention_mask(scores, attn_mask, key_padding_mask)
    return scores if mask is None else scores + mask


def attend(call: Expansion) -> tuple[Any, Any]:
    """Record what a call of ``F.multi_head_attention_forward`` or ``nn.MultiheadAttention`` computes.

    Raises:
        CannotExpand: in some cases it computes something else.
    """
    settings: dict[str, Any]
    if call.module is None:
        settings = {"batch_first": False, **call.arguments(F.multi_head_attention_forward)}
        if settings["training"] and settings["dropout_p"] != 0:
            raise CannotExpand("it drops some of its weights in every mode")
    else:
        settings = {**_settings(call), **call.arguments(nn.MultiheadAttention.forward)}
    _refuse(settings)
    query, key, value = (_in_heads(mask, settings) for mask in _projected(settings))
    masks = {name: settings[name] for name in ("attn_mask", "key_padding_mask")}
    has_mask = any(mask is not None for mask in masks.values())
    weights: Any = None
    drops = call.is_trained and settings["dropout_p"] != 0
    # scaled_dot_product_attention returns no weights, and the mode of a module does not switch its dropout.
    if settings["need_weights"] or drops:
        scores = torch.matmul(
            query * math.sqrt(settings["num_heads"] / settings["embed_dim_to_check"]), key.transpose(-2, -1)
        )
        scores = add_attention_mask(scores, **masks) if has_mask else scores
        weights = call.dropout(F.softmax(scores, dim=-1), settings["dropout_p"], "attention_dropout")
        heads = torch.matmul(weights, value)
    else:
        mask = attention_mask(query, **masks) if has_mask else None
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    heads = heads.transpose(-3, -2) if settings["batch_first"] else torch.movedim(heads, -2, 0)
    result = F.linear(torch.flatten(heads, -2, -1), settings["out_proj_weight"], settings["out_proj_bias"])
    if not settings["need_weights"]:
        return result, None
    return result, torch.mean(weights, -3) if settings["average_attn_weights"] else weights


def _settings(call: Expansion) -> dict[str, Any]:
    """Return the arguments with which an attention module calls its function."""
    module = call.module
    return {
        "num_heads": module.num_heads,
        **{name: call.fetch(name) for name in _TENSORS},
        "out_proj_weight": call.fetch("out_proj.weight"),
        "out_proj_bias": call.fetch("out_proj.bias"),
        "use_separate_proj_weight": not module._qkv_same_embed_dim,
        "bias_k": module.bias_k,
        "add_zero_attn": module.add_zero_attn,
        "dropout_p": module.dropout,
        "batch_first": module.batch_first,
        "embed_dim_to_check": module.embed_dim,
    }


def _refuse(settings: Mapping[str, Any]) -> None:
    if settings.get("bias_k") is not None or settings.get("bias_v") is not None or settings["add_zero_attn"]:
        raise CannotExpand("it adds its own keys to its input")
    if settings.get("static_k") is not None or settings.get("static_v") is not None:
        raise CannotExpand("its keys or values are projected already")
    if not all(isinstance(settings[name], bool) for name in ("need_weights", "average_attn_weights", "is_causal")):
        raise CannotExpand("it has an option that is computed while the program runs")
    if settings["is_causal"] and settings["attn_mask"] is None:
        raise CannotExpand("it is called as causal without a mask, which is refused")


def _in_heads(value: Any, settings: Mapping[str, Any]) -> Any:
    """Return a value in the shape (..., heads, queries, features), with the batch first if there is one."""
    heads = torch.unflatten(value, -1, (settings["num_heads"], -1))
    return heads.transpose(-3, -2) if settings["batch_first"] else torch.movedim(heads, 0, -2)


def _projected(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Yield queries, keys and values, from as few layers as their inputs allow."""
    size, weight, bias = settings["embed_dim_to_check"], settings["in_proj_weight"], settings["in_proj_bias"]
    inputs = [settings[name] for name in ("query", "key", "value")]
    nodes = [tensor.node for tensor in inputs]

    def rows(tensor: Any, first: int, last: int) -> Any:
        return tensor if tensor is None or last - first == 3 else tensor[first * size : last * size]

    if settings["use_separate_proj_weight"]:
        for number, name in enumerate("qkv"):
            yield F.linear(inputs[number], settings[f"{name}_proj_weight"], rows(bias, number, number + 1))
        return
    first = 0
    while first < len(inputs):
        last = next((end for end in range(first, 3) if nodes[end] is not nodes[first]), 3)
        projected = F.linear(inputs[first], rows(weight, first, last), rows(bias, first, last))
        yield from (
            [projected]
            if last - first == 1
            else (torch.chunk(projected, last - first, -1)[number] for number in range(last - first))
        )
        first = last
