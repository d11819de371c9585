"""Growth of programs toward a pass: each value passed through one more of the operations that the pass mentions.

A pass that needs four operators in a row does nothing on most programs. Its conditions are asked one by one, though, so
that a program with the first two of them goes further in its code than one with the first (see
:mod:`pytest_fx.search.nearness`), and can grow by the third.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from fx.operators.python import BY_FUNCTION
from pytest_fx.generation.record import Program
from pytest_fx.generation.spelled_targets import path_of
from pytest_fx.search.argument_variations import signatures_of, type_of
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed
from pytest_fx.search.reduction import written
from pytest_fx.search.syntax import Edits, edited, expression

MOST_OTHERS = 4
"""Further operands that are tried for a call."""
MOST_CALLS = 12
"""Ways to call an operation that are tried."""
RAREST = 12
"""How many of the rarest points programs grow from at a time."""
SHORTEST = 4
"""How many of the shortest programs that reach a point are grown."""
REREAD = 4
"""In one case of so many, a value is read in the place of another one."""
ATTEMPTS = 400
"""Programs in a row that may fail to run, or be known."""
_INDICES = ("0", "1", "-1", ":, 0", ":, -1", "..., 1:")
_START = """\
import math
import operator
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        return x


def build():
    torch.default_generator.manual_seed(0)
    return Program().eval()


def inputs():
    return (torch.arange({count}.0).add(1).sin().reshape({shape}),), {{}}
"""
_SHAPES = ((2, 4, 6), (4, 4), (2, 4, 6, 6))


def starts() -> Iterator[Program]:
    """Yield programs that return their input, of several ranks."""
    for shape in _SHAPES:
        program = running(_START.format(count=torch.Size(shape).numel(), shape=shape))
        assert program is not None, "a program that returns its input runs"
        yield program


def growths(reached: Mapping[str, frozenset[Any]], operations: Sequence[Any], random: Random) -> Iterator[Program]:
    """Yield ever new programs: the shortest ones that reach a rare point, with one more operation in them.

    Args:
        reached: what the pass reaches, for the texts of programs; whoever tries what is yielded adds to it.
        operations: functions, names of methods and classes of modules.
        random: decides.
    """
    tried, failed, observed = set(reached), 0, functools.lru_cache(64)(Observed.of)
    known, shortest = 0, [""]
    while reached and failed < ATTEMPTS:
        if len(reached) != known:
            known, shortest = len(reached), _shortest_for_rare_points(reached)
        seen = observed(random.choice(shortest), "eval")
        edits = None if seen is None else _growth(seen, operations, random)
        text = "" if seen is None or edits is None else written(edited(seen.tree, edits))
        failed += 1
        if text and text not in tried and (program := running(text)) is not None:
            failed = 0
            yield program
        tried.add(text)


def _shortest_for_rare_points(reached: Mapping[str, frozenset[Any]]) -> list[str]:
    """Return some of the shortest programs for each of the rarest points: of several ranks, as a pass asks for one."""
    counts = Counter(point for points in reached.values() for point in points)
    rarest = sorted(counts, key=lambda point: (counts[point], str(point)))[:RAREST]
    texts = sorted(reached, key=len)
    return [
        text
        for point in rarest
        for text in itertools.islice((text for text in texts if point in reached[text]), SHORTEST)
    ]


def _growth(seen: Observed, operations: Sequence[Any], random: Random) -> Edits | None:
    """Put an operation between a value and a line that reads it, or read another value there."""
    body = (*seen.lines, seen.call.forward.body[-1])
    parts = [part for line in body for part in ast.walk(line) if isinstance(part, ast.Name)]
    places = [part for part in parts if isinstance(part.ctx, ast.Load) and part.id in seen.values]
    if not places:
        return None
    place = random.choice([*places, *places[-1:] * 2])
    value, operands = seen.values[place.id], list(_operands(seen))
    if isinstance(value, tuple | list):
        return {place: [expression(_of_several(place.id, value, operations, random))]}
    if not isinstance(value, torch.Tensor) or not operations:
        return None
    if random.randrange(REREAD) == 0:
        return {place: [expression(random.choice(operands)[0])]}
    operation = operations[min(random.randrange(len(operations)) for _ in range(2))]  # those nearest to the pass often
    ways = list(itertools.islice(_calls(operation, place.id, value, operands, seen), MOST_CALLS))
    if not ways:
        return None
    text, state = random.choice(ways)
    return {place: [expression(text)], **(seen.with_state(state) if state else {})}


def _of_several(name: str, values: Sequence[Any], operations: Sequence[Any], random: Random) -> str:
    """Return one of several values, or all of them passed to a function that takes a list."""
    functions = [each for each in operations if callable(each) and any(map(_takes_list, signatures_of(each)))]
    if not functions or random.randrange(2):
        return f"{name}[{random.randrange(max(1, min(3, len(values))))}]"
    path = path_of(random.choice(functions))
    parts = random.choice((name, f"[{', '.join(f'{name}[{at}]' for at in range(len(values)))}]"))
    dimension = random.choice(("", ", dim=-1", ", dim=1", ", 1", ", -1"))
    return f"{name}[0]" if path is None else f"{path[0]}({parts}{dimension})"


def _takes_list(signature: inspect.Signature) -> bool:
    first = next(iter(signature.parameters.values()), None)
    return first is not None and "List" in type_of(first) and "Tensor" in type_of(first)


def _operands(seen: Observed) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a program, the latest first, with those in tuples."""
    for name, value in reversed(list(seen.values.items())):
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            parts: Sequence[Any] = value
            yield from ((f"{name}[{at}]", part) for at, part in enumerate(parts) if isinstance(part, torch.Tensor))


def _calls(
    operation: Any, name: str, value: torch.Tensor, operands: Sequence[tuple[str, torch.Tensor]], seen: Observed
) -> Iterator[tuple[str, str]]:
    """Expressions that pass a value through an operation, each with the line of ``__init__`` that it needs."""
    others = [text for text, other in operands if text != name and other.shape == value.shape]
    others += [text for text, other in operands if text != name and other.shape != value.shape]
    others = [*others[:MOST_OTHERS], name]
    if operation is operator.getitem:
        yield from ((f"{name}[{index}]", "") for index in _INDICES)
    elif (row := BY_FUNCTION.get(operation)) is not None and not row.in_place:
        if row.arity == 1:
            yield row.template.format(name), ""
        for other in (*others, "2.0", "0.5") if row.arity == 2 else ():
            yield row.template.format(name, other), ""
            yield row.template.format(other, name), ""
    elif isinstance(operation, type):
        (held,) = seen.fresh()
        for made in _constructions(operation, value):
            yield f"self.{held}({name})", f"self.{held} = {made}"
    elif isinstance(operation, str):
        function = getattr(torch, operation, None) or getattr(torch.ops.aten, operation, None)
        for arguments in _arguments(function, others, value):
            yield f"{name}.{operation}({', '.join(arguments)})", ""
    elif (path := path_of(operation)) is not None and not path[1]:
        for arguments in _arguments(operation, others, value):
            yield f"{path[0]}({', '.join((name, *arguments))})", ""
            if arguments and arguments[0] in others:
                yield f"{path[0]}({', '.join((arguments[0], name, *arguments[1:]))})", ""
        yield f"{path[0]}([{', '.join((name, *others[:1]))}])", ""


def _arguments(function: Any, others: Sequence[str], value: torch.Tensor) -> Iterator[tuple[str, ...]]:
    """Arguments for a call on a tensor, without the first one, by the types of the parameters that need one."""
    for signature in signatures_of(function) if function is not None else ():
        rest = list(signature.parameters.values())[1:]
        needed = [each for each in rest if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
        choices = [_choices(each, others, value) for each in needed]
        yield from itertools.islice(itertools.product(*choices), MOST_CALLS)
        numbers = [each for each in rest if each not in needed and "Number" in type_of(each) and each.default is None]
        if numbers:
            for values in (("-1.0", "1.0"), ("0.0", "2.0"), ("0.5",)):
                yield values[: len(numbers)]
                yield tuple(f"{each.name}={value}" for each, value in zip(numbers, values, strict=False))
        optional = next((each for each in rest if each.name == "dim" and each not in needed), None)
        for given in itertools.islice(itertools.product(*choices), 2) if optional else ():
            yield from ((*given, f"dim={dim}") for dim in (-1, 1, 0))


def _choices(parameter: inspect.Parameter, others: Sequence[str], value: torch.Tensor) -> Sequence[str]:
    """Expressions for a parameter."""
    kind, rank = type_of(parameter), value.dim()
    if "Tensor" in kind:
        return others
    if "List" in kind or "uple" in kind:
        orders = ("(1, 0)", "(0, 2, 1)", "(1, 0, 2)", "(0, 2, 1, 3)", "(0, 2, 3, 1)", "(0, 3, 1, 2)")
        return [text for text in orders if text.count(",") + 1 == rank] + [
            "(-1,)",
            "(2, 2)",
            "(1, 1, 1, 1)",
            f"({value.shape[0] if rank else 1}, -1)",
        ]
    if "bool" in kind:
        return ("True", "False")
    if "float" in kind:
        return ("0.5",)
    if "int" in kind or "Number" in kind:
        return ("-1", "1", "0", "2") if "dim" in parameter.name else ("2", "1", "0.5")
    return ("2", "1", "0", *others)


def _constructions(kind: type, value: torch.Tensor) -> Iterator[str]:
    """Calls of a class of modules that may make one for a value."""
    home = "nn" if getattr(nn, kind.__name__, None) is kind else None
    if home is None:
        return
    needed = [
        each
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    sizes = dict.fromkeys([*(value.shape[at] for at in (-1, 1) if -value.dim() <= at < value.dim()), 3, 1, 2])
    for arguments in itertools.islice(itertools.product(sizes, repeat=len(needed)), MOST_CALLS):
        yield f"nn.{kind.__name__}({', '.join(map(str, arguments))})"
