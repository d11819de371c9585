"""See why a pattern does not match a model, and mend it: the epsilon of a norm is another one.

``python examples/explain_match.py`` explains it for a program of ours, for one of torch.fx, and for the mended pattern.
"""

import torch
from torch import Tensor, nn

import fx


class Norm(nn.Module):
    """A root-mean-square norm, as language models have it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def norm(x: Tensor) -> Tensor:
    """The pattern, with the epsilon of another model."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def norm_of_any_epsilon(x: Tensor, epsilon: float) -> Tensor:
    """The mended pattern: the epsilon is an input."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def use_rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """The replacement: torch's own norm."""
    return nn.functional.rms_norm(x, x.shape[-1:], eps=epsilon)


def main() -> None:
    program = fx.symbolic_trace(Norm())
    print("ours:    ", fx.explain_match(program, norm))
    print("torch.fx:", fx.explain_match(torch.fx.symbolic_trace(Norm()), norm))
    print("mended:  ", fx.explain_match(program, norm_of_any_epsilon))
    fx.replace_pattern(program, norm_of_any_epsilon, use_rms_norm)
    print(program.code.strip())


if __name__ == "__main__":
    main()
