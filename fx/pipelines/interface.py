"""The interface of a program to its callers: its inputs, the structure of its result, and the memory it writes to."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fx.analysis.aliases import Aliases
from fx.analysis.verify import Violation
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.container_kinds import held_kind, map_parts
from fx.errors import with_article
from fx.graph import Graph
from fx.naming.printing import describe
from fx.node import Node, reached
from fx.operators.families import find_operator

_STATE = "its own state"
_WRITING = frozenset({"write", "unknown", "state"})


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of a program at one point in time."""

    output: Node | None
    """Its output node."""
    inputs: dict[str, Any]
    """The default of each input, by name with stars; an ellipsis for an input without one."""
    convention: tuple[Any, ...]
    """The calling convention: the class of the code generator, and the pytrees that it flattens."""
    result: Any
    """The structure of the result: containers, with a ``_Computed`` for each computed value."""
    writes: dict[str, str]
    """The inputs and state that it definitely writes to, each with the operation that writes."""
    may_write: frozenset[str]
    """The inputs and state that it may write to, by a conservative analysis."""

    @classmethod
    def of(cls, graph: Graph) -> Interface:
        """Return the interface of the program ``graph``."""
        last = graph._root._prev
        output = last if last._op == "output" else None
        codegen = graph._codegen
        flattened = codegen.pytree_info if isinstance(codegen, PyTreeCodeGen) else None
        aliases = Aliases(graph)
        writers = [i for i, effect in enumerate(aliases.effects) if effect is not None and effect.kind in _WRITING]
        return cls(
            output,
            {str(n.target): n.args[0] if n.args else ... for n in aliases.nodes if n.op == "placeholder"},
            (type(codegen), flattened),
            _structure(output.args[0], aliases) if output is not None and output.args else None,
            dict(_sure_writes(writers, aliases)),
            _possible_writes(writers, aliases) if writers else frozenset(),
        )


def signature_is_kept(before: Interface, after: Interface) -> Violation | None:
    """Check that callers pass the same inputs: names, order, defaults, and calling convention."""
    if list(before.inputs) != list(after.inputs):
        difference = " instead of ".join(f"({', '.join(interface.inputs)})" for interface in (after, before))
        return Violation(
            f"the program's inputs are {difference}",
            remedy="keep every placeholder, also one that nothing uses any more",
        )
    for name, default in before.inputs.items():
        if not _is_same(default, after.inputs[name]):
            difference = " instead of ".join("none" if i is ... else repr(i) for i in (after.inputs[name], default))
            return Violation(f"the default of input {name!r} is {difference}")
    if not _is_same(before.convention, after.convention):
        return Violation(
            "the program's calling convention differs",
            why="its code generator has another class, or flattens inputs differently",
            remedy="carry it over: new_graph.set_codegen(graph._codegen)",
        )
    return None


def result_is_kept(before: Interface, after: Interface) -> Violation | None:
    """Check that callers get a result of the same structure, as far as the output node determines it."""
    if before.result is not None and after.output is None:
        return Violation("the graph has no output any more", remedy="end it with graph.output(value)")
    difference = _difference(before.result, after.result, "the result")
    return None if difference is None else Violation(difference, after.output)


def writes_are_kept(before: Interface, after: Interface) -> Violation | None:
    """Check that every externally visible write is still made, and that no new one is."""
    for written, writer in before.writes.items():
        if written not in after.may_write:
            return Violation(
                f"the program no longer writes to {written}",
                why=f"{writer} did, and callers may read it afterwards",
                remedy="keep operations with effects: fx.operators.effects.why_impure(node) says which these are",
            )
    for written, writer in after.writes.items():
        if written not in before.may_write:
            return Violation(
                f"the program now writes to {written}",
                why=f"{writer} does, and callers do not expect it",
                remedy="use an operation that is not in place, or write to a copy",
            )
    return None


@dataclass(frozen=True, slots=True)
class _Computed:
    """A value that the program computes."""

    is_tensor: bool
    """True if it is known to be one tensor, not a container."""


def _structure(value: Any, aliases: Aliases) -> Any:
    if isinstance(value, Node):
        is_given = value.op in ("placeholder", "get_attr")  # may be a container of tensors
        return _Computed(aliases.kinds[aliases.position[value]] == "tensor" and not is_given)
    return map_parts(lambda part: _structure(part, aliases), value)


def _difference(before: Any, after: Any, what: str) -> str | None:
    """Describe how two structures differ, or return None if they may be the same.

    Two computed values count as equal, and one that may be no tensor matches any structure.
    """
    computed = [isinstance(value, _Computed) for value in (before, after)]
    # A computed value that is not known to be a tensor may turn out to be a number or a tuple.
    if all(computed) or any(isinstance(value, _Computed) and not value.is_tensor for value in (before, after)):
        return None
    kinds = ["tensor" if isinstance(value, _Computed) else type(value).__name__ for value in (after, before)]
    if kinds[0] != kinds[1]:
        return f"{what} is {' instead of '.join(with_article(kind) for kind in kinds)}"
    kind = held_kind(before)
    if kind is None:
        return None if _is_same(before, after) else f"{what} is {after!r} instead of {before!r}"
    parts, labels = ([list(of(value)) for value in (before, after)] for of in (kind.parts, kind.labels))
    if kind.is_keyed and labels[0] != labels[1]:
        return f"the keys of {what} are {labels[1]} instead of {labels[0]}"
    if len(parts[0]) != len(parts[1]):
        return f"{what} has {len(parts[1])} elements instead of {len(parts[0])}"
    pairs = zip(labels[0], parts[0], parts[1], strict=True)
    differences = (_difference(old, new, f"element {label!r} of {what}") for label, old, new in pairs)
    return next((difference for difference in differences if difference is not None), None)


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two constants are the same; NaN equals NaN, and copies of a tensor are the same."""
    return before is after or (type(before) is type(after) and repr(before) == repr(after))


def _sure_writes(writers: list[int], aliases: Aliases) -> Iterator[tuple[str, str]]:
    for index in writers:
        node, effect = aliases.nodes[index], aliases.effects[index]
        if effect is None or effect.kind != "write":
            continue
        if effect.written is None:
            if node.op == "call_module" and not aliases.written_inputs(index):
                yield _STATE, _name_operation(node)
            continue
        arguments: Any = node.args if isinstance(effect.written, int) else node.kwargs
        try:
            written = arguments[effect.written]
        # The argument is a default, or passed by name instead of by position or the reverse: no definite write.
        except (IndexError, KeyError):
            continue
        owner = _memory_of(written, aliases)
        if owner is not None and aliases.kinds[aliases.position[owner]] != "number":
            yield _label(owner), _name_operation(node)


def _name_operation(node: Node) -> str:
    line = "" if node.source is None else f" ({node.source.place})"
    return f"`{describe(node)}`{line}"


def _memory_of(value: Any, aliases: Aliases) -> Node | None:
    """Return the input or attribute that ``value`` definitely shares memory with, or None."""
    while isinstance(value, Node):
        if value.op in ("placeholder", "get_attr"):
            return value
        row = find_operator(value.target)
        effect = aliases.effects[aliases.position[value]]
        in_place = effect is not None and effect.kind == "write" and effect.written == 0
        if value.op == "call_module" or not (in_place or (row is not None and row.is_view) or _is_element(value)):
            return None
        value = value.args[0] if value.args else None
    return None


def _is_element(node: Node) -> bool:
    """Return whether ``node`` is ``x[…]`` with numbers and slices, which returns a view."""
    if node.target is not operator.getitem:
        return False
    parts: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    return all(isinstance(part, (int, str, slice)) or part in (None, ...) for part in parts)


def _possible_writes(writers: list[int], aliases: Aliases) -> frozenset[str]:
    """Return the labels of all inputs and state that ``writers`` may write to."""
    pending: list[int] = list(aliases.kept)
    labels: set[str] = set()
    for index in writers:
        node, effect = aliases.nodes[index], aliases.effects[index]
        is_write = effect is not None and effect.kind == "write"
        pending += aliases.written_inputs(index) if is_write else aliases.inputs[index]
        if not is_write or (node.op == "call_module" and aliases.writes_state(index)):
            labels.add(_STATE)
    sources = (aliases.nodes[index] for index in reached(pending, aliases.shared.__getitem__))
    return frozenset(labels.union(_label(node) for node in sources if node.op in ("placeholder", "get_attr")))


def _label(node: Node) -> str:
    return _STATE if node.op == "get_attr" else f"input {str(node.target).lstrip('*')!r}"
