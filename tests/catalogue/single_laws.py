"""Passes that each break one law of a small model, which no other law would tell as well."""

from __future__ import annotations

import copy
import itertools
import operator
import os
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

import fx
from fx.errors import PassError

from .rows import Case, behind, node_of, of, replace, wrong

torch_assert: Any = vars(torch)["_assert"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x, y=2.0):  # type: ignore[no-untyped-def]
        h = self.norm(self.linear(x))
        return {"h": torch.relu(h) * y, "kept": x.view(-1, 3)}


class Checked(nn.Module):
    def forward(self, x):  # type: ignore[no-untyped-def]
        assert x.shape[0] > 1, "one sample is not enough"
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x / x.std(0)


class Local(nn.Module):
    def __reduce__(self) -> Any:
        raise TypeError("not this one")

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.relu(h)


def rows_of_three() -> tuple[torch.Tensor]:
    return (torch.arange(-3.0, 3.0).reshape(2, 3),)


def net(train: bool = False) -> Case:
    torch.manual_seed(0)
    instance = Net().train(train)
    with torch.no_grad():
        instance.norm.running_var.add_(1)
    return Case(instance, rows_of_three())


def training() -> Case:
    return net(train=True)


def checked() -> Case:
    return Case(Checked().eval(), rows_of_three())


def replaced(graph_module: Any, target: Any, function: Any) -> None:
    """Put a call with the same arguments in the place of one node."""
    node = node_of(graph_module, target)
    replace(node, function, *node.args)
    graph_module.recompile()


def relu_by_function(graph_module: Any) -> None:
    replaced(graph_module, torch.relu, F.relu)


def alone(law: str, on: Any = net, *others: str, says: str, kind: str = "one law", **options: Any) -> Any:
    return wrong(kind, law, *others, on=on, says=(says,), programs=0, **options)


# How a pass behaves.


@alone("terminates", says="was still running after 0.2 seconds")
def loop(graph_module: Any) -> None:
    """It never ends."""
    while True:
        pass


@alone("refusal", says="crashed with AttributeError")
def look_up(graph_module: Any) -> Any:
    """It asks graphs for an attribute that they do not have."""
    return graph_module.graph.nodes_by_name["x"]


@alone("returns a program", says="returned no program")
def return_the_graph(graph_module: Any) -> Any:
    """It returns the graph in the place of the program."""
    return graph_module.graph


@alone("original untouched", says="norm has another note")
def give_another_eps(graph_module: Any) -> None:
    """A module of the original gets an attribute more."""
    graph_module.get_submodule("norm").eps = graph_module.get_submodule("norm").eps  # the same is no change
    graph_module.get_submodule("norm").note = ["seen"]


@alone("original untouched", says="linear has another _forward_pre_hooks")
def hook_the_original(graph_module: Any) -> None:
    """A module of the original gets a hook."""
    graph_module.get_submodule("linear").register_forward_pre_hook(lambda module, args: None)


@alone("original untouched", net, "gradients", says="it froze norm.bias")
def freeze_the_original(graph_module: Any) -> None:
    """A parameter of the original requires no gradient any more."""
    graph_module.get_submodule("norm").bias.requires_grad_(False)


@alone("original untouched", says="norm has another eps")
def scale_and_refuse(graph_module: Any) -> None:
    """It edits a module of the original before it refuses the program."""
    graph_module.norm.eps = 1e-3
    raise PassError("not this one")


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.attention = nn.MultiheadAttention(2, 2, batch_first=True)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.attention(x, x, x)[0] + self.linear(x)


@alone(
    "original untouched",
    lambda: Case(Calling().eval(), (torch.ones(1, 2, 2),)),
    "other values",
    says="attention has another num_heads",
)
def write_to_the_module(graph_module: Any) -> None:
    """A setting of a module of the original is another one."""
    graph_module.attention.num_heads = 1


@alone("process untouched", says="the default dtype is float64, was float32")
def leave_another_default_dtype(graph_module: Any) -> None:
    """It sets the default dtype."""
    torch.set_default_dtype(torch.float64)


@alone("process untouched", says="the number of threads is")
def leave_more_threads(graph_module: Any) -> None:
    """It sets the number of threads."""
    torch.set_num_threads(torch.get_num_threads() + 1)


@alone("process untouched", says="gradients are off")
def leave_gradients_off(graph_module: Any) -> None:
    """It turns gradients off."""
    torch.set_grad_enabled(False)


@alone("process untouched", says="torch.relu is another function")
def patch_torch(graph_module: Any) -> None:
    """It puts a function of torch in the place of another one."""
    torch.relu = F.gelu


@alone("process untouched", says="torch.relu is another function")
def patch_torch_with_a_function_of_its_own(graph_module: Any) -> None:
    """It puts a function of Python in the place of one of torch."""
    torch.relu = F.silu


@alone("process untouched", says="the environment variable SET_BY_A_PASS was set")
def set_a_variable(graph_module: Any) -> None:
    """It sets a variable of the environment."""
    os.environ["SET_BY_A_PASS"] = "1"


# Graph and code.


@alone("well formed", says="Argument 'x' of Node 'linear' was used before it has been defined")
def use_before_definition(graph_module: Any) -> None:
    """A node comes after one that uses it."""
    node_of(graph_module, "linear").append(next(iter(graph_module.graph.nodes)))


@alone("code and graph agree", says="the graph was edited, but the program not recompiled")
def forget_to_recompile(graph_module: Any) -> None:
    """The code is that of the graph before."""
    node_of(graph_module, torch.relu).target = torch.sigmoid


@alone("signature", says="(value, y_1=2.0) instead of (x, y_1=2.0)")
def rename_an_input(graph_module: Any) -> None:
    """A parameter has another name."""
    next(iter(graph_module.graph.nodes)).target = "value"
    graph_module.recompile()


@alone("signature", says="(x, y_1) instead of (x, y_1=2.0)")
def drop_a_default(graph_module: Any) -> None:
    """A parameter has no default any more."""
    list(graph_module.graph.nodes)[1].args = ()
    graph_module.recompile()


@alone("mode", says="leaves the program in training mode")
def from_a_dict(graph_module: Any) -> Any:
    """The new program is in training mode."""
    return fx.GraphModule(dict(graph_module.named_children()), graph_module.graph)


@alone("metadata kept", says="has lost what analyses wrote into its meta")
def forget_the_meta(graph_module: Any) -> None:
    """No node has the notes any more that it had."""
    for node in graph_module.graph.nodes:
        node.meta.clear()


_counter = itertools.count()
_noise = itertools.cycle((1, 2, 3))


@alone("deterministic", says="makes other code of the same program")
def count(graph_module: Any) -> None:
    """Names depend on how often it ran."""
    relu_by_function(graph_module)
    node_of(graph_module, F.relu).name = f"relu_{next(_counter)}"
    graph_module.recompile()


@alone("deterministic", says="makes another 'linear.weight' of the same program")
def perturb_the_weight(graph_module: Any) -> None:
    """A weight gets other last bits each time."""
    linear = graph_module.linear = copy.deepcopy(graph_module.linear)
    linear.weight = nn.Parameter(linear.weight.detach() * (1 + torch.finfo().eps * next(_noise)))


@alone("round trips", says="TypeError: not this one")
def with_a_module_that_cannot_be_pickled(graph_module: Any) -> None:
    """A module cannot be pickled."""
    graph_module.add_submodule("local", Local())
    node = node_of(graph_module, torch.relu)
    node.op, node.target = "call_module", "local"
    graph_module.recompile()


@alone("retraceable", of(lambda self, x: x * x.size(0), (2, 3)), says="cannot use a traced value as an integer")
def size_as_an_index(graph_module: Any) -> None:
    """A function of Python is called with a size, which is no number when the program is captured."""
    node = node_of(graph_module, "size")
    behind(node, operator.index, node)
    graph_module.recompile()


@alone("idempotent", kind="on demand", says="changes what it made itself")
def again_and_again(graph_module: Any) -> None:
    """Each time it runs it adds a node more."""
    node = node_of(graph_module, "linear")
    with graph_module.graph.inserting_after(node):
        graph_module.graph.call_function(operator.neg, (node,))
    graph_module.recompile()


@alone("shrinks the graph", kind="on demand", says="the graph has 11 nodes after add-a-copy, and had 10")
def add_a_copy(graph_module: Any) -> None:
    """It adds a node that nobody uses."""
    node = next(iter(reversed(graph_module.graph.nodes))).prev
    with graph_module.graph.inserting_before(node):
        graph_module.graph.call_function(operator.neg, (next(iter(graph_module.graph.nodes)),))
    graph_module.recompile()


@alone("metadata kept", kind="on demand", says="has lost what analyses wrote into its meta")
def rebuilt_by_torch_fx(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A Transformer of torch.fx loses the notes of nodes, and passes written with it are not blamed for that."""
    return torch.fx.Transformer(graph_module).transform()
