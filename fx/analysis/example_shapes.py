"""Types of results that PyTorch computes, on tensors without elements (section 6.3).

An operator runs with a large prime in place of each unknown size. A size of the result that is a product of these
primes and a number is that product of the sizes; other sizes stay unknown. Further runs, with other primes and with
sizes around each number in the call, must agree, or the size stays unknown. So ``x[:, :5]`` has an unknown size where
``x`` has one, as that may be smaller than 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import reduce
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from fx.analysis.known_types import TypedCall
from fx.analysis.size_equations import Misfit
from fx.node import Argument, map_arg
from fx.tensor_type import Dyn, TensorType

_PRIMES = ((1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049), (4001, 4003, 4007, 4013, 4019, 4021, 4027, 4049))
_DTYPES = ((torch.float32, torch.float32), (torch.int64, torch.float32), (torch.int64, torch.int64))
"""The dtypes that are tried, of the first operand and of the others: some operators take indices."""


def by_example(call: TypedCall) -> Any:
    """Return the type of the result, from runs on tensors without elements."""
    node = call.node
    inputs = pytree.tree_leaves(call.types.of(node.all_input_nodes))
    sizes = [size for leaf in inputs for size in (leaf.dims if isinstance(leaf, TensorType) else (leaf,))]
    names = sorted({size for size in sizes if isinstance(size, str)})
    if Dyn in inputs or not any(isinstance(leaf, TensorType) for leaf in inputs) or len(names) > len(_PRIMES[0]):
        return same_rank(call)
    constants = [leaf for leaf in pytree.tree_leaves((node.args, dict(node.kwargs))) if isinstance(leaf, int)]
    numbers = {1, 2, *(number for number in constants if 0 < number < _PRIMES[0][0])}
    small = sorted({size for number in numbers for size in (number - 1, number, number + 1) if size})
    samples = [dict(zip(names, primes, strict=False)) for primes in _PRIMES]
    samples += [dict.fromkeys(names, size) for size in small] if names else []
    messages = set[str]()
    for dtypes in _DTYPES:
        runs = [(sample, _run(call, sample, *dtypes)) for sample in samples]
        failures = [result for _, result in runs[:2] if isinstance(result, Exception)]
        if not failures:
            return _generalized(call, [run for run in runs if not isinstance(run[1], Exception)])
        messages.update(str(failure).partition("\n")[0] for failure in failures)
    if len(messages) == 1:
        raise Misfit(messages.pop())  # the reason depends neither on sizes nor on dtypes
    return same_rank(call)


def _run(call: TypedCall, sample: Mapping[str, int], first: torch.dtype, others: torch.dtype) -> Any:
    """Return the result with numbers in place of names, or the exception."""
    dtypes = itertools.chain([first], itertools.repeat(others))

    def numbered(leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            sizes = [sample.get(size, size) for size in cast("tuple[Any, ...]", leaf.dims)]
            return torch.empty(sizes, dtype=next(dtypes), device="meta")
        return sample[leaf] if isinstance(leaf, str) else leaf

    def read(argument: Argument) -> Any:
        return map_arg(argument, lambda node: pytree.tree_map(numbered, call.types.of(node)))

    try:
        with torch.no_grad():
            return call.node.target(*read(call.node.args), **read(dict(call.node.kwargs)))  # type: ignore[operator]
    except Exception as error:
        return error


def same_rank(call: TypedCall) -> Any:
    """Return a type with unknown sizes if the operator keeps the number of dimensions, else ``Dyn``."""
    operand = call.tensor(call.operands[0]) if call.row is not None and call.row.keeps_the("rank") else None
    return Dyn if operand is None else TensorType([call.unknown(place) for place in range(len(operand))])


def _generalized(call: TypedCall, runs: list[tuple[Mapping[str, int], Any]], place: tuple[int, ...] = ()) -> Any:
    """Return the type of all results of the runs, each with the numbers that stood for names."""
    (sample, result), *_ = runs
    results = [other for _, other in runs]
    if isinstance(result, torch.Tensor):
        if len({other.dim() for other in results}) > 1:
            return Dyn
        sizes = [(numbers, tuple(other.shape)) for numbers, other in runs]
        return TensorType(_generalized(call, sizes, place))
    if isinstance(result, (tuple, list)):
        if len({len(other) for other in results}) > 1:
            return Dyn
        columns = zip(*results, strict=True)
        return tuple(
            _generalized(
                call, [(numbers, part) for (numbers, _), part in zip(runs, column, strict=True)], (*place, index)
            )
            for index, column in enumerate(columns)
        )
    if not isinstance(result, int) or isinstance(result, bool):
        return Dyn
    number, factors = result, list[str]()
    for name, prime in sample.items():
        while number and number % prime == 0:
            number //= prime
            factors.append(name)
    if all(reduce(lambda left, name: left * numbers[name], factors, number) == other for numbers, other in runs):
        return call.types.equations.product([number, *factors])
    return call.unknown(place)
