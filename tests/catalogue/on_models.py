"""Passes on models of the suite, and on programs beside them, which were once judged wrongly: each wrong one beside a
right one that does the same rightly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.fx._symbolic_trace import _assert_is_none

import fx
from fx.interop import adapt
from fx.operators.effects import effect_of
from fx.passes import FuseConvBN, approximate

from .rows import Case, bypass, calls, case, node_of, of, right, substitute, wrong


def model(dtype: torch.dtype = torch.float32) -> Case:
    """A convolution with its batch norm."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.weight.data.uniform_(0.5, 2)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU()).eval()
    return Case(module, (torch.randn(2, 3, 8, 8),), dtype)


def in_float64() -> Case:
    return model(torch.float64)


def _wrong(kind: str, *laws: str, on: Any = model) -> Any:
    return wrong(kind, *laws, on=on, programs=0)


def _right(kind: str, on: Any = model) -> Any:
    return right(on, kind=kind, modes=("eval",), programs=0)


def _named(pass_: Any, name: str, sentence: str) -> Any:
    pass_.__name__, pass_.__doc__ = name, sentence
    return pass_


# Stale code.


@_wrong("stale code", "code and graph agree")
def relu_without_recompile(graph_module: Any) -> None:
    """Edits the graph and does not recompile."""
    (node,) = graph_module.graph.find_nodes(op="call_module", target="2")
    node.op, node.target = "call_function", torch.relu


@_right("stale code")
def relu_and_recompile(graph_module: Any) -> None:
    """Edits the graph and recompiles."""
    relu_without_recompile(graph_module)
    graph_module.recompile()


@_wrong("stale code", "code and graph agree")
@adapt
def relu_of_torch_fx(graph_module: torch.fx.GraphModule) -> None:
    """A pass for torch.fx that edits the graph and does not recompile."""
    relu_without_recompile(graph_module)


@_wrong("stale code", "code and graph agree")
@adapt
def relu_of_a_copy(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A pass for torch.fx that edits a copy and does not recompile."""
    copied = copy.deepcopy(graph_module)
    relu_without_recompile(copied)
    return copied


@_right("stale code")
@adapt
def relu_of_torch_fx_and_recompile(graph_module: torch.fx.GraphModule) -> None:
    """A pass for torch.fx that edits the graph and recompiles."""
    relu_and_recompile(graph_module)


@_wrong("mode", "mode")
def leave_in_training(graph_module: Any) -> Any:
    """Leaves the program in training mode."""
    return graph_module.train()


@_right("mode")
def train_and_back(graph_module: Any) -> Any:
    """Leaves the program in the mode in which it was."""
    return graph_module.train().eval()


# The original's modules.


def _enter_change(name: str, says: str, act: Callable[[Any], Any]) -> None:
    def change(graph_module: Any) -> None:
        act(graph_module.get_submodule("1"))

    _wrong("the original's modules", "original untouched")(_named(change, name, f"{says} of the original."))


for _name, _says, _act in (
    ("add_a_hook", "Adds a hook to a layer", lambda layer: layer.register_forward_pre_hook(lambda module, args: None)),
    ("change_a_setting", "Changes a setting of a layer", lambda layer: setattr(layer, "momentum", 0.5)),
    ("give_a_list", "Gives a layer a list", lambda layer: setattr(layer, "seen", [1])),
    ("give_a_dict", "Gives a layer a dict", lambda layer: setattr(layer, "seen", {"images": 1})),
    ("freeze_a_parameter", "Freezes a parameter", lambda layer: layer.weight.requires_grad_(False)),
):
    _enter_change(_name, _says, _act)


@_right("the original's modules")
def give_a_copy_a_list(graph_module: Any) -> None:
    """Gives a copy of a layer a list."""
    layer = copy.deepcopy(graph_module.get_submodule("1"))
    layer.seen = [1]
    setattr(graph_module, "1", layer)


# What an adapted pass returns.


@_wrong("adapted passes", "refusal")
@adapt
def count_nodes(graph_module: torch.fx.GraphModule) -> Any:
    """A pass for torch.fx that returns a number."""
    return len(graph_module.graph.nodes)


@_right("adapted passes")
@adapt
def give_back(graph_module: torch.fx.GraphModule) -> None:
    """A pass for torch.fx that returns the program."""


# Checks.


def _checked(self: Any, x: Any) -> Any:
    assert x.shape[0] > 1, f"one sample is not enough, got {x.shape[0]}"
    return x - x.mean(0)


checked = of(_checked, (2, 3))


def _is_check(node: Any) -> bool:
    effect = effect_of(node)
    return effect is not None and effect.kind == "check"


@_wrong("checks", "checks", on=checked)
def erase_checks(graph_module: Any) -> None:
    """Erases a check of the program."""
    graph = graph_module.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op == "call_function" and _is_check(node):
            graph.erase_node(node)
    graph_module.recompile()


@_right("checks", checked)
def other_difference(graph_module: Any) -> None:
    """Computes a difference otherwise and keeps the check."""
    for node in graph_module.graph.find_nodes(op="call_function"):
        if getattr(node.target, "__name__", "") == "sub":
            node.target = torch.sub
    graph_module.recompile()


# The process.


@_wrong("the process", "process untouched")
def set_the_default_dtype(graph_module: Any) -> None:
    """Sets the default dtype."""
    torch.set_default_dtype(torch.float64)


@_right("the process")
def without_gradients(graph_module: Any) -> None:
    """Computes without gradients, and turns them on again."""
    with torch.no_grad():
        torch.ones(2).sum()


# Numbers.


@_wrong("several laws", "contract", "original untouched")
def scale_the_weights(graph_module: Any) -> None:
    """Scales the original's weights: wrong numbers, another original."""
    with torch.no_grad():
        for parameter in graph_module.parameters():
            parameter.mul_(1.5)


_right("float64", in_float64)(
    _named(
        lambda graph_module: FuseConvBN()(graph_module), "fuse_in_float64", "Fuses batch norms of a model in float64."
    )
)


@_wrong("float64", "contract", on=in_float64)
def scale_the_output(graph_module: Any) -> None:
    """Scales by 1.0001 in float64."""
    output = graph_module.graph.output_node()
    with graph_module.graph.inserting_before(output):
        output.args = (graph_module.graph.call_function(torch.mul, (output.args[0], 1.0001)),)
    graph_module.recompile()


_overflowing = of(lambda m, x: torch.div(torch.mul(x, 60.0).half(), 2.0), torch.tensor([1.0, 2.0, 2000.0]))


def _division_first(graph_module: Any, times: float) -> None:
    """Divide before the cast, and multiply by ``times`` for it."""
    node_of(graph_module, torch.mul).update_arg(1, times)
    bypass(graph_module, torch.div)


@_right("overflow", _overflowing)
def divide_first(graph_module: Any) -> None:
    """Another order of arithmetic before a cast to float16, which overflows in eager."""
    _division_first(graph_module, 30.0)


@_wrong("overflow", "contract", on=_overflowing)
def divide_first_by_another_number(graph_module: Any) -> None:
    """The same, and what does not overflow is wrong."""
    _division_first(graph_module, 31.0)


_small = of(lambda m, x: torch.mul(x, 1e-10), (4, 3))


@_wrong("small numbers", "contract", on=_small)
def off_by_a_tenth(graph_module: Any) -> None:
    """Outputs of 1e-10, wrong by a tenth."""
    node_of(graph_module, torch.mul).update_arg(1, 1.1e-10)
    graph_module.recompile()


@_right("small numbers", _small)
def off_in_the_last_digits(graph_module: Any) -> None:
    """Outputs of 1e-10, wrong in the last digits of float32."""
    node_of(graph_module, torch.mul).update_arg(1, 1.0000001e-10)
    graph_module.recompile()


# Programs of torch.fx.


def _nothing(name: str, sentence: str) -> Any:
    return _named(lambda graph_module: None, name, sentence)


def _checked_for_none() -> Case:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y", default_value=None)
    graph.call_function(_assert_is_none, (y,), {"msg": "y must be None"})
    graph.output(graph.call_function(torch.relu, (x,)))
    return Case(torch.fx.GraphModule(nn.Module(), graph).eval(), (torch.randn(2, 3),))


_right("torch.fx", _checked_for_none)(_nothing("keep_a_check_for_none", "A check for None with a message."))


@_right("torch.fx", of(lambda self, x, y: x * 2 + y, torch.ones(2), torch.ones(2)))
@adapt
def move_an_input(graph_module: torch.fx.GraphModule) -> None:
    """Moves an input behind a computation."""
    _, other, doubled, *_ = graph_module.graph.nodes
    doubled.append(other)
    graph_module.recompile()


_right("torch.fx", of(lambda self, x: x.to_mkldnn(), torch.randn(2, 3)))(
    _nothing("keep_mkldnn", "Answers in the layout of MKL-DNN.")
)


@_wrong("torch.fx", "dtype", on=of(lambda self, x: x.relu().to_mkldnn(), torch.randn(2, 3)))
def without_mkldnn(graph_module: Any) -> None:
    """Answers dense instead of in the layout of MKL-DNN."""
    bypass(graph_module, "to_mkldnn")


class _Named(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(f"{x.shape[-1]} columns of x, {y.shape[-1]:>5} of y: {list(y.shape)}")
        return x + y


def captured_with_messages() -> Case:
    captured = fx.symbolic_trace(_Named())
    assert not any("Proxy" in str(node.args) for node in captured.graph.nodes), "a message with the text of a Proxy"
    return Case(fx.symbolic_trace(captured).eval(), (torch.ones(2, 3), torch.ones(2, 3)))


_right("captured again", captured_with_messages)(_nothing("keep_messages", "Checks whose messages tell values."))


# A softmax in a model in float16.


def _softmax() -> Case:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)).eval()
    return Case(module, (torch.randn(6, 8) * 3,), torch.float16)


def _cast_softmax(graph_module: Any, dtype: torch.dtype) -> None:
    (node,) = calls(graph_module, nn.Softmax)
    graph = graph_module.graph
    with graph.inserting_before(node):
        cast = graph.call_method("to", (node.args[0], dtype))
        call = graph.call_function(torch.softmax, (cast, -1))
        back = graph.call_method("type_as", (call, node.args[0]))
    substitute(node, back)
    graph_module.recompile()


@_right("softmax in a model in float16", _softmax)
def softmax_in_float32(graph_module: Any) -> None:
    """Is computed in float32."""
    _cast_softmax(graph_module, torch.float32)


@_wrong("softmax in a model in float16", "contract", on=_softmax)
def softmax_in_float8(graph_module: Any) -> None:
    """Is computed in float8."""
    _cast_softmax(graph_module, torch.float8_e4m3fn)


# Gradients by element.


_two_scales = of(lambda m, x, scale: torch.mul(x, scale), (3, 2), torch.tensor([1e-3, 1e6]))


def _apart(graph_module: Any, small: Callable[[Any, Any], Any]) -> None:
    output = graph_module.graph.output_node()
    result, graph = output.args[0], graph_module.graph
    with graph.inserting_before(output):
        first, rest = (graph.call_function(torch.narrow, (result, -1, start, 1)) for start in (0, 1))
        output.args = (graph.call_function(torch.cat, ([small(graph, first), rest], -1)),)
    graph_module.recompile()


@_wrong("gradients by element", "gradients", on=_two_scales)
def detach_small_elements(graph_module: Any) -> None:
    """Lost for elements that are small beside others."""
    _apart(graph_module, lambda graph, first: graph.call_method("detach", (first,)))


@_right("gradients by element", _two_scales)
def copy_small_elements(graph_module: Any) -> None:
    """Kept for them."""
    _apart(graph_module, lambda graph, first: graph.call_function(torch.clone, (first,)))


copy_small_elements.may_change = ("sizes",)  # it is made for two columns


# Decibels.


def _noisy(forward: Callable[..., Any]) -> Any:
    def witness() -> Case:
        torch.manual_seed(0)
        module = case(forward, first=nn.Linear(16, 32), last=nn.Linear(32, 16)).module
        return Case(module, (torch.randn(64, 16),), torch.float32)

    return witness


def _drawing(self: Any, x: torch.Tensor) -> Any:
    """An output of random numbers alone, and another of what is computed of them."""
    hidden = torch.relu(self.first(x))
    return x + torch.randn_like(x), self.last(hidden + torch.randn_like(hidden))


def _counting(self: Any, x: torch.Tensor) -> Any:
    scores = self.last(torch.relu(self.first(x)))
    return scores.histc(100), scores.argmax(-1).float()


def _with_weights(graph_module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    graph_module.last = copy.deepcopy(graph_module.last)
    graph_module.last.weight.data = change(graph_module.last.weight.data)


@wrong("decibels", "contract", on=_noisy(_drawing), contract=approximate(sqnr_db=20), programs=0)
def flip_signs(graph_module: Any) -> None:
    """The weights of a layer have the other sign, beside random numbers."""
    _with_weights(graph_module, torch.neg)


@right(_noisy(_drawing), _noisy(_counting), kind="decibels", contract=approximate(sqnr_db=20), programs=0)
def round_weights(graph_module: Any) -> None:
    """Weights of five bits, beside random numbers and below a histogram and an index."""
    step = graph_module.last.weight.detach().abs().max() / 16
    _with_weights(graph_module, lambda weight: (weight / step).round() * step)


# Layouts.


def _constant_images() -> Case:
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)).train()
    return Case(module, (torch.full((2, 3, 8, 8), 0.3),))


def _in_channels_last(graph_module: Any) -> Any:
    """Convert the input, and return the converted output."""
    graph, output = graph_module.graph, graph_module.graph.output_node()
    (placeholder,) = graph.find_nodes(op="placeholder")
    with graph.inserting_before(placeholder.next):
        converted = graph.call_method("contiguous", (placeholder,), {"memory_format": torch.channels_last})
    for user in [user for user in placeholder.users if user is not converted]:
        user.replace_input_with(placeholder, converted)
    with graph.inserting_before(output):
        output.args = (graph.call_method("contiguous", (output.args[0],)),)
    graph_module.recompile()
    return output.args[0]


@right(_constant_images, kind="layouts", modes=("train",), programs=0)
def to_channels_last(graph_module: Any) -> None:
    """Channels last, for the norm of a constant image in training mode."""
    _in_channels_last(graph_module)


@wrong("layouts", "contract", on=_constant_images, modes=("train",), programs=0)
def to_channels_last_and_larger(graph_module: Any) -> None:
    """Channels last, with an output that is larger by a hundredth."""
    node = _in_channels_last(graph_module)
    with graph_module.graph.inserting_before(node):
        node.args = (graph_module.graph.call_function(torch.mul, (node.args[0], 1.01)),)
    graph_module.recompile()
