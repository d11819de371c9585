"""Passes of the first round that drop, move or share what a program does."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault

_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout")


_EFFECTS = {F.batch_norm, F.instance_norm, operator.setitem, torch._assert, torch._assert_async, setattr, print}


def _has_effect(node, modules):
    """Return whether a call does something besides computing its result."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "call_module":
        return modules[node.target].training or type(modules[node.target]).__module__.split(".")[0] != "torch"
    if node.op == "call_method":
        return node.target.endswith("_") or node.target.startswith(_RANDOM)
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        return (
            node.target in _EFFECTS
            or name.endswith("_")
            or any(part in name for part in _RANDOM)
            or bool(node.kwargs.get("inplace"))
            or node.kwargs.get("out") is not None
        )
    return False


class RemoveUnused(PassBase):
    def call(self, graph_module):
        modules = dict(graph_module.named_modules(remove_duplicate=False))
        modified = False
        for node in reversed(list(graph_module.graph.nodes)):
            if not node.users and not _has_effect(node, modules):
                graph_module.graph.erase_node(node)
                modified = True
        return PassResult(graph_module, modified)


@fault(
    1,
    "effect dropped",
    "contract",
    "inputs untouched",
    "checks",
    "structure",
    wrong="`y += 1` is a write in place too (operator.iadd), and its result may be unread while y is a view of "
    "what is returned.",
)
def remove_unused(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Removes the calls whose results nobody reads, for instance auxiliary heads that were cut off.

    What is there for its effect stays: writes in place, assertions, layers in training mode.
    """
    result = RemoveUnused()(graph_module).graph_module
    result.recompile()
    return result


# Layers that allocate their result and do not need it again in backward.
_PRODUCERS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout)


_MODULES = {
    nn.ReLU: lambda module: nn.ReLU(True),
    nn.Hardtanh: lambda module: nn.Hardtanh(module.min_val, module.max_val, True),
    nn.ReLU6: lambda module: nn.ReLU6(True),
}


_FUNCTIONS = {F.relu, F.relu6, F.hardtanh}


def _hooked(module):
    return any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


@fault(
    1,
    "in-place on a value still needed",
    "contract",
    "inputs untouched",
    "gradients",
    "aliasing",
    wrong="A dropout in eval mode returns its input itself, so the activation overwrites a tensor that others read.",
)
def inplace_activations(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Saves memory: an activation that is the only reader of a layer's result overwrites it."""
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph_module.graph.nodes):
        if node.op not in ("call_module", "call_function") or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        producer = node.args[0]
        if producer.op != "call_module" or len(producer.users) != 1:
            continue
        if not isinstance(modules.get(producer.target), _PRODUCERS):
            continue
        if node.op == "call_function" and node.target in _FUNCTIONS and len(node.args) == 1:
            node.kwargs = {**node.kwargs, "inplace": True}
        elif (
            node.op == "call_module"
            and type(modules.get(node.target)) in _MODULES
            and not _hooked(modules[node.target])
        ):
            activation = modules[node.target]
            name = node.target.replace(".", "_") + "_inplace"
            graph_module.add_submodule(name, _MODULES[type(activation)](activation))
            node.target = name
    graph_module.recompile()
    return graph_module


_RANDOM_CONSTANT = {
    "rand",
    "randn",
    "randint",
    "bernoulli",
    "multinomial",
    "dropout",
    "rand_like",
    "randn_like",
    "empty",
    "empty_like",
}


def _foldable(node, known):
    """Return whether a call has only known inputs and no effect."""
    if node.op not in ("call_function", "call_method"):
        return False
    inputs = node.all_input_nodes
    if not inputs or not all(source in known for source in inputs):
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "_")
    module = "torch" if node.op == "call_method" else getattr(node.target, "__module__", None) or "torch"
    if name.endswith("_") or name in _RANDOM_CONSTANT or "out" in node.kwargs or node.kwargs.get("inplace"):
        return False
    if name.startswith("i") and name[1:] in ("add", "sub", "mul", "truediv") or name == "setitem":
        return False
    return module.split(".")[0] in ("torch", "_operator")


def _evaluate(node, known):
    args = fx.map_arg(node.args, lambda source: known[source])
    kwargs = fx.map_arg(node.kwargs, lambda source: known[source])
    with torch.no_grad():
        return (
            getattr(args[0], node.target)(*args[1:], **kwargs)
            if node.op == "call_method"
            else node.target(*args, **kwargs)
        )


@fault(
    1,
    "folding of what is written",
    "contract",
    "state",
    "calls in a row",
    wrong="A buffer that the program itself writes in place (a running average, a counter) is no constant.",
)
def fold_constants(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Computes at once what depends on buffers alone (masks, position tables, 1 / std) and keeps it as a buffer.

    Parameters are not folded: they may be trained.
    """
    graph = graph_module.graph
    buffers = dict(graph_module.named_buffers())
    constants = {node: buffers[node.target] for node in graph.nodes if node.op == "get_attr" and node.target in buffers}
    for node in list(graph.nodes):
        if not _foldable(node, constants):
            continue
        value = _evaluate(node, constants)
        if isinstance(value, torch.Tensor):
            constants[node] = value
    for index, node in enumerate([node for node in constants if node.op != "get_attr"]):
        if all(user in constants for user in node.users):
            continue
        graph_module.register_buffer(f"folded_{index}", constants[node].detach().clone(), persistent=False)
        with graph.inserting_before(node):
            constant = graph.get_attr(f"folded_{index}")
        node.replace_all_uses_with(constant, lambda user: user not in constants)
    for node in reversed(list(constants)):
        if not node.users:
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module
