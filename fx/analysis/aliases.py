"""Alias analysis: the values of a program that may share memory.

Views, in-place results, containers, inputs and the module's state are covered. The analysis is conservative: values
that share memory are in one group, but values of one group may be separate. It assumes:

* Inputs may share memory with one another, but not with the module's parameters and buffers, nor with constants.
* An input without annotation is a tensor or a number, not a list, if it is used in arithmetic and never indexed.
* A function without a schema, or a module from outside torch, may keep its arguments and return them from any other
  such call. It reaches no other state unless it is a method, a closure or a callable object, which may hold any state.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from fx.modules.storages import NUMBERS, Storages
from fx.node import nodes_in
from fx.operators.effect_rules import RENORMALIZES, UPDATES_STATISTICS
from fx.operators.effects import Effect, effect_of
from fx.operators.sharing import ANY, TENSOR_ONLY_METHODS, Kind, Sharing, attribute_kind, find_sharing, module_sharing

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Node

_INDEXES = frozenset(
    {operator.getitem, operator.setitem, operator.delitem, len, iter, tuple, list, dict, zip, enumerate}
)
_METHODS = (str, types.MethodDescriptorType, types.WrapperDescriptorType)
_NAMED = (str, type, types.BuiltinFunctionType, types.MethodDescriptorType, OpOverload, OpOverloadPacket)


class Aliases:
    """The groups of values of one graph that may share memory, computed once, in linear time.

    Values are numbered in the order of the graph; ``group_of`` numbers groups. The state of modules is in groups as
    well, although it is the value of no node.

    >>> import torch, fx
    >>> graph = fx.symbolic_trace(lambda x: (x.view(-1), x + 1)).graph
    >>> x, view, add, output = graph.nodes
    >>> aliases = Aliases(graph)
    >>> aliases.may_share(x, view), aliases.may_share(x, add)
    (True, False)
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = list(graph.nodes)
        """The nodes of the graph, in order."""
        self.position: dict[Node, int] = {}
        """The position of each node in the graph."""
        self.effects: list[Effect | None] = []
        """The effect of each node."""
        self.kinds: list[Kind] = []
        """The kind of each value."""
        self.inputs: list[tuple[int, ...]] = []
        """For each node, the positions of the nodes in its arguments."""
        self.shared: list[tuple[int, ...]] = []
        """For each node, the positions of the inputs that its value may share memory with."""
        self.kept: set[int] = set()
        """Positions of values that unknown functions may have kept, or that were put into a container."""
        count = len(self.nodes)
        self._parent: list[int] = list(range(count + 2))
        self._outside, self._given = count, count + 1  # the cells of what unknown functions keep, and of the inputs
        # Not a bound method: with that reference cycle only the garbage collector would free the analyzed tensors.
        self._storages = Storages(graph.owning_module, functools.partial(_add_cell, self._parent))
        self._called: dict[str, tuple[Effect | None, Sharing | None]] = {}
        try:
            for index, node in enumerate(self.nodes):
                self._visit(index, node)
                self.position[node] = index
        except KeyError:  # an argument that is not before its user
            graph.lint()
            raise
        for first, second in self._storages.overlapping():
            self._join((first,), second)
        self.roots: list[int] = [self._find(index) for index in range(len(self._parent))]
        """The group of each value, followed by the groups of state."""

    # Queries.

    def may_share(self, first: Node, second: Node) -> bool:
        """Return whether the values of two nodes may share memory."""
        group = self.group_of(first)
        return group is not None and group == self.group_of(second)

    def group_of(self, node: Node) -> int | None:
        """Return the group of a node's value, or ``None`` for numbers, sizes and other values without memory."""
        index = self.position[node]
        return None if self.kinds[index] == "number" else self.roots[index]

    @property
    def outside(self) -> int:
        """The group of all values that unknown functions may have kept."""
        return self.roots[self._outside]

    @property
    def given(self) -> int:
        """The group of the program's inputs."""
        return self.roots[self._given]

    @functools.cached_property
    def state(self) -> dict[int, str]:
        """The groups of the module state that the program uses, each with the path of one tensor in it."""
        paths = self._storages.paths
        return {self.roots[cell]: path for cell, path in reversed(paths.items())}

    def state_of(self, node: Node) -> frozenset[int]:
        """Return the groups of a called module's state; none for other nodes."""
        if node.op != "call_module":
            return frozenset()
        return frozenset(self.roots[cell] for cell in self._storages.cells_of(str(node.target)))

    def consumed_iterators(self, index: int) -> list[int]:
        """Return the positions of the iterators in an operation's arguments, which the operation exhausts."""
        return [source for source in self.inputs[index] if self.kinds[source] == "iterator"]

    def writes_state(self, index: int) -> bool:
        """Return whether a called module that writes may write to its own state as well as to its argument."""
        effect, node = self.effects[index], self.nodes[index]
        composite = self._storages.is_composite(str(node.target))
        return composite or (effect is not None and effect.written is None)

    @functools.cached_property
    def setters(self) -> list[int]:
        """The positions of the calls that set or delete attributes."""
        return [index for index, node in enumerate(self.nodes) if node.target in (setattr, delattr)]

    @functools.cached_property
    def returned(self) -> list[bool]:
        """For each value, whether it may be part of the program's result, or kept by an unknown function."""
        flows = [False] * len(self.nodes)
        for index in self.kept:
            flows[index] = True
        for index in range(len(self.nodes) - 1, -1, -1):
            if self.nodes[index].op == "output":
                for source in self.inputs[index]:
                    flows[source] = True
            elif flows[index]:
                for source in self.shared[index]:
                    flows[source] = True
        return flows

    # Union-find.

    def _find(self, cell: int) -> int:
        parent = self._parent
        while (above := parent[cell]) != cell:
            parent[cell] = parent[above]
            cell = above
        return cell

    def _join(self, cells: Iterable[int], target: int) -> None:
        parent, root = self._parent, self._find(target)
        for cell in cells:
            parent[self._find(cell)] = root

    # The rules of operations.

    def _visit(self, index: int, node: Node) -> None:
        position = self.position
        inputs = tuple([position[used] for used in node._input_nodes])
        self.inputs.append(inputs)
        op = node.op
        if op == "call_function" or op == "call_method":
            effect, sharing = effect_of(node), find_sharing(node.target)
        elif op == "call_module":
            effect, sharing = self._module_facts(node)
        else:
            self.effects.append(effect_of(node))
            self.shared.append(())
            self.kinds.append(self._kind_of_source(index, node))
            return
        self.effects.append(effect)
        kind, shared = self._result(node, sharing, inputs)
        if effect is not None:
            kind, shared = self._note_effect(index, node, effect, kind, shared)
        self.kinds.append(kind)
        self.shared.append(shared)
        if shared:
            self._join(shared, index)
        if sharing is None:
            self._join(self._storages.cells_of(str(node.target)), index)

    def _kind_of_source(self, index: int, node: Node) -> Kind:
        """Return the kind of an input, an attribute or the output."""
        if node.op == "get_attr":
            value, cells = self._storages.fetch(str(node.target))
            if not cells and isinstance(value, NUMBERS):
                return "number"
            self._join(cells, index)
            return "tensor" if isinstance(value, torch.Tensor) else "any"
        if node.op == "output":
            return "number"
        if node.type in (int, float, bool, str) or isinstance(_example(node), NUMBERS):
            return "number"
        self._join((self._given,), index)
        if node.type is torch.Tensor or isinstance(_example(node), torch.Tensor) or _is_used_as_tensor(node):
            return "tensor"
        return "any" if node.target.startswith("*") or any(map(_takes_elements, node.users)) else "tensor"

    def _module_facts(self, node: Node) -> tuple[Effect | None, Sharing | None]:
        """Return a called module's effect and its sharing, which is ``None`` if the result may share its state."""
        path = str(node.target)
        if path not in self._called:
            module, _ = self._storages.fetch(path)
            sharing = module_sharing(module) if isinstance(module, torch.nn.Module) else None
            effect = effect_of(node)
            self._called[path] = effect, None if effect is not None and effect.kind == "unknown" else sharing
        return self._called[path]

    def _result(self, node: Node, sharing: Sharing | None, inputs: tuple[int, ...]) -> tuple[Kind, tuple[int, ...]]:
        """Return the kind of a call's value, and the positions of the inputs that it may share memory with."""
        if sharing is None:
            sharing = ANY
        # `places` lists the arguments that may be shared: () is none, None is any.
        kind, places = sharing.kind, sharing.places
        if kind == "number" or (kind == "tensor" and not places and places is not None):
            return kind, ()
        if kind == "arithmetic":
            return self._arithmetic(node, inputs)
        if kind == "element":
            kind = self._kind_of_element(node, inputs)
        elif kind == "attribute":
            kind = attribute_kind(node.args[1]) if len(node.args) > 1 else "any"
        if kind == "number":
            return kind, ()
        if kind == "any" and _is_used_as_tensor(node):
            kind = "tensor"
        holding = self._given_at(node, places, inputs)
        return kind, tuple([source for source in holding if self.kinds[source] != "number"])

    def _given_at(self, node: Node, places: tuple[tuple[int, str], ...] | None, inputs: tuple[int, ...]) -> list[int]:
        """Return the positions of the nodes in the arguments at ``places``."""
        if places is None:
            return list(inputs)
        args, kwargs, positions = node.args, node.kwargs, list[int]()
        for place, name in places:
            value = args[place] if place < len(args) else kwargs.get(name)
            if value is not None:
                positions += [self.position[used] for used in nodes_in(value)]
            elif place == 0 and args == () and kwargs:
                # Operators of torch.ops use the schema's name, which functions of torch may not:
                # `torch.ops.aten.view.default(self=x, size=[2])` is a view of x, though it has no `input`.
                return list(inputs)
        return positions

    def _kind_of_element(self, node: Node, inputs: tuple[int, ...]) -> Kind:
        """Return the kind of ``container[key]``."""
        if not (inputs and self.nodes[inputs[0]] is node.args[0]):
            return "any"
        kind = self.kinds[inputs[0]]
        if kind == "tensors":
            return "tensor" if len(node.args) > 1 and isinstance(node.args[1], int) else "tensors"
        return kind

    def _arithmetic(self, node: Node, inputs: tuple[int, ...]) -> tuple[Kind, tuple[int, ...]]:
        """Return the kind of ``+`` and the like, and the shared inputs: none, unless the operands may be containers."""
        kinds = [self.kinds[source] for source in inputs]
        if all(kind == "number" for kind in kinds):
            return "number", ()
        if "tensor" in kinds or _has_number(node) or _is_used_as_tensor(node):
            return "tensor", ()
        return "any", inputs

    def _note_effect(
        self, index: int, node: Node, effect: Effect, kind: Kind, shared: tuple[int, ...]
    ) -> tuple[Kind, tuple[int, ...]]:
        """Join the groups of written, kept or stored values; return the value's kind and its shared inputs."""
        inputs = self.inputs[index]
        if effect.kind in ("unknown", "state"):
            self._join(inputs, self._outside)
            self._join((index,), self._outside)
            self._join(self._reachable(node), self._outside)
            self.kept.update(inputs)
            self.kept.add(index)
            return ("any" if kind == "number" else kind), inputs
        if effect.kind != "write":
            return kind, shared
        written = [source for source in self.written_inputs(index) if self.kinds[source] != "number"]
        # After `list.append(y)`, `x.set_(y)` or `setattr(x, "a", y)` a write to one argument is visible in the other,
        # even if the result of the call is unused. So all arguments join one group, and count as kept.
        if node.op != "call_module" and self._stores(node, written):
            self._join(inputs, index)
            self.kept.update(inputs)
        # Most writes return the written tensor (`x.add_(1)`). An embedding that renormalizes writes to its table, and
        # a batch norm to its statistics; both return a new tensor.
        if kind == "number" or effect is RENORMALIZES or effect is UPDATES_STATISTICS or not written:
            return kind, shared
        return kind, tuple(dict.fromkeys((*shared, *written)))

    def written_inputs(self, index: int) -> tuple[int, ...]:
        """Return the positions of the inputs that a writing operation writes to; all inputs if that is unknown."""
        node, effect, inputs = self.nodes[index], self.effects[index], self.inputs[index]
        place = None if effect is None else effect.written
        if node.op == "call_module" and self._storages.is_composite(str(node.target)):
            return inputs
        if place is not None:
            args, kwargs = node.args, node.kwargs
            targets = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else kwargs
        elif node.op == "call_module":
            return ()
        elif effect is UPDATES_STATISTICS:
            targets = (node.args[1:5], node.kwargs)  # includes the running statistics, but not the input
        else:
            return inputs
        return tuple([self.position[used] for used in nodes_in(targets)])

    def _stores(self, node: Node, written: list[int]) -> bool:
        """Return whether a writing call stores its arguments in the written object, so that they share memory."""
        target: Any = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name.startswith("set_") or target is setattr:
            return True
        if name.endswith("_") and not name.endswith("__"):
            return False
        home = getattr(target, "__module__", None)
        is_container_write = isinstance(target, _METHODS) or home in ("_operator", "builtins")
        return is_container_write and not (written and self.kinds[written[0]] == "tensor")

    def _reachable(self, node: Node) -> Iterable[int]:
        """Return the cells of the state that an unknown function or module may hold."""
        if node.op == "call_module":
            return self._storages.cells_of(str(node.target))
        target = node.target
        is_plain = isinstance(target, types.FunctionType) and not target.__closure__
        return () if is_plain or isinstance(target, _NAMED) else self._storages.all_cells()


def _add_cell(parents: list[int]) -> int:
    parents.append(len(parents))
    return len(parents) - 1


def _example(node: Node) -> Any:
    """Return the example value recorded for a node, or an ellipsis if there is none."""
    return node._meta.get("val", ...) if node._meta else ...


def _has_number(node: Node) -> bool:
    """Return whether a number rules out that the other operand is a list; ``*`` takes a list and an integer."""
    repeats = "mul" in str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
    return any(type(arg) is float or (type(arg) is int and not repeats) for arg in node.args)


def _takes_elements(user: Node) -> bool:
    """Return whether a node uses its input as a container."""
    if user.op == "call_method":
        return user.target not in TENSOR_ONLY_METHODS
    return user.op == "call_function" and user.target in _INDEXES


def _is_used_as_tensor(node: Node) -> bool:
    """Return whether one of the uses of ``node`` would fail if it were not a tensor."""
    for user in node.users:
        if not user.args or user.args[0] is not node:
            continue
        if user.op == "call_method" and user.target in TENSOR_ONLY_METHODS:
            return True
        if user.op == "call_function" and find_sharing(user.target).takes_tensor:
            return True
    return False
