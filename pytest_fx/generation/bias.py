"""The operations that a pass looks for, as rows of the grammar: single operations, and chains of them."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from fx.operators.families import is_one_of, operators
from fx.operators.python import BY_FUNCTION
from pytest_fx.generation.grammar import ROWS
from pytest_fx.generation.operands import (
    BIAS,
    BOOLEAN,
    FACTOR,
    FLOAT,
    MASK,
    MATRICES,
    OTHER_FLOAT,
    SAME_FLOAT,
    VECTORS,
    WEIGHT,
)
from pytest_fx.generation.productions import MODULE, Operand, Production, spell
from pytest_fx.generation.schema_rows import FEW_CALLS, rows_of
from pytest_fx.generation.siblings import FORMULA
from pytest_fx.generation.spelled_targets import Target, path_of, targets_of
from pytest_fx.generation.torch_operators import has_dynamic_size, is_listed, torch_operators

ATTRIBUTE = "get_attr"
"""The name of an operation for buffers that programs write to."""
LONGEST = 4
"""The longest path through a program that becomes a chain."""
LONGEST_WALK = 6
"""The longest chain in the reverse of the order in which operations are asked for."""
MOST_STEPS = 12
"""The number of operations above which there are no reversed chains."""
MOST_OPERANDS = 5
_BROADCAST = (FLOAT, *(OTHER_FLOAT,) * (MOST_OPERANDS - 1))
_MATRICES = (MATRICES, *(SAME_FLOAT,) * (MOST_OPERANDS - 1))
_INPUTS: tuple[tuple[str, tuple[tuple[Operand, ...], ...]], ...] = (
    (r"linear\(|addmm\(", ((VECTORS, WEIGHT, BIAS),)),
    (r" @ |matmul\(|mm\(|attention\(|einsum\(", (_MATRICES, (VECTORS, FACTOR))),
    ("", (_BROADCAST,)),
)
"""Kinds of inputs of a pattern; the first pattern that its text contains decides."""
_CONDITIONS = frozenset({torch.where})
_FILLS = frozenset({torch.masked_fill, "masked_fill", "masked_fill_"})
OTHERS_OF_OUT = 3
"""The number of other calls of a function for each call with ``out=``."""
MOST_CHAINS = 60
MOST_FORMULAS = 12
"""The number of kinds of formulas above which a pass concerns none in particular."""
MOST_OF_IT = 0.6
"""The share of a formula's functions that counts as most of them."""
_ARITHMETIC = frozenset("add sub mul truediv neg pow abs gt ge lt le eq and_ or_ invert getitem getattr size".split())
"""Names of functions that occur in formulas of all kinds."""


@dataclass(frozen=True, slots=True)
class SpelledRow:
    """A row, in one of its spellings."""

    row: Production
    """The row."""
    spelling: str
    """The spelling."""

    def __repr__(self) -> str:
        return self.spelling


Chain = tuple[tuple[SpelledRow, ...], ...]
"""Operations in a row, each on the result of the one before it, and for each its alternative forms."""


@functools.cache
def _choices() -> list[tuple[frozenset[Target], SpelledRow]]:
    """Return all choices of the grammar, with their targets."""
    # a layer whose parameters a function takes is not called itself
    return [
        (targets_of(row.call if "{module}." in row.call else spelling, len(row.operands)), SpelledRow(row, spelling))
        for row in ROWS
        for spelling in row.spellings
    ]


@functools.cache
def _index() -> dict[Target, list[tuple[bool, SpelledRow]]]:
    """Map each target to the choices that call it, and whether they do little else but take a part of something."""
    index: dict[Target, list[tuple[bool, SpelledRow]]] = {}
    for called, choice in _choices():
        main = called - {operator.getitem} or called
        for target in called:
            index.setdefault(target, []).append((main == frozenset({target}), choice))
    return index


@functools.cache
def known_choices() -> tuple[SpelledRow, ...]:
    """Return the rows of the grammar that call a single operation, in each of their spellings."""
    return tuple(choice for choices in _index().values() for is_direct, choice in choices if is_direct)


@functools.cache
def updating_layers() -> tuple[type[nn.Module], ...]:
    """Return the layers of the grammar that update their buffers in training."""
    layers = dict.fromkeys(layer for row in operators() if row.family == "batch norm" for layer in row.modules)
    return tuple(layer for layer in layers if layer in _index())


def compounds(targets: Set[Target]) -> tuple[Chain, ...]:
    """Return the rows that call several targets and nothing else, as ``torch.max({0}, 1)[0]``, once and twice."""
    by_targets: dict[frozenset[Target], list[SpelledRow]] = {}
    for called, choice in _choices():
        if len(called) > 1 and called <= targets:
            by_targets.setdefault(called, []).append(choice)
    once = [((*alternatives,),) for alternatives in by_targets.values()]
    return (*once, *(chain * 2 for chain in once))


def formulas_about(targets: Set[Target]) -> tuple[Chain, ...]:
    """Return the formulas most of whose functions are targets, or the nearest to that; none if these are many.

    The spelling does not matter. Operators count only in a formula without functions.
    """
    wanted = set(map(_name, targets))
    by_names: dict[frozenset[str], list[SpelledRow]] = {}
    for called, choice in _choices():
        if choice.row.tags >= FORMULA:
            names = frozenset(_name(target) for target in called if getattr(target, "__module__", "") != "math")
            by_names.setdefault(names - _ARITHMETIC or names, []).append(choice)
    parts = {names: len(names & wanted) / len(names) for names in by_names if names & wanted}
    parts = {names: part for names, part in parts.items() if part == 1 or not names <= _ARITHMETIC}
    near = [((*by_names[names],),) for names, part in parts.items() if part >= min(MOST_OF_IT, max(parts.values()))]
    return tuple(near) if len(near) <= MOST_FORMULAS else ()


def _name(target: Target) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def walks(ops: Iterable[Target]) -> tuple[Chain, ...]:
    """Return the operations in reverse order: passes look from a result back to its operands.

    Operations of one name (``F.softmax``, ``torch.softmax``, ``"softmax"``) are alternatives. There are no chains if a
    pass names so many operations that it does not look for all of them in a row.
    """
    groups: dict[str, list[SpelledRow]] = {}
    for target in ops:
        groups.setdefault(_name(target), []).extend(choices_for(target))
    steps = [tuple(alternatives) for alternatives in reversed(groups.values()) if alternatives]
    if len(steps) > MOST_STEPS:
        return ()
    return tuple(tuple(steps[start : start + LONGEST_WALK]) for start in range(len(steps) - 1))


def choices_for(target: Target) -> tuple[SpelledRow, ...]:
    """Return the ways to call ``target``: rows of the grammar, or for an unknown one a row that tries it on tensors."""
    if target == ATTRIBUTE:
        return tuple(choice for _, choice in _choices() if "state" in choice.row.tags)
    rows = _index().get(target, [])
    candidates = [each for each in rows if each[1].row.operands] or rows  # a trace records no call of constants alone
    direct = tuple(choice for is_direct, choice in candidates if is_direct)
    if not candidates:
        return tuple(SpelledRow(row, row.spellings[0]) for row in rows_of(target)) or tuple(_tried(target))
    others = rows_of(target, FEW_CALLS) if callable(target) else ()
    into = tuple(SpelledRow(row, row.spellings[0]) for row in others if "out={0}" in row.spellings[0])
    return (*direct * OTHERS_OF_OUT, *into) if direct and into else direct or tuple(choice for _, choice in candidates)


@functools.cache
def unlisted() -> tuple[Target, ...]:
    """Return the operators of torch that no row of the grammar calls, except those whose sizes depend on values."""
    others = (target for target in torch_operators().values() if target not in _index() and is_listed(target))
    return tuple(target for target in others if not has_dynamic_size(target))


@functools.cache
def of_fixed_size() -> tuple[Target, ...]:
    """Return the unlisted operators, and functions that rows call, which have further overloads, such as ``out=``."""
    called = (target for target in torch_operators().values() if target in _index() and not inspect.isclass(target))
    return (*unlisted(), *(target for target in called if is_listed(target) and not has_dynamic_size(target)))


@functools.cache
def of_dynamic_size() -> tuple[Target, ...]:
    """Return the operators of torch whose sizes depend on values."""
    return tuple(target for target in torch_operators().values() if is_listed(target) and has_dynamic_size(target))


def _tried(target: Target) -> Iterator[SpelledRow]:
    form, imports = (f".{target}", "") if isinstance(target, str) else path_of(target) or ("", "")
    if not form or imports == "math":  # no source can spell it; or a function of numbers, for a pass on constants
        return
    if inspect.isclass(target) and issubclass(target, nn.Module):
        form = f"{MODULE}{form}"
    for operands in ((FLOAT,), (FLOAT, OTHER_FLOAT)):
        call = "{module}({0})" if len(operands) == 1 else "{module}({0}, {1})"
        yield SpelledRow(Production((form,), operands, imports=imports, call=call), form)


def chains(ops: Iterable[Any], like: Any = None) -> tuple[Chain, ...]:
    """Return the chains to make frequent.

    Args:
        ops: targets, and tuples or lists of targets that follow each other.
        like: a captured program; its operations and the chains of up to four that lead from one to the next.
    """
    wanted = [tuple(entry) if isinstance(entry, tuple | list) else (entry,) for entry in ops]
    wanted += [] if like is None else _paths(like)
    chains_found = [tuple(map(choices_for, path)) for path in dict.fromkeys(wanted)]
    whole = () if like is None else (tuple(_whole(like)),)
    usable = tuple(chain for chain in chains_found if chain and all(chain))
    return (*(whole,) * (1 + len(usable) // 2), *usable) if any(whole) else usable


def _whole(program: Any) -> list[SpelledRow]:
    """Return a row for each kind of inputs of a program with one result, constants included; none for others."""
    texts: dict[Any, str] = {}
    shared: list[str] = []
    inputs = program.graph.find_nodes(op="placeholder")
    for node in program.graph.nodes:
        if node.op == "output":
            break
        text = f"{{{inputs.index(node)}}}" if node.op == "placeholder" else _call(node, texts)
        if text is None:
            return []
        # A value that is used twice is `<0>` in the text, and gets a name at its first use.
        if node.op != "placeholder" and len(node.users) > 1:
            shared.append(text)
            text = f"<{len(shared) - 1}>"
        texts[node] = text
    result = program.graph.output_node().args[0]
    if not hasattr(result, "users") or result in inputs or not 0 < len(inputs) <= MOST_OPERANDS:
        return []
    text = _named_once(texts[result], shared, set())
    kinds = next(kinds for form, kinds in _INPUTS if re.search(form, text))
    masks = [place for place, node in enumerate(inputs) if _is_mask(node)]
    rows = dict.fromkeys(
        _with_masks(operands[: len(inputs)], masks) for operands in kinds if len(operands) >= len(inputs)
    )
    imports = "operator" if "operator." in text else ""
    return [SpelledRow(Production((text,), operands, tags=FORMULA, imports=imports), text) for operands in rows]


def _is_mask(node: Any) -> bool:
    """Return whether an input of a pattern counts as a mask."""
    return any(
        is_one_of(user.target, "logic")
        or (user.target in _CONDITIONS and user.args[:1] == (node,))
        or (user.target in _FILLS and user.args[1:2] == (node,))
        for user in node.users
    )


def _with_masks(operands: tuple[Operand, ...], masks: list[int]) -> tuple[Operand, ...]:
    return tuple((MASK if place else BOOLEAN) if place in masks else operand for place, operand in enumerate(operands))


def _named_once(text: str, shared: list[str], named: set[int]) -> str:
    """Return the text with each shared part written and named at its first use; ``named``: those already written."""

    def part(match: re.Match[str]) -> str:
        number = int(match.group(1))
        if number in named:
            return f"part{number}"
        named.add(number)
        return f"(part{number} := {_named_once(shared[number], shared, named)})"

    return re.sub(r"<(\d+)>", part, text)


def _call(node: Any, texts: dict[Any, str]) -> str | None:
    """Return a call of torch or an operator with its arguments, as text; None for other calls."""
    texts_of_arguments = [_argument(value, texts) for value in (*node.args, *node.kwargs.values())]
    parts = [part for part in texts_of_arguments if part is not None]
    if len(parts) < len(texts_of_arguments):
        return None
    positional = len(node.args)
    if node.target is getattr:
        return f"{parts[0]}.{node.args[1]}"
    row = BY_FUNCTION.get(node.target) if node.op == "call_function" else None
    if row is not None and row.arity == len(parts) == 2 and not row.in_place:
        text = row.template.format(*parts)
        return text if row.function is operator.getitem else f"({text})"
    named = [f"{name}={part}" for name, part in zip(node.kwargs, parts[positional:], strict=True)]
    if node.op == "call_method":
        return f"{parts[0]}.{node.target}({', '.join([*parts[1:positional], *named])})"
    name = getattr(node.target, "__name__", "")
    for prefix, module in (("torch", torch), ("F", F), ("operator", operator)):
        if node.op == "call_function" and vars(module).get(name) is node.target:
            return f"{prefix}.{name}({', '.join([*parts[:positional], *named])})"
    return None


def _argument(value: Any, texts: dict[Any, str]) -> str | None:
    """Return an argument as text: a value of the program, a constant, or several; None for anything else."""
    if hasattr(value, "users"):
        return texts.get(value)
    if isinstance(value, tuple | list):
        parts = [_argument(part, texts) for part in cast("Sequence[Any]", value)]
        text = ", ".join(part for part in parts if part is not None)
        if None in parts:
            return None
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(parts) == 1)})"
    is_constant = value is None or value is ... or isinstance(value, int | float | str | torch.dtype)
    return spell(value) if is_constant else None


def _paths(program: Any) -> list[tuple[Target, ...]]:
    paths: list[tuple[Target, ...]] = []
    distinct: set[tuple[Target, ...]] = set()
    for node in program.graph.nodes:
        path: list[Target] = []
        while node is not None and node.op.startswith("call_") and len(path) < LONGEST:
            path.append(type(program.get_submodule(node.target)) if node.op == "call_module" else node.target)
            node = next(iter(node.users), None)
        for length in {1, len(path)} - {0}:
            part = tuple(path[:length])
            if part not in distinct and len(paths) < MOST_CHAINS:
                distinct.add(part)
                paths.append(part)
    return paths
