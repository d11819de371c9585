"""The modules of ``nn.Transformer`` as calls of their submodules (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from fx.quantize.declaration import operation
from fx.quantize.expansion import CannotExpand, Expansion


@operation
def zero_padding(input: Tensor, key_padding_mask: Tensor) -> Tensor:
    """Set padding at the end of each sequence to zero, as encoders with nested tensors do.

    Encoders use no nested tensors if padding precedes other elements, or without a batch: then return ``input``.

    Args:
        input: of shape (..., sequence, features).
        key_padding_mask: of shape (..., sequence), not zero where there is padding.

    >>> import torch
    >>> zero_padding(torch.ones(1, 2, 1), torch.tensor([[False, True]])).flatten()
    tensor([1., 0.])
    """
    if key_padding_mask.dim() < 2:
        return input
    is_padding = key_padding_mask.bool()
    is_last = (is_padding[:, 1:] | ~is_padding[:, :-1]).all()
    return input.masked_fill((is_padding & is_last).unsqueeze(-1), 0)


def expand_encoder_layer(block: Expansion) -> Any:
    """Record the computation of an ``nn.TransformerEncoderLayer``."""
    arguments = block.arguments(nn.TransformerEncoderLayer.forward)
    masks = _masks(arguments, "src_mask", "src_key_padding_mask", "is_causal")
    parts = (
        ("norm1", lambda x: _attended(block, "self_attn", "dropout1", x, x, masks)),
        ("norm2", lambda x: _fed_forward(block, x, "dropout2")),
    )
    return _with_residuals(block, arguments["src"], parts)


def expand_decoder_layer(block: Expansion) -> Any:
    """Record the computation of an ``nn.TransformerDecoderLayer``."""
    arguments = block.arguments(nn.TransformerDecoderLayer.forward)
    own, others = (
        _masks(arguments, f"{name}_mask", f"{name}_key_padding_mask", f"{name}_is_causal") for name in ("tgt", "memory")
    )
    parts = (
        ("norm1", lambda x: _attended(block, "self_attn", "dropout1", x, x, own)),
        ("norm2", lambda x: _attended(block, "multihead_attn", "dropout2", x, arguments["memory"], others)),
        ("norm3", lambda x: _fed_forward(block, x, "dropout3")),
    )
    return _with_residuals(block, arguments["tgt"], parts)


def _masks(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return dict(zip(("attn_mask", "key_padding_mask", "is_causal"), (arguments[name] for name in names), strict=True))


def _attended(block: Expansion, name: str, dropout: str, x: Any, memory: Any, masks: dict[str, Any]) -> Any:
    return block.call(dropout, block.call(name, x, memory, memory, **masks, need_weights=False)[0])


def _fed_forward(block: Expansion, x: Any, dropout: str) -> Any:
    inner, function = block.call("linear1", x), block.module.activation
    inner = block.call("activation", inner) if isinstance(function, nn.Module) else function(inner)
    return block.call(dropout, block.call("linear2", block.call("dropout", inner)))


def _with_residuals(block: Expansion, x: Any, parts: Sequence[tuple[str, Callable[[Any], Any]]]) -> Any:
    """Add the result of each part to its input, and normalize before or after that."""
    for norm, part in parts:
        x = x + part(block.call(norm, x)) if block.module.norm_first else block.call(norm, x + part(x))
    return x


def expand_encoder(stack: Expansion) -> Any:
    """Record the computation of an ``nn.TransformerEncoder``, with its zeros in place of padding."""
    arguments = stack.arguments(nn.TransformerEncoder.forward)
    mask, padding = arguments["mask"], arguments["src_key_padding_mask"]
    x = arguments["src"]
    for layer in _layers(stack):
        x = stack.call(layer, x, mask, padding, arguments["is_causal"] is True)
    if padding is not None and mask is None and not stack.is_trained and stack.module.use_nested_tensor:
        x = zero_padding(x, padding)
    return x if stack.module.norm is None else stack.call("norm", x)


def expand_decoder(stack: Expansion) -> Any:
    """Record the computation of an ``nn.TransformerDecoder``."""
    arguments = stack.arguments(nn.TransformerDecoder.forward)
    names = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
    causal = (arguments["tgt_is_causal"] is True, arguments["memory_is_causal"])
    x = arguments["tgt"]
    for layer in _layers(stack):
        x = stack.call(layer, x, arguments["memory"], *(arguments[name] for name in names), *causal)
    return x if stack.module.norm is None else stack.call("norm", x)


def _layers(stack: Expansion) -> list[str]:
    """Return the paths of layers.

    Raises:
        CannotExpand: a layer's class is not torch's.
    """
    layers = stack.module.layers
    if any(type(layer) not in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer) for layer in layers):
        raise CannotExpand("its layers are not torch's own")
    return [f"layers.{number}" for number in range(len(layers))]


def expand_transformer(whole: Expansion) -> Any:
    """Record the computation of an ``nn.Transformer``."""
    arguments = whole.arguments(nn.Transformer.forward)
    memory = whole.call(
        "encoder",
        arguments["src"],
        arguments["src_mask"],
        arguments["src_key_padding_mask"],
        arguments["src_is_causal"],
    )
    names = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
    causal = (arguments["tgt_is_causal"], arguments["memory_is_causal"])
    return whole.call("decoder", arguments["tgt"], memory, *(arguments[name] for name in names), *causal)
