"""Judge a transform on the inputs that a model is meant for: one that is right for pixels from 0 to 1 alone.

``python examples/input_domain.py`` prints a verdict for pixels, and one for any numbers. Under pytest the same is
``pytest --fx-model input_domain:of_pixels --fx-pass input_domain:drop_clamps``.
"""

import torch
from torch import nn

import fx
from pytest_fx import InputSets, LawViolation, assert_equal_to_eager, between


class Stem(nn.Module):
    """The first layer of a network of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(images.clamp(0, 1) * 2 - 1))


def images(size: tuple[int, ...]) -> tuple[tuple[torch.Tensor], dict[str, object]]:
    """Return an input set: positional arguments, and those by name."""
    return (torch.rand(size, generator=torch.Generator().manual_seed(0)),), {}


def of_pixels() -> tuple[nn.Module, InputSets]:
    """Return the model with two batches of images, and the domain of all further inputs that are made from them."""
    return Stem().eval(), InputSets([images((2, 3, 8, 8)), images((1, 3, 12, 8))], domain={0: between(0, 1)})


def of_numbers() -> tuple[nn.Module, InputSets]:
    """Return the same without a domain: further inputs are also negative, large and infinite."""
    return Stem().eval(), InputSets([images((2, 3, 8, 8)), images((1, 3, 12, 8))])


def drop_clamps(program: fx.GraphModule) -> None:
    """Leave out clamps to [0, 1]: pixels are there already."""
    for clamp in program.graph.find_nodes(op="call_method", target="clamp"):
        if clamp.args[1:] == (0, 1):
            clamp.replace_all_uses_with(clamp.args[0])
            program.graph.erase_node(clamp)
    program.recompile()


def main() -> None:
    for factory in (of_pixels, of_numbers):
        model, inputs = factory()
        try:
            assert_equal_to_eager(model, drop_clamps, inputs)
            print(f"{factory.__name__}: right")
        except LawViolation as violation:
            print(f"{factory.__name__}: {violation}")


if __name__ == "__main__":
    main()
