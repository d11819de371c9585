"""Passes that each break one law of what a program returns, writes to, or has as gradients, and no other before it."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes import exact

from .rows import behind, bypass, calls, node_of, of, replace, retarget, substitute
from .single_laws import alone, checked, replaced, torch_assert, training

# Outputs.


@alone("structure", says="something of another structure")
def other_keys(graph_module: Any) -> None:
    """The keys of the output come in another order."""
    output = node_of(graph_module, "output")
    output.args = (dict(reversed(output.args[0].items())),)
    graph_module.recompile()


@alone("structure", says="[1, 3] instead of [2, 3]")
def one_sample(graph_module: Any) -> None:
    """One sample is left of an output."""
    replaced(graph_module, torch.relu, lambda h: torch.relu(h)[:1])


@alone("dtype", says="torch.float64, not torch.float32")
def in_double(graph_module: Any) -> None:
    """An output is in float64."""
    replaced(graph_module, torch.relu, lambda h: torch.relu(h).double())


def relu_in_half(h: torch.Tensor) -> torch.Tensor:
    return torch.relu(h).half().to(h.dtype)


@alone("contract", says="through-half changes what the program computes")
def through_half(graph_module: Any) -> None:
    """A value is rounded to float16 on its way."""
    replaced(graph_module, torch.relu, relu_in_half)


@alone("checks", checked, "contract", says="it raises AssertionError: never, instead of raising")
def refuse_all(graph_module: Any) -> None:
    """It adds a check that never holds."""
    (x,) = graph_module.graph.find_nodes(op="placeholder")
    with graph_module.graph.inserting_after(x):
        graph_module.graph.call_function(torch_assert, (False, "never"))
    graph_module.recompile()


@alone("contract", of(
    lambda self, x: F.dropout(torch.where(x > 0, torch.sigmoid(x), 0.5), training=True), (2, 3)
), says="changes what the program computes")  # fmt: skip
def without_random_numbers(graph_module: Any) -> None:
    """Random numbers are not drawn any more."""
    bypass(graph_module, F.dropout)


@alone("contract", of(
    lambda self, x: (x + torch.log((x < 1.5).float())).softmax(-1), torch.tensor([1.0, 2.0, 1.25])
), says="changes what the program computes")  # fmt: skip
def drop_the_mask_by_a_pole(graph_module: Any) -> None:
    """A mask is not added, whose logarithm is infinite for what it hides."""
    (masked,) = calls(graph_module, operator.add)
    masked.replace_all_uses_with(masked.args[0])
    graph_module.recompile()


@alone("contract", of(
    lambda self, x: x.masked_fill(x > 1.5, -torch.inf).softmax(-1), (2, 3)
), says="changes what the program computes")  # fmt: skip
def drop_the_mask(graph_module: Any) -> None:
    """Nothing is hidden by infinities any more."""
    bypass(graph_module, "masked_fill")


@alone("contract", of(
    lambda self, x: torch.sigmoid(x), torch.tensor([torch.inf, 1.0])
), says="changes what the program computes")  # fmt: skip
def sigmoid_as_tanh(graph_module: Any) -> None:
    """Another function is called, which is equal for an infinity."""
    node_of(graph_module, torch.sigmoid).target = torch.tanh
    graph_module.recompile()


@alone("contract", of(
    lambda self, x: x // 3 // 0.5, torch.arange(1, 13.0).sin().mul(150)
), says="changes what the program computes")  # fmt: skip
def merge_floor_divisions(graph_module: Any) -> None:
    """x // 3 // 0.5 becomes x // 1.5, which is not the same."""
    first, second = calls(graph_module, operator.floordiv)
    second.args = (first.args[0], first.args[1] * second.args[1])
    graph_module.recompile()


@alone("inputs untouched", says="changes what the program writes to its inputs")
def write_to_the_input(graph_module: Any) -> None:
    """It writes to an input, and returns what that was."""
    graph, node, output = graph_module.graph, node_of(graph_module, "view"), node_of(graph_module, "output")
    with graph.inserting_after(node):
        graph.call_method("mul_", (node_of(graph_module, "x"), 1.5))
    with graph.inserting_before(node):
        call = graph.call_method("view", (graph.call_method("clone", (node.args[0],)), -1, 3))
    output.args = ({**output.args[0], "kept": call},)
    graph_module.recompile()


@alone("state", training, says="a call no longer changes 'norm.running_mean'")
def freeze_the_statistics(graph_module: Any) -> None:
    """A batch norm keeps no statistics any more."""
    norm = copy.deepcopy(graph_module.norm)
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = None
    graph_module.norm = norm


@alone("checks", checked, says="it returns, instead of raising AssertionError: one sample is not enough")
def drop_checks(graph_module: Any) -> None:
    """Checks are taken away."""
    for node in calls(graph_module, torch_assert):
        graph_module.graph.erase_node(node)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


@alone("checks", checked, says="it raises AssertionError: no, instead of raising")
def other_message(graph_module: Any) -> None:
    """Checks say something else."""
    for node in calls(graph_module, torch_assert):
        node.args = (node.args[0], "no")
    graph_module.recompile()


@alone("aliasing", says="output['kept'] no longer shares memory with input[0]")
def copy_the_view(graph_module: Any) -> None:
    """A view of the input becomes a copy."""
    node = node_of(graph_module, "view")
    node.target = "reshape"
    with graph_module.graph.inserting_before(node):
        node.args = (graph_module.graph.call_method("clone", (node.args[0],)), *node.args[1:])
    graph_module.recompile()


@alone("aliasing", of(
    lambda self, x: (torch.relu(x), torch.relu(x)), (2, 3)
), says="output[1] now shares memory with output[0]")  # fmt: skip
def merge_results(graph_module: Any) -> None:
    """Two results become one tensor."""
    first, other = calls(graph_module, torch.relu)
    substitute(other, first)
    graph_module.recompile()


# Calls in a row, and other inputs.


@alone("state", of(
    lambda self, x: torch.zeros_like(x).add_(x), (2, 3)
), "calls in a row", says="a call changes 'zeros' of the program, which eager does not have")  # fmt: skip
def keep_the_zeros(graph_module: Any) -> None:
    """Zeros that the program adds to become a buffer, in which the sums pile up."""
    node = node_of(graph_module, torch.zeros_like)
    graph_module.register_buffer("zeros", torch.zeros(2, 3))
    with graph_module.graph.inserting_before(node):
        substitute(node, graph_module.graph.get_attr("zeros"))
    graph_module.recompile()


def _advances(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.place.add_(1)
    return x * self.place


@alone("calls in a row", of(
    _advances, torch.ones(2, 3), place=nn.Buffer(torch.zeros(()))
), says="on inputs given a second time computes")  # fmt: skip
def stay_in_place(graph_module: Any) -> None:
    """A position is that of the first call, though the buffer still counts."""
    node_of(graph_module, operator.mul).update_arg(1, 1.0)
    graph_module.recompile()


@alone("other sizes", of(
    lambda self, x: x.mean(1), (2, 4)
), says="on inputs of size 2 in dimension 1 computes")  # fmt: skip
def mean_of_four(graph_module: Any) -> None:
    """A mean becomes a sum over the size that the example has."""
    node = node_of(graph_module, "mean")
    total = replace(node, "sum", *node.args)
    behind(total, operator.truediv, total, 4)
    graph_module.recompile()


@alone("other values", of(
    lambda self, x: torch.sqrt(torch.abs(x) + 1), torch.ones(2, 3)
), says="on inputs of opposite signs computes")  # fmt: skip
def drop_the_absolute_value(graph_module: Any) -> None:
    """The sign of the example is taken for that of all inputs."""
    bypass(graph_module, torch.abs)


# Gradients.


def detached_relu(h: torch.Tensor) -> torch.Tensor:
    return torch.relu(h).detach()


@alone("gradients", says="changes the gradient of linear.weight")
def cut_the_gradient(graph_module: Any) -> None:
    """A value is detached."""
    replaced(graph_module, torch.relu, detached_relu)


@alone("gradients", says="the parameter 'linear.weight' of the program no longer requires a gradient")
def freeze_the_weight(graph_module: Any) -> None:
    """A layer requires no gradients any more."""
    graph_module.linear = copy.deepcopy(graph_module.linear).requires_grad_(False)


@alone("gradients", of(
    lambda self, x: torch.exp(x).clone().add_(1), torch.ones(2, 2)
), contract=exact, says="has been modified by an inplace operation")  # fmt: skip
def without_clones(graph_module: Any) -> None:
    """A copy is taken away that the program writes to."""
    bypass(graph_module, "clone")


def gelu_of_its_parts(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


def _written_copy(self: Any, x: torch.Tensor) -> Any:
    y = x * 0.5 * (1.0 + torch.erf(x / 2**0.5))
    return y, torch.exp(x).clone().add_(1), x.add_(1)


def _written_input(self: Any, x: torch.Tensor) -> Any:
    y = x * 0.5 * (1.0 + torch.erf(x / 2**0.5))
    return y, x.add_(1)


def fuse_gelu(graph_module: Any) -> None:
    fx.replace_pattern(graph_module, gelu_of_its_parts, lambda x: F.gelu(x))


@alone("gradients", of(_written_copy, torch.ones(2, 2)), says="has been modified by an inplace operation")
def gelu_without_clones(graph_module: Any) -> None:
    """A copy is taken away that the program writes to, beside an operation that keeps what it is given."""
    fuse_gelu(graph_module)
    bypass(graph_module, "clone")


@alone("gradients", of(_written_input, torch.ones(2, 2)), says="changes the gradient of input[0]")
def gelu_with_another_gradient(graph_module: Any) -> None:
    """The gradient of GELU is another one, in a program that writes to its input."""
    replacement = lambda x: F.gelu(x).detach() + (x - x.detach()) * F.gelu(x).detach()  # noqa: E731
    fx.replace_pattern(graph_module, gelu_of_its_parts, replacement)


# Other inputs.


@alone("batch sizes", says="on inputs of batch size 1 raise where eager does not")
def bake_the_batch(graph_module: Any) -> None:
    """The number of samples is a number of the program."""
    node = node_of(graph_module, "view")
    node.args = (node.args[0], 2, 3)
    graph_module.recompile()


@alone("non-finite inputs", says="on inputs with NaN and infinities computes")
def swallow_nan(graph_module: Any) -> None:
    """NaN becomes 0."""
    replaced(graph_module, torch.relu, lambda h: torch.where(h > 0, h, 0))


@alone("non-contiguous inputs", of(
    lambda self, x: x.reshape(-1), (2, 3)
), says="on non-contiguous inputs raise where eager does not")  # fmt: skip
def flatten_as_view(graph_module: Any) -> None:
    """A copy where needed becomes a view, which some strides do not allow."""
    retarget(graph_module, "reshape", "view")
