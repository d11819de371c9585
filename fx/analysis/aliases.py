"""Which values of a program may share memory: views, in-place results, containers, inputs, the module's state.

Every rule errs on one side: two values that share memory are in one group, while two values of one group may share
none. What is assumed:

* Inputs may share memory with one another, but not with the module's parameters and buffers, nor with constants.
* An input without annotation whose elements the program never takes, and which goes into arithmetic, is a tensor or a
  number, not a list.
* A function without a schema, and a module that is not one of torch's, may keep what it is given and return it from any
  other such call. It reaches no other state unless it is a method, a closure or a callable object, which may hold any.
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
    """The groups of values of one graph that may share memory, worked out once, in linear time.

    Values are numbered in the order of the graph; ``group_of`` numbers groups. The state that modules hold is in groups
    as well, though it is nobody's value.

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
        """Where each of them stands."""
        self.effects: list[Effect | None] = []
        """The effect of each node."""
        self.kinds: list[Kind] = []
        """What each value is."""
        self.inputs: list[tuple[int, ...]] = []
        """Of each node, the positions of the nodes in its arguments."""
        self.shared: list[tuple[int, ...]] = []
        """Of each node, the positions of the nodes that its value may share memory with directly."""
        self.kept: set[int] = set()
        """Positions of values that something outside may have kept, or that were put into a container."""
        count = len(self.nodes)
        self._parent: list[int] = list(range(count + 2))
        self._outside, self._given = count, count + 1  # what unknown functions keep, and the inputs
        # By no method: it would be freed by the garbage collector alone, and with it the tensors that were looked at.
        self._storages = Storages(graph.owning_module, functools.partial(_add_cell, self._parent))
        self._called: dict[str, tuple[Effect | None, Sharing | None]] = {}
        try:
            for index, node in enumerate(self.nodes):
                self._visit(index, node)
                self.position[node] = index
        except KeyError:  # an argument that does not stand before its user
            graph.lint()
            raise
        for first, second in self._storages.overlapping():
            self._join((first,), second)
        self.roots: list[int] = [self._find(index) for index in range(len(self._parent))]
        """The group of each value; behind them, those of state."""

    # Asking.

    def may_share(self, first: Node, second: Node) -> bool:
        """Return whether the values of two nodes may share memory."""
        group = self.group_of(first)
        return group is not None and group == self.group_of(second)

    def group_of(self, node: Node) -> int | None:
        """The group of a node's value, or ``None`` if it holds no memory, as numbers and sizes."""
        index = self.position[node]
        return None if self.kinds[index] == "number" else self.roots[index]

    @property
    def outside(self) -> int:
        """The group of all that unknown functions may have kept."""
        return self.roots[self._outside]

    @property
    def given(self) -> int:
        """The group of the program's inputs."""
        return self.roots[self._given]

    @functools.cached_property
    def state(self) -> dict[int, str]:
        """The groups of the module's state as far as the program uses it, each with the path of one tensor in it."""
        paths = self._storages.paths
        return {self.roots[cell]: path for cell, path in reversed(paths.items())}

    def state_of(self, node: Node) -> frozenset[int]:
        """The groups of the state that a called module holds."""
        if node.op != "call_module":
            return frozenset()
        return frozenset(self.roots[cell] for cell in self._storages.cells_of(str(node.target)))

    def consumed_iterators(self, index: int) -> list[int]:
        """Return the positions of iterators in the arguments of an operation, which it leaves behind empty."""
        return [source for source in self.inputs[index] if self.kinds[source] == "iterator"]

    def writes_state(self, index: int) -> bool:
        """Return whether a called module that writes may write to its own state, not just to its argument."""
        effect, node = self.effects[index], self.nodes[index]
        composite = self._storages.is_composite(str(node.target))
        return composite or (effect is not None and effect.written is None)

    @functools.cached_property
    def setters(self) -> list[int]:
        """The positions of the calls that set attributes, or remove some."""
        return [index for index, node in enumerate(self.nodes) if node.target in (setattr, delattr)]

    @functools.cached_property
    def returned(self) -> list[bool]:
        """Of each value, whether it may be part of what the program returns, or be kept by something outside."""
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

    # Union and find.

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

    # What each operation does.

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
        """Of an input, an attribute or the output."""
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
        """The effect of a called module and what its result may share; ``None`` where that may be its own state too."""
        path = str(node.target)
        if path not in self._called:
            module, _ = self._storages.fetch(path)
            sharing = module_sharing(module) if isinstance(module, torch.nn.Module) else None
            effect = effect_of(node)
            self._called[path] = effect, None if effect is not None and effect.kind == "unknown" else sharing
        return self._called[path]

    def _result(self, node: Node, sharing: Sharing | None, inputs: tuple[int, ...]) -> tuple[Kind, tuple[int, ...]]:
        """Return what the value of a call is, and which of its inputs it may share memory with."""
        if sharing is None:
            sharing = ANY
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
        """The positions of the nodes in the arguments at ``places``."""
        if places is None:
            return list(inputs)
        args, kwargs, found = node.args, node.kwargs, list[int]()
        for place, name in places:
            value = args[place] if place < len(args) else kwargs.get(name)
            if value is not None:
                found += [self.position[used] for used in nodes_in(value)]
            elif place == 0 and args == () and kwargs:
                # Operators of torch.ops have the schema's name for it where functions of torch have another:
                # `torch.ops.aten.view.default(self=x, size=[2])` is a view of x, though it has no `input`.
                return list(inputs)
        return found

    def _kind_of_element(self, node: Node, inputs: tuple[int, ...]) -> Kind:
        """Of ``container[key]``."""
        if not (inputs and self.nodes[inputs[0]] is node.args[0]):
            return "any"
        kind = self.kinds[inputs[0]]
        if kind == "tensors":
            return "tensor" if len(node.args) > 1 and isinstance(node.args[1], int) else "tensors"
        return kind

    def _arithmetic(self, node: Node, inputs: tuple[int, ...]) -> tuple[Kind, tuple[int, ...]]:
        """Of ``+`` and the like: new tensors and numbers, unless the operands may be containers, which are joined."""
        kinds = [self.kinds[source] for source in inputs]
        if all(kind == "number" for kind in kinds):
            return "number", ()
        if "tensor" in kinds or _has_number(node) or _is_used_as_tensor(node):
            return "tensor", ()
        return "any", inputs

    def _note_effect(
        self, index: int, node: Node, effect: Effect, kind: Kind, shared: tuple[int, ...]
    ) -> tuple[Kind, tuple[int, ...]]:
        """Let what is written to, kept or stored share memory, and return what the value shares then."""
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
        # After `list.append(y)`, `x.set_(y)` or `setattr(x, "a", y)` a write to the one is seen through the other, also
        # where nobody uses what the call returns: from here on all its arguments are one memory, and they are kept.
        if node.op != "call_module" and self._stores(node, written):
            self._join(inputs, index)
            self.kept.update(inputs)
        # Most writes return what they wrote to (`x.add_(1)`). An embedding and a batch norm write to a table or to
        # statistics, and return something new.
        if kind == "number" or effect is RENORMALIZES or effect is UPDATES_STATISTICS or not written:
            return kind, shared
        return kind, tuple(dict.fromkeys((*shared, *written)))

    def written_inputs(self, index: int) -> tuple[int, ...]:
        """The positions of the inputs that a writing operation writes to, as far as that is known; else all."""
        node, effect, inputs = self.nodes[index], self.effects[index], self.inputs[index]
        place = None if effect is None else effect.written
        if node.op == "call_module" and self._storages.is_composite(str(node.target)):
            return inputs
        if place is not None:
            args, kwargs = node.args, node.kwargs
            given = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else kwargs
        elif node.op == "call_module":
            return ()
        elif effect is UPDATES_STATISTICS:
            given = (node.args[1:5], node.kwargs)  # wherever the running statistics stand, the input is not among them
        else:
            return inputs
        return tuple([self.position[used] for used in nodes_in(given)])

    def _stores(self, node: Node, written: list[int]) -> bool:
        """Return whether a writing call puts its arguments into what it writes to: from then on they share memory."""
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
        """The state that an unknown function or module may hold."""
        if node.op == "call_module":
            return self._storages.cells_of(str(node.target))
        target = node.target
        is_plain = isinstance(target, types.FunctionType) and not target.__closure__
        return () if is_plain or isinstance(target, _NAMED) else self._storages.all_cells()


def _add_cell(parents: list[int]) -> int:
    parents.append(len(parents))
    return len(parents) - 1


def _example(node: Node) -> Any:
    """The value that was recorded for a node, or an ellipsis."""
    return node._meta.get("val", ...) if node._meta else ...


def _has_number(node: Node) -> bool:
    """Return whether an operand is a number with which the other cannot be a list, as ``*`` of an integer takes one."""
    repeats = "mul" in str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
    return any(type(arg) is float or (type(arg) is int and not repeats) for arg in node.args)


def _takes_elements(user: Node) -> bool:
    """Return whether a node uses its input as one uses a container."""
    if user.op == "call_method":
        return user.target not in TENSOR_ONLY_METHODS
    return user.op == "call_function" and user.target in _INDEXES


def _is_used_as_tensor(node: Node) -> bool:
    """Return whether one of its uses would fail if ``node`` were anything but a tensor."""
    for user in node.users:
        if not user.args or user.args[0] is not node:
            continue
        if user.op == "call_method" and user.target in TENSOR_ONLY_METHODS:
            return True
        if user.op == "call_function" and find_sharing(user.target).takes_tensor:
            return True
    return False
