"""The table of equal spellings: every row has the same bits as the call it replaces, and groups become one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx import Graph, GraphModule, symbolic_trace
from fx.canonical import canonical_form
from fx.canonical.rows import SpellingRow, rows_by_method, rows_by_target
from fx.node import Node

SQUARE = torch.linspace(-2.0, 3.0, 16).reshape(4, 4)
INTEGERS = torch.arange(-8, 8).reshape(4, 4)
VALUES: dict[str, Any] = {
    "input": SQUARE, "self": SQUARE, "tensor": SQUARE, "other": SQUARE.flip(0), "A": SQUARE,
    "exponent": 3, "p": 0.0, "train": True, "dim": 1, "dim0": 0, "dim1": 1, "axis0": 0, "axis1": 1, "threshold": 0.5,
    "value": 0.25, "weight": torch.ones(4), "bias": torch.ones(4), "running_mean": torch.zeros(4),
    "running_var": torch.ones(4), "momentum": 0.1, "eps": 1e-5, "normalized_shape": [4], "output_size": 2,
    "kernel_size": 2, "pad": [1, 1], "tensors": [SQUARE, SQUARE], "split_size_or_sections": [1, 3], "split_size": 2,
    "sizes": [2, 2], "index": 1, "dims": (1, 0), "min": -1.0, "dtype": torch.float64, "indices": torch.tensor([0, 2]),
}  # fmt: skip
"""A value for every parameter by its name, unless the row's operation wants another."""
BY_OPERATION: dict[str, dict[str, Any]] = {
    **{f"bitwise_{name}": {"input": INTEGERS, "self": INTEGERS, "other": INTEGERS + 3}
       for name in ("and", "or", "xor")},
    **{name: {"needed": ["min"]} for name in ("clamp", "clip")},
    "bitwise_not": {"input": INTEGERS},
    "embedding": {"weight": SQUARE},
    "abs": {"input": SQUARE},
    **{name: {"input": SQUARE / 8} for name in ("arccos", "arcsin", "arctanh", "acos", "asin", "atanh")},
    **{f"{kind}{dims}d": {"input": torch.linspace(-1, 1, 2 * 8**dims).reshape(1, 2, *[8] * dims)}
       for dims in (1, 2, 3)
       for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")},
    **{f"max_pool{dims}d_with_indices": {"input": torch.linspace(-1, 1, 2 * 8**dims).reshape(1, 2, *[8] * dims)}
       for dims in (1, 2, 3)},
}  # fmt: skip


def all_rows() -> list[SpellingRow]:
    by_id = {id(row): row for rows in (rows_by_target(), rows_by_method()) for group in rows.values() for row in group}
    return [row for row in by_id.values() if "aten" not in str(row.source)]  # they have tests of their own


def name_of(row: SpellingRow) -> str:
    return row.source if isinstance(row.source, str) else row.source.__name__


def sample_arguments(row: SpellingRow) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for the spelling, the optional ones left out."""
    values = {**VALUES, **BY_OPERATION.get(name_of(row), {}), **row.required}
    for parameter, kinds in row.shape.kinds.items():
        if parameter == "dim" and "ints" in kinds:
            values["dim"] = 1
        if "device" in kinds:
            values[parameter] = "cpu"
    needed = [name for name in row.shape.names if name not in row.shape.defaults or name in values.get("needed", ())]
    positional = [values[name] for name in row.shape.positional if name in needed]
    return positional, {name: values[name] for name in needed if name not in row.shape.positional}


def graph_of(row: SpellingRow, args: list[Any], kwargs: dict[str, Any]) -> tuple[GraphModule, list[Tensor]]:
    graph, inputs = Graph(), []

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(part) for part in value]
        if not isinstance(value, Tensor):
            return value
        inputs.append(value)
        return graph.placeholder(f"input_{len(inputs)}", Tensor)

    arguments = tuple(map(placed, args))
    if isinstance(row.source, str):
        call = graph.call_method(row.source, arguments, kwargs)
    else:
        call = graph.call_function(row.source, arguments, kwargs)
    graph.output(call)
    return GraphModule(nn.Module(), graph), inputs


def run(program: GraphModule, inputs: Iterable[Tensor]) -> tuple[Any, list[Tensor]]:
    """The result, and the inputs afterwards."""
    torch.manual_seed(3)
    copies = [value.clone() for value in inputs]
    return program(*copies), copies


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("row", all_rows(), ids=name_of)
def test_a_row_gives_the_same_bits_as_the_call_it_replaces(row: SpellingRow) -> None:
    program, inputs = graph_of(row, *sample_arguments(row))
    canonical = canonical_form(program).graph_module
    call = canonical.graph.output_node().args[0]
    assert call.op == "call_function"
    assert call.target is row.target
    torch.testing.assert_close(run(canonical, inputs), run(program, inputs), rtol=0, atol=0, equal_nan=True)
    assert canonical_form(canonical).graph_module.code == canonical.code


IMAGE = torch.linspace(-1, 1, 2 * 4 * 8 * 8).reshape(2, 4, 8, 8)
LINE = torch.linspace(-1, 1, 2 * 4 * 8).reshape(2, 4, 8)
INPLACE = (lambda x: torch.relu_(x), lambda x: x.relu_(), lambda x: F.relu_(x), lambda x: F.relu(x, inplace=True))
GROUPS: dict[str, tuple[Tensor, tuple[Callable[..., Any] | nn.Module, ...]]] = {
    "relu": (SQUARE, (lambda x: torch.relu(x), F.relu, lambda x: x.relu(), nn.ReLU())),
    "relu in place": (SQUARE, (*INPLACE, nn.ReLU(inplace=True))),
    "sigmoid": (SQUARE, (lambda x: torch.sigmoid(x), lambda x: x.sigmoid(), F.sigmoid, nn.Sigmoid(),
                         lambda x: torch.special.expit(x))),
    "tanh": (SQUARE, (lambda x: torch.tanh(x), lambda x: x.tanh(), F.tanh, nn.Tanh())),
    "softmax": (SQUARE, (lambda x: torch.softmax(x, 1), lambda x: x.softmax(dim=1), lambda x: F.softmax(x, 1),
                         nn.Softmax(1), lambda x: torch.special.softmax(x, 1))),
    "log_softmax": (SQUARE, (lambda x: torch.log_softmax(x, 1), lambda x: x.log_softmax(1), nn.LogSoftmax(1),
                             lambda x: F.log_softmax(x, dim=1))),
    "softmax of another type": (SQUARE, (lambda x: torch.softmax(x, 1, torch.float64),
                                         lambda x: F.softmax(x, 1, dtype=torch.float64))),
    "gelu": (SQUARE, (lambda x: F.gelu(x), nn.GELU(), lambda x: F.gelu(x, approximate="none"))),
    "silu": (SQUARE, (F.silu, nn.SiLU(), lambda x: F.silu(x, False))),
    "elu": (SQUARE, (F.elu, nn.ELU(), lambda x: F.elu(x, 1))),
    "selu": (SQUARE, (F.selu, nn.SELU(), lambda x: torch.selu(x))),
    "celu": (SQUARE, (F.celu, nn.CELU(), lambda x: torch.celu(x), lambda x: torch.celu(x, alpha=1))),
    "leaky_relu": (SQUARE, (F.leaky_relu, nn.LeakyReLU(), lambda x: F.leaky_relu(x, 0.01))),
    "relu6": (SQUARE, (F.relu6, nn.ReLU6(), lambda x: F.hardtanh(x, 0.0, 6.0), nn.Hardtanh(0.0, 6.0))),
    "hardswish": (SQUARE, (F.hardswish, nn.Hardswish())),
    "hardsigmoid": (SQUARE, (F.hardsigmoid, nn.Hardsigmoid())),
    "mish": (SQUARE, (F.mish, nn.Mish())),
    "softplus": (SQUARE, (lambda x: F.softplus(x), nn.Softplus(), lambda x: F.softplus(x, beta=1.0))),
    "dropout": (SQUARE, (lambda x: F.dropout(x, 0.5, False), lambda x: torch.dropout(x, 0.5, False),
                         nn.Dropout().eval())),
    "dropout in training": (SQUARE, (F.dropout, lambda x: torch.dropout(x, 0.5, True), nn.Dropout())),
    "flatten": (IMAGE, (lambda x: torch.flatten(x, 1), lambda x: x.flatten(1), nn.Flatten(),
                        lambda x: x.flatten(start_dim=1, end_dim=-1))),
    "unflatten": (SQUARE, (lambda x: x.unflatten(1, (2, 2)), nn.Unflatten(1, (2, 2)),
                           lambda x: torch.unflatten(x, 1, [2, 2]))),
    "max_pool1d": (LINE, (nn.MaxPool1d(2), lambda x: F.max_pool1d(x, 2), lambda x: torch.max_pool1d(x, (2,), 2))),
    "max_pool2d": (IMAGE, (nn.MaxPool2d(2), lambda x: F.max_pool2d(x, 2, stride=2), lambda x: torch.max_pool2d(x, 2),
                           lambda x: F.max_pool2d(x, [2, 2], None, 0))),
    "max_pool2d and indices": (IMAGE, (nn.MaxPool2d(2, return_indices=True), lambda x: F.max_pool2d_with_indices(x, 2),
                                       lambda x: F.max_pool2d(x, 2, return_indices=True))),
    "avg_pool2d": (IMAGE, (nn.AvgPool2d(2), lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, (2, 2), 2))),
    "avg_pool1d": (LINE, (nn.AvgPool1d(2), lambda x: F.avg_pool1d(x, 2), lambda x: torch.avg_pool1d(x, (2,)))),
    "adaptive_avg_pool2d": (IMAGE, (nn.AdaptiveAvgPool2d(1), lambda x: F.adaptive_avg_pool2d(x, (1, 1)))),
    "layer_norm": (SQUARE, (lambda x: F.layer_norm(x, (4,)), lambda x: torch.layer_norm(x, [4]),
                            nn.LayerNorm(4, elementwise_affine=False))),
    "pad": (SQUARE, (lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, [1, 2], "constant"),
                     lambda x: F.pad(x, pad=(1, 2), value=None))),
    "add": (SQUARE, (lambda x: x + 2, lambda x: torch.add(x, 2), lambda x: x.add(2),
                     lambda x: torch.add(x, 2, alpha=1))),
    "subtract": (SQUARE, (lambda x: x - 2, lambda x: torch.sub(x, 2), lambda x: x.subtract(2))),
    "subtract from": (SQUARE, (lambda x: 2 - x, lambda x: torch.rsub(x, 2))),
    "scaled": (SQUARE, (lambda x: torch.sub(x, x, alpha=2), lambda x: x.sub(x, alpha=2),
                        lambda x: torch.subtract(x, x, alpha=2))),
    "divide": (SQUARE, (lambda x: x / 2, lambda x: torch.div(x, 2), lambda x: x.true_divide(2),
                        lambda x: x.divide(2, rounding_mode=None))),
    "floor": (SQUARE, (lambda x: torch.div(x, 2, rounding_mode="floor"), lambda x: x.divide(2, rounding_mode="floor"))),
    "multiply": (SQUARE, (lambda x: x * 2, lambda x: torch.multiply(x, 2), lambda x: x.mul(2))),
    "power": (SQUARE, (lambda x: x**2, lambda x: torch.pow(x, 2), lambda x: x.pow(exponent=2))),
    "power of a number": (SQUARE, (lambda x: 2**x, lambda x: torch.pow(2, x))),
    "matmul": (SQUARE, (lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x),
                        lambda x: torch.linalg.matmul(x, x))),
    "negate": (SQUARE, (lambda x: -x, lambda x: torch.neg(x), lambda x: x.negative())),
    "absolute": (SQUARE, (lambda x: abs(x), lambda x: torch.abs(x), lambda x: x.absolute())),
    "equal": (SQUARE, (lambda x: x == 0, lambda x: torch.eq(x, 0), lambda x: x.eq(0))),
    "less": (SQUARE, (lambda x: x < 0, lambda x: torch.less(x, 0), lambda x: x.lt(0))),
    "and": (INTEGERS, (lambda x: x & 3, lambda x: torch.bitwise_and(x, 3), lambda x: x.bitwise_and(3))),
    "clamp": (SQUARE, (lambda x: torch.clamp(x, 0, 1), lambda x: x.clip(0, 1), lambda x: x.clamp(min=0, max=1))),
    "concatenate": (SQUARE, (lambda x: torch.cat([x, x]), lambda x: torch.concat((x, x), dim=0),
                             lambda x: torch.concatenate([x, x], 0))),
    "stack": (SQUARE, (lambda x: torch.stack([x, x], 1), lambda x: torch.stack((x, x), dim=1))),
    "permute": (SQUARE, (lambda x: x.permute(1, 0), lambda x: x.permute((1, 0)), lambda x: torch.permute(x, [1, 0]),
                         lambda x: x.permute(dims=(1, 0)))),
    "transpose": (SQUARE, (lambda x: x.transpose(0, 1), lambda x: torch.transpose(x, 0, 1), lambda x: x.swapaxes(0, 1),
                           lambda x: torch.swapdims(x, 0, 1))),
    "view": (SQUARE, (lambda x: x.view(2, 8), lambda x: x.view((2, 8)), lambda x: x.view([2, 8]),
                      lambda x: x.view(size=(2, 8)))),
    "reshape": (SQUARE, (lambda x: x.reshape(2, 8), lambda x: torch.reshape(x, (2, 8)), lambda x: x.reshape([2, 8]))),
    "expand": (SQUARE, (lambda x: x.expand(2, 4, 4), lambda x: x.expand((2, 4, 4)))),
    "repeat": (SQUARE, (lambda x: x.repeat(2, 1), lambda x: x.repeat((2, 1)))),
    "flip": (SQUARE, (lambda x: x.flip(0, 1), lambda x: torch.flip(x, (0, 1)), lambda x: x.flip([0, 1]))),
    "unsqueeze": (SQUARE, (lambda x: x.unsqueeze(1), lambda x: torch.unsqueeze(x, dim=1))),
    "squeeze": (SQUARE, (lambda x: x.squeeze(1), lambda x: torch.squeeze(x, 1))),
    "sum": (SQUARE, (lambda x: x.sum(1), lambda x: torch.sum(x, 1), lambda x: x.sum((1,)), lambda x: x.sum(axis=1))),
    "sum of all": (SQUARE, (lambda x: x.sum(), lambda x: torch.sum(x), lambda x: torch.sum(x, dim=None))),
    "mean": (SQUARE, (lambda x: x.mean((0, 1)), lambda x: torch.mean(x, [0, 1]), lambda x: x.mean(dim=(0, 1)))),
    "variance": (SQUARE, (lambda x: x.var(1), lambda x: torch.var(x, 1, correction=1), lambda x: x.var(1, True))),
    "chunk": (SQUARE, (lambda x: x.chunk(2), lambda x: torch.chunk(x, 2, 0))),
    "split": (SQUARE, (lambda x: x.split(2), lambda x: torch.split(x, 2), lambda x: x.split(2, dim=0))),
    "where": (SQUARE, (lambda x: torch.where(x > 0, x, x), lambda x: x.where(x > 0, x))),
    "number or tensor": (SQUARE, (lambda x: torch.where(x > 0, 0.5, x), lambda x: torch.where(x > 0, 0.5, other=x))),
    "logarithm": (SQUARE, (lambda x: torch.xlogy(x, x), lambda x: x.xlogy(x), lambda x: torch.xlogy(x, other=x))),
    "masked_fill": (SQUARE, (lambda x: x.masked_fill(x > 0, 0.5), lambda x: torch.masked_fill(x, x > 0, value=0.5))),
    "maximum": (SQUARE, (lambda x: torch.maximum(x.neg(), x.abs()), lambda x: torch.max(-x, abs(x)))),
    "convert": (SQUARE, (lambda x: x.double(), lambda x: x.to(torch.float64), lambda x: x.to(dtype=torch.float64))),
    "contiguous": (SQUARE, (lambda x: x.contiguous(), lambda x: x.contiguous(memory_format=torch.contiguous_format))),
    "in place": (SQUARE, (lambda x: x.exp_(), lambda x: torch.exp_(x))),
    "arc cosine": (SQUARE / 8, (lambda x: torch.arccos(x), lambda x: x.acos(), lambda x: x.arccos())),
}  # fmt: skip
"""For each operation an input and its spellings."""


def spell(spelling: Callable[..., Any] | nn.Module) -> GraphModule:
    if isinstance(spelling, nn.Module):
        program = symbolic_trace(nn.Sequential(spelling).train(spelling.training))
    else:
        program = symbolic_trace(lambda x: spelling(x))
    next(iter(program.graph.nodes)).type = Tensor
    program.recompile()
    return program


def form_of(program: GraphModule) -> list[tuple[Any, ...]]:
    """The canonical nodes without their names, as far as they compute the result."""
    graph = canonical_form(program).graph_module.graph
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    return [
        (node.op, node.target if node.op != "placeholder" else "input", *_described(node.args, node.kwargs, numbers))
        for node in graph.nodes
    ]


def _described(args: Any, kwargs: Any, numbers: dict[Any, int]) -> tuple[str, str]:
    def described(value: Any) -> str:
        if isinstance(value, Node):
            return f"%{numbers[value]}"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({', '.join(map(described, value))})"
        return repr(value)

    return described(args), ", ".join(f"{name}={described(value)}" for name, value in kwargs.items())


@pytest.mark.parametrize("name", GROUPS)
def test_spellings_of_one_operation_have_one_form_and_their_own_results(name: str) -> None:
    value, spellings = GROUPS[name]
    forms = []
    for spelling in spellings:
        program = spell(spelling)
        forms.append(form_of(program))
        canonical = canonical_form(program).graph_module
        assert {node.op for node in canonical.graph.nodes} == {"placeholder", "call_function", "output"}
        torch.testing.assert_close(run(canonical, [value]), run(program, [value]), rtol=0, atol=0, equal_nan=True)
    for form in forms[1:]:
        assert form == forms[0]
