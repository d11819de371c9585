"""``RoundingInserter``: rounding in a program that is trained, where ``convert`` will have integers (section 6.2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fx.graph_module import GraphModule
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.operators.families import operators
from fx.quantize.fake_quantization import (
    FakeQuantize,
    batch_norm_gain,
    bits_of_activations,
    fake_quantize_channels,
    fake_quantize_dynamic,
    undo_gain,
)
from fx.quantize.integer_operations import groups_of_transposed, stored_tensors
from fx.quantize.preparation import is_observer, observe, quantized_operations
from fx.quantize.recurrence import recurrent
from fx.quantize.scheme import Choice, QuantizationScheme

_SCALES = ("weight", "running_var")
"""The tensors from which it follows what a batch norm multiplies by."""
_RANKS: dict[Any, int] = {
    row.function: 2 + (row.dims or 0) for row in operators("linear", "convolution", "transposed convolution")
}
"""How many dimensions the results of layers have where batch norm normalizes their features."""


class RoundingInserter:
    """Puts into a program what ``prepare`` and ``convert`` would do to it, as rounding."""

    def __init__(self, program: GraphModule, plan: GraphModule, scheme: QuantizationScheme, fused: set[str]) -> None:
        """Prepare to edit ``program``, which is canonical but for modules that do something else in training.

        ``plan`` is the same as ``prepare`` returns it, with the batch norms of the names ``fused`` folded into layers.
        """
        self._program = program
        self._graph = program.graph
        self._plan = plan
        self._scheme = scheme
        self._nodes = {node.name: node for node in program.graph.nodes}
        norms = [self._nodes[name] for name in fused]
        self._norms = {norm.all_input_nodes[0].name: norm for norm in norms}
        self._planned = {node.name: node for node in plan.graph.nodes}
        operations = quantized_operations(plan, scheme)
        precisions = {node: scheme.choice(node).precision for node in operations}
        self._on_integers = {
            node for node, one in operations.items() if one.takes_integers and precisions[node] == "int8"
        }
        self._layers = [node for node, one in operations.items() if one.has_weight and precisions[node] != "bfloat16"]

    def insert(self) -> None:
        """Edit the program."""
        observers = list(filter(is_observer, self._plan.graph.nodes))
        found = [(str(planned.target), *one) for planned in observers for one in self._rounded(planned)]
        made: dict[str, FakeQuantize] = {}
        for path, value, users in found:
            if path not in made:
                observer: Any = self._plan.get_submodule(path)
                made[path] = FakeQuantize.of(observer)
            observe(self._program, value, path, made[path], users)
        for planned in self._layers:
            round_ = self._round_matrices if planned.target is recurrent else self._round_weight
            round_(self._nodes[planned.name], self._scheme.choice(planned))

    # Which values are rounded, and for whom: what works on float values reads them as they are, in the converted
    # program too, unless they are stored as integers alone.

    def _rounded(self, planned: Node) -> Iterator[tuple[Node, Sequence[Node]]]:
        """The values of the program that an observer of the plan stands for, and who is to read them rounded."""
        source = planned.all_input_nodes[0]
        for value in dict.fromkeys(self._values(source, planned)):
            if source in self._on_integers:
                yield value, list(value.users)
            else:
                yield from self._for_integers(value)

    def _values(self, source: Node, planned: Node) -> Iterator[Node]:
        """The value of that name; of a constant that was folded for the plan, what it is computed as."""
        if source.name in self._nodes:
            yield self._norms.get(source.name, self._nodes[source.name])
            return
        for user in planned.users:
            if (same := self._nodes.get(user.name)) is not None:
                yield from _at_same_place(planned, (user.args, user.kwargs), (same.args, same.kwargs))

    def _for_integers(self, value: Node) -> Iterator[tuple[Node, Sequence[Node]]]:
        users = [user for user in value.users if self._kinds(user) == {True}]
        if users:
            yield value, users
        for user in value.users:
            if len(self._kinds(user)) == 2:
                yield from self._for_integers(user)

    def _kinds(self, user: Node) -> set[bool]:
        """Return whether an operation works on integers; of one that the plan does without, as dropout, its users."""
        planned = self._planned.get(user.name)
        if planned is not None:
            return {planned in self._on_integers}
        return {kind for one in user.users for kind in self._kinds(one)} or {False}

    # Weights.

    def _round_weight(self, node: Node, choice: Choice) -> None:
        norm = self._norms.get(node.name)
        with self._graph.inserting_before(node):
            if choice.precision == "dynamic":
                self._replace(node, "input", fake_quantize_dynamic, **bits_of_activations(choice))
            gain = None if norm is None else self._gain(norm)
            groups = groups_of_transposed(node)
            self._replace(
                node, "weight", fake_quantize_channels, gain=gain, bits=choice.weight_bits,
                per_channel=choice.per_channel, **({} if groups is None else {"groups": groups}),
            )  # fmt: skip
        if norm is None:
            return
        bias, rank = node.kwargs.get("bias"), _RANKS[node.target]
        node.kwargs = {**node.kwargs, "bias": None}
        with self._graph.inserting_after(node):
            undone = self._graph.call_function(undo_gain, (), {"input": node, "gain": gain, "bias": bias, "rank": rank})
        undone.source = node.source
        norm.replace_input_with(node, undone)

    def _round_matrices(self, node: Node, choice: Choice) -> None:
        rounded: dict[Node, Node] = {}
        with self._graph.inserting_before(node):
            for _, fetched in stored_tensors(node):
                if fetch_attribute(self._program, str(fetched.target)).dim() == 2:
                    settings = {"weight": fetched, "bits": choice.weight_bits, "per_channel": choice.per_channel}
                    rounded[fetched] = self._graph.call_function(fake_quantize_channels, (), settings)
                    rounded[fetched].source = node.source
        for fetched, made in rounded.items():
            node.replace_input_with(fetched, made)

    def _replace(self, node: Node, name: str, function: Any, **settings: Any) -> None:
        """Give a layer what ``function`` makes of one of its arguments."""
        key = "input" if name == "input" else "weight"
        rounded = self._graph.call_function(function, (), {key: node.kwargs[name], **settings})
        rounded.source = node.source
        node.kwargs = {**node.kwargs, name: rounded}

    def _gain(self, norm: Node) -> Node:
        """Return what a batch norm, called as a module or as a function, multiplies each channel by."""
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


def _at_same_place(planned: Node, given: Any, same: Any) -> Iterator[Node]:
    """Yield what stands in ``same`` where ``planned`` stands in ``given``: arguments of one call in two programs."""
    if given is planned:
        if isinstance(same, Node):
            yield same
    elif isinstance(given, (tuple, list)) and isinstance(same, (tuple, list)):
        for one, other in zip(given, same, strict=False):
            yield from _at_same_place(planned, one, other)
    elif isinstance(given, Mapping) and isinstance(same, Mapping):
        for name, one in given.items():
            yield from _at_same_place(planned, one, same.get(name))


def take_out_rounding(program: GraphModule) -> dict[str, FakeQuantize]:
    """Undo what :class:`RoundingInserter` did, and return the modules that rounded values, by their paths."""
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
