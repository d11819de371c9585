"""Blocks: functions with their inputs and layers, each as a class of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from fx.registry import Registry
from model_zoo.blocks.makers import Maker
from model_zoo.registered_models import ModelError
from model_zoo.zoo_model import BatchNorm, seeded, settle_batch_norm, vary_vectors


class Block(nn.Module):
    """A module with a function of this package as its forward, and the layers and tensors of that function."""

    inputs: ClassVar[tuple[Maker, ...]]
    """Makers of the arguments of a call."""
    parts: ClassVar[Mapping[str, Maker]]
    """Makers of layers, parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        for name, make in self.parts.items():
            part = make()
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def arguments(cls) -> tuple[Any, ...]:
        """Return the arguments of a call, the same each time."""
        with seeded(1):
            return tuple(make() for make in cls.inputs)

    @classmethod
    def build(cls) -> nn.Module:
        """Return a new module in evaluation mode, with the same weights each time, varied as if trained."""
        with seeded(0):
            module = vary_vectors(cls()).eval()
            has_batch_norm = any(isinstance(layer, BatchNorm) for layer in module.modules())
            return settle_batch_norm(module, cls.arguments()) if has_batch_norm else module


_blocks: Registry[type[Block]] = Registry("block", "blocks", ModelError)


def block(*inputs: Maker, **parts: Maker) -> Callable[[Callable[..., Any]], type[Block]]:
    """Return a decorator that registers a class of modules with the decorated function as forward."""

    def register(forward: Callable[..., Any]) -> type[Block]:
        namespace = {"__doc__": forward.__doc__, "__module__": forward.__module__}
        kind = type(forward.__name__, (Block,), {**namespace, "forward": forward, "inputs": inputs, "parts": parts})
        _blocks.register(forward.__name__, kind)
        return kind

    return register


def blocks() -> Iterator[tuple[str, Callable[[], nn.Module], tuple[Any, ...]]]:
    """Yield the blocks in alphabetical order: the name, the function that makes the module, and example arguments."""
    for name in _blocks.names():
        kind = _blocks.get(name)
        yield name, kind.build, kind.arguments()
