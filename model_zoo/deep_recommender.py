"""DeepRecommender, the paper's example of quantization (section 6.2.1, appendix B, figure 6).

Kuchaiev and Ginsburg, "Training Deep AutoEncoders for Collaborative Filtering" (2017). Names, shapes and order of the
parameters are those of NVIDIA's implementation, so that its checkpoints load: weights are in lists on the module
itself, without ``nn.Linear``. The full size is that of torchbench, which the paper's figures fit: vectors of 197,951
ratings, hidden layers of 512, 512 and 1,024, SELU also after the last layer, 204,475,711 parameters.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.registered_models import ModelError, register_sizes
from model_zoo.zoo_model import ExampleInputs, built


def _swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _leave(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "selu": functional.selu,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "lrelu": functional.leaky_relu,
    "swish": _swish,
    "none": _leave,
}
"""The activations by their names in the original."""


class AutoEncoder(nn.Module):
    """An autoencoder that predicts all ratings of a user from the known ones, through a narrow code."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        nl_type: str = "selu",
        is_constrained: bool = True,
        dp_drop_prob: float = 0.0,
        last_layer_activations: bool = True,
    ) -> None:
        """Make the network.

        Args:
            layer_sizes: length of a rating vector, then the width of each hidden layer down to the code.
            nl_type: one of :data:`ACTIVATIONS`.
            is_constrained: whether the decoder uses the encoder's weights, transposed.
            dp_drop_prob: dropout on the code.
            last_layer_activations: whether the last layer is activated too.

        Raises :class:`~model_zoo.errors.ModelError` for an unknown activation.
        """
        super().__init__()
        if nl_type not in ACTIVATIONS:
            raise ModelError(f"there is no activation named {nl_type!r}", remedy=f"use one of {', '.join(ACTIVATIONS)}")
        self.nl_type = nl_type
        self.is_constrained = is_constrained
        self.last_layer_activations = last_layer_activations
        self.drop = nn.Dropout(dp_drop_prob) if dp_drop_prob > 0 else None
        sizes = list(layer_sizes)
        self.encode_w = _weights(sizes)
        self.encode_b = _biases(sizes)
        sizes.reverse()
        if not is_constrained:
            self.decode_w = _weights(sizes)
        self.decode_b = _biases(sizes)

    def encode(self, x: Tensor) -> Tensor:
        """Map ratings, (batch, ratings), to codes, (batch, code)."""
        for weight, bias in zip(self.encode_w, self.encode_b, strict=True):
            x = ACTIVATIONS[self.nl_type](functional.linear(input=x, weight=weight, bias=bias))
        return x if self.drop is None else self.drop(x)

    def decode(self, z: Tensor) -> Tensor:
        """Map codes, (batch, code), to ratings, (batch, ratings)."""
        if self.is_constrained:
            weights = [weight.transpose(0, 1) for weight in reversed(list(self.encode_w))]
        else:
            weights = list(self.decode_w)
        last = len(weights) - 1
        for index, (weight, bias) in enumerate(zip(weights, self.decode_b, strict=True)):
            z = functional.linear(input=z, weight=weight, bias=bias)
            if index < last or self.last_layer_activations:
                z = ACTIVATIONS[self.nl_type](z)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Map known ratings, (batch, ratings), with 0 for unknown ones, to all ratings, (batch, ratings)."""
        return self.decode(self.encode(x))


def masked_mse(predicted: Tensor, ratings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of squared errors over the known ratings, and their number."""
    rated = ratings != 0
    return ((predicted * rated - ratings) ** 2).sum(), rated.sum()


def _weights(sizes: Sequence[int]) -> nn.ParameterList:
    matrices = [torch.empty(wide, narrow) for narrow, wide in itertools.pairwise(sizes)]
    return nn.ParameterList([nn.Parameter(nn.init.xavier_uniform_(matrix)) for matrix in matrices])


def _biases(sizes: Sequence[int]) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes[1:]])


def ratings(length: int) -> ExampleInputs:
    """Return a maker of one dense batch of normally distributed vectors, (batch, length), as torchbench uses."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
        return (torch.randn(batch, length, generator=torch.Generator().manual_seed(seed)),)

    return example_inputs


def _auto_encoder(*sizes: int) -> Callable[[], nn.Module]:
    return built(lambda: AutoEncoder(sizes, is_constrained=False, dp_drop_prob=0.8))


register_sizes(
    "deep_recommender",
    "Kuchaiev and Ginsburg 2017, in the layout of NVIDIA's DeepRecommender; random weights",
    {"recommendation", "paper"},
    (_auto_encoder(197_951, 512, 512, 1024), ratings(197_951)),
    (_auto_encoder(96, 16, 16, 32), ratings(96)),
    ", with 96 ratings and narrow layers",
)
