"""A session as a module that takes and returns what the original model does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from fx.container_kinds import container_kind, map_leaves
from pytest_fx.errors import ConversionError
from pytest_fx.runtimes.session import Port, Session


class ConvertedProgram(nn.Module):
    """A session as a module.

    Inputs are matched with arguments by name if each has the name of an argument, and by order otherwise. The flat
    outputs are put into the structure of the original's output, once :meth:`arrange_like` has been called.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        """The converted model."""
        self._forward: Callable[..., Any] | None = None
        self._template: Any = None
        self.eval()

    @property
    def name(self) -> str:
        """The name of the converted model."""
        return self.session.name

    def arrange_like(
        self, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Check that the inputs and outputs fit to a call of the original, and return outputs of its structure.

        Args:
            forward: the original's ``forward``, for the names of its parameters.
            args: positional arguments of a call.
            kwargs: its keyword arguments.
            output: the output of this call.

        Raises:
            ConversionError: it is converted from another model, or for other inputs.
        """
        self._forward = forward
        inputs = self.inputs_of(args, kwargs)
        for port, tensor in zip(self.session.inputs, inputs, strict=True):
            if (why := port.why_unfit(tensor)) is not None:
                raise self._of_another_model(why)
        wanted = [leaf for _, leaf in _leaves(output) if leaf is not None]
        if len(wanted) != len(self.session.outputs):
            own = ", ".join(map(str, self.session.outputs)) or "nothing"
            raise self._of_another_model(f"it returns {own}, and the model {len(wanted)} value(s)")
        self._template = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the session."""
        inputs = self.inputs_of(args, kwargs)
        for port, tensor in zip(self.session.inputs, inputs, strict=True):
            if port.dtype not in (None, tensor.dtype):
                raise ConversionError(f"{self.name} does not take these inputs: {port.why_unfit(tensor)}")
        outputs = self.session.run(inputs)
        if self._template is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return _filled(self._template, self._in_order(outputs))

    def inputs_of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of the session's inputs."""
        ports = self.session.inputs
        named = [(name, leaf) for name, leaf in self._named(args, kwargs) if leaf is not None]
        by_name = dict(named)
        own = [next((name for name in port.names if name in by_name), None) for port in ports]
        if len(by_name) == len(named) and None not in own and len(set(own)) == len(own):
            return [_tensor(by_name[name], port) for name, port in zip(own, ports, strict=True) if name is not None]
        tensors = [leaf for _, leaf in named if isinstance(leaf, torch.Tensor)]
        numbers_too = [leaf for _, leaf in named if isinstance(leaf, (torch.Tensor, bool, int, float))]
        for leaves in (tensors, numbers_too):
            if len(leaves) == len(ports):
                return [_tensor(leaf, port) for leaf, port in zip(leaves, ports, strict=True)]
        inputs = ", ".join(map(str, ports)) or "nothing"
        raise self._of_another_model(f"it takes {inputs}, and the model is called with {len(tensors)} tensor(s)")

    def _named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of all arguments, in the order of the parameters, with names such as ``pair[0]``."""
        arguments: dict[str, Any] = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        if self._forward is not None:
            with suppress(TypeError, ValueError):  # a call that only the session takes, or a builtin
                arguments = dict(inspect.signature(self._forward).bind(*args, **kwargs).arguments)
        for name, value in arguments.items():
            yield from _leaves(value, name)

    def _in_order(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs in the order of the original's: by its keys if these name all outputs."""
        ports = self.session.outputs
        keys = [path for path, leaf in _leaves(self._template) if leaf is not None]
        positions = {f"[{name!r}]": index for index, port in enumerate(ports) for name in port.names}
        if len(set(keys) & positions.keys()) == len(keys):
            return [outputs[positions[key]] for key in keys]
        return outputs

    def _of_another_model(self, why: str) -> ConversionError:
        return ConversionError(
            f"{self.name} is not converted from this model, or for other inputs",
            why=why,
            remedy="convert this model with these example inputs, or wrap the session in a torch.nn.Module whose "
            "forward takes the model's inputs",
        )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested containers, with their paths."""
    kind = None if isinstance(value, torch.Tensor) else container_kind(value)
    if kind is None:
        yield path, value
        return
    for label, part in zip(kind.labels(value), kind.parts(value), strict=True):
        yield from _leaves(part, f"{path}[{label!r}]")


def _tensor(leaf: Any, port: Port) -> torch.Tensor:
    return leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, dtype=port.dtype)


def _filled(template: Any, outputs: Sequence[torch.Tensor]) -> Any:
    """Return outputs in the structure of ``template``; a number of the original is a number again."""
    remaining = iter(outputs)

    def fill(value: Any) -> Any:
        if value is None:
            return None
        output = next(remaining)
        if isinstance(value, torch.Tensor):
            return output.to(value.device)
        return output if output.dim() else output.item()

    return map_leaves(fill, template)
