"""``RoundingInserter``: rounding in a program in training, where ``convert`` will have integers (section 6.2.1)."""

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
"""The tensors that determine the gain of a batch norm."""
_RANKS: dict[Any, int] = {
    row.function: 2 + (row.dims or 0) for row in operators("linear", "convolution", "transposed convolution")
}
"""The number of dimensions that a layer's result must have for batch norm to normalize its features."""


class RoundingInserter:
    """The inserter of rounding that has the effect of ``prepare`` and ``convert``."""

    def __init__(self, program: GraphModule, plan: GraphModule, scheme: QuantizationScheme, fused: set[str]) -> None:
        """Prepare to edit ``program``, which is canonical except for modules that behave differently in training.

        ``plan`` is the result of ``prepare`` for it, with the batch norms named ``fused`` folded into layers.
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
            node for node, operation in operations.items() if operation.takes_integers and precisions[node] == "int8"
        }
        self._layers = [
            node for node, operation in operations.items() if operation.has_weight and precisions[node] != "bfloat16"
        ]

    def insert(self) -> None:
        """Edit the program."""
        observers = list(filter(is_observer, self._plan.graph.nodes))
        rounded = [(str(planned.target), *uses) for planned in observers for uses in self._rounded(planned)]
        modules: dict[str, FakeQuantize] = {}
        for path, value, users in rounded:
            if path not in modules:
                observer: Any = self._plan.get_submodule(path)
                modules[path] = FakeQuantize.of(observer)
            observe(self._program, value, path, modules[path], users)
        for planned in self._layers:
            round_ = self._round_matrices if planned.target is recurrent else self._round_weight
            round_(self._nodes[planned.name], self._scheme.choice(planned))

    # The values to round, and their users that read them rounded. Operations on float values read unrounded values, in
    # the converted program too, unless a value is stored as integers alone.

    def _rounded(self, planned: Node) -> Iterator[tuple[Node, Sequence[Node]]]:
        """Yield the values of the program for an observer of the plan, with the users that read them rounded."""
        source = planned.all_input_nodes[0]
        for value in dict.fromkeys(self._values(source, planned)):
            if source in self._on_integers:
                yield value, list(value.users)
            else:
                yield from self._for_integers(value)

    def _values(self, source: Node, planned: Node) -> Iterator[Node]:
        """Yield the value with the name of ``source``; for a constant folded in the plan, its unfolded computation."""
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
        """Return whether an operation works on integers; for one missing in the plan (dropout), ask its users."""
        planned = self._planned.get(user.name)
        if planned is not None:
            return {planned in self._on_integers}
        return {kind for later in user.users for kind in self._kinds(later)} or {False}

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
        for fetched, replacement in rounded.items():
            node.replace_input_with(fetched, replacement)

    def _replace(self, node: Node, name: str, function: Any, **settings: Any) -> None:
        """Apply ``function`` to one of the arguments of a layer."""
        key = "input" if name == "input" else "weight"
        rounded = self._graph.call_function(function, (), {key: node.kwargs[name], **settings})
        rounded.source = node.source
        node.kwargs = {**node.kwargs, name: rounded}

    def _gain(self, norm: Node) -> Node:
        """Return the gain of each channel in a batch norm, called as a module or as a function."""
        if norm.op == "call_module":
            module: Any = self._program.get_submodule(str(norm.target))
            paths = {name: f"{norm.target}.{name}" for name in _SCALES if getattr(module, name) is not None}
            eps = module.eps
        else:
            tensors = {name: norm.kwargs[name] for name in _SCALES}
            paths = {name: str(used.target) for name, used in tensors.items() if isinstance(used, Node)}
            eps = norm.kwargs["eps"]
        fetched = {name: self._graph.get_attr(path) for name, path in paths.items()}
        return self._graph.call_function(batch_norm_gain, (), {"weight": None, **fetched, "eps": eps})


def _at_same_place(planned: Node, arguments: Any, same: Any) -> Iterator[Node]:
    """Yield the nodes of ``same`` at the places of ``planned`` in ``arguments``: one call in two programs."""
    if arguments is planned:
        if isinstance(same, Node):
            yield same
    elif isinstance(arguments, (tuple, list)) and isinstance(same, (tuple, list)):
        for part, same_part in zip(arguments, same, strict=False):
            yield from _at_same_place(planned, part, same_part)
    elif isinstance(arguments, Mapping) and isinstance(same, Mapping):
        for name, part in arguments.items():
            yield from _at_same_place(planned, part, same.get(name))


def take_out_rounding(program: GraphModule) -> dict[str, FakeQuantize]:
    """Undo the edits of :class:`RoundingInserter`, and return the modules that rounded values, by their paths."""
    modules: dict[str, FakeQuantize] = {}
    for node in reversed(list(program.graph.nodes)):
        arguments = node.kwargs
        if is_observer(node):
            modules[str(node.target)] = fetch_attribute(program, str(node.target))
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
    return modules


def _bypass(node: Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)
