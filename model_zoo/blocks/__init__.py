"""Building blocks of models in the spelling of public code: small modules, each with example inputs."""

from model_zoo.blocks import attention, convolutions, heads_and_losses, norms_and_activations, recurrent_and_routed
from model_zoo.blocks.block import Block, blocks

__all__ = ["Block", "blocks"]
__all__ += ["attention", "convolutions", "heads_and_losses", "norms_and_activations", "recurrent_and_routed"]
