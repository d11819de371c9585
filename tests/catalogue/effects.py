"""In-place writes, random numbers and checks: dropped, moved, merged, or added."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.dialect.common.cse_pass import CSEPass

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, behind, bypass, calls, merge, of, pure_calls, replace, wrong


def _write_then_read(m: Any, x: Any) -> Any:
    y = x * 2
    y.add_(1)
    return y


def _set_then_read(m: Any, x: Any) -> Any:
    y = x * 2
    y[0] = 7.0
    return y


def _read_write_read(m: Any, x: Any) -> Any:
    y = x * 2
    before = torch.sigmoid(y)
    y.add_(1)
    return before * 2 + torch.sigmoid(y)


def _view_then_write(m: Any, x: Any) -> Any:
    y = x * 2
    y.transpose(0, 1).add_(1)
    return y


def _copy_then_write(m: Any, x: Any) -> Any:
    y = x.clone()
    y.mul_(3)
    return x + y


@wrong("effect dropped", "contract", on=of(_write_then_read, (2, 3)), contract=exact, modes=BOTH)
def drop_what_nobody_uses(gm: fx.GraphModule) -> None:
    """A node without users may still write to a value that others use."""
    for node in reversed(gm.graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            gm.graph.erase_node(node)
    gm.recompile()


@wrong("effect dropped", "contract", on=of(_set_then_read, (2, 3)), contract=exact)
@adapt
def drop_pure_functions(gm: torch.fx.GraphModule) -> None:
    """Methods are kept for what they may write, but functions are not, and setitem is one."""
    gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output", "call_method", "call_module"))
    gm.recompile()


@wrong("effect dropped", "contract", on=of(_write_then_read, (2, 3)), contract=exact, modes=BOTH)
def out_of_place(gm: fx.GraphModule) -> None:
    """A write becomes a new value, which nobody reads: its users hold the old one."""
    for node in gm.graph.nodes:
        if node.op == "call_method" and node.target in ("add_", "mul_", "sub_", "relu_", "clamp_", "zero_"):
            node.target = {"zero_": "new_zeros"}.get(node.target, node.target[:-1])
            if node.target == "new_zeros":
                node.args = (*node.args, ())
    gm.recompile()


@wrong("effect moved", "contract", on=of(_read_write_read, (2, 3)), contract=exact, modes=BOTH)
def sink_to_first_use(gm: fx.GraphModule) -> None:
    """Values are computed just before they are used, also across a write to what they are computed from."""
    for node in reversed(list(gm.graph.nodes)):
        if node.op in ("call_function", "call_method") and node.users and not node.is_impure():
            min(node.users).prepend(node)
    gm.recompile()


@wrong("effect moved", "contract", on=of(_read_write_read, (2, 3)), contract=exact)
def hoist_calls(gm: fx.GraphModule) -> None:
    """Every call moves to just after its last input, writes as well as reads."""
    for node in list(gm.graph.nodes):
        if node.op.startswith("call") and node.all_input_nodes:
            last = max(node.all_input_nodes)
            if last.op != "placeholder":
                last.append(node)
    gm.recompile()


@wrong("common subexpressions across a write", "contract", on=of(_read_write_read, (2, 3)), modes=BOTH)
def common_subexpressions(gm: fx.GraphModule) -> None:
    """That an argument is written to between two equal calls is not noticed."""
    merge(gm, pure_calls(gm), lambda node: (node.op, node.target, repr(node.args), repr(node.kwargs)))


@wrong("common subexpressions across a write", "contract", on=of(_read_write_read, (2, 3)))
@adapt
def cse_of_torch_fx(gm: torch.fx.GraphModule) -> Any:
    """torch.fx's own pass merges equal calls across in-place writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CSEPass()(gm)


@wrong("common subexpressions of random numbers", "contract", on=of(
    lambda m, x: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True) + m.d(x) + m.d(x), (4, 4), train=True,
    d=nn.Dropout()
), modes=BOTH)  # fmt: skip
def common_random_numbers(gm: fx.GraphModule) -> None:
    """Two draws of random numbers are taken for the same value."""
    kinds = ("call_function", "call_module")
    nodes = [node for node in gm.graph.nodes if node.op in kinds and node.target is not operator.setitem]
    merge(gm, nodes, lambda node: (node.target, repr(node.args), repr(node.kwargs)))


@wrong("in-place on a value still needed", "contract", on=of(lambda m, x: (y := x * 2) + y.add(1), (2, 3)), modes=BOTH)
def add_in_place(gm: fx.GraphModule) -> None:
    """The first operand is overwritten, whoever else uses it."""
    for node in gm.graph.nodes:
        if node.op == "call_method" and node.target in ("add", "sub", "mul"):
            node.target += "_"
        elif node.target in (torch.add, torch.sub, torch.mul) and isinstance(node.args[0], fx.Node):
            node.op, node.target = "call_method", f"{node.target.__name__}_"
    gm.recompile()


@wrong("in-place on a value still needed", "contract", on=of(
    lambda m, x: torch.relu((y := x * 2)[0]) + y, (3, 3)
), contract=exact)  # fmt: skip
def relu_in_place(gm: fx.GraphModule) -> None:
    """That a value has a single user does not make it the owner of its memory: it may be a view."""
    for node in calls(gm, torch.relu, F.relu):
        source = node.args[0]
        if isinstance(source, fx.Node) and source.op != "placeholder" and len(source.users) == 1:
            replace(node, torch.relu_, source)
    gm.recompile()


@wrong("in-place on a value still needed", "inputs untouched", "contract", on=of(
    lambda m, x: torch.relu(x) + 1, (2, 3)
), contract=exact, modes=BOTH)  # fmt: skip
def relu_into_its_input(gm: fx.GraphModule) -> None:
    """An input of the caller is overwritten."""
    for node in calls(gm, torch.relu, nn.ReLU):
        if len(node.args[0].users) == 1:
            replace(node, F.relu, node.args[0], inplace=True)
    gm.recompile()


@wrong("aliasing", "contract", on=of(_copy_then_write, (2, 3)), contract=exact, modes=BOTH)
def drop_clones(gm: fx.GraphModule) -> None:
    """A copy is made to be written to, or to be kept from writes."""
    bypass(gm, "clone", torch.clone)


@wrong("aliasing", "contract", on=of(_view_then_write, (2, 3)), contract=exact)
def views_made_contiguous(gm: fx.GraphModule) -> None:
    """A write to the copy does not reach what it was a view of."""
    views = ("transpose", "permute", "t", torch.transpose, torch.permute, torch.t)
    for node in list(gm.graph.nodes):
        if node.target in views:
            behind(node, "contiguous", node)
    gm.recompile()


def _write_state(m: Any, x: Any) -> Any:
    m.total.add_(x[0])
    return x + m.total


@wrong("folding of what is written", "contract", "state", on=of(
    _write_state, (2, 3), total=nn.Buffer(torch.ones(3))
), modes=BOTH)  # fmt: skip
def freeze_buffers(gm: fx.GraphModule) -> None:
    """Buffers become constants of their present values, also those that the program writes to."""
    buffers = dict(gm.named_buffers())
    for node in gm.graph.find_nodes(op="get_attr"):
        if node.target in buffers:
            name = f"_frozen_{node.name}"
            setattr(gm, name, buffers[node.target].clone())
            node.target = name
    gm.recompile()
