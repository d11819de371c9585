"""Variations of modules: hooks, frozen and shared parameters, modes of parts, and holders of tensors."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from pytest_fx.search.observed import Observed, Variation, statements
from pytest_fx.search.syntax import Edits, attribute_of, expression, methods, uses_of
from pytest_fx.search.tensor_variations import after_build

_HOOKS = {
    "a forward hook": ("register_forward_hook", "def hook(module, args, result):\n    return 2 * result"),
    "a hook before forward": (
        "register_forward_pre_hook",
        "def hook(module, args):\n    return (2 * args[0], *args[1:])",
    ),
}
_PARAMETRIZATIONS = ("weight_norm", "spectral_norm")


def module_variations(observed: Observed) -> Iterator[Variation]:
    """Yield the program with a change to a module, a parameter or a buffer."""
    build = next(iter(methods(observed.tree, "build")), None)
    if build is None:
        return
    classes = [part for part in observed.tree.body if isinstance(part, ast.ClassDef)]
    children = dict(observed.module.named_children())
    for name, child in children.items():
        owner = f"module.{name}"
        for kind, (method, text) in _HOOKS.items():
            edits = {classes[0]: [*statements(text), classes[0]], **after_build(build, f"{owner}.{method}(hook)")}
            yield Variation(kind, edits)
        others = f"{owner}.train()" if observed.mode == "eval" else f"module.train()\n{owner}.eval()"
        yield Variation("the mode of one module", after_build(build, others))
        yield Variation("frozen parameters", after_build(build, f"{owner}.requires_grad_(False)"), of_values=True)
        for way in _PARAMETRIZATIONS:
            if isinstance(getattr(child, "weight", None), nn.Parameter):
                line = f"torch.nn.utils.parametrizations.{way}({owner})"
                yield Variation("a parametrized weight", after_build(build, line))
    for name, _ in observed.module.named_parameters():
        if "." not in name or name.count(".") == 1:
            yield Variation(
                "frozen parameters", after_build(build, f"module.{name}.requires_grad_(False)"), of_values=True
            )
    for (name, first), (other, second) in itertools.permutations(children.items(), 2):
        if type(first) is type(second):
            yield Variation("a shared module", after_build(build, f"module.{other} = module.{name}"))
            if getattr(first, "weight", None) is not None and getattr(second, "weight", None) is not None:
                line = f"module.{other}.weight = module.{name}.weight"
                yield Variation("a shared parameter", after_build(build, line))
    yield from _of_holders(observed)
    yield from _nested(observed)


def name_variations(observed: Observed, names: Iterable[str]) -> Iterator[Variation]:
    """Yield the program with an attribute of its own under each of some names."""
    if not isinstance(observed.value_of(observed.returned), torch.Tensor):
        return
    result = ast.unparse(observed.returned)
    for name in names:
        for line, returned in (
            (f"self.{name} = nn.Tanh()", f"self.{name}({result})"),
            (f'self.register_buffer("{name}", torch.arange(1.0))', f"{result} + self.{name}"),
        ):
            yield Variation("a name that the pass makes", {**observed.with_state(line), **observed.returning(returned)})


def _of_holders(observed: Observed) -> Iterator[Variation]:
    """Yield a parameter as a buffer and vice versa, an input as either of them, and either of them as an input."""
    for line in observed.init.body[1:]:
        name = attribute_of(line)
        match line:
            case ast.Assign(value=ast.Call(func=ast.Attribute(attr="Parameter"), args=[tensor, *_])):
                yield Variation(
                    "a buffer", {line: statements(f'self.register_buffer("{name}", {ast.unparse(tensor)})')}
                )
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="register_buffer"), args=[_, tensor, *_])):
                yield Variation("a parameter", {line: statements(f"self.{name} = nn.Parameter({ast.unparse(tensor)})")})
                text = ast.unparse(line)
                yield Variation("a buffer that is not saved", {line: statements(f"{text[:-1]}, persistent=False)")})
            case _:
                continue
    tensors = [part for part in observed.call.parameters if isinstance(observed.values.get(part.name), torch.Tensor)]
    for part in tensors if len(tensors) > 1 else ():
        if part.value is None or part.default is not None:
            continue
        rest = [other for other in observed.call.parameters if other is not part]
        reads: Edits = {use: [expression(f"self.{part.name}_")] for use in uses_of(observed.call.forward, {part.name})}
        text = ast.unparse(part.value)
        for kind, line in (
            ("a buffer", f'self.register_buffer("{part.name}_", {text})'),
            ("a parameter", f"self.{part.name}_ = nn.Parameter({text})"),
        ):
            yield Variation(kind, {**observed.call.edits(rest), **reads, **observed.with_state(line)})


def _nested(observed: Observed) -> Iterator[Variation]:
    """Yield the program as a part of another program, which calls it once or twice."""
    owner = next(
        part for part in observed.tree.body if isinstance(part, ast.ClassDef) and observed.call.forward in part.body
    )
    names = [part.arg for part in (*observed.call.forward.args.args[1:], *observed.call.forward.args.kwonlyargs)]
    inner = copy.copy(owner)
    inner.name = "Inner"
    passed = ", ".join(
        [
            *(part.arg for part in observed.call.forward.args.args[1:]),
            *(f"{part.arg}={part.arg}" for part in observed.call.forward.args.kwonlyargs),
        ]
    )
    if not names:
        return
    call = f"self.inner({passed})"
    for result in (call, f"({call}, {call})"):
        (outer,) = statements(
            "class Program(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.inner = Inner()\n"
            f"    def forward({ast.unparse(observed.call.forward.args)}):\n"
            f"        return {result}\n"
        )
        yield Variation("inside of another module", {owner: [inner, outer]})
