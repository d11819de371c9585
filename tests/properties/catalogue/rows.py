"""What a row of the catalogue is, and the decorators that make rows of passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import fx
from fx.passes import Contract, close

Pass = Callable[[fx.GraphModule], Any]
Modes = tuple[str, ...]
EVAL: Modes = ("eval",)
BOTH: Modes = ("eval", "train")


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what it is called with."""

    module: nn.Module
    """The program, in the mode in which it is used."""
    inputs: tuple[Any, ...]
    """Its positional arguments."""


Witness = Callable[[], Case]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A pass with a mistake in it."""

    name: str
    """What it is called; for a plain function its name."""
    kind: str
    """The kind of mistake."""
    wrong: str
    """What is wrong, in a sentence."""
    pass_: Pass
    """The pass."""
    laws: tuple[str, ...]
    """The laws that may catch it, the most direct one first; see ``evidence.py``."""
    witness: Witness
    """A program on which it does wrong."""
    contract: Contract
    """What it claims about the numbers."""
    modes: Modes
    """The modes in which it claims to be right."""


@dataclass(frozen=True, slots=True)
class Right:
    """A pass without a mistake."""

    name: str
    """What it is called; for a plain function its name."""
    does: str
    """What it does, in a sentence."""
    pass_: Pass
    """The pass."""
    witnesses: tuple[Witness, ...]
    """Programs that it changes."""
    contract: Contract
    """What it promises about the numbers."""
    modes: Modes
    """The modes in which it promises to be right."""


WRONG: dict[str, Wrong] = {}
"""Every wrong pass by name."""
RIGHT: dict[str, Right] = {}
"""Every right pass by name."""


def wrong(
    kind: str, *laws: str, on: Witness, contract: Contract = close, modes: Modes = EVAL
) -> Callable[[Pass], Pass]:
    """Enter a pass whose docstring says what is wrong with it."""

    def enter(pass_: Pass) -> Pass:
        name, sentence = _words(pass_, WRONG)
        WRONG[name] = Wrong(name, kind, sentence, pass_, laws, on, contract, modes)
        return pass_

    return enter


def right(*on: Witness, contract: Contract = close, modes: Modes = BOTH) -> Callable[[Pass], Pass]:
    """Enter a pass whose docstring says what it does."""

    def enter(pass_: Pass) -> Pass:
        name, sentence = _words(pass_, RIGHT)
        RIGHT[name] = Right(name, sentence, pass_, on, contract, modes)
        return pass_

    return enter


def _words(pass_: Any, taken: dict[str, Any]) -> tuple[str, str]:
    """The name of a pass and its docstring, which an adapted one has from the pass it adapts."""
    inner = getattr(pass_, "pass_", pass_)
    name = getattr(inner, "__name__", type(inner).__name__)
    if name in taken:
        raise ValueError(f"two passes of the catalogue are called {name}")
    return name, " ".join((inner.__doc__ or "").split())


def case(forward: Callable[..., Any], *inputs: Any, train: bool = False, **layers: Any) -> Case:
    """A module with ``layers`` as attributes whose ``forward`` is the function, beside its inputs."""
    module = type("Witness", (nn.Module,), {"forward": forward})()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return Case(module.train(train), inputs)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of numbers between -2 and 2, each another one."""
    count = torch.Size(shape).numel()
    return (torch.sin(torch.arange(1, count + 1, dtype=torch.float64) * 1.7) * 2).reshape(shape).to(dtype)


def settled(layer: nn.Module) -> nn.Module:
    """``layer`` with parameters and buffers as after some training: none is 0 or 1, variances are positive."""
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(numbers(*tensor.shape).abs() / 2 + 0.25)
    return layer


def calls(graph_module: Any, target: Any, op: str = "call_function") -> list[Any]:
    """The nodes that call ``target``, a function or the name of a method."""
    return graph_module.graph.find_nodes(op=op, target=target)


def layers(graph_module: Any, kind: type[nn.Module]) -> list[tuple[Any, Any]]:
    """The nodes that call modules of class ``kind``, each with the module."""
    found = [
        (node, graph_module.get_submodule(node.target)) for node in graph_module.graph.find_nodes(op="call_module")
    ]
    return [(node, layer) for node, layer in found if type(layer) is kind]


def replace(node: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Put a call of ``function`` in the place of ``node`` and return it."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(function, args, kwargs)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made
