"""Orders, places in memory and attributes: what a scheduler or a planner takes for granted."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes import exact

from .rows import BOTH, bypass, calls, of, replace, substitute, wrong


def _into_input(m: Any, x: Any, y: Any) -> Any:
    y.copy_(x)
    return x * 2


def _write_one(m: Any, x: Any) -> Any:
    m.seen.add_(x[0])
    return x + m.other


_two_buffers = of(_write_one, (2, 3), seen=nn.Buffer(torch.zeros(3)), other=nn.Buffer(torch.zeros(3)))


@wrong(
    "effect dropped", "inputs untouched", "state", on=of(_into_input, (3,), torch.zeros(3)), contract=exact, modes=BOTH
)
def writes_that_no_result_needs(gm: fx.GraphModule) -> None:
    """Writes to inputs and buffers are dropped where no result needs them; callers see their tensors."""
    for node in reversed(gm.graph.nodes):
        operand = node.args[0] if node.op in ("call_function", "call_method") and node.args else None
        if not node.users and isinstance(operand, fx.Node) and operand.op in ("placeholder", "get_attr"):
            gm.graph.erase_node(node)
    gm.recompile()


@wrong("folding of what is written", "contract", "state", on=_two_buffers, modes=BOTH)
def equal_buffers_merged(gm: fx.GraphModule) -> None:
    """Buffers with equal values become one, though a program may write to one of them."""
    fetched = gm.graph.find_nodes(op="get_attr")
    buffers = dict(gm.named_buffers())
    for node in fetched:
        for other in fetched:
            first, second = buffers.get(node.target), buffers.get(other.target)
            if (
                first is None
                or second is None
                or first is second
                or first.shape != second.shape
                or first.dtype != second.dtype
            ):
                continue
            if torch.equal(first, second):
                other.target = node.target
    gm.recompile()


@wrong("effect moved", "contract", on=of(lambda m, x: (torch.rand_like(x), torch.randn_like(x)), (4, 4)), modes=BOTH)
def random_numbers_last(gm: fx.GraphModule) -> None:
    """Independent calls are put in the order of their names, and random numbers are drawn in another order."""
    drawing = (torch.rand_like, torch.randn_like, F.dropout, F.alpha_dropout, torch.dropout, torch.bernoulli)
    nodes = [node for node in gm.graph.nodes if node.target in drawing]
    for first, other in itertools.pairwise(nodes):
        if all(node < first for node in other.all_input_nodes):
            first.prepend(other)
    gm.recompile()


@wrong("baked size", "contract", "structure", on=of(
    lambda m, x: torch.cat([x, x]).reshape(torch.cat([x, x]).size(0), -1), (2, 3)
), contract=exact)  # fmt: skip
def one_batch_size(gm: fx.GraphModule) -> None:
    """The first size of any value is taken to be that of the first input."""
    first_input = next((node for node in gm.graph.nodes if node.op == "placeholder"), None)
    for node in calls(gm, "size"):
        if node.args[1:] == (0,) and first_input is not None:
            node.args = (first_input, 0)
    gm.recompile()


@wrong("in-place on a value still needed", "contract", on=of(lambda m, x: (x.long() + x) * 1, (2, 3)), modes=BOTH)
def add_into_a_temporary(gm: fx.GraphModule) -> None:
    """A temporary that nothing else uses takes up a sum, which may be larger or of another dtype."""
    fresh = (torch.relu, torch.sigmoid, operator.mul, torch.mul, operator.sub, "long", "half", torch.exp, torch.tanh)
    for node in calls(gm, operator.add):
        first, second = node.args
        is_temporary = isinstance(first, fx.Node) and first.target in fresh and len(first.users) == 1
        if is_temporary and isinstance(second, fx.Node):
            replace(node, "add_", *node.args)
    gm.recompile()


@wrong("non-contiguous views", "contract", on=of(lambda m, x: x.t().contiguous().view(-1), (2, 3)), contract=exact)
def drop_contiguous(gm: fx.GraphModule) -> None:
    """Making a value contiguous is dropped as if it were only about speed."""
    bypass(gm, "contiguous")


@wrong("keyword dropped", "contract", on=of(lambda m, x: x.sum(dim=0), (2, 3)), contract=exact)
def keywords_lost_on_the_way(gm: fx.GraphModule) -> fx.GraphModule:
    """An interpreter that visits every call passes on the positional arguments only."""

    class Positional(fx.Transformer):
        def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_method(target, args, {})

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(target, args, {})

    return Positional(gm).transform()


@wrong(
    "attributes lost", "refusal", "contract", on=of(lambda m, x: m.fc(x), (2, 3), fc=nn.Linear(3, 3)), contract=exact
)
def program_without_its_modules(gm: fx.GraphModule) -> fx.GraphModule:
    """The new program is made from an empty module, without what its nodes refer to."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(nn.Module(), graph)


@wrong("only for some values", "contract", "structure", on=of(lambda m, x: x.chunk(2)[-1], (3, 2)), contract=exact)
def parts_from_the_front(gm: fx.GraphModule) -> None:
    """A part that is counted from the end becomes the first one."""
    for node in calls(gm, operator.getitem):
        if node.args[1] == -1:
            node.args = (node.args[0], 0)
    gm.recompile()


@wrong("aliasing", "inputs untouched", "contract", on=of(
    lambda m, x: x.to(torch.float32, copy=True).mul_(2), (3,)
), contract=exact, modes=BOTH)  # fmt: skip
def conversions_without_effect(gm: fx.GraphModule) -> None:
    """A conversion to float32 is dropped where nothing converts before it, though it may copy, and inputs vary."""
    for node in calls(gm, "to", "float"):
        source = node.args[0]
        if isinstance(source, fx.Node) and source.op == "placeholder" and node.args[1:] in ((), (torch.float32,)):
            substitute(node, source)
    gm.recompile()


@wrong("effect moved", "contract", on=of(lambda m, x: _sum_then_write(x * 1), (2, 3)), modes=BOTH)
def reads_after_writes(gm: fx.GraphModule) -> None:
    """Reductions are computed at the end of the program, as late as possible, also past writes to their input."""
    for node in list(gm.graph.nodes):
        if node.target in ("sum", "mean", torch.sum, torch.mean) and node.users:
            min(node.users).prepend(node)
    gm.recompile()


def _sum_then_write(y: Any) -> Any:
    total = y.sum()
    y.add_(1)
    return y * total
