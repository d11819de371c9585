"""A captured program as the text of a random one, so that programs near to it can be made."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fx import GraphModule, Node
from fx.modules.attributes import fetch_attribute
from pytest_fx.generation.productions import NAMESPACE, spell
from pytest_fx.generation.record import Program, load
from pytest_fx.generation.tensor_expressions import TensorRecipe

MOST_NODES = 100
"""Nodes of a program that is transcribed."""
MOST_ELEMENTS = 1_000_000
"""Elements of its parameters and buffers together."""
MOST_GUESSES = 40
"""How many combinations of inputs are tried where none are given."""
_SHAPES = ((2, 3, 4), (2, 4), (2, 3, 8, 8), (4, 4), (4,), (2, 3, 4, 4, 4))
"""Shapes of inputs, those that most operations take first."""
_BUILD = (  # as they are made, norms do next to nothing
    "def build():",
    "    torch.default_generator.manual_seed(0)",
    "    module = Program().eval()",
    "    for tensor in module.state_dict().values():",
    "        if tensor.is_floating_point() and tensor.dim() == 1:",
    "            tensor.uniform_(0.1, 1.5)",
    "    return module",
)
_FREED = re.compile(r";\s+\w+( = \w+)* = None$")


class _CannotBeWritten(Exception):
    """Part of a program has no text."""


def transcribed(program: GraphModule, inputs: Sequence[Any] | None = None) -> Program | None:
    """Return a program that computes what ``program`` does, with parameters of its own; None if it has no such text.

    Args:
        program: a captured program whose modules are those of ``torch.nn``, not too large.
        inputs: positional arguments of a call; None to try some that may fit.
    """
    elements = sum(tensor.numel() for tensor in itertools.chain(program.parameters(), program.buffers()))
    if len(program.graph.nodes) > MOST_NODES or elements > MOST_ELEMENTS:
        return None
    try:
        definition = _text(program)
        for values in _guesses(program) if inputs is None else [[_spell_input(value) for value in inputs]]:
            comma = "," if len(values) == 1 else ""
            arguments = f"({', '.join(values)}{comma}), {{}}"
            if (found := _loaded(f"{definition}\n\n\ndef inputs():\n    return {arguments}\n")) is not None:
                return found
    except _CannotBeWritten:
        pass
    return None


def _loaded(text: str) -> Program | None:
    try:
        program = load(text, frozenset(), (), 0)
    except Exception:  # whatever a text raises that makes no program
        return None
    with torch.no_grad():
        return program if program.takes(program.inputs) else None


def _text(program: GraphModule) -> str:
    """The text but for the inputs."""
    graph = copy.deepcopy(program.graph)
    state: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            name = re.sub(r"\W", "_", str(node.target))
            name = name if name.isidentifier() else f"_{name}"
            state[name] = _state_line(name, fetch_attribute(program, str(node.target)))
            node.target = name
    code = graph.python_code("self")
    imports = ["import math", "import torch", "import torch.nn.functional as F", "from torch import nn"]
    for name, value in code.globals.items():
        if re.search(rf"\b{re.escape(name)}\b", code.src) and name not in NAMESPACE:
            imports.append(_import(name, value))
    forward = code.src[code.src.index("def ") :].splitlines()
    body = ["def __init__(self):", "    super().__init__()", *(f"    {line}" for line in state.values()), ""]
    body += [_FREED.sub("", line) for line in forward if line.strip()]
    lines = [*imports, "", "", "class Program(nn.Module):", *(f"    {line}".rstrip() for line in body), "", ""]
    return "\n".join([*lines, *_BUILD])


def _state_line(name: str, value: Any) -> str:
    """The line of ``__init__`` that makes an attribute."""
    if isinstance(value, torch.Tensor):
        text = TensorRecipe(tuple(value.shape), value.dtype, "waves").text
        is_parameter = isinstance(value, nn.Parameter)
        return f"self.{name} = nn.Parameter({text})" if is_parameter else f'self.register_buffer("{name}", {text})'
    text = f"nn.{value!r}"
    try:
        made = eval(text, dict(NAMESPACE))
        is_same = type(made) is type(value) and _shapes(made) == _shapes(value)
    except Exception:  # whatever a text raises that makes no module
        is_same = False
    if not is_same:
        raise _CannotBeWritten(text)
    dtype = _dtype_of(value)
    return f"self.{name} = {text}" + ("" if dtype is torch.float32 else f".to({dtype})")


def _dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point tensor of a module; that of inputs, where it has none."""
    floats = (tensor.dtype for tensor in module.state_dict().values() if tensor.is_floating_point())
    return next(floats, torch.float32)


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def _import(name: str, value: Any) -> str:
    """The line by which a text has a name."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not own.isidentifier():
        raise _CannotBeWritten(name)
    return f"from {module} import {own} as {name}"


def _spell_input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return spell(value)
    limit = 4 if value.is_floating_point() or value.is_complex() or not value.numel() else int(value.max()) + 1
    return TensorRecipe(tuple(value.shape), value.dtype, "waves", limit=limit).text


def _guesses(program: GraphModule) -> Iterator[list[str]]:
    """Inputs that may fit: those that the layers which read them ask for, else the same shape for all, and others."""
    needed = [node for node in program.graph.find_nodes(op="placeholder") if not node.args]
    if any(str(node.target).startswith("*") for node in needed):
        raise _CannotBeWritten("arguments of any number")
    asked = [_asked(program, node) for node in needed]
    every = [TensorRecipe(shape, _dtype_of(program), "waves") for shape in _SHAPES]
    same = ([recipes[0] if recipes else recipe for recipes in asked] for recipe in every)
    others = itertools.product(*(recipes or every for recipes in asked))
    for recipes in itertools.islice(itertools.chain(same, others), MOST_GUESSES):
        yield [recipe.text for recipe in recipes]


def _asked(program: GraphModule, node: Node) -> list[TensorRecipe]:
    """Return what the first layer that an input leads to takes; none if that is not known."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop(0).users:
            layer = program.get_submodule(str(user.target)) if user.op == "call_module" else None
            if layer is not None and (found := _taken_by(layer)):
                return found
            if user not in seen and user.op != "output":
                seen.add(user)
                pending.append(user)
    return []


def _taken_by(layer: nn.Module) -> list[TensorRecipe]:
    """Inputs that a layer takes; none where it does not say."""
    match layer:
        case nn.Linear(in_features=size):
            shapes = [(2, size), (2, 3, size)]
        case nn.Embedding(num_embeddings=limit):
            return [TensorRecipe((2, 3), torch.int64, "waves", limit=limit)]
        case nn.LayerNorm(normalized_shape=shape):
            shapes = [(2, *shape), (2, 3, *shape)]
        case nn.modules.conv._ConvNd(in_channels=channels, kernel_size=sizes):  # pyright: ignore[reportPrivateUsage]
            shapes = [(2, channels, *[size] * len(sizes)) for size in (8, 32)]
        case nn.modules.batchnorm._NormBase(num_features=size) | nn.GroupNorm(num_channels=size):  # pyright: ignore[reportPrivateUsage]
            shapes = [(2, size, *[8] * rank) for rank in (2, 0, 1, 3)]
        case _:
            return []
    return [TensorRecipe(shape, _dtype_of(layer), "waves") for shape in shapes]
