"""Judge a decoder token by token: each program has its own cache, and errors add up over the calls.

``python examples/decode_steps.py`` decodes with a small model, with its capture, with a cache in half precision, and,
if onnx, onnxscript and onnxruntime are installed, with an ONNX file. It prints the verdicts.
``pytest --fx-model decode_steps:model`` judges passes in the same steps.
"""

import importlib.util
import warnings

import torch
from torch import Tensor, nn

import fx
from pytest_fx import LawViolation, Steps, assert_equal_to_eager

WIDTH, HEADS, VOCABULARY, PLACES = 32, 4, 100, 64


class Attention(nn.Module):
    """Attention of the newest token to all tokens so far, whose keys and values are the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4).unbind()
        keys, values = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values)
        return self.out(mixed.transpose(1, 2).flatten(2)), (keys, values)


class Decoder(nn.Module):
    """A decoder of two layers: from a token, its place and the caches to logits and longer caches."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token: Tensor, place: Tensor, caches: list[tuple[Tensor, Tensor]]):
        x, new = self.tokens(token) + self.places(place), []
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            mixed, longer = layer(norm(x), caches[number])
            x = x + mixed
            new.append(longer)
        return {"logits": self.head(x[:, -1]), "caches": new}


def prompt(length: int = 0) -> dict[str, object]:
    """Return the inputs of a call after ``length`` others, for two texts; 0 is the first call."""
    caches = [tuple(torch.zeros(2, HEADS, length, WIDTH // HEADS) for _ in range(2)) for _ in range(2)]
    return {"token": torch.tensor([[3], [5]]), "place": torch.full((2, 1), length), "caches": caches}


def decode(outputs: dict, number: int) -> dict[str, object]:
    """Return the inputs of the next call: the likeliest token, and the caches that the last call has returned."""
    token = outputs["logits"].argmax(-1, keepdim=True)
    return {"token": token, "place": torch.full((2, 1), number), "caches": outputs["caches"]}


def model() -> tuple[nn.Module, Steps]:
    """Return the decoder, and twelve calls of it."""
    torch.manual_seed(0)
    return Decoder().eval(), Steps(decode, first=prompt(), count=12)


class HalfCache(nn.Module):
    """A decoder whose caches are rounded to half precision: right in the first call, which reads none."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, token: Tensor, place: Tensor, caches: list[tuple[Tensor, Tensor]]):
        rounded = [tuple(each.half().float() for each in cache) for cache in caches]
        return self.decoder(token, place, rounded)


def to_onnx(decoder: nn.Module):
    """Return the decoder as a model of ONNX, for texts and caches of any length."""
    dynamic = torch.export.Dim.DYNAMIC
    sizes = {"token": {0: dynamic}, "place": {0: dynamic}, "caches": [({0: dynamic, 2: dynamic},) * 2] * 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        return torch.onnx.export(decoder, kwargs=prompt(5), dynamic_shapes=sizes, dynamo=True, verbose=False)


def main() -> None:
    decoder, steps = model()
    programs = {
        "its capture": (fx.symbolic_trace(decoder), "close"),
        "half a cache, as exact as rounding": (HalfCache(decoder), "close"),
        "half a cache, to 50 dB": (HalfCache(decoder), "approximate(50)"),
    }
    if all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        programs["ONNX Runtime"] = to_onnx(decoder), "close"
    for name, (program, contract) in programs.items():
        try:
            comparison = assert_equal_to_eager(decoder, program, steps=steps, contract=contract)
            print(f"{name}: right in {steps.count} steps, largest error {comparison.largest_error():.1e}")
        except LawViolation as violation:
            print(f"{name}: {violation}")


if __name__ == "__main__":
    main()
