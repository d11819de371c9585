"""``prepare_qat``: train a program for what quantization will do to it (Jacob et al. 2017; paper, section 6.2.1)."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fx.canonical import canonical_form
from fx.errors import QuantizationError
from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.passes.fuse_conv_bn import FuseConvBN
from fx.passes.shape_prop import ShapeProp
from fx.quantize.fake_quantization import (
    FakeQuantize,
    FrozenBatchNorm,
    batch_norm_gain,
    fake_quantize_channels,
    fake_quantize_dynamic,
    undo_gain,
)
from fx.quantize.integer_operations import plain_spelling
from fx.quantize.preparation import SCHEME, check_given, is_observer, observe, prepare, quantized_layers, scheme_of
from fx.quantize.scheme import Choice, QuantizationScheme
from fx.quantize.state import run_apart

_TRAINED = "quantization_aware"
"""Where a program that is trained for quantization says so, in ``meta``."""
_WITH_MODES = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
)  # fmt: skip
"""Classes of modules that do something else in training; ``train`` and ``eval`` still reach these."""


_SCALES = ("weight", "running_var")
"""The tensors from which it follows what a batch norm multiplies by."""
_RANKS: dict[Any, int] = {F.linear: 2, F.conv1d: 3, F.conv2d: 4, F.conv3d: 5}
"""How many dimensions the results of layers have where batch norm normalizes their features."""


def prepare_qat(
    graph_module: GraphModule, scheme: QuantizationScheme | None = None, example_inputs: Sequence[Any] | None = None
) -> GraphModule:
    """Return a copy of a program that can be trained, and rounds weights and values as quantization will.

    Gradients pass rounding as if it were not there. Batch norms stay, as their statistics are still to be found, but
    the weights of the layers before them are rounded as they will be with the batch norm folded into them. ``train``
    and ``eval`` reach batch norms and dropout as they do in the original, whose names parameters keep; ranges of values
    are observed in training mode. Late in training :func:`freeze_observers` and :func:`freeze_batch_norm` fix what is
    known well enough, and :func:`~fx.quantize.conversion.convert` takes the copy at any time.

    Args:
        graph_module: a captured program, in either mode. Its tensors stay as they are: the copy has its own.
        scheme: what is quantized, and how; by default all that can be, in 8 bits with moving averages of ranges.
        example_inputs: inputs for one run, from which shapes and types are known; see
            :func:`~fx.quantize.preparation.prepare`.

    Raises:
        QuantizationError: the program is prepared already.

    >>> import torch, fx
    >>> program = prepare_qat(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))).train()
    >>> program(torch.ones(1, 2)).sum().backward()
    >>> program.observers.input_1
    FakeQuantize(
      moving-average, bits=8, symmetric=False
      (range): MovingAverageObserver()
    )
    """
    check_given(graph_module, scheme, "prepare_qat")
    if scheme_of(graph_module) is not None:
        raise QuantizationError(
            "this program is prepared for quantization already",
            remedy="prepare the program that was captured",
        )
    if scheme is None:
        scheme = QuantizationScheme(Choice(observer="moving-average"))
    program = canonical_form(copy.deepcopy(graph_module), leaves=_WITH_MODES).graph_module
    with _evaluated(program):
        # What nothing needs would be a user of what is rounded or fused; so would norms that only keep statistics.
        program.graph.eliminate_dead_code()
        if example_inputs is not None:
            run_apart(program, ShapeProp(program).propagate, example_inputs)
        plan = prepare(program, scheme)
        fused = {one.node for one in FuseConvBN().explain(program) if one.fused}
    _RoundingInserter(program, plan, scheme, fused).insert()
    program.meta[SCHEME], program.meta[_TRAINED] = scheme.to_data(), True
    program.recompile()
    return program


def freeze_observers(program: GraphModule) -> None:
    """Let the ranges of values stay what they are from now on, in training mode too.

    Raises:
        QuantizationError: ``program`` is none that :func:`prepare_qat` returned.
    """
    _check(program)
    for module in program.modules():
        if isinstance(module, FakeQuantize):
            module.is_frozen = True


def freeze_batch_norm(program: GraphModule) -> None:
    """Let batch norms normalize with the statistics that they have from now on, in training mode too.

    Their parameters stay the same ones, and are still trained.

    Raises:
        QuantizationError: ``program`` is none that :func:`prepare_qat` returned.
    """
    _check(program)
    for path, module in list(program.named_modules()):
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            program.add_submodule(path, FrozenBatchNorm.of(module))


def is_trained(program: GraphModule) -> bool:
    """Whether :func:`prepare_qat` made a program."""
    return bool(program.meta.get(_TRAINED))


def settled(program: GraphModule) -> GraphModule:
    """Return what :func:`~fx.quantize.preparation.prepare` makes of a program as it is trained so far.

    Its observers are those that watched the training, and its tensors are copies.

    Raises:
        QuantizationError: operations were added or removed that change what is to be observed.
    """
    scheme = scheme_of(program)
    plain = copy.deepcopy(program).eval()
    observers = _take_out_rounding(plain)
    prepared = prepare(plain, scheme)
    wanted = {str(node.target) for node in prepared.graph.nodes if is_observer(node)}
    if wanted != observers.keys():
        raise QuantizationError(
            "the program that was trained has other operations than when it was prepared",
            value=", ".join(sorted(wanted ^ observers.keys())[:10]),
            remedy="rewrite programs before prepare_qat or after convert",
        )
    for path, observer in observers.items():
        prepared.add_submodule(path, observer.range)
    return prepared


def _check(program: GraphModule) -> None:
    expect_program(program, "a program in quantization-aware training is a GraphModule", error=QuantizationError)
    if not is_trained(program):
        raise QuantizationError(
            "this program is not in quantization-aware training",
            value=type(program).__name__,
            remedy="program = prepare_qat(program)",
        )


@contextmanager
def _evaluated(program: nn.Module) -> Generator[None, None, None]:
    """Have ``program`` in evaluation mode for a while."""
    modes = [(module, module.training) for module in program.modules()]
    program.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _RoundingInserter:
    """Puts into a program what ``prepare`` and ``convert`` would do to it, as rounding."""

    def __init__(self, program: GraphModule, plan: GraphModule, scheme: QuantizationScheme, fused: set[str]) -> None:
        self._program = program
        self._graph = program.graph
        self._plan = plan
        self._scheme = scheme
        self._nodes = {node.name: node for node in program.graph.nodes}
        norms = [self._nodes[name] for name in fused]
        self._norms = {norm.all_input_nodes[0].name: norm for norm in norms}

    def insert(self) -> None:
        """Edit the program."""
        for planned in self._plan.graph.nodes:
            node = self._nodes.get(planned.name)
            if node is not None and plain_spelling(planned) is None and (change := plain_spelling(node)) is not None:
                change()
        layers = quantized_layers(self._plan, self._scheme)
        for planned in self._plan.graph.nodes:
            if is_observer(planned):
                name, path = planned.all_input_nodes[0].name, str(planned.target)
                observer: Any = self._plan.get_submodule(path)
                observe(self._program, self._norms.get(name, self._nodes[name]), path, FakeQuantize.of(observer))
            elif planned in layers:
                self._round_weight(self._nodes[planned.name], self._scheme.choice(planned))

    def _round_weight(self, node: Node, choice: Choice) -> None:
        norm = self._norms.get(node.name)
        with self._graph.inserting_before(node):
            if choice.precision == "dynamic":
                self._replace(node, "input", fake_quantize_dynamic)
            gain = None if norm is None else self._gain(norm)
            self._replace(
                node, "weight", fake_quantize_channels, gain=gain, bits=choice.weight_bits,
                per_channel=choice.per_channel,
            )  # fmt: skip
        if norm is None:
            return
        bias, rank = node.kwargs.get("bias"), _RANKS[node.target]
        node.kwargs = {**node.kwargs, "bias": None}
        with self._graph.inserting_after(node):
            undone = self._graph.call_function(undo_gain, (), {"input": node, "gain": gain, "bias": bias, "rank": rank})
        undone.source = node.source
        norm.replace_input_with(node, undone)

    def _replace(self, node: Node, name: str, function: Any, **settings: Any) -> None:
        """Give a layer what ``function`` makes of one of its arguments."""
        key = "input" if name == "input" else "weight"
        rounded = self._graph.call_function(function, (), {key: node.kwargs[name], **settings})
        rounded.source = node.source
        node.kwargs = {**node.kwargs, name: rounded}

    def _gain(self, norm: Node) -> Node:
        """What a batch norm, called as a module or as a function, multiplies each channel by."""
        if norm.op == "call_module":
            module: Any = self._program.get_submodule(str(norm.target))
            paths = {name: f"{norm.target}.{name}" for name in _SCALES if getattr(module, name) is not None}
            eps = module.eps
        else:
            given = {name: norm.kwargs[name] for name in _SCALES}
            paths = {name: str(used.target) for name, used in given.items() if isinstance(used, Node)}
            eps = norm.kwargs["eps"]
        fetched = {name: self._graph.get_attr(path) for name, path in paths.items()}
        return self._graph.call_function(batch_norm_gain, (), {"weight": None, **fetched, "eps": eps})


def _take_out_rounding(program: GraphModule) -> dict[str, FakeQuantize]:
    """Undo what :class:`_RoundingInserter` did, and return the modules that rounded values, by their paths."""
    found: dict[str, FakeQuantize] = {}
    for node in reversed(list(program.graph.nodes)):
        arguments = node.kwargs
        if is_observer(node):
            found[str(node.target)] = fetch_attribute(program, str(node.target))
            _bypass(node, node.args[0])
        elif node.target in (fake_quantize_channels, fake_quantize_dynamic):
            _bypass(node, arguments.get("weight", arguments.get("input")))
        elif node.target is undo_gain:
            layer: Any = arguments["input"]
            layer.kwargs = {**layer.kwargs, "bias": arguments["bias"]}
            _bypass(node, layer)
        elif node.target is batch_norm_gain:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.delete_all_unused_submodules()
    program.recompile()
    return found


def _bypass(node: Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)
