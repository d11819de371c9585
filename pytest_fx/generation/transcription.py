"""A captured program as the text of a random one, so that variations of it can be made."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fx import GraphModule, Node
from fx.modules.attributes import fetch_attribute
from pytest_fx.generation.productions import NAMESPACE, spell, spell_options
from pytest_fx.generation.record import Program, load
from pytest_fx.generation.tensor_expressions import RecipeInDomain, TensorRecipe

MOST_NODES = 100
"""The most nodes of a program that is transcribed."""
MOST_ELEMENTS = 1_000_000
"""The most elements of its parameters and buffers together."""
MOST_GUESSES = 80
"""The number of combinations of inputs that are tried if there are none."""
_SHAPES = ((2, 3, 4), (2, 4), (2, 3, 8, 8), (4, 4), (4,), (2, 3, 4, 4, 4))
"""Shapes of inputs; those that most operations accept come first."""
_INTEGERS = ((2,), (2, 3))
"""Shapes of inputs with integers, such as indices and classes."""
_BUILD = (  # the initial values of norms make them nearly the identity
    "def build():",
    "    torch.default_generator.manual_seed(0)",
    "    module = Program().eval()",
    "    for tensor in module.state_dict().values():",
    "        if tensor.is_floating_point() and tensor.dim() == 1:",
    "            tensor.uniform_(0.1, 1.5)",
    "    return module",
)
DOMAINS = ("ascending", "between", "integers", "right_padded", "sums_to_one")
"""The functions that declare domains."""
_IN_DOMAIN = "from pytest_fx.harness.domains import in_domain"
_FREED = re.compile(r";\s+\w+( = \w+)* = None$")


class CannotBeWritten(Exception):
    """Raised for a part of a program that has no text."""


Sizes = Mapping[int, int]
"""Replacements of sizes, wherever they occur: in shapes, and among the arguments of layers and calls."""


def transcribed(program: GraphModule, inputs: Sequence[Any] | None = None) -> Program | None:
    """Return a program that computes the same, with parameters of its own; None if it has no such text.

    Args:
        program: a captured program whose modules are those of ``torch.nn``, not too large.
        inputs: positional arguments of a call; None to try some that may fit.
    """
    elements = sum(tensor.numel() for tensor in itertools.chain(program.parameters(), program.buffers()))
    if len(program.graph.nodes) > MOST_NODES or elements > MOST_ELEMENTS:
        return None
    try:
        definition = _text(program, {})
        texts = _guesses(program) if inputs is None else [[_spell_input(value, {}) for value in inputs]]
        return next(filter(None, (_loaded(_with_inputs(definition, values)) for values in texts)), None)
    except CannotBeWritten:
        return None


def written_program(program: GraphModule, inputs: Sequence[Any], sizes: Sizes | None = None) -> str:
    """Return the text of a program that computes the same as ``program``, called with ``inputs``, at other sizes.

    An input may be a :class:`TensorRecipe` instead of a tensor, or one in a domain, which the text then declares.
    Raises ``CannotBeWritten`` if there is no such text.
    """
    return _with_inputs(_text(program, sizes or {}), [_spell_input(value, sizes or {}) for value in inputs])


def _with_inputs(definition: str, values: Sequence[str]) -> str:
    comma = "," if len(values) == 1 else ""
    if any(value.startswith("in_domain(") for value in values):
        definition = f"from pytest_fx import {', '.join(DOMAINS)}\n{_IN_DOMAIN}\n{definition}"
    return f"{definition}\n\n\ndef inputs():\n    return ({', '.join(values)}{comma}), {{}}\n"


def _loaded(text: str) -> Program | None:
    try:
        program = load(text, frozenset(), (), 0)
    except Exception:  # a text that makes no program may raise anything
        return None
    with torch.no_grad():
        return program if program.takes(program.inputs) else None


def _text(program: GraphModule, sizes: Sizes) -> str:
    """Return the text without the inputs."""
    graph = copy.deepcopy(program.graph)
    state: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            name = re.sub(r"\W", "_", str(node.target))
            name = name if name.isidentifier() else f"_{name}"
            state[name] = fetch_attribute(program, str(node.target))
            node.target = name
    code = graph.python_code("self")
    imports = ["import math", "import torch", "import torch.nn.functional as F", "from torch import nn"]
    for name, value in code.globals.items():
        if re.search(rf"\b{re.escape(name)}\b", code.src) and name not in NAMESPACE:
            imports.append(_import(name, value))
    forward = [_FREED.sub("", line) for line in code.src[code.src.index("def ") :].splitlines() if line.strip()]
    body = [
        "def __init__(self):",
        "    super().__init__()",
        *(f"    {line}" for line in _state_lines(state, sizes)),
        "",
    ]
    body += _resized("\n".join(forward), sizes).splitlines()
    lines = [*imports, "", "", "class Program(nn.Module):", *(f"    {line}".rstrip() for line in body), "", ""]
    return "\n".join([*lines, *_BUILD])


def _resized(text: str, sizes: Sizes) -> str:
    """Return the text with integers that are sizes replaced."""
    if not sizes:
        return text
    tree = ast.parse(text)
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and type(part.value) is int:
            part.value = sizes.get(part.value, part.value)
    return ast.unparse(tree)


def _state_lines(state: Mapping[str, Any], sizes: Sizes) -> Iterator[str]:
    """Yield the lines of ``__init__`` that make attributes; sharing, ties and frozen parameters stay."""
    owners: dict[int, str] = {}  # the first attribute of each object
    for name, value in state.items():
        if id(value) in owners:
            yield f"self.{name} = {owners[id(value)]}"
            continue
        owners[id(value)] = f"self.{name}"
        yield _state_line(name, value, sizes)
        if not isinstance(value, nn.Module):
            continue
        parameters = dict(value.named_parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters.values()):
            yield f"self.{name}.requires_grad_(False)"
        else:
            frozen = (path for path, parameter in parameters.items() if not parameter.requires_grad)
            yield from (f"self.{name}.{path}.requires_grad_(False)" for path in frozen)
        for path, parameter in parameters.items():
            if (first := owners.setdefault(id(parameter), f"self.{name}.{path}")) != f"self.{name}.{path}":
                yield f"self.{name}.{path} = {first}"
        if vars(value)["_forward_hooks"]:
            yield f"self.{name}.register_forward_hook({_HOOK})"


_HOOK = "lambda module, args, output: output * 2"
"""The substitute for any hook of a layer: it changes the result."""


def _state_line(name: str, value: Any, sizes: Sizes) -> str:
    """Return the line of ``__init__`` that makes an attribute."""
    if isinstance(value, nn.Parameter):
        recipe = TensorRecipe(tuple(value.shape), value.dtype, "waves")
        return f"self.{name} = nn.Parameter({_resize(recipe, sizes)}{'' if value.requires_grad else ', False'})"
    if isinstance(value, torch.Tensor):
        return f'self.register_buffer("{name}", {_resize(TensorRecipe.like(value), sizes)})'
    if isinstance(value, bool | int | float | str | None):
        return f"self.{name} = {spell(value)}"
    if not isinstance(value, nn.Module):
        raise CannotBeWritten(repr(value))
    texts = (f"nn.{value!r}", _constructor_call(value))
    text = next((text for text in texts if _makes_the_same(text, value)), None)
    if text is None:
        raise CannotBeWritten(texts[0])
    dtype = _dtype_of(value)
    return f"self.{name} = {_resized(text, sizes)}" + ("" if dtype is torch.float32 else f".to({dtype})")


def _resize(recipe: TensorRecipe, sizes: Sizes) -> str:
    """Return the expression of a tensor of another shape."""
    limit = sizes.get(recipe.limit, recipe.limit)
    return replace(recipe, shape=tuple(sizes.get(size, size) for size in recipe.shape), limit=limit).text


def _makes_the_same(text: str, module: nn.Module) -> bool:
    try:
        built = eval(text, dict(NAMESPACE))
        return type(built) is type(module) and repr(built) == repr(module) and _shapes(built) == _shapes(module)
    except Exception:  # a text that makes no module may raise anything
        return False


def _constructor_call(module: nn.Module) -> str:
    """Return a call that makes a module of ``torch.nn`` whose ``repr`` is no call, from attributes of equal names."""
    kind = type(module)
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        value = getattr(module, name, parameter.default)
        value = parameter.default if isinstance(value, (torch.Tensor, nn.Module)) else value
        if value is not inspect.Parameter.empty and value != parameter.default:
            arguments[name] = value
    return f"nn.{kind.__name__}({spell_options(arguments)})"


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype of the first floating-point tensor of a module, or of inputs if it has none."""
    floats = (tensor.dtype for tensor in module.state_dict().values() if tensor.is_floating_point())
    return next(floats, torch.float32)


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def _import(name: str, value: Any) -> str:
    """Return the import that gives a text a name."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, float):  # generated code names values without a literal
        return f"from math import {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not own.isidentifier():
        raise CannotBeWritten(name)
    return f"from {module} import {own} as {name}"


def _spell_input(value: Any, sizes: Sizes) -> str:
    if isinstance(value, RecipeInDomain):
        return f"in_domain({_resized(value.domain.text, sizes)}, {_resize(value.recipe, sizes)})"
    recipe = TensorRecipe.like(value) if isinstance(value, torch.Tensor) else value
    return _resize(recipe, sizes) if isinstance(recipe, TensorRecipe) else _resized(spell(recipe), sizes)


def _guesses(program: GraphModule) -> Iterator[list[str]]:
    """Yield inputs that may fit: those that their layers accept, otherwise the same shape for all, and others."""
    needed = [node for node in program.graph.find_nodes(op="placeholder") if not node.args]
    if any(str(node.target).startswith("*") for node in needed):
        raise CannotBeWritten("arguments of any number")
    accepted = [_asked(program, node) for node in needed]
    every = [TensorRecipe(shape, _dtype_of(program), "waves") for shape in _SHAPES]
    same = ([recipes[0] if recipes else recipe for recipes in accepted] for recipe in every)
    whole = [TensorRecipe(shape, torch.int64, "waves") for shape in _INTEGERS]
    some_whole = itertools.product(*(recipes or [*every[:3], *whole] for recipes in accepted))
    others = itertools.product(*(recipes or every for recipes in accepted))
    for recipes in itertools.islice(itertools.chain(same, some_whole, others), MOST_GUESSES):
        yield [recipe.text for recipe in recipes]


def _asked(program: GraphModule, node: Node) -> list[TensorRecipe]:
    """Return inputs that the first layer behind an input accepts; none if that is unknown."""
    pending, visited = [node], {node}
    while pending:
        for user in pending.pop(0).users:
            layer = program.get_submodule(str(user.target)) if user.op == "call_module" else None
            if layer is not None and (recipes := _recipes_for(layer)):
                return recipes
            if user not in visited and user.op != "output":
                visited.add(user)
                pending.append(user)
    return []


def _recipes_for(layer: nn.Module) -> list[TensorRecipe]:
    """Return inputs that a layer accepts; none if it does not declare them."""
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
