"""Rows for the operators of torch that no other row calls, derived from their signatures and tried in eager mode.

An operator gets a row for each overload: an operand for each required tensor, and a constant for each other argument,
by its type and name. Signatures do not say which shapes and dtypes fit together, so a few combinations are called, and
the first that eager accepts becomes the row. The calls also show whether operands are written or shared, and whether
random numbers are drawn. Rows are made on first use.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import Any

import torch

from pytest_fx.generation.observed_calls import Outcome, call_row
from pytest_fx.generation.operands import (
    BATCHED_FACTOR,
    CHANNELS,
    FACTOR,
    GRID,
    INDEX_OF_ALL,
    INDEX_OF_ROWS,
    INDICES,
    KERNEL,
    MASK,
    MULTIPLICAND,
    OTHER_FLOAT,
    PART,
    PER_COLUMN,
    SAME_FLOAT,
    SAME_WHOLE,
    SCALAR,
    VECTOR,
    WEIGHT,
    Drawn,
    dimension_of_index,
    number,
    one_of,
    tensor_with,
)
from pytest_fx.generation.productions import (
    Argument,
    Drawing,
    Operand,
    Production,
)
from pytest_fx.generation.record import noted_warnings, seeded
from pytest_fx.generation.signatures import (
    Spelled,
    calls_of,
    documented_texts,
    is_required,
    overloads_of,
    runs_on_cpu,
    type_of,
)
from pytest_fx.generation.torch_operators import is_listed, stated_reason, torch_operators

TRIES = 8
"""The number of calls of a combination."""
FIRST_TRIES = 3
"""The number of calls after which a combination is given up if eager accepted none."""
ENOUGH = 5
"""The number of accepted calls that make a combination the row."""
MOST_COMBINATIONS = 256
"""The number of combinations of operands that are tried beside floats; beside other dtypes, all have one kind."""
MOST_CALLS = 2000
"""The number of calls after which a signature is given up."""
FEW_CALLS = 150
"""The same number for rows that are wanted for variety only."""
MOST_RANK = 5
MOST_OPTIONAL = 2
"""The number of optional tensors for which there are rows."""
_REFUSALS = {
    "deprecated": "is deprecated",
    **dict.fromkeys(("experimental", "ComplexHalf", "beta"), "is experimental"),
}
"""Reasons why operators are in no program, by a word of the error or the warning."""
_INDICES = re.compile(r"ind|idx|target|label|repeats|boundar|offsets")
_MASKS = re.compile(r"mask|condition")
_DIMENSIONS = re.compile(r"^(dim\d?|axis\d?|.*_dim|dims|axes|source|destination)$")


@dataclass(slots=True)
class Attempts:
    """The results of the calls that were tried."""

    rows: list[Production] = field(default_factory=list[Production])
    """The rows that eager accepts."""
    results: set[str] = field(default_factory=set[str])
    """The types of results that programs cannot hold."""
    errors: dict[str, int] = field(default_factory=dict[str, int])
    """Errors of eager and warnings of torch, with their counts."""
    unknown: set[str] = field(default_factory=set[str])
    """Required arguments for which no value is known."""
    warnings: list[Any] = field(default_factory=list[Any])
    """Warnings of torch in the latest call."""
    calls: int = 0
    """The number of calls so far."""
    most_calls: int = MOST_CALLS
    """The most calls for one signature."""


@functools.cache
def rows_of(target: Any, most_calls: int = MOST_CALLS) -> tuple[Production, ...]:
    """Return the rows of an operator of torch: a function, the name of a method, or a class of modules.

    There are none for other objects, nor for operators with a stated reason: some crash. A signature is given up after
    ``most_calls`` calls.

    >>> [row.spellings[0] for row in rows_of("addcdiv")]
    ['{0}.addcdiv({1}, {2}{*})']
    """
    return tuple(attempts_at(target, most_calls).rows) if is_listed(target) else ()


def reason_of(name: str) -> str | None:
    """Return why no row calls one of :func:`torch_operators`; None if a row does, or the reason is unknown.

    >>> reason_of(".is_signed"), reason_of(".coalesce"), reason_of("torch.addmv")
    ('returns bool, and no tensor', 'takes sparse or nested tensors', None)
    """
    if (reason := stated_reason(name)) is not None:
        return reason
    target = torch_operators()[name]
    overloads = overloads_of(target)
    if overloads and not any(runs_on_cpu(each.schema) for each in overloads):
        return "has no kernel for dense tensors on the CPU"
    attempts = attempts_at(target)
    if attempts.rows:
        return None
    if attempts.results:
        return f"returns {' or '.join(sorted(attempts.results))}, and no tensor"
    return next((reason for text in attempts.errors for word, reason in _REFUSALS.items() if word in text), None)


def attempts_at(target: Any, most_calls: int = MOST_CALLS) -> Attempts:
    """Try the ways to call an operator, and return the results."""
    attempts = Attempts(most_calls=most_calls)
    with torch.no_grad(), seeded(), noted_warnings() as attempts.warnings:
        for spelled in calls_of(target):
            form = _form(target, spelled)
            if isinstance(form, str):
                attempts.unknown.add(form)
                continue
            row = _first_that_works(form, attempts)
            if row is None and form.names:
                others = (_form(target, spelled, each.name) for each in spelled.parameters if not is_required(each))
                tried = (_first_that_works(other, attempts) for other in others if isinstance(other, _Form))
                row = next((success for success in tried if success is not None), None)
            if row is not None:
                attempts.rows += [row, *_with_more(form, row, spelled)]
    attempts.rows = list({(row.spellings, row.call): row for row in reversed(attempts.rows)}.values())[::-1]
    return attempts


@dataclass(frozen=True, slots=True)
class _Form:
    """A call whose operands are not chosen yet."""

    template: str
    """The spelling."""
    names: tuple[str, ...]
    """The names of the arguments that are tensors."""
    arguments: tuple[Argument, ...]
    """The constants."""
    call: str = ""
    """The call of a module; empty for functions and methods."""
    imports: str = ""
    """A module that the spelling imports."""


def _form(target: Any, spelled: Spelled, more: str = "") -> _Form | str:
    """Return a call with its required arguments, or the name of an argument for which no value is known.

    ``more`` is the name of one further argument: some functions refuse their own defaults.
    """
    names: list[str] = []
    arguments: list[Argument] = []
    texts: list[str] = []
    for parameter in spelled.parameters:
        is_variable = parameter.kind is Parameter.VAR_POSITIONAL
        name, kind = parameter.name, type_of(parameter.annotation, parameter.name)
        is_more = name == more and kind not in ("tensor", "tensors")
        if not is_variable and not is_more and (not is_required(parameter) or parameter.kind is Parameter.VAR_KEYWORD):
            continue
        if is_variable and kind not in ("tensor", "tensors"):
            continue
        if kind == "tensor" and not is_variable:
            text = f"{{{len(names)}}}"
            names.append(name)
        elif kind in ("tensor", "tensors"):
            text = f"{{{len(names)}}}, {{{len(names) + 1}}}"
            text = text if is_variable else f"[{text}]"
            names += [name, name]
        else:
            drawn = _constant(target, name, kind)
            if drawn is None:
                return name
            text = f"{{{name}}}"
            arguments.append(Argument(name, drawn))
        texts.append(f"{name}={text}" if is_more or parameter.kind is Parameter.KEYWORD_ONLY else text)
    if more and not any(text.startswith(f"{more}=") for text in texts):
        return more
    if spelled.path[0] == ".":
        if "{0}" not in texts:
            return spelled.parameters[0].name
        texts.remove("{0}")
        template = f"{{0}}{spelled.path}({', '.join(texts)}{{*}})"
    else:
        template = f"{spelled.path}({', '.join(texts)}{{*}})"
    if not spelled.forward:
        return _Form(template, tuple(names), tuple(arguments), imports=spelled.imports)
    if names:
        return names[0]
    required = [
        each.name for each in spelled.forward if is_required(each) and each.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]
    call = f"{{module}}({', '.join(f'{{{place}}}' for place in range(len(required)))})"
    return _Form(template, tuple(required), tuple(arguments), call)


def _constant(target: Any, name: str, kind: str) -> Drawn | None:
    """Return a function that draws a constant, by the type and name of its argument; None if no value is known."""
    if kind == "int":
        return dimension_of_index if _DIMENSIONS.match(name) else _whole
    if kind == "ints":
        return _several_dimensions if _DIMENSIONS.match(name) else _several
    if kind == "str":
        texts = documented_texts(target, name)
        return one_of(*texts) if texts else None
    by_kind: dict[str, Drawn] = {
        "float": one_of(0.5, 0.1, 1.0, 2.0),
        "floats": one_of([0.5, 0.25]),
        "number": number,
        "bool": one_of(False, True),
        "dtype": one_of(torch.float64, torch.int64),
    }
    return by_kind.get(kind)


def _whole(builder: Drawing, objects: list[Any]) -> int:
    """Return a small number, or one of the sizes of the first operand."""
    return int(builder.choices.pick((1, 0, 2, 3, *(objects[0].shape if objects else (4, 5)))))


def _several(builder: Drawing, objects: list[Any]) -> Any:
    """Return a number, one for each dimension after the second, or the size of the first operand."""
    choices, shape = builder.choices, tuple(objects[0].shape) if objects else (2, 3)
    rank = max(1, len(shape) - 2)
    drawn = tuple(1 + choices.below(3) for _ in range(rank))
    return choices.pick((2, 1, shape, (1,) * rank, drawn, (1, 0) * rank, shape[1:], (1, 1)))


def _several_dimensions(builder: Drawing, objects: list[Any]) -> Any:
    rank = objects[0].dim() if objects else 2
    return builder.choices.pick(((0,), (-1,), (0, 1), (-1, -2), (-1, 0), tuple(reversed(range(rank)))))


@dataclass(frozen=True, slots=True)
class _First:
    """A kind of first operand."""

    dtype: torch.dtype = torch.float32
    """Its dtype."""
    text: str = "{0}"
    """The expression of the operand in the call."""
    ranks: range = range(MOST_RANK + 1)
    """The numbers of dimensions that it may have."""
    equal: int = 0
    """The number of its last dimensions that have the same size."""

    def operand(self, least: int, most: int) -> Operand:
        """Return the operand with ``least`` to ``most`` dimensions."""
        return tensor_with(least, most, self.dtype, equal=self.equal)


_FIRST = (
    _First(),
    _First(ranks=range(2, 4), equal=2),
    _First(text="({0} @ {0}.mT + torch.eye({0}.size(-1), dtype={0}.dtype))", ranks=range(2, 4), equal=2),
    _First(torch.int64, ranks=range(4)),
    _First(torch.bool, ranks=range(4)),
    _First(text="torch.complex({0}, {0})"),
    _First(text="{0}.sigmoid()"),
    _First(torch.float64),
)
_FURTHER = (
    *(OTHER_FLOAT, SAME_FLOAT, SAME_WHOLE, INDEX_OF_ROWS, INDEX_OF_ALL, INDICES, MASK, FACTOR, BATCHED_FACTOR, WEIGHT),
    *(PER_COLUMN, CHANNELS, KERNEL, VECTOR, SCALAR, MULTIPLICAND, PART, GRID),
)


def _combinations(names: tuple[str, ...], only_same: bool) -> Iterator[tuple[Operand, ...]]:
    """Yield kinds of operands for the arguments of these names: the same for all, or another one for the first."""
    if not names:
        yield ()
        return
    each = [_for_name(name) for name in names]
    yield from zip(*each, strict=False)
    if len(names) > 1 and not only_same:
        far = sorted(itertools.product(range(len(_FURTHER)), repeat=2), key=sum)
        for first, rest in far[:MOST_COMBINATIONS]:
            yield (each[0][first % len(each[0])], *(kinds[rest % len(kinds)] for kinds in each[1:]))


def _for_name(name: str) -> tuple[Operand, ...]:
    integers = (INDEX_OF_ROWS, INDEX_OF_ALL, INDICES, SAME_WHOLE)
    first = integers if _INDICES.search(name) else (MASK,) if _MASKS.search(name) else ()
    return (*first, *(kind for kind in _FURTHER if kind not in first))


def _first_that_works(form: _Form, attempts: Attempts) -> Production | None:
    """Return the row with the first combination that eager accepts most of the time, or else most often."""
    best: tuple[int, Production | None] = (0, None)
    most = attempts.calls + attempts.most_calls
    if not form.names:
        return _without_operands(form, attempts)
    for first in _FIRST:
        template = form.template if form.call else form.template.replace("{0}", first.text)
        call = form.call.replace("{0}", first.text)
        for further in _combinations(form.names[1:], first is not _FIRST[0] or bool(form.call)):
            row = Production((template,), further, form.arguments, call=call, imports=form.imports)
            counts = {rank: _successes(row, first.operand(rank, rank), attempts) for rank in first.ranks}
            score = max(len(outcomes) for outcomes in counts.values())
            if score > best[0]:
                ranks = [rank for rank, outcomes in counts.items() if len(outcomes) >= min(score, ENOUGH)]
                operand = first.operand(min(ranks), max(ranks) + (max(ranks) == MOST_RANK))
                outcomes = [each for group in counts.values() for each in group]
                best = (score, _shown(replace(row, operands=(operand, *further)), outcomes))
            if best[0] >= ENOUGH or attempts.calls > most:
                return best[1]
    return best[1]


def _without_operands(form: _Form, attempts: Attempts) -> Production | None:
    """Return the row of a function that makes a tensor from numbers, which is a constant in a captured program."""
    row = Production((form.template,), (), form.arguments, call="", imports=form.imports)
    outcomes = _successes(row, None, attempts)
    if any("random" in each.tags for each in outcomes):
        attempts.results.add("random numbers that programs would hold as constants")
        return None
    return _shown(row, outcomes) if outcomes else None


def _shown(row: Production, outcomes: list[Outcome]) -> Production:
    """Return a row with the properties that its calls showed: its tags, and the form of its result."""
    form = outcomes[0].form
    tags = frozenset[str]().union(*(each.tags for each in outcomes))
    if row.spellings[0].startswith("nn."):
        return replace(row, call=form.format(row.call), tags=tags)
    return replace(row, spellings=(form.replace("{}", row.spellings[0]),), tags=tags)


def _successes(row: Production, first: Operand | None, attempts: Attempts) -> list[Outcome]:
    """Call a row a few times on new operands; return the outcomes of the calls with a result for programs."""
    outcomes: list[Outcome] = []
    for seed in range(TRIES):
        attempts.calls += 1
        attempts.warnings.clear()
        try:
            outcome = call_row(row, row.operands if first is None else (first, *row.operands), seed)
            if attempts.warnings:
                raise attempts.warnings[0].message
        except (Exception, Warning) as error:
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            attempts.errors[text] = attempts.errors.get(text, 0) + 1
            tries = FIRST_TRIES if row.arguments else 2
            if isinstance(error, (NotImplementedError, Warning)) or (seed >= tries - 1 and not outcomes):
                break
            continue
        if isinstance(outcome, str):
            attempts.results.add(outcome)
        else:
            outcomes.append(outcome)
    return outcomes


def _with_more(form: _Form, row: Production, spelled: Spelled) -> Iterator[Production]:
    """Yield the rows with an optional tensor, and the row that writes its result to another operand."""
    template, count = row.spellings[0], len(row.operands)
    if form.call or "{*}" not in template or template.count("{*}") > 1:
        return
    optional = [each for each in spelled.parameters if not is_required(each)]
    tensors = [each.name for each in optional if type_of(each.annotation, each.name) == "tensor"]
    forms = [(template.replace("{*}", f", {name}={{{count}}}{{*}}"), _for_name(name)) for name in tensors]
    for text, kinds in forms[:MOST_OPTIONAL]:
        for kind in kinds:
            more = replace(row, spellings=(text,), operands=(*row.operands, kind))
            if outcomes := _successes(replace(more, operands=more.operands[1:]), row.operands[0], Attempts()):
                yield replace(more, tags=row.tags.union(*(each.tags for each in outcomes)))
                break
    if spelled.writes_out and row.operands and not row.tags:
        shifted = re.sub(r"\{(\d)\}", lambda match: f"{{{int(match[1]) + 1}}}", template)
        out = replace(
            row,
            spellings=(shifted.replace("{*}", ", out={0}{*}"),),
            operands=(row.operands[0], SAME_FLOAT, *row.operands[1:]),
        )
        outcomes = _successes(replace(out, operands=out.operands[1:]), out.operands[0], Attempts())
        if len(outcomes) >= ENOUGH and all("in-place" in each.tags for each in outcomes):
            yield replace(out, tags=frozenset({"in-place"}))
