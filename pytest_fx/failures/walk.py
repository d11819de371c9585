"""Both programs in one walk: the actual and the right value of each node of the transformed one, and its blame."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from fx import Node
from fx.naming.printing import describe
from fx.operators.effects import effect_of
from pytest_fx.errors import ComparisonError
from pytest_fx.failures.node_error import Limit, NodeError
from pytest_fx.failures.pairing import NodePairs
from pytest_fx.failures.rounding import RoundingErrors, distance
from pytest_fx.failures.stepwise import StepwiseProgram, repeats, writes_input
from pytest_fx.harness.equality import Leaf, Mismatch, pair_leaves, worst_difference
from pytest_fx.harness.heat_map import HeatMap
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.laws.law import in_brief

Read = dict[Node, tuple[Any, tuple[Node, ...]]]
"""From a value that nodes of a program have read to its contents then, and the nodes that had written to it."""


class Walk:
    """A walk over both programs that compares each value of the transformed one with the right value."""

    def __init__(
        self,
        original: StepwiseProgram,
        transformed: StepwiseProgram,
        match: NodePairs,
        limit: Limit,
        rounding: RoundingErrors | None,
    ) -> None:
        """Take the programs, the match of their nodes, the error allowed, and eager's own errors if known."""
        self.original, self.transformed = original, transformed
        self.match, self.limit, self.rounding = match, limit, rounding
        self.ahead = iter(original.graph.nodes)
        self.waiting = Counter(each for node in transformed.graph.nodes for each in match.compared(node))
        """For a node of the original: the number of nodes of the transformed program still to be compared with it."""
        self.kept: dict[Node, tuple[Any, Any]] = {}
        """Values of the original that are still needed: as computed, and with the writes since."""
        self.read: dict[Node, Read] = {}
        """For groups of nodes of an original that writes in place: their inputs as read, and the writers of these."""
        self.right: dict[Node, Any] = {}
        """The value that each node of the transformed program should have, as long as it is needed."""
        self.is_right: set[Node] = set()
        """Nodes of the transformed program whose value equals that of a match."""
        self.off: set[Node] = set()
        """Nodes of the transformed program whose value is wrong."""
        self.readers: dict[Node, list[Node]] = {}
        """From nodes of the transformed program that write in place to those that read the memory afterwards."""
        self.making_up: dict[Node, NodeError] = {}
        """Nodes that are nearer to their value on wrong inputs than on right ones, with their error there.

        A pass has changed them together with their inputs: a layer takes fewer channels, or the gain of a norm.
        """
        self.entries: list[tuple[Node, NodeError]] = []
        """The compared nodes and their errors; a missing write is entered under the node that reads without it."""

    def errors(self) -> tuple[NodeError, ...]:
        """Run both programs to the end, and return the errors of all compared nodes."""
        has_raised = False
        for node in self.transformed.graph.nodes:
            if node.op == "output":
                break
            writers = self._writers(node)
            try:
                value = self.transformed.step(node)
            except Exception as error:
                why = f"it raises {in_brief(error)}"
                self.entries.append((node, _blamed(node, self.match.partners.get(node, node), why, node.origins)))
                has_raised = True
                break
            self._judge(node, value, writers)
            self.transformed.forget(node)
            for dead in self.transformed.user_to_last_uses.get(node, ()):
                del self.right[dead]
        harmful, made_up_for = self._harmful(has_raised), self._made_up_for()
        errors: list[NodeError] = []
        for node, error in self.entries:
            if node in harmful and node not in made_up_for and made_up_for.intersection(node.all_input_nodes):
                error = self.making_up.get(node, error)
            errors.append(replace(error, excused=True) if node not in harmful or node in made_up_for else error)
        return tuple(errors)

    def _writers(self, node: Node) -> dict[Node, tuple[Node, ...]]:
        """Return the nodes that have written to each input of ``node``, which is about to read them."""
        writers = {used: self.transformed.writers_of(used) for used in node.all_input_nodes}
        for writer in {each for some in writers.values() for each in some}:
            self.readers.setdefault(writer, []).append(node)
        return writers

    def _judge(self, node: Node, value: Any, writers: dict[Node, tuple[Node, ...]]) -> None:
        """Compare the value of ``node`` with those that it may have, and record the right one."""
        partner = self.match.partners.get(node)
        expected_values = {each: self._awaited(each) for each in self.match.compared(node)}
        again = self._again(node, partner)
        # In bfloat16 many values are equal by chance: a value without a partner is taken to match none of them.
        can_be = expected_values if partner is not None or not self._is_coarse(value) else {}
        same = next((each for each in can_be if self._is_same(each, expected_values[each][0], value)), None)
        inputs = {*node.all_input_nodes, *(writer for some in writers.values() for writer in some)}
        if same is not None:
            self.is_right.add(node)
        # A node without a partner may compute something new. It is wrong only if its inputs are.
        elif partner is not None or self.off.intersection(inputs):
            self.off.add(node)
        if partner is None:
            self.right[node] = expected_values[same][1] if same is not None else value if again is None else again[0]
        else:
            expected, self.right[node] = expected_values[partner]
            error = self._compare(node, partner, expected, value, again)
            if same is None and self.off.intersection(node.all_input_nodes) and repeats(node):
                own = self._again(node, partner, own_attributes=True)
                # A node that raises on right inputs was made for others.
                on_right_inputs = float("inf") if own is None else distance(expected, own[0])
                if distance(expected, value) < on_right_inputs / 2:
                    self.making_up[node] = self._compare(node, partner, expected, value, (value,))
            if same is not None or self.off.intersection(inputs) or not self._blames_a_write(node, partner, writers):
                self.entries.append((node, error))
        if partner is not None and partner not in self.waiting:
            self.read.pop(partner, None)

    def _again(self, node: Node, partner: Node | None, *, own_attributes: bool = False) -> tuple[Any] | None:
        """Return the value of ``node`` on the right inputs, or None if running it twice would have effects.

        With ``own_attributes`` the weights among its inputs are those of the transformed program.
        """
        if node.op in ("placeholder", "get_attr") or not repeats(node):
            return None
        read = {} if partner is None else self.read.get(partner, {})
        inputs: dict[Node, Any] = {}
        for used in node.all_input_nodes:
            then = self._read_as(used, read)
            inputs[used] = self.right[used] if then is None else then[0]
            if own_attributes and used.op == "get_attr":
                inputs[used] = self.transformed.env[used]
        try:
            return (self.transformed.run_on(node, inputs),)
        except Exception:  # it is made for the values of the nodes before it, which are blamed themselves
            return None

    def _read_as(self, used: Node, read: Read) -> tuple[Any, tuple[Node, ...]] | None:
        """Return the value that the original read where the transformed program reads ``used``, and its writers."""
        sure = self.match.partners.get(used)
        candidates = self.match.compared(used) if used in self.is_right else (sure,)
        return next((read[each] for each in candidates if each is not None and each in read), None)

    def _awaited(self, partner: Node) -> tuple[Any, Any]:
        """Run the original up to ``partner`` and return its value, as computed and with the writes since."""
        while partner not in self.kept:
            node = next(self.ahead)
            read = self._note_inputs(node)
            value = self.original.step(node)
            if self.rounding is not None:
                self.rounding.step(node, value, read)
            self.original.forget(node)
            if node in self.waiting:
                written = self.original.writes
                self.kept[node] = (map_tensors(torch.clone, value) if written else value, value)
        self.waiting[partner] -= 1
        if self.waiting[partner]:
            return self.kept[partner]
        del self.waiting[partner]
        return self.kept.pop(partner)

    def _note_inputs(self, node: Node) -> dict[Node, Any]:
        """Return the inputs of a node of the original that runs next; keep copies if they may be written to later."""
        group = self.match.groups.get(node)
        if not self.original.writes or group is None:
            return {used: self.original.env[used] for used in node.all_input_nodes}
        read = self.read.setdefault(group, {})
        for used in node.all_input_nodes:
            if used not in read:
                value = map_tensors(torch.clone, self.original.env[used])
                read[used] = (value, self.original.writers_of(used))
        return {used: read[used][0] for used in node.all_input_nodes}

    def _is_same(self, partner: Node, expected: Any, value: Any) -> bool:
        """Return whether a value equals that of ``partner`` up to rounding errors of all nodes before it."""
        pairs = _pairs(expected, value, self._has_one_dtype)
        if isinstance(pairs, Mismatch):
            return False
        own = 0.0 if self.rounding is None else self.rounding.accumulated.get(partner, 0.0)
        return not any(bool((leaf.errors > self.limit(leaf, own)).any()) for leaf in pairs)

    def _is_coarse(self, value: Any) -> bool:
        """Return whether a value has fewer digits than the program's dtype, so that it may equal others by chance."""
        tensors = (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())
        return any(torch.finfo(each.dtype).eps > torch.finfo(self.transformed.dtype).eps for each in tensors)

    @property
    def _has_one_dtype(self) -> bool:
        return self.transformed.dtype == self.original.dtype

    def _compare(self, node: Node, partner: Node, expected: Any, value: Any, again: tuple[Any] | None) -> NodeError:
        eager = None if self.rounding is None else self.rounding.made.get(partner)
        inherited, own = 0.0, value
        if again is not None:
            inherited, own = distance(again[0], value), again[0]
        elif self.off.intersection(node.all_input_nodes):
            inherited, own = distance(expected, value), expected
        text, origins = describe(node), frozenset(node.origins or (partner.name,))
        pairs = _pairs(expected, own, self._has_one_dtype, f"{partner.name}{{}}".format)
        if isinstance(pairs, Mismatch):
            # The text of a mismatch names eager and the program; these values are of two programs.
            why = pairs.text.replace("eager", "the original", 1)
            why = why.replace("in the program", "here").replace("the program returns", "here it is")
            return NodeError(text, partner.name, origins, node.source, inherited, 0.0, eager, 0.0, mismatch=why)
        added, scale, worst, ulps, heat_map = 0.0, 0.0, None, None, None
        for leaf in pairs:
            errors, limits = leaf.errors, self.limit(leaf, eager or 0.0)
            scale = max(scale, leaf.scale)
            largest = worst_difference(leaf, errors > 0, errors, errors.new_zeros(()).expand_as(errors))
            if largest is not None and largest.error > added and leaf.is_float:
                added, ulps = largest.error, largest.ulps
            if worst is None and (worst := worst_difference(leaf, errors > limits, errors, limits)) is not None:
                heat_map = HeatMap.of(errors, errors > limits) if leaf.is_float else None
        return NodeError(
            text, partner.name, origins, node.source, inherited, added, eager, scale, difference=worst,
            heat_map=heat_map, ulps=ulps, in_float64=self.rounding is not None and self._has_one_dtype,
        )  # fmt: skip

    # Writes in place.

    def _blames_a_write(self, node: Node, partner: Node, writers: dict[Node, tuple[Node, ...]]) -> bool:
        """Blame a write in place for ``node``, whose value is wrong though its inputs were right when computed.

        It is a write to these inputs, before they are read, that only one of the programs makes.
        """
        for used in node.all_input_nodes:
            then = self._read_as(used, self.read.get(partner, {}))
            done, due = writers[used], () if then is None else then[1]
            for each in due:
                if not any(self.match.does_work_of(writer, each) for writer in done):
                    self._blame_missing(node, each)
                    return True
            for writer in done:
                if not any(self.match.does_work_of(writer, each) for each in due):
                    why = f"it writes to what is read by {describe(node)}; in the original, nothing does so before that"
                    self._blame_write(writer, why)
                    return True
        return False

    def _blame_missing(self, reader: Node, write: Node) -> None:
        """Blame the lack of ``write``, a node of the original, before ``reader`` reads."""
        nodes = (node for node in self.transformed.graph.nodes if writes_input(node))
        later = next((node for node in nodes if self.match.does_work_of(node, write)), None)
        if later is not None:
            why = f"it comes after {describe(reader)} has read what it writes to; in the original, before"
            self.entries.append((reader, _blamed(later, write, why)))
        else:
            why = f"the transformed program does not write this, so that {describe(reader)} reads what was there before"
            self.entries.append((reader, _blamed(write, write, why)))

    def _blame_write(self, writer: Node, why: str) -> None:
        partner = self.match.partners.get(writer, writer)
        self.entries = [(node, error) for node, error in self.entries if node is not writer]
        self.off.add(writer)
        self.is_right.discard(writer)
        self.entries.append((writer, _blamed(writer, partner, why)))

    def _harmful(self, has_raised: bool) -> set[Node]:
        """Return the nodes whose value is wrong and reaches the outputs through values that are wrong, too."""
        harmful: set[Node] = set()
        for node in reversed(self.transformed.graph.nodes):
            if node in self.is_right or node.op == "output":
                continue
            users = [*node.users, *self.readers.get(node, ())]
            effect = None if users else effect_of(node)
            if (
                has_raised
                or any(user.op == "output" or user in harmful for user in users)
                or (effect is not None and effect.kind != "random")
            ):
                harmful.add(node)
        return harmful

    def _made_up_for(self) -> set[Node]:
        """Return the nodes that differ on purpose: all values computed from them are right, or made for this value."""
        wrong = {node for node, error in self.entries if error.wrong}
        made_up_for: set[Node] = set()
        for node in reversed(self.transformed.graph.nodes):
            readers = [*node.users, *self.readers.get(node, ())]
            if readers and all(
                reader in self.is_right or reader in self.making_up or (reader in made_up_for and reader not in wrong)
                for reader in readers
            ):
                made_up_for.add(node)
        return made_up_for


def _blamed(node: Node, original: Node, why: str, origins: tuple[str, ...] = ()) -> NodeError:
    """Return the error of a node that has no value to compare."""
    names = frozenset(origins or (original.name,))
    return NodeError(describe(node), original.name, names, node.source, 0.0, 0.0, None, 0.0, mismatch=why)


def _pairs(expected: Any, actual: Any, same_dtype: bool, place: Any = str) -> list[Leaf] | Mismatch:
    """Return two values in pairs of leaves, named by ``place``; kinds that cannot be compared count as equal."""
    try:
        return pair_leaves(expected, actual, same_dtype, place)
    except ComparisonError:
        return []
